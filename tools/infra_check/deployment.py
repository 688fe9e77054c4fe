"""Settings, host, alerts, and the files beside the templates: azure.yaml, compose.yaml, .funcignore."""

from __future__ import annotations

import ast
import dataclasses
import fnmatch
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.runtime import shell
from outbox.runtime.commit.sweeper import Swept
from tools.infra_check.agreements import ENTITIES, MODULES, Site, at, differ, read_json
from tools.infra_check.project import MAIN
from tools.infra_check.syntax import Finding, above, line_of, literal, named, text, walk
from tools.infra_check.values import options_of

FUNCTIONS = f"{MODULES}/functions.bicep"
LOCAL = "local.settings.json.example"
OFFICIAL = "local/local.settings.official.json"
PLATFORM = re.compile(
    r"AZURE_CLIENT_ID|APPLICATIONINSIGHTS_CONNECTION_STRING|APPLICATIONINSIGHTS_AUTHENTICATION_STRING|"
    r"AzureWebJobsStorage(?:__(?:blobServiceUri|credential|clientId))?|FUNCTIONS_WORKER_RUNTIME|PYTHON_\w+"
)
NOT_ON_FLEX = ("FUNCTIONS_WORKER_RUNTIME", "FUNCTIONS_EXTENSION_VERSION", "WEBSITE_RUN_FROM_PACKAGE")
IDENTITY = ("credential", "clientId")
"""Behind `NAME__`, what a trigger's connection by identity is told besides its address."""
SECRET = re.compile(r"AccountKey=|SharedAccessKey=|InstrumentationKey=", re.IGNORECASE)
FLEX_PYTHON = ("3.10", "3.11", "3.12", "3.13")
DEPLOYED = ("function_app.py", "function_app", "outbox", "host.json", "requirements.txt")


# Settings


def check_settings(site: Site) -> Iterator[Finding]:
    """App settings of the template and of both local files: known, enough, and without keys where keys are off."""
    bodies = site.bodies(FUNCTIONS, "Microsoft.Web/sites/config")
    settings = at(bodies[0], "properties") if bodies else None
    if not isinstance(settings, Mapping):
        yield Finding(FUNCTIONS, 1, "makes no app settings")
        return
    yield from _check_names(site, FUNCTIONS, settings)
    for name, value in settings.items():
        if isinstance(value, str) and SECRET.search(value):
            yield Finding(FUNCTIONS, 1, f"{name} holds a key")
        if name in (*NOT_ON_FLEX, "OUTBOX_CREATE"):
            yield Finding(FUNCTIONS, 1, f"{name} has no place among the settings of a Flex Consumption app")
    wanted = {f"{trigger.connection}__{part}" for trigger in site.code.triggers for part in IDENTITY}
    for name in sorted(wanted - settings.keys()):
        yield Finding(FUNCTIONS, 1, f"{name} is missing: triggers would ask without an identity")
    yield from differ(FUNCTIONS, ("OUTBOX_DATABASE", settings.get("OUTBOX_DATABASE"), site.app.get("database")))
    for path in (LOCAL, OFFICIAL):
        values = at(read_json(site.project.root / path), "Values") or {}
        yield from _check_names(site, path, values)
        yield from differ(
            path,
            ("OUTBOX_DATABASE", values.get("OUTBOX_DATABASE"), site.app.get("database")),
            ("FUNCTIONS_WORKER_RUNTIME", values.get("FUNCTIONS_WORKER_RUNTIME"), "python"),
        )
    for output in site.project.files[MAIN].of("output"):
        if output.name.startswith("OUTBOX_") and output.name not in settings:
            yield Finding(MAIN, output.line, f"output {output.name} is no setting of the app")


def _check_names(site: Site, path: str, settings: Mapping[str, Any]) -> Iterator[Finding]:
    identity = {f"{base}__{part}" for base in site.code.ways for part in IDENTITY}
    for name in settings:
        if name not in site.code.known_settings | identity and not PLATFORM.fullmatch(name):
            yield Finding(path, 1, f"{name} is a setting that nothing reads")
    for base in site.code.required:
        if not any(way in settings for way in site.code.ways[base]):
            yield Finding(path, 1, f"{' or '.join(site.code.ways[base])} is missing")


def check_spark(site: Site) -> Iterator[Finding]:
    """What the app is told of the pool: known settings, enough of them, and the files that a package has."""
    body, source = site.module("functions")
    for told in options_of(at(body, "params", "sparkSettings")):
        if told == {}:
            continue
        names = set(told) if isinstance(told, Mapping) else set()
        for name in sorted(names - site.code.spark_settings):
            yield Finding(MAIN, 1, f"{name} is a setting that nothing reads")
        wanted = {"OUTBOX_SPARK", *(f"OUTBOX_SPARK_{part}" for part in ("WORKSPACE", "POOL", "FILE", "PY_FILES"))}
        for name in sorted(wanted - names):
            yield Finding(MAIN, 1, f"{name} is missing among the settings of Spark")
        yield from differ(MAIN, ("OUTBOX_SPARK", at(told, "OUTBOX_SPARK"), "synapse"))
    for file in ("submitted.py", site.code.spark_zip):
        if f"/jobs/{file}'" not in source:
            yield Finding(MAIN, 1, f"the settings of Spark do not lead to {file} of the package")


def check_host(site: Site) -> Iterator[Finding]:
    """host.json against the limits of the code, and the runtime that the template asks for."""
    host = read_json(site.project.root / "host.json")
    bus = at(host, "extensions", "serviceBus") or {}
    timeout_s, renew_s = _clock_s(at(host, "functionTimeout")), _clock_s(bus.get("maxAutoLockRenewalDuration"))
    limits = site.code.functions
    if not limits.attempt_s + limits.rest_s < timeout_s < renew_s:
        yield Finding("host.json", 1, f"functionTimeout of {timeout_s:g} s is not between an attempt and the lock")
    yield from differ(
        "host.json",
        ("maxAutoLockRenewalDuration in seconds", renew_s, limits.lock_s),
        ("prefetchCount", bus.get("prefetchCount"), 0),
        ("autoCompleteMessages", bus.get("autoCompleteMessages"), True),
        ("the bundle", at(host, "extensionBundle", "version"), "[4.*, 5.0.0)"),
    )
    for body in site.bodies(FUNCTIONS, "Microsoft.Web/sites"):
        runtime = at(body, "properties", "functionAppConfig", "runtime", "name")
        yield from differ(FUNCTIONS, ("the runtime", runtime, "python"))
    for body in site.bodies(FUNCTIONS, "Microsoft.Web/serverfarms"):
        yield from differ(
            FUNCTIONS,
            ("the plan", at(body, "sku"), {"name": "FC1", "tier": "FlexConsumption"}),
            ("the plan's reserved (Linux)", at(body, "properties", "reserved"), True),
        )
    version = site.project.files[MAIN].find("param", "pythonVersion")
    default = literal(version.value) if version is not None and version.value is not None else None
    if default not in FLEX_PYTHON:
        yield Finding(MAIN, 1, f"pythonVersion {default!r} is none that the platform runs")


def _clock_s(value: object) -> float:
    """`hh:mm:ss` in seconds; 0 where it is not that."""
    match = re.fullmatch(r"(\d\d):(\d\d):(\d\d)", str(value))
    return sum(int(part) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True)) if match else 0.0


def check_alerts(site: Site) -> Iterator[Finding]:
    """The log query against the line that the sweeper writes, and the metrics by their names."""
    path = f"{MODULES}/alerts.bicep"
    source, fields = inspect.getsource(shell), {field.name for field in dataclasses.fields(Swept)}
    queries = {}
    for body in site.bodies(path, "Microsoft.Insights/scheduledQueryRules"):
        criteria = at(body, "properties", "criteria", "allOf") or [{}]
        queries[at(body, "properties", "displayName")] = str(at(criteria[0], "query"))
    query = queries.get("outbox-age", "")
    line = re.search(r'startswith "(\w+)"', query)
    if line is None or f'log.info("{line[1]}", extra=' not in source:
        yield Finding(path, 1, "the query of outbox-age looks for a line that the sweeper does not write")
    field = re.search(r'extract\("(\w+)=', query)
    if field is None or field[1] not in fields or f'"{field[1]}": swept.{field[1]}' not in source:
        yield Finding(path, 1, "the query of outbox-age looks for a field that the sweeper does not write")
    metrics = {
        (at(rule, "metricNamespace"), at(rule, "metricName"))
        for body in site.bodies(path, "Microsoft.Insights/metricAlerts")
        for rule in at(body, "properties", "criteria", "allOf") or []
    }
    yield from differ(path, ("the set of metrics", sorted(metrics), sorted(METRICS)))


METRICS = (
    ("Microsoft.DocumentDB/databaseAccounts", "TotalRequests"),
    ("Microsoft.ServiceBus/namespaces", "DeadletteredMessages"),
    ("Microsoft.ServiceBus/namespaces", "ThrottledRequests"),
)
"""By the names that Azure Monitor gives them; no model has these."""


def check_storage_names(site: Site) -> Iterator[Finding]:
    """A storage account's name takes small letters and digits only, which stands in no model."""
    main = site.project.files[MAIN]
    for declared in main.of("module"):
        if declared.type != "modules/storage.bicep" or declared.value is None:
            continue
        for node in walk(declared.value):
            parts = named(node) if node.type == "object_property" else []
            holders = [one for one in above(node) if one.type == "object_property"]
            is_param = bool(holders) and text(named(holders[0])[0]) == "params"
            if len(parts) == 2 and text(parts[0]) == "name" and is_param:
                plain = [text(part) for part in walk(parts[1]) if part.type == "string_content"]
                if not all(re.fullmatch("[a-z0-9]+", part) for part in plain):
                    yield Finding(MAIN, line_of(node), f"{text(parts[1])} is no name of a storage account")


# Files beside the templates


def check_azure_yaml(site: Site) -> Iterator[Finding]:
    """The service that azd deploys is the one that the template tags."""
    path = "azure.yaml"
    page = _yaml(site.project.root / path)
    services = at(page, "services") or {}
    body, source = site.module("functions")
    quoted = re.search("'azd-service-name': '([^']*)'", source)
    tag = at(body, "params", "tags", "azd-service-name") or (quoted[1] if quoted else None)
    yield from differ(
        path,
        ("infra", at(page, "infra"), {"provider": "bicep", "path": "infra", "module": "main"}),
        ("the services", sorted(services), [tag]),
    )
    for name, service in services.items():
        for key, wanted in (("project", "."), ("language", "python"), ("host", "function")):
            yield from differ(path, (f"{name}.{key}", at(service, key), wanted))


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError):
        return {}


def check_compose(site: Site) -> Iterator[Finding]:
    """Emulators on loopback, with the licence accepted by whoever starts them, and our entities file."""
    path = "compose.yaml"
    services = at(_yaml(site.project.root / path), "services") or {}
    ports: dict[str, str] = {}
    for name, service in services.items():
        if not str(at(service, "image")).startswith("mcr.microsoft.com/"):
            yield Finding(path, 1, f"{name}: the image is not Microsoft's")
        for port in at(service, "ports") or []:
            host, _, rest = str(port).partition(":")
            if host != "127.0.0.1":
                yield Finding(path, 1, f"{name}: port {port} is not on loopback")
            ports[rest.partition(":")[0]] = name
    for name in ("servicebus", "sqlserver"):
        told = at(services, name, "environment") or {}
        for variable in ("ACCEPT_EULA", "MSSQL_SA_PASSWORD"):
            if not str(told.get(variable)).startswith(f"${{{variable}:?"):
                yield Finding(path, 1, f"{name}: {variable} must be given by whoever starts it")
    mounted = [str(volume).split(":") for volume in at(services, "servicebus", "volumes") or []]
    wanted = [f"./{ENTITIES}", "/ServiceBus_Emulator/ConfigFiles/Config.json", "ro"]
    yield from differ(
        path,
        ("the services", sorted(services), ["azurite", "cosmos", "servicebus", "sqlserver"]),
        ("cosmos: PROTOCOL", at(services, "cosmos", "environment", "PROTOCOL"), "http"),
        ("servicebus: the entities file", mounted, [wanted]),
    )
    yield from _check_official(site, ports)


def _check_official(site: Site, ports: Mapping[str, str]) -> Iterator[Finding]:
    values: dict[str, str] = at(read_json(site.project.root / OFFICIAL), "Values") or {}
    for name, service in (("OUTBOX_COSMOS", "cosmos"), ("OUTBOX_BLOBS", "azurite")):
        found = re.search(r"http://(?:localhost|127\.0\.0\.1):(\d+)/", values.get(name, ""))
        if found is None or ports.get(found[1]) != service:
            yield Finding(OFFICIAL, 1, f"{name} does not lead to {service} of compose.yaml")
    bus = ServiceBusNamespace(values.get("OUTBOX_SERVICEBUS", ""))
    host, _, port = bus.host.partition(":")
    if not bus.is_emulator or host != "localhost" or ports.get(port or "5672") != "servicebus":
        yield Finding(OFFICIAL, 1, "OUTBOX_SERVICEBUS does not lead to servicebus of compose.yaml")
    if "OUTBOX_CREATE" in values:
        yield Finding(OFFICIAL, 1, "OUTBOX_CREATE: the official emulator has its queues from its file")


def check_package(site: Site) -> Iterator[Finding]:
    """What is deployed is all that the app needs, and nothing that is secret."""
    path, root = ".funcignore", site.project.root
    lines = [line.strip().rstrip("/") for line in (root / path).read_text().splitlines()]
    ignored = [line for line in lines if line and not line.startswith("#")]
    for name in sorted({*DEPLOYED, *_imported(root)}):
        if any(fnmatch.fnmatch(name, pattern) for pattern in ignored):
            yield Finding(path, 1, f"{name} is left out, and the app needs it")
    for name in ("local.settings.json", ".git", ".venv", "tests", "infra"):
        if name not in ignored:
            yield Finding(path, 1, f"{name} would be deployed")


def _imported(root: Path) -> set[str]:
    """Packages of this folder that the app's own modules import."""
    found = set()
    for file in (root / "function_app").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.split(".")[0])
    return {name for name in found if (root / name).is_dir()}
