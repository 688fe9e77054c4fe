"""host.json and the app settings: what the host goes by, with Azure's defaults."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LOCAL_SETTINGS = "local.settings.json"
_TIME = re.compile(r"(?:(\d+)\.)?(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_SETTING = re.compile(r"%([^%]+)%")


@dataclass(frozen=True, slots=True)
class HostFile:
    """What of host.json matters here."""

    timeout_s: float = 1_800.0
    route_prefix: str = "api"
    call_count_max: int = 16
    session_count_max: int = 8
    renew_s: float = 300.0
    session_idle_s: float = 60.0
    is_completing: bool = True


def read_host_file(folder: Path) -> HostFile:
    """Read host.json.

    Raises:
        ValueError: there is none, or it says what cannot be.
    """
    path = folder / "host.json"
    if not path.exists():
        raise ValueError(f"{folder} has no host.json; it is no Functions app")
    content: dict[str, Any] = json.loads(path.read_text())
    if content.get("version") != "2.0":
        raise ValueError(f'{path}: "version" must be "2.0"')
    extensions = content.get("extensions", {})
    bus, web = extensions.get("serviceBus", {}), extensions.get("http", {})
    usual = HostFile()
    return HostFile(
        timeout_s=seconds(content.get("functionTimeout"), usual.timeout_s),
        route_prefix=web.get("routePrefix", usual.route_prefix),
        call_count_max=bus.get("maxConcurrentCalls", usual.call_count_max),
        session_count_max=bus.get("maxConcurrentSessions", usual.session_count_max),
        renew_s=seconds(bus.get("maxAutoLockRenewalDuration"), usual.renew_s),
        session_idle_s=seconds(bus.get("sessionIdleTimeout"), usual.session_idle_s),
        is_completing=bus.get("autoCompleteMessages", usual.is_completing),
    )


def seconds(text: str | None, otherwise: float) -> float:
    """A time span as .NET writes it: `00:05:00`, `1.00:00:00`.

    Raises:
        ValueError: it is none.
    """
    if text is None:
        return otherwise
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a time span; write it as 00:05:00")
    days, hours, minutes, rest = match.groups()
    return ((int(days or 0) * 24 + int(hours)) * 60 + int(minutes)) * 60 + float(rest or 0)


def load_local_settings(folder: Path) -> None:
    """Put the values of local.settings.json into the environment, where it does not have them."""
    path = folder / LOCAL_SETTINGS
    if path.exists():
        values: dict[str, str] = json.loads(path.read_text()).get("Values", {})
        for name, value in values.items():
            os.environ.setdefault(name, str(value))
    os.environ.setdefault("FUNCTIONS_WORKER_RUNTIME", "python")


def resolved(text: str, environment: Mapping[str, str]) -> str:
    """A binding's text with its `%SETTING%`s in place.

    Raises:
        ValueError: a setting is missing.
    """

    def value(match: re.Match[str]) -> str:
        found = environment.get(match[1])
        if not found:
            raise ValueError(f"app setting {match[1]} is missing; a binding names it")
        return found

    return _SETTING.sub(value, text)
