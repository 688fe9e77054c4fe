"""Which files a project gets, and what in them follows from its code.

infra/app.json, local/servicebus.json   from the code, anew with each run; what else stands in app.json is kept
azure.yaml                              once
infra/**                                the clone's, but for the service's name; left alone once they are changed
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outbox.errors import Refused
from outbox.ops.shared.loading import load_app
from tools.infra_check.agreements import OFFICIAL_DELIVERIES_MAX, OFFICIAL_NAMESPACE
from tools.infra_check.code import Code, read_code

APP, ENTITIES, AZURE = "infra/app.json", "local/servicebus.json", "azure.yaml"
PLAIN = ("infra/main.bicep", "infra/main.parameters.json", "infra/roles.json")
SPARK = "spark_jobs/requirements.txt"
OWN_SPARK = "infra/spark-requirements.txt"
WHEEL = "wheels/outbox_azure-"
_AZURE = """\
# yaml-language-server: $schema=https://raw.githubusercontent.com/Azure/azure-dev/main/schemas/v1.0/azure.yaml.json
# For the Azure Developer CLI: `azd up` provisions infra/ and deploys the Functions app of this folder.
name: {azd}
metadata:
  template: outbox-new
infra:
  provider: bicep
  path: infra
  module: main
services:
  {name}:
    project: .
    language: python
    host: function
"""


@dataclass(slots=True)
class Written:
    """Paths that were written, and those that were there with something else and were left."""

    made: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def own_code(folder: Path, app: str) -> tuple[Code, str]:
    """What the code of a project says, and the name of its database.

    Raises:
        Refused: this is no project, or its application cannot be loaded.
    """
    for name in ("host.json", "function_app.py", "requirements.txt"):
        if not (folder / name).is_file():
            raise Refused(f"{folder} has no {name}; name the folder of a Functions app, as `outbox new` writes one")
    sys.path.insert(0, str(folder))
    loaded = load_app(app)
    return read_code(loaded, starts_spark=False), _database(folder) or loaded.name


def _database(folder: Path) -> str:
    """As the project's own settings have it."""
    try:
        values = json.loads((folder / "local.settings.json.example").read_text(encoding="utf-8"))["Values"]
        return str(values["OUTBOX_DATABASE"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def write(root: Path, folder: Path, code: Code, database: str) -> Written:
    """Put everything into a project."""
    written, name = Written(), folder.name
    for path, text in templates(root, name).items():
        _once(folder, path, text, written)
    _once(folder, AZURE, _AZURE.format(name=name, azd=azd_name(name)), written, is_own=True)
    known = _known(folder / APP)
    usual = json.loads((root / APP).read_text(encoding="utf-8"))
    own = {**usual, "database": database, "sparkReceives": [], **known}
    _anew(folder, APP, {**own, "reads": code.reads}, written)
    _anew(folder, ENTITIES, entities(code), written)
    return written


def azd_name(folder: str) -> str:
    """A folder's name as azd takes it for an application: two characters of a-z, 0-9 and - at least."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.lower()).strip("-")
    return name if len(name) > 1 else f"app-{name}".rstrip("-")


def templates(root: Path, name: str) -> dict[str, str]:
    """The clone's templates for a project of this name, by their paths."""
    modules = sorted(path.relative_to(root).as_posix() for path in (root / "infra/modules").glob("*.bicep"))
    pages = {path: (root / path).read_text(encoding="utf-8") for path in (*PLAIN, *modules)}
    changes = {
        "Everything the sample bank needs": f"Everything {name} needs",
        "'azd-service-name': 'bank'": f"'azd-service-name': '{name}'",
        f"'../{SPARK}'": f"'{Path(OWN_SPARK).name}'",
    }
    for old, new in changes.items():
        assert pages[PLAIN[0]].count(old) == 1, old
        pages[PLAIN[0]] = pages[PLAIN[0]].replace(old, new)
    return {**pages, OWN_SPARK: (root / SPARK).read_text(encoding="utf-8")}


def entities(code: Code) -> dict[str, Any]:
    """Queues and topics in the official emulator's form, which the templates read as well."""
    once = {"DuplicateDetectionHistoryTimeWindow": "PT5M", "RequiresDuplicateDetection": True}
    read = {
        "DeadLetteringOnMessageExpiration": True,
        "LockDuration": f"PT{code.lock_s / 60:g}M",
        "MaxDeliveryCount": min(code.delivery_count_max, OFFICIAL_DELIVERIES_MAX),
    }
    queues = [
        {"Name": name, "Properties": {**once, **read, "RequiresSession": ordering == "per_key"}}
        for name, ordering in sorted(code.queues.items())
    ]
    reader = {**read, "RequiresSession": False}
    topics = [
        {
            "Name": topic,
            "Properties": once,
            "Subscriptions": [{"Name": name, "Properties": reader} for name in sorted(names)],
        }
        for topic, names in sorted(code.topics.items())
    ]
    namespaces = [{"Name": OFFICIAL_NAMESPACE, "Queues": queues, "Topics": topics}]
    return {"UserConfig": {"Namespaces": namespaces, "Logging": {"Type": "File"}}}


def _known(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError(f"{path} is no JSON object; mend it or take it away")
    return found


def _once(folder: Path, path: str, text: str, written: Written, *, is_own: bool = False) -> None:
    place = folder / path
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.made.append(path)
    elif not is_own and place.read_text(encoding="utf-8") != text:
        written.kept.append(path)


def _anew(folder: Path, path: str, value: Mapping[str, Any], written: Written) -> None:
    place, text = folder / path, json.dumps(value, indent=2) + "\n"
    if not place.exists() or place.read_text(encoding="utf-8") != text:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
        written.made.append(path)
