"""Applications in one process of a Functions host: their settings, their functions, and what these share.

What one process of the host knows of an application is kept here, once for each application: the host starts functions
one by one and has no other place for what they share.

`blueprint` makes the functions: a trigger for each queue, a function for each HTTP entry, a timer that sweeps, and a
second timer that runs the processors over ordered logs that it is given.  They only pass on what the host gives them;
nothing is opened when they are registered.  A trigger of one's own calls `process`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import azure.functions as func

from outbox import streams
from outbox.app import App, HttpRoute
from outbox.azure.functions.processor import Processor, pause_s
from outbox.azure.functions.settings import FunctionsSettings
from outbox.errors import OutboxError, Refused
from outbox.ports import SUBSCRIPTIONS, Backend, NoBlobs
from outbox.runtime.counts import Counts
from outbox.runtime.delivery.claim_check import check_blobs
from outbox.runtime.http.responses import unavailable
from outbox.runtime.start.plan import CompiledApp, Source, compile_app

log = logging.getLogger("outbox.functions")
NAME_LENGTH_MAX = 120


class Site:
    """One application in this process: its settings, and its processor once the running event loop has one."""

    def __init__(self, app: App, settings: FunctionsSettings) -> None:
        if settings.has_blobs is False:
            check_blobs(app, NoBlobs())
        self.app = app
        self.settings = settings
        self.plan = compile_app(app)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = asyncio.Lock()
        self._backend: Backend | None = None
        self._processor: Processor | None = None

    async def processor(self) -> Processor:
        """The processor, open; one invocation opens it and the others wait.

        Raises:
            OutboxError: the backend cannot be used, or not reached now; the next invocation tries again.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # clients belong to their loop; those of another are not ours to close
            self._loop, self._opening = loop, asyncio.Lock()
            self._backend = self._processor = None
        if self._processor is not None:
            return self._processor
        async with self._opening:
            if self._processor is None:
                if self._backend is None:
                    self._backend = self.settings.connect()
                made = Processor(self.app, self._backend, self.settings)
                await made.open()
                self._processor = made
            return self._processor

    async def close(self) -> None:
        """Await the work under way, and close the backend of this loop, if it has one to close."""
        processor, backend = self._processor, self._backend
        self._processor = self._backend = None
        if processor is not None:
            await processor.finish()
        close_backend = getattr(backend, "close", None)
        if close_backend is not None:
            await close_backend()


_sites: dict[int, Site] = {}
"""By the identity of their application, which each of them keeps alive."""


async def process(
    app: App, message: func.ServiceBusMessage, *, source: str = "", settings: FunctionsSettings | None = None
) -> None:
    """Handle a message in a trigger of one's own; let what it raises out, so that the message is redelivered.

    `source` is the queue, or `topic/Subscriptions/name`, that the trigger reads; it may be left out where the
    application reads one only, or only one takes messages of this type.  `settings` are needed where no blueprint of
    the application is registered.  The trigger must say `data_type=func.DataType.BINARY`.

    Raises:
        GivenBack: the message must be redelivered.
        Refused: the source or the settings are not known.
    """
    site = site_of(app, settings)
    source = source or _source_of(site.plan, message)
    async with edge():
        try:
            processor = await site.processor()
        except Exception:
            await asyncio.sleep(pause_s(message.delivery_count or 1, random.random()))
            raise
        await processor.message(source, message)


async def answer(
    app: App, asked: func.HttpRequest, path: str, *, settings: FunctionsSettings | None = None
) -> func.HttpResponse:
    """Answer a request to one of the application's HTTP entries, in a function of one's own; `path` is the entry's."""
    site = site_of(app, settings)
    query = urlsplit(asked.url).query
    async with edge():
        try:
            processor = await site.processor()
        except OutboxError:
            log.exception("the backend cannot be used")
            response = unavailable()
        else:
            whole = f"{path}?{query}" if query else path
            response = await processor.request(asked.method, whole, asked.headers, asked.get_body())
    return func.HttpResponse(response.body, status_code=response.status, headers=dict(response.headers))


async def sweep(app: App, *, settings: FunctionsSettings | None = None) -> None:
    """Finish what crashes have left; for a timer of one's own.

    Raises:
        OutboxError: the backend cannot be asked now; the next run does it.
    """
    async with edge():
        await (await site_of(app, settings).processor()).sweep()


def register(app: App, settings: FunctionsSettings) -> None:
    """Give an application its settings in this process, where no blueprint does; nothing is opened yet.

    Raises:
        Refused: it has others already.
    """
    site_of(app, settings)


def registered() -> list[App]:
    """The applications that have settings in this process, by a blueprint or by `register`."""
    return [site.app for site in _sites.values()]


async def close(app: App) -> None:
    """Close what this event loop has open of an application; for tests, because a host's process just ends."""
    await site_of(app, None).close()


async def processor_of(app: App) -> Processor:
    """The open processor of an application in this process; its `client` sends and reads states."""
    return await site_of(app, None).processor()


@asynccontextmanager
async def edge() -> AsyncIterator[None]:
    """Let no exception out that the worker cannot answer: of others than `Exception` its host would never hear."""
    try:
        yield
    except (Exception, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise RuntimeError(f"the invocation was ended by {type(error).__name__}; its message is redelivered") from error


def site_of(app: App, settings: FunctionsSettings | None) -> Site:
    """The site of an application in this process, made with the first settings.

    Raises:
        Refused: it has none yet, or has others.
    """
    known = _sites.get(id(app))
    if known is None:
        if settings is None:
            raise Refused(f"{app.name} has no settings in this process; register its blueprint, or pass settings=")
        known = _sites[id(app)] = Site(app, settings)
    elif settings is not None and settings is not known.settings and settings != known.settings:
        raise Refused(f"{app.name} has other settings in this process already; make them once and pass them everywhere")
    return known


def _source_of(plan: CompiledApp, message: func.ServiceBusMessage) -> str:
    """Where a message of one's own trigger came from, as far as its type tells."""
    if len(plan.sources) == 1:
        return next(iter(plan.sources))
    kind = (message.application_properties or message.user_properties or {}).get("outbox-type")
    found = [path for path, source in plan.sources.items() if kind in source.routes]
    if len(found) != 1:
        raise Refused(
            f"which source is message {message.message_id!r} from? say source=, one of {', '.join(plan.sources)}"
        )
    return found[0]


def blueprint(
    app: App, settings: FunctionsSettings, *, processors: Sequence[streams.Processor[Any]] = ()
) -> func.Blueprint:
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


def _add_processors(
    made: func.Blueprint, site: Site, processors: Sequence[streams.Processor[Any]], names: Names
) -> None:
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


async def _note_lags(processors: Sequence[streams.Processor[Any]], counts: Counts) -> None:
    """Note the lag of processors; one that cannot be asked now keeps its last, because a metric fails nothing."""
    for processor in processors:
        try:
            counts.lags.update(await processor.lags())
        except OutboxError as error:
            log.debug("a processor's lag is not known", extra={"processor": processor.name, "error": str(error)})


async def _run(processors: Sequence[streams.Processor[Any]], seconds: float) -> None:
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
