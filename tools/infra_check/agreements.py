"""What templates, emulators, host and settings must say alike, and alike with the code.

Each check takes a `Site`, the folder's files worked out, and tells where two of them differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox.emulator.bus.entities_file import parse_entities
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.errors import NotRegistrable
from outbox.ports import SUBSCRIPTIONS
from tools.infra_check.code import Code
from tools.infra_check.project import MAIN, Project, Resource
from tools.infra_check.syntax import Finding, text
from tools.infra_check.values import Members, Unknown, options_of

APP, ROLES, ENTITIES = "infra/app.json", "infra/roles.json", "local/servicebus.json"
MODULES = "infra/modules"
OFFICIAL_NAMESPACE = "sbemulatorns"
OFFICIAL_DELIVERIES_MAX, OFFICIAL_WINDOW_S_MAX, OFFICIAL_ENTITIES_MAX = 10, 300.0, 50
"""Limits of Microsoft's Service Bus emulator, by its Config-schema.json."""
WINDOW_S_MIN, WINDOW_S_MAX = 20.0, 7 * 86_400.0
"""Limits of the service for duplicate detection."""

ROLE_IDS: Mapping[str, str] = {
    "Azure Service Bus Data Owner": "090c5cfd-751d-490a-894a-3ce6f1109419",
    "Azure Service Bus Data Receiver": "4f6d3b9b-027b-4f4c-9142-0e5a2a2247e0",
    "Azure Service Bus Data Sender": "69a216fc-b8fb-44d8-bc22-1f3c2cd27a39",
    "Cosmos DB Built-in Data Contributor": "00000000-0000-0000-0000-000000000002",
    "Monitoring Metrics Publisher": "3913510d-42f4-4e42-8a64-420c390055eb",
    "Storage Blob Data Contributor": "ba92f5b4-2d11-453d-a403-e96b0029c9fe",
    "Storage Blob Data Owner": "b7e6dc6d-f1e8-4753-8033-0f276bb0955b",
}
"""Azure's built-in roles, the same in every subscription."""
MESSAGES_LIE_IN = tuple(
    f"Microsoft.ServiceBus/namespaces/{kind}" for kind in ("queues", "topics", "topics/subscriptions")
)


@dataclass(frozen=True, slots=True)
class Site:
    """A folder, its templates, what its code says, and the JSON that both read."""

    project: Project
    code: Code
    app: Mapping[str, Any]

    @staticmethod
    def of(project: Project, code: Code) -> Site:
        return Site(project, code, read_json(project.root / APP))

    def resources(self, module: str, kind: str, given: Mapping[str, Any] | None = None) -> list[Resource]:
        """The resources of a kind in a module."""
        file = self.project.files.get(module)
        if file is None:
            return []
        return [found for found in self.project.resources(self.project.values(file, given)) if found.type == kind]

    def bodies(self, module: str, kind: str, given: Mapping[str, Any] | None = None) -> list[Members]:
        """The bodies of those that are made here, not those that only are referred to."""
        found = [resource for resource in self.resources(module, kind, given) if not resource.declared.is_existing]
        return [body for resource in found for body in resource.bodies if isinstance(body, Members)]

    def module(self, name: str) -> tuple[Any, str]:
        """What main.bicep gives a module, worked out and as its source; empty where it has no such module."""
        main = self.project.files[MAIN]
        declared = main.find("module", name)
        if declared is None or declared.value is None:
            return {}, ""
        return self.project.values(main).of(declared.value), text(declared.value)


def read_json(path: Path) -> Any:
    """A JSON file; empty where it is none, which is found elsewhere."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def at(value: Any, *way: str) -> Any:
    """A member of members; None where there is none."""
    for name in way:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def differ(path: str, *rows: tuple[str, object, object]) -> Iterator[Finding]:
    """A finding for each row (what, found, wanted) whose two are not alike; of objects, for each member that is not."""
    for what, found, wanted in rows:
        if isinstance(found, Mapping) and isinstance(wanted, Mapping):
            names = sorted(found.keys() | wanted.keys())
            yield from differ(path, *((f"{what}.{name}", found.get(name), wanted.get(name)) for name in names))
        elif found != wanted:
            yield Finding(path, 1, f"{what} is {found!r}, and should be {wanted!r}")


# Queues


def check_entities(site: Site) -> Iterator[Finding]:
    """The emulators' file against the code, and within what the official emulator takes."""
    path = site.project.root / ENTITIES
    try:
        entities = parse_entities(path.read_text(encoding="utf-8"))
    except (OSError, NotRegistrable) as error:
        yield Finding(ENTITIES, 1, str(error))
        return
    queues = {found.name: found for found in entities if isinstance(found, QueueSettings)}
    topics = {found.name for found in entities if isinstance(found, TopicSettings)}
    subscriptions = {path for path in queues if SUBSCRIPTIONS in path}
    yield from differ(
        ENTITIES,
        ("the set of queues", sorted(queues.keys() - subscriptions), sorted(site.code.queues)),
        ("the set of topics", sorted(topics), sorted(site.code.topics)),
        ("the set of subscriptions", sorted(subscriptions), _subscriptions(site)),
    )
    deliveries = min(site.code.delivery_count_max, OFFICIAL_DELIVERIES_MAX)
    for name, queue in queues.items():
        yield from differ(
            ENTITIES,
            (f"{name}: the ordering", queue.ordering, site.code.queues.get(name, "unordered")),
            (f"{name}: the lock in seconds", queue.lock_s, site.code.lock_s),
            (f"{name}: the delivery limit", queue.max_delivery_count, deliveries),
            (f"{name}: dead-lettering on expiry", queue.dead_letter_on_expiry, True),
        )
        if not 0 < queue.duplicate_window_s <= OFFICIAL_WINDOW_S_MAX:
            yield Finding(ENTITIES, 1, f"{name}: the official emulator detects duplicates for 5 minutes at most")
    namespaces = at(read_json(path), "UserConfig", "Namespaces") or [{}]
    yield from differ(ENTITIES, ("the namespace", at(namespaces[0], "Name"), OFFICIAL_NAMESPACE))
    if len(queues.keys() - subscriptions) + len(topics) > OFFICIAL_ENTITIES_MAX:
        yield Finding(ENTITIES, 1, f"the official emulator takes {OFFICIAL_ENTITIES_MAX} queues and topics")


def _subscriptions(site: Site) -> list[str]:
    """The paths of all subscriptions of the code."""
    return sorted(f"{topic}{SUBSCRIPTIONS}{name}" for topic, names in site.code.topics.items() for name in names)


def check_queues(site: Site) -> Iterator[Finding]:
    """The queues, topics and subscriptions that the template makes against those of the code."""
    module = f"{MODULES}/servicebus.bicep"
    queues, topics = _made(site, module, "queues"), _made(site, module, "topics")
    readers = {
        SUBSCRIPTIONS.join(name.split("/")[1:]): told
        for name, told in _made(site, module, "topics/subscriptions").items()
    }
    yield from differ(
        module,
        ("the set of queues", sorted(queues), sorted(site.code.queues)),
        ("the set of topics", sorted(topics), sorted(site.code.topics)),
        ("the set of subscriptions", sorted(readers), _subscriptions(site)),
    )
    for name, told in {**queues, **readers}.items():
        ordering = "per_key" if at(told, "requiresSession") else "unordered"
        yield from differ(
            module,
            (f"{name}: the ordering", ordering, site.code.queues.get(name, "unordered")),
            (f"{name}: maxDeliveryCount", at(told, "maxDeliveryCount"), site.code.delivery_count_max),
            (f"{name}: lockDuration", at(told, "lockDuration"), f"PT{site.code.lock_s / 60:g}M"),
            (f"{name}: dead-lettering", at(told, "deadLetteringOnMessageExpiration"), True),
        )
    for name, told in {**queues, **topics}.items():
        yield from differ(module, (f"{name}: duplicate detection", at(told, "requiresDuplicateDetection"), True))
        window = at(told, "duplicateDetectionHistoryTimeWindow")
        if not isinstance(window, str) or not WINDOW_S_MIN <= _seconds(window) <= WINDOW_S_MAX:
            yield Finding(module, 1, f"{name}: duplicate detection for {window!r}; the service takes 20 s to 7 days")


def _made(site: Site, module: str, kind: str) -> dict[str, Any]:
    """The properties of each entity of a kind that a module makes in a namespace, by name."""
    bodies = site.bodies(module, f"Microsoft.ServiceBus/namespaces/{kind}", {"name": "namespace"})
    return {str(body.get("name")): at(body, "properties") for body in bodies}


def _seconds(duration: str) -> float:
    """An ISO 8601 duration by the entities file's own reader."""
    properties = {"RequiresDuplicateDetection": True, "DuplicateDetectionHistoryTimeWindow": duration}
    file = {"UserConfig": {"Namespaces": [{"Queues": [{"Name": "queue", "Properties": properties}]}]}}
    try:
        found = parse_entities(json.dumps(file))[0]
    except NotRegistrable:
        return 0.0
    assert isinstance(found, QueueSettings)
    return found.duplicate_window_s


def check_triggers(site: Site) -> Iterator[Finding]:
    """The functions' triggers against the queues that are made and the rights that are given."""
    yield from differ(APP, ("reads", sorted(site.app.get("reads", [])), site.code.reads))
    for trigger in site.code.triggers:
        ordered = site.code.queues.get(trigger.queue) == "per_key"
        yield from differ(APP, (f"{trigger.queue}: sessions of the trigger", trigger.has_sessions, ordered))
    for queue in set(site.app.get("sparkReceives", [])) - site.code.queues.keys():
        yield Finding(APP, 1, f"sparkReceives: there is no queue {queue}")


# Documents and blobs


def check_containers(site: Site) -> Iterator[Finding]:
    """The container and its policies against what the adapter expects."""
    yield from differ(
        APP,
        ("container", site.app.get("container"), site.code.container),
        ("blobContainer", site.app.get("blobContainer"), site.code.blob_container),
    )
    module, kind = f"{MODULES}/cosmos.bicep", "Microsoft.DocumentDB/databaseAccounts/sqlDatabases"
    names = [(body.get("name"), at(body, "properties", "resource", "id")) for body in site.bodies(module, kind)]
    apart = {"statesContainer": "states"}
    found = [body for one in site.resources(module, f"{kind}/containers", apart) for body in one.bodies]
    wanted = [site.code.container["id"], "states"]
    yield from differ(
        module,
        ("the database", names, [(site.app.get("database"),) * 2]),
        ("the containers", [at(body, "name") for body in found], wanted),
    )
    for body, id in zip(found, wanted, strict=False):
        resource = {**site.code.container, "id": id}
        yield from differ(module, (f"container {id}", at(body, "properties", "resource"), resource))
    body, _ = site.module("storage")
    if site.code.blob_container not in (at(body, "params", "containers") or []):
        yield Finding(MAIN, 1, f"blob container {site.code.blob_container} is not made")


# Rights


def check_rights(site: Site) -> Iterator[Finding]:
    """Roles by their right ids; those of Service Bus on queues only; to the app what it uses."""
    for name, id in read_json(site.project.root / ROLES).items():
        yield from differ(ROLES, (name, id, ROLE_IDS.get(name)))
    for path, file in site.project.files.items():
        values = site.project.values(file)
        resources = site.project.resources(values)
        kinds = {found.declared.name: found.type for found in resources}
        for resource in resources:
            if resource.type == "Microsoft.Authorization/roleAssignments":
                yield from _check_scope(path, resource, kinds)
    yield from _check_app_rights(site)
    yield from _check_spark_rights(site)


def _check_scope(path: str, resource: Resource, kinds: Mapping[str, str]) -> Iterator[Finding]:
    source = text(resource.declared.value) if resource.declared.value is not None else ""
    line, name = resource.declared.line, resource.declared.name
    scope = source.partition("scope:")[2].split()[0].partition("[")[0] if "scope:" in source else ""
    if not scope:
        yield Finding(path, line, f"{name}: without a scope the right is on the whole resource group")
    elif "Service Bus" in source and kinds.get(scope) not in MESSAGES_LIE_IN:
        yield Finding(path, line, f"{name}: rights on messages are on single queues and topics, not on {scope}")
    elif "'Azure " not in source and "'Storage " not in source and "'Monitoring " not in source:
        yield Finding(path, line, f"{name}: names no role of {ROLES}")


def _check_app_rights(site: Site) -> Iterator[Finding]:
    params = at(site.module("appQueues")[0], "params")
    reads, subscriptions = site.code.reads, _subscriptions(site)
    readers = _paths(at(params, "receivesSubscriptions"))
    yield from differ(
        MAIN,
        ("queues to which the app may send", _names(at(params, "sends")), sorted(site.code.queues)),
        ("queues from which the app may receive", _names(at(params, "receives")), reads),
        ("topics to which the app may send", _names(at(params, "sendsToTopics")), sorted(site.code.topics)),
        ("subscriptions from which the app may receive", readers, subscriptions),
    )
    if any(set(_names(option)) - set(reads) for option in options_of(at(params, "manages"))):
        yield Finding(MAIN, 1, "the app may manage more queues than it reads")
    if any(set(_paths(option)) - set(subscriptions) for option in options_of(at(params, "managesSubscriptions"))):
        yield Finding(MAIN, 1, "the app may manage more subscriptions than it reads")


def _check_spark_rights(site: Site) -> Iterator[Finding]:
    """Jobs feed and sweep, so they send to every queue; they drain some; leases and sweeps are documents."""
    for name in ("sparkQueues", "sparkRoles"):
        _, source = site.module(name)
        if "principalId: sparkPrincipalId" not in source or "if (!empty(sparkPrincipalId))" not in source:
            yield Finding(MAIN, 1, f"{name}: Spark jobs get rights where sparkPrincipalId is given, and only there")
    queues = at(site.module("sparkQueues")[0], "params")
    drained = sorted(site.app.get("sparkReceives", []))
    yield from differ(
        MAIN,
        ("queues to which Spark jobs may send", _names(at(queues, "sends")), sorted(site.code.queues)),
        ("topics to which Spark jobs may send", _names(at(queues, "sendsToTopics")), sorted(site.code.topics)),
        ("queues that Spark jobs drain", _names(at(queues, "receives")), drained),
    )
    yield from _check_lake_rights(site)
    module = f"{MODULES}/spark-roles.bicep"
    if not site.bodies(module, "Microsoft.DocumentDB/databaseAccounts/sqlRoleAssignments"):
        yield Finding(module, 1, "Spark jobs may not write documents, where their leases are and what a sweep finishes")


def _check_lake_rights(site: Site) -> Iterator[Finding]:
    """Jobs write one container of the lake, which is made, and not the one that their own code is in."""
    body, source = site.module("lakeRoles")
    if "principalId: sparkPrincipalId" not in source or "if (synapseEnabled && !empty(sparkPrincipalId))" not in source:
        yield Finding(MAIN, 1, "lakeRoles: Spark jobs get rights on a lake where there is one, and sparkPrincipalId is")
    made, kept = at(site.module("lake")[0], "params", "containers") or [], at(body, "params", "containerName")
    code = at(site.module("synapse")[0], "params", "fileSystem")
    if kept not in made or kept == code:
        yield Finding(MAIN, 1, f"lakeRoles: {kept} is no container of the lake for what Spark jobs keep")


def _names(value: Any) -> list[str]:
    return sorted(map(str, value)) if isinstance(value, list) else []


def _paths(value: Any) -> list[str]:
    """The paths of subscriptions that are named by their topics and names."""
    found = value if isinstance(value, list) else []
    return sorted(f"{at(one, 'topic')}{SUBSCRIPTIONS}{at(one, 'name')}" for one in found)


# Keys


NO_KEYS: tuple[tuple[str, str, tuple[str, ...], object], ...] = (
    ("cosmos", "Microsoft.DocumentDB/databaseAccounts", ("disableLocalAuth",), True),
    ("cosmos", "Microsoft.DocumentDB/databaseAccounts", ("enableMultipleWriteLocations",), False),
    ("cosmos", "Microsoft.DocumentDB/databaseAccounts", ("consistencyPolicy", "defaultConsistencyLevel"), "Session"),
    ("functions", "Microsoft.Web/sites", ("httpsOnly",), True),
    ("functions", "Microsoft.Web/sites/basicPublishingCredentialsPolicies", ("allow",), False),
    ("monitoring", "Microsoft.Insights/components", ("DisableLocalAuth",), True),
    ("monitoring", "Microsoft.OperationalInsights/workspaces", ("features", "disableLocalAuth"), True),
    ("servicebus", "Microsoft.ServiceBus/namespaces", ("disableLocalAuth",), True),
    ("storage", "Microsoft.Storage/storageAccounts", ("allowSharedKeyAccess",), False),
    ("storage", "Microsoft.Storage/storageAccounts", ("allowBlobPublicAccess",), False),
    ("storage", "Microsoft.Storage/storageAccounts", ("supportsHttpsTrafficOnly",), True),
)
"""Nobody signs in with a key, nothing is public, and one region writes: module, type, property, value."""


def check_keys(site: Site) -> Iterator[Finding]:
    """Every switch that turns keys off, and the one region that writes."""
    for module, kind, way, wanted in NO_KEYS:
        path = f"{MODULES}/{module}.bicep"
        bodies = site.bodies(path, kind)
        if not bodies:
            yield Finding(path, 1, f"makes no {kind}")
        for body in bodies:
            found = at(body, "properties", *way)
            if isinstance(found, Unknown) or found != wanted:
                yield Finding(path, 1, f"{kind}: {'.'.join(way)} is {found!r}, and must be {wanted!r}")
