"""What the code says that templates and settings have to agree with, taken from the code itself."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import function_app
from function_app.bank import app as bank
from function_app.settings import REQUIRED, WAYS, settings
from outbox.app import App
from outbox.azure.connecting import BLOB_CONTAINER, CONTAINER
from outbox.azure.cosmos_containers import ContainerSpec
from outbox.azure.functions_settings import FunctionsSettings
from outbox.azure.servicebus_entities import DELIVERY_COUNT_MAX, LOCK

_SETTING = re.compile(r"\bOUTBOX_\w+\b")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A Service Bus trigger of the Functions app."""

    queue: str
    connection: str
    has_sessions: bool


@dataclass(frozen=True, slots=True)
class Code:
    """Queues with their ordering, triggers, the container, settings and limits."""

    queues: Mapping[str, str]
    topics: Mapping[str, Any]
    triggers: tuple[Trigger, ...]
    container: Mapping[str, Any]
    blob_container: str
    ways: Mapping[str, tuple[str, ...]]
    required: tuple[str, ...]
    known_settings: frozenset[str]
    functions: FunctionsSettings
    lock_s: float
    delivery_count_max: int


def read_code(app: App = bank) -> Code:
    """Read the sample application and the library's own limits."""
    documented = importlib.import_module("function_app.settings").__doc__
    return Code(
        queues={name: spec.ordering for name, spec in app.queues.items()},
        topics=dict(app.topics),
        triggers=tuple(_triggers()),
        container=ContainerSpec(CONTAINER).as_resource(),
        blob_container=BLOB_CONTAINER,
        ways=WAYS,
        required=REQUIRED,
        known_settings=frozenset(_SETTING.findall(documented or "")),
        functions=settings,
        lock_s=LOCK.total_seconds(),
        delivery_count_max=DELIVERY_COUNT_MAX,
    )


def _triggers() -> list[Trigger]:
    """The triggers as the Functions worker would index them."""
    found = []
    for function in function_app.app.get_functions():
        trigger = function.get_trigger()
        if trigger is None or trigger.get_binding_name() != "serviceBusTrigger":
            continue
        told = trigger.get_dict_repr()
        found.append(Trigger(told["queueName"], told["connection"], bool(told.get("isSessionsEnabled"))))
    return found
