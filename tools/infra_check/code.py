"""What the code says that templates and settings have to agree with, taken from the code itself."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import azure.functions as func

from function_app.bank import app as bank
from function_app.settings import REQUIRED, SERVICEBUS, WAYS, settings
from outbox.app import App
from outbox.azure import functions
from outbox.azure.connecting import CONTAINER
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.cosmos_place import BLOB_CONTAINER
from outbox.azure.functions import FunctionsSettings
from outbox.azure.servicebus.entities import DELIVERY_COUNT_MAX, LOCK
from outbox.ports import SUBSCRIPTIONS
from spark_jobs.package import ZIP_NAME
from spark_jobs.submitting import settings as submit_settings

_SETTING = re.compile(r"\bOUTBOX_\w+\b")


@dataclass(frozen=True, slots=True)
class Trigger:
    """A Service Bus trigger of the Functions app; `queue` is the path of a queue or subscription."""

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
    spark_settings: frozenset[str]
    spark_zip: str
    functions: FunctionsSettings
    lock_s: float
    delivery_count_max: int

    @property
    def reads(self) -> list[str]:
        """The queues that triggers read, without subscriptions."""
        return sorted(trigger.queue for trigger in self.triggers if SUBSCRIPTIONS not in trigger.queue)


def read_code(app: App = bank, *, starts_spark: bool = True) -> Code:
    """Read an application, with the Spark jobs that the sample starts where OUTBOX_SPARK says so, and limits."""
    starting = App("starting")
    if starts_spark:
        starting.spark_jobs("feed")
    queues = {name: spec.ordering for name, spec in (*app.queues.items(), *starting.queues.items())}
    documented = importlib.import_module("function_app.settings").__doc__
    return Code(
        queues=queues,
        topics=dict(app.topics),
        triggers=(*_triggers(app), *(Trigger(name, SERVICEBUS, False) for name in starting.queues)),
        container=ContainerSpec(CONTAINER).as_resource(),
        blob_container=BLOB_CONTAINER,
        ways=WAYS,
        required=REQUIRED,
        known_settings=frozenset(_SETTING.findall(documented or "")),
        spark_settings=frozenset(_SETTING.findall(submit_settings.__doc__ or "")),
        spark_zip=ZIP_NAME,
        functions=settings,
        lock_s=LOCK.total_seconds(),
        delivery_count_max=DELIVERY_COUNT_MAX,
    )


def _triggers(app: App) -> list[Trigger]:
    """The triggers as the Functions worker would index them, of an app made anew: one can be indexed only once."""
    made, found = func.FunctionApp(), []
    made.register_functions(functions.blueprint(app, settings))
    for function in made.get_functions():
        trigger = function.get_trigger()
        if trigger is None or trigger.get_binding_name() != "serviceBusTrigger":
            continue
        told = trigger.get_dict_repr()
        path = told.get("queueName") or f"{told['topicName']}{SUBSCRIPTIONS}{told['subscriptionName']}"
        found.append(Trigger(path, told["connection"], bool(told.get("isSessionsEnabled"))))
    return found
