"""Queues, topics and subscriptions as the administration client describes them.

A description is what a client set, kept as it said it beside the engine's own settings, so that what has no effect here
(`MaxSizeInMegabytes`) comes back unchanged; where there is none, because a file or an app declared the entity, it is
made from the settings.  What would silently behave otherwise is refused: forwarding, deleting when idle, no sends.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from outbox.emulator.bus import atom
from outbox.emulator.bus.entities_file import DURATION_FOREVER_S, Section, queue_settings
from outbox.emulator.xml import Element
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, dead_letter_path, subscription_path
from outbox.engine.log.records import DocRef, DocWrite, Modify
from outbox.engine.state.tasks import SCHEDULED
from outbox.errors import NotRegistrable

NAMESPACE = "servicebus/entities"
"""Where descriptions are kept among the engine's documents."""
FOREVER = "P10675199DT2H48M5.4775807S"
ACTIVE, PAUSED = "Active", "ReceiveDisabled"
"""The states of an entity that there are here: one that is paused takes messages and hands out none."""
USER_METADATA_LENGTH_MAX = 1_024

_FLAGS = frozenset(
    ("RequiresDuplicateDetection", "RequiresSession", "DeadLetteringOnMessageExpiration")
)  # fmt: skip
_EFFECTIVE = frozenset(
    (*_FLAGS, "LockDuration", "DefaultMessageTimeToLive", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount")
)
_KEPT = {
    "MaxSizeInMegabytes": "1024",
    "EnableBatchedOperations": "true",
    "EnablePartitioning": "false",
    "EnableExpress": "false",
    "SupportOrdering": "true",
    "FilteringMessagesBeforePublishing": "false",
    "DeadLetteringOnFilterEvaluationExceptions": "true",
    "UserMetadata": None,
    "MaxMessageSizeInKilobytes": None,
}
"""The properties that are kept and read back without effect, with their defaults."""

_SUBSCRIPTION = (
    "LockDuration", "RequiresSession", "DefaultMessageTimeToLive", "DeadLetteringOnMessageExpiration",
    "DeadLetteringOnFilterEvaluationExceptions", "MaxDeliveryCount", "EnableBatchedOperations", "UserMetadata",
)  # fmt: skip
_TOPIC = (
    "DefaultMessageTimeToLive", "MaxSizeInMegabytes", "RequiresDuplicateDetection",
    "DuplicateDetectionHistoryTimeWindow", "EnableBatchedOperations", "FilteringMessagesBeforePublishing",
    "SupportOrdering", "EnablePartitioning", "EnableExpress", "UserMetadata", "MaxMessageSizeInKilobytes",
)  # fmt: skip
_QUEUE = (
    "LockDuration", "MaxSizeInMegabytes", "RequiresDuplicateDetection", "RequiresSession", "DefaultMessageTimeToLive",
    "DeadLetteringOnMessageExpiration", "DuplicateDetectionHistoryTimeWindow", "MaxDeliveryCount",
    "EnableBatchedOperations", "SupportOrdering", "EnablePartitioning", "EnableExpress", "UserMetadata",
    "MaxMessageSizeInKilobytes",
)  # fmt: skip
PROPERTIES = {"QueueDescription": _QUEUE, "TopicDescription": _TOPIC, "SubscriptionDescription": _SUBSCRIPTION}


class Description(msgspec.Struct, kw_only=True):
    """The settings that a client gave an entity, as text by the service's names, and their times."""

    kind: str
    given: dict[str, str]
    created_ms: int = 0
    updated_ms: int = 0


def read(kind: str, element: Element, place: str) -> dict[str, str]:
    """Read the settings of a description.

    Raises:
        NotRegistrable: it asks for what is not supported; the text names the property.
    """
    values = {name: value for name, value in element.values().items() if value}
    for name in ("ForwardTo", "ForwardDeadLetteredMessagesTo"):
        if name in values:
            raise NotRegistrable(f"{place}: {name} is not supported; let a handler forward the messages")
    if values.get("Status", ACTIVE) not in ((ACTIVE,) if kind == "TopicDescription" else (ACTIVE, PAUSED)):
        raise NotRegistrable(f"{place}: Status {values['Status']!r} is not supported; use Active, or ReceiveDisabled")
    idle = Section({"AutoDeleteOnIdle": values.get("AutoDeleteOnIdle", FOREVER)}, place)
    if idle.duration_s("AutoDeleteOnIdle", FOREVER) < DURATION_FOREVER_S:
        raise NotRegistrable(f"{place}: AutoDeleteOnIdle is not supported; leave it out and delete the entity yourself")
    if len(values.get("UserMetadata", "")) > USER_METADATA_LENGTH_MAX:
        raise NotRegistrable(f"{place}: UserMetadata is above {USER_METADATA_LENGTH_MAX} characters; shorten it")
    return {name: values[name] for name in PROPERTIES[kind] if name in values}


def settings_of(path: str, given: dict[str, str], topic: dict[str, str] | None = None) -> QueueSettings:
    """The settings of a queue, or of a subscription with those of its topic.

    Raises:
        NotRegistrable: a value cannot be one; the text names it.
    """
    place = repr(path)
    return queue_settings(place, path, _typed(given, place), None if topic is None else _typed(topic, place))


def _typed(given: dict[str, str], place: str) -> Section:
    typed: dict[str, object] = {}
    for name in _EFFECTIVE & given.keys():
        value = given[name]
        if name in _FLAGS:
            typed[name] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            typed[name] = int(value) if name == "MaxDeliveryCount" and value.isdecimal() and len(value) < 9 else value
    return Section(typed, place)


def known(engine: Engine, path: str, kind: str) -> Description:
    """The description of an entity that is there."""
    document = engine.documents.read(NAMESPACE, path)
    if document is not None:
        found = msgspec.json.decode(document.value, type=Description)
        if found.kind == kind:
            return found
    given: dict[str, str] = {}
    if kind != "TopicDescription":
        settings = engine.topology.queues[path]
        given = {
            "LockDuration": duration(settings.lock_s),
            "RequiresSession": str(settings.ordering == "per_key").lower(),
            "DefaultMessageTimeToLive": duration(settings.time_to_live_s or DURATION_FOREVER_S),
            "DeadLetteringOnMessageExpiration": str(settings.dead_letter_on_expiry).lower(),
            "RequiresDuplicateDetection": str(settings.duplicate_window_s > 0).lower(),
            "DuplicateDetectionHistoryTimeWindow": duration(settings.duplicate_window_s or 600),
            "MaxDeliveryCount": str(settings.max_delivery_count),
        }
    return Description(kind=kind, given={name: given[name] for name in PROPERTIES[kind] if name in given})


def keep(engine: Engine, path: str, description: Description) -> None:
    """Remember a description beside the entity."""
    version = engine.documents.version(NAMESPACE, path)
    engine.documents.modify(Modify(documents=[DocWrite(NAMESPACE, path, msgspec.json.encode(description), version)]))


def forget(engine: Engine, paths: Iterable[str]) -> None:
    """Forget the descriptions of entities that are gone."""
    versions = [(path, engine.documents.version(NAMESPACE, path)) for path in paths]
    gone = [DocRef(NAMESPACE, path, version) for path, version in versions if version]
    if gone:
        engine.documents.modify(Modify(document_deletes=gone))


def duration(value_s: float) -> str:
    """Seconds as the service writes them."""
    if value_s >= DURATION_FOREVER_S:
        return FOREVER
    days, rest = divmod(round(value_s * 1_000), 86_400_000)
    hours, rest = divmod(rest, 3_600_000)
    minutes, millis = divmod(rest, 60_000)
    parts = ((hours, "H"), (minutes, "M"), (millis / 1_000, "S"))
    clock = "".join(f"{value:g}{unit}" for value, unit in parts if value)
    return f"P{f'{days}D' if days else ''}{f'T{clock}' if clock else ''}" if days or clock else "PT0S"


# Writing


def write(engine: Engine, path: str, described: Description) -> str:
    """The description of an entity with what it holds."""
    defaults = {
        "LockDuration": "PT1M", "RequiresDuplicateDetection": "false", "RequiresSession": "false",
        "DefaultMessageTimeToLive": FOREVER, "DeadLetteringOnMessageExpiration": "false",
        "DuplicateDetectionHistoryTimeWindow": "PT10M", "MaxDeliveryCount": "10", **_KEPT,
    }  # fmt: skip
    given = described.given
    inner = atom.leaves((name, given.get(name, defaults[name])) for name in PROPERTIES[described.kind])
    is_topic = described.kind == "TopicDescription"
    subscriptions = engine.topology.topics[path].subscriptions if is_topic else ()
    paths = [subscription_path(path, name) for name in subscriptions] if is_topic else [path]
    count = sum(len(engine.broker.queue(held).tasks) for name in paths for held in (name, dead_letter_path(name)))
    size_bytes = sum(len(task.message.body) for name in paths for task in engine.broker.queue(name).tasks.values())
    return atom.description(
        described.kind,
        inner
        + atom.leaves(
            [
                ("SizeInBytes", size_bytes if described.kind != "SubscriptionDescription" else None),
                ("MessageCount", None if is_topic else count),
                ("IsAnonymousAccessible", None if described.kind == "SubscriptionDescription" else False),
                ("Status", PAUSED if not is_topic and engine.broker.queue(path).is_paused else ACTIVE),
                ("CreatedAt", atom.moment(described.created_ms)),
                ("UpdatedAt", atom.moment(described.updated_ms)),
                ("AccessedAt", atom.moment(described.updated_ms)),
            ]
        )
        + _counts(engine, paths, is_topic=is_topic)
        + atom.leaves(
            [
                ("SubscriptionCount", len(subscriptions) if is_topic else None),
                ("AutoDeleteOnIdle", FOREVER),
                ("EntityAvailabilityStatus", "Available"),
            ]
        ),
    )


def _counts(engine: Engine, paths: list[str], *, is_topic: bool) -> str:
    """Messages by state; a topic itself holds only scheduled ones, here with its subscriptions."""
    tasks = [task for path in paths for task in engine.broker.queue(path).tasks.values()]
    scheduled = sum(task.status == SCHEDULED for task in tasks)
    dead = sum(len(engine.broker.queue(dead_letter_path(path)).tasks) for path in paths)
    counts = [
        ("d:ActiveMessageCount", 0 if is_topic else len(tasks) - scheduled),
        ("d:DeadLetterMessageCount", 0 if is_topic else dead),
        ("d:ScheduledMessageCount", scheduled),
        ("d:TransferMessageCount", 0),
        ("d:TransferDeadLetterMessageCount", 0),
    ]
    return f'<CountDetails xmlns:d="{atom.COUNTS}">{atom.leaves(counts)}</CountDetails>'
