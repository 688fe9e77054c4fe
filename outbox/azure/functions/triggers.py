"""The functions of an application: a trigger for each queue, a function for each HTTP entry, a timer that sweeps.

A second timer runs the processors over ordered logs that the blueprint is given.

The functions only pass on what the host gives them; `sites` has what they share.  Nothing is opened when functions are
registered.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import azure.functions as func

from outbox.app import App, HttpRoute
from outbox.azure.functions.settings import FunctionsSettings
from outbox.azure.functions.sites import Site, answer, edge, process, site_of, sweep
from outbox.errors import OutboxError, Refused
from outbox.ports import SUBSCRIPTIONS
from outbox.runtime.counts import Counts
from outbox.runtime.start.plan import Source
from outbox.streams import Processor

log = logging.getLogger("outbox.functions")

NAME_LENGTH_MAX = 120


def blueprint(app: App, settings: FunctionsSettings, *, processors: Sequence[Processor[Any]] = ()) -> func.Blueprint:
    """The functions of an application: one for each queue, subscription and HTTP entry of it, and a timer.

    A second timer runs the `processors`, all at once, until they have nothing to do, or `settings.processors_s` have
    passed; runs that overlap, in any process, are replicas of each other.

    Raises:
        Refused: the application has other settings in this process already.
        NotRegistrable: a handler writes blobs, and the settings say that there is no blob store.
    """
    site, names = site_of(app, settings), Names()
    made = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK gives its constructor no types
    for source in site.plan.sources.values():
        _add_trigger(made, site, source, names)
    for route in app.routes:
        _add_route(made, site, route, names)
    _add_timer(made, site, names)
    if processors:
        _add_processors(made, site, tuple(processors), names)
    return made


class Names:
    """Names of functions: the host knows a function by nothing else."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def name(self, kind: str, text: str) -> str:
        """Make a function name that is valid and unique; a text has the same one in every deployment."""
        plain = re.sub(r"[^A-Za-z0-9_-]+", "_", text.replace("{", "").replace("}", "").replace("/", "_")).strip("_")
        name = f"{kind}_{plain}" if plain else kind
        if len(name) > NAME_LENGTH_MAX or name.lower() in self._taken:
            name = f"{name[:NAME_LENGTH_MAX]}_{sha256(text.encode()).hexdigest()[:6]}"
        if name.lower() in self._taken:
            raise Refused(f"function {name} is there twice; two sources have one name")
        self._taken.add(name.lower())  # the host does not tell cases apart
        return name


def _add_trigger(made: func.Blueprint, site: Site, source: Source, names: Names) -> None:
    async def handle(message: func.ServiceBusMessage) -> None:
        await process(site.app, message, source=source.path)

    topic, slash, subscription = source.path.partition(SUBSCRIPTIONS)
    if slash:
        name = names.name("topic", f"{topic}_{subscription}")
        trigger = made.service_bus_topic_trigger(
            arg_name="message",
            connection=site.settings.servicebus,
            topic_name=topic,
            subscription_name=subscription,
            data_type=func.DataType.BINARY,
            is_sessions_enabled=source.ordered,
        )
    else:
        name = names.name("queue", source.path)
        trigger = made.service_bus_queue_trigger(
            arg_name="message",
            connection=site.settings.servicebus,
            queue_name=source.path,
            data_type=func.DataType.BINARY,
            is_sessions_enabled=source.ordered,
        )
    made.function_name(name)(trigger(handle))


def _add_route(made: func.Blueprint, site: Site, route: HttpRoute, names: Names) -> None:
    depth = len(route.template.literals)

    async def handle(request: func.HttpRequest) -> func.HttpResponse:
        # As it was sent, without the host's prefix: what its routing gives has been decoded already.
        return await answer(site.app, request, "/" + "/".join(urlsplit(request.url).path.split("/")[-depth:]))

    methods = ["GET", "HEAD"] if route.method == "GET" else [route.method]
    trigger = made.route(route.template.text.lstrip("/"), trigger_arg_name="request", methods=methods)
    made.function_name(names.name("http", f"{route.method.lower()}_{route.template.text.strip('/')}"))(trigger(handle))


def _add_timer(made: func.Blueprint, site: Site, names: Names) -> None:
    async def handle(timer: func.TimerRequest) -> None:
        await sweep(site.app)

    trigger = made.timer_trigger(
        arg_name="timer", schedule=site.settings.sweep_schedule, run_on_startup=False, use_monitor=False
    )
    made.function_name(names.name("sweep", ""))(trigger(handle))


def _add_processors(made: func.Blueprint, site: Site, processors: Sequence[Processor[Any]], names: Names) -> None:
    async def handle(timer: func.TimerRequest) -> None:
        async with edge():
            try:
                await _run(processors, site.settings.processors_s)
            finally:
                if site.settings.telemetry is not None:
                    await _note_lags(processors, site.settings.telemetry.counts)

    trigger = made.timer_trigger(
        arg_name="timer", schedule=site.settings.processors_schedule, run_on_startup=False, use_monitor=False
    )
    made.function_name(names.name("processors", ""))(trigger(handle))


async def _note_lags(processors: Sequence[Processor[Any]], counts: Counts) -> None:
    """Note the lag of processors; one that cannot be asked now keeps its last, because a metric fails nothing."""
    for processor in processors:
        try:
            counts.lags.update(await processor.lags())
        except OutboxError as error:
            log.debug("a processor's lag is not known", extra={"processor": processor.name, "error": str(error)})


async def _run(processors: Sequence[Processor[Any]], seconds: float) -> None:
    """Run processors side by side; one that fails keeps none of the others, and the invocation fails after them."""
    runs = [processor.run_until_idle(seconds=seconds) for processor in processors]
    results = await asyncio.gather(*runs, return_exceptions=True)
    errors = []
    for processor, result in zip(processors, results, strict=True):
        if isinstance(result, BaseException):
            log.error("processor stopped", extra={"processor": processor.name, "error": str(result)})
            errors.append(result)
    if errors:
        raise errors[0]
