"""The host process: an engine, its workers, the endpoints for clients and one for commands, until a signal.

Order matters.  Start: the log, queues, workers, then the clients' endpoints, so that a client finds everything ready;
the control endpoint starts in the background, because its library takes longest to import, and commands wait for it.
Stop, on the first SIGINT or SIGTERM: the endpoints close, workers finish their messages, then the control endpoint and
the log close.  A second signal ends the process at once; nothing acknowledged is lost by it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from outbox.app import App
from outbox.engine.engine import Engine
from outbox.engine.state.tasks import Task
from outbox.errors import AlreadyOpen, EngineStopped, OutboxError, Refused
from outbox.escape import printable
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.host.access_key import access_key, new_key
from outbox.ops.host.endpoints import Endpoints, EndpointSettings, check_ports, listen, listen_http, listen_metrics
from outbox.ops.shared.control_file import add_endpoints, is_alive, read_control_file, remove_control_file, want
from outbox.ops.shared.meter import RATE_EVERY_S, Meter, Metered, note_pipelines, note_status
from outbox.ops.shared.on_engine import OnWritten
from outbox.ops.values.status import ReadMetrics, ReadStatus
from outbox.ops.values.streams import ReadPipelines
from outbox.ports import Backend
from outbox.runtime.commit.handler_threads import THREAD_COUNT, HandlerThreads
from outbox.worker import Worker

log = logging.getLogger("outbox.host")

OPEN_WITHIN_S = 5.0
"""How long to wait for a command that has the log open; another host is not waited for."""
OPEN_EVERY_S = 0.05
LOOK_EVERY = 6
"""How many readings a traced host takes between two looks into its queues, for the metrics of OpenTelemetry."""
READY_LINE = "ready"
"""The announcement of a host without endpoints."""


@dataclass(frozen=True, slots=True)
class HostSettings:
    """The settings of a host; without a `folder` it runs in memory."""

    folder: Path | None
    app: App | None = None
    endpoints: EndpointSettings = field(default_factory=EndpointSettings)
    worker_count: int = 1
    concurrency: int = 64
    thread_count: int = THREAD_COUNT
    """How many blocking handlers may run at a time, in all workers and HTTP entries together."""
    entities: Path | None = None
    sync: str = "every"
    accept_clock: timedelta = timedelta(0)
    new: bool = False
    """Whether to begin a log in a folder that has lost its own."""
    history: Path | None = None
    """Where to record what the workers do, if anywhere."""
    replace_key: bool = False
    """Whether to make a new access key; clients need the new connection string."""
    sampled: float | None = None
    """The share of messages that OpenTelemetry traces; None: it is not used."""


async def serve(settings: HostSettings, announce: Callable[[str], None]) -> None:
    """Serve until a signal arrives, then drain; `announce` gets the connection strings once everything is ready.

    Raises:
        OutboxError: it could not start, or the engine stopped.
    """
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    check_ports(settings.endpoints)
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(await open_engine(settings))
        stopped = _watch(engine)
        stack.callback(_unwatch, engine)
        key = _access_key(settings)
        _declare(engine, settings.entities)
        watched: list[asyncio.Future[Any]] = [stopped]
        meter = Meter()
        backend: Backend = engine
        on_written: OnWritten | None = None
        if settings.history is not None and settings.app is not None:
            audit = _recorded(stack, engine, settings.app, settings.history)
            backend, on_written = audit.backend, audit.state_written
        backend = _traced(settings, backend, meter)
        control: ControlTask | None = None
        http: tuple[str, ...] = ()
        if settings.folder is not None:
            reporting = meter if settings.app is not None else None
            admin = EngineAdmin(engine, reporting, settings.app, on_written=on_written)
            control = ControlTask(admin, settings.folder, settings.endpoints.faults_token)
            watched.append(await stack.enter_async_context(control))
        if settings.app is not None:
            threads = HandlerThreads(settings.thread_count)
            stack.callback(threads.close)
            for _ in range(settings.worker_count):
                metered = Metered(backend, meter)
                worker = Worker(
                    settings.app, metered, concurrency=settings.concurrency, threads=threads, counts=meter.counts
                )
                await stack.enter_async_context(worker)
                watched.append(asyncio.ensure_future(worker.wait_stopped()))
            _log_unhandled(engine, settings.app)
            metered = Metered(backend, meter)
            http = await listen_http(stack, settings.app, metered, settings.endpoints, threads, meter.counts)
            looking = EngineAdmin(engine, meter, settings.app)
            _read_rates(stack, meter, looking if settings.sampled is not None else None)
            http += await listen_metrics(stack, partial(looking.ask, ReadMetrics()), settings.endpoints)
        for part in watched:
            part.add_done_callback(_seen)
        endpoints = await listen(stack, engine, settings.endpoints, key)
        if control is not None:
            control.add_endpoints(endpoints)
        for line in (*endpoints.lines, *http) or (READY_LINE,):
            announce(line)
        await _first_of(stopping, watched)
        log.info("draining; a second signal ends the process at once")


def _read_rates(stack: AsyncExitStack, meter: Meter, admin: EngineAdmin | None) -> None:
    """Count ages and take rate readings while the stack is open; with an `admin`, note its queues' status too."""

    async def read() -> None:
        for turn in itertools.count():
            meter.tick()
            if admin is not None and not turn % LOOK_EVERY:
                with suppress(OutboxError):  # nobody waits for an answer here; the engine's end is told elsewhere
                    note_status(meter.counts, await admin.ask(ReadStatus()))
                    note_pipelines(meter.counts, await admin.ask(ReadPipelines()))
            await asyncio.sleep(RATE_EVERY_S)

    meter.counts.has_ages = True
    stack.callback(asyncio.ensure_future(read()).cancel)


def _traced(settings: HostSettings, backend: Backend, meter: Meter) -> Backend:
    """The backend with spans, and metrics of what the meter counts, where the settings ask for that.

    Raises:
        Refused: OpenTelemetry is not installed.
    """
    if settings.sampled is None or settings.app is None:
        return backend
    try:
        telemetry = import_module("outbox.otel").Telemetry(settings.app, sampled=settings.sampled)
    except ImportError as error:
        raise Refused(f'--telemetry needs OpenTelemetry ({error}): pip install "outbox-azure[otel]"') from error
    meter.counts = telemetry.counts
    traced: Backend = telemetry.traced(backend)
    return traced


def _access_key(settings: HostSettings) -> str | None:
    """The access key of the clients' endpoints; none for the emulators alone, which take Microsoft's settings.

    Raises:
        Refused: the folder's key cannot be used.
    """
    if settings.app is None:
        return None
    return new_key() if settings.folder is None else access_key(settings.folder, replace=settings.replace_key)


def _recorded(stack: AsyncExitStack, engine: Engine, app: App, path: Path) -> Any:
    """The recording, with the engine behind a recorder; the history ends after the workers."""
    audit = import_module("outbox.ops.host.audit").Audit(engine, app, path)
    stack.callback(audit.end)
    return audit


async def _first_of(stopping: asyncio.Event, watched: list[asyncio.Future[Any]]) -> None:
    """Wait for the signal; raise the error of a part that stopped."""
    signalled = asyncio.ensure_future(stopping.wait())
    done, _ = await asyncio.wait([signalled, *watched], return_when=asyncio.FIRST_COMPLETED)
    for part in watched:
        if part in done:
            part.result()
            raise EngineStopped("a part of the host ended by itself; this is a bug, please report it")


def _seen(part: asyncio.Future[Any]) -> None:
    """Read how a part ended, so that asyncio does not log it as never retrieved."""
    if not part.cancelled():
        part.exception()


async def open_engine(settings: HostSettings) -> Engine:
    """Open the engine, as soon as no command has its log open any more.

    Raises:
        AlreadyOpen: another host has the folder.
    """
    if settings.folder is None:
        return Engine.in_memory()
    folder, deadline_s, wanted = settings.folder, time.monotonic() + OPEN_WITHIN_S, None
    try:
        while True:
            try:
                engine = Engine.open(folder, sync=settings.sync, accept_clock=settings.accept_clock, new=settings.new)
                break
            except AlreadyOpen:
                host = read_control_file(folder)
                if time.monotonic() > deadline_s or (host is not None and is_alive(host.pid)):
                    raise
                wanted = want(folder) if wanted is None else wanted
                await asyncio.sleep(OPEN_EVERY_S)
    finally:
        if wanted is not None:
            os.close(wanted)
    remove_control_file(folder)  # a killed host's
    cut_bytes = 0 if engine.log is None else engine.log.recovered.cut_bytes
    log.info("%s: opened%s", folder, f", cut {cut_bytes} bytes of unsynced tail" if cut_bytes else "")
    return engine


def _watch(engine: Engine) -> asyncio.Future[Any]:
    stopped: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_stop(reason: EngineStopped) -> None:
        if not stopped.done():
            stopped.set_exception(reason)

    engine.core.on_stop = on_stop
    engine.state.on_dead_lettered = _log_given_up
    return stopped


def _log_given_up(queue: str, task: Task) -> None:
    """Log a dead letter made by the engine: too many unsettled deliveries, or its time to live has expired."""
    fields = {"id": printable(task.message.identity) or "-", "queue": queue, "handler": "-", "reason": task.reason}
    log.error("message dead-lettered", extra=fields | {"error": task.description})


def _unwatch(engine: Engine) -> None:
    engine.core.on_stop = engine.state.on_dead_lettered = None


def _declare(engine: Engine, entities: Path | None) -> None:
    if entities is not None:
        from outbox.emulator.bus.entities_file import read_entities

        for entity in read_entities(entities):
            engine.declare(entity)


def _log_unhandled(engine: Engine, app: App) -> None:
    """Log queues with messages that no handler here reads; an application of another name may have left them."""
    handled = {handler.source for handler in app.handlers}
    left = {
        path: len(engine.broker.queue(path).tasks) for path in sorted(engine.topology.queues) if path not in handled
    }
    declared = {
        *app.queues,
        *(f"{topic}/Subscriptions/{name}" for topic, names in app.topics.items() for name in names),
    }
    for path, count in left.items():
        if path in app.queues and app.queues[path].read_elsewhere:
            continue
        if count and path in declared:
            log.info("%s holds %d, and %s has no handler for it: they wait for another receiver", path, count, app.name)
        elif count:
            log.warning("%s: %d messages, but %s neither handles nor declares it; check APP", path, count, app.name)


class ControlTask:
    """The control endpoint as a task: it imports its library off the loop, opens, and closes on exit.

    The clients' endpoints are added to the control file once both are open.
    """

    def __init__(self, admin: EngineAdmin, folder: Path, faults_token: str) -> None:
        self._admin = admin
        self._folder = folder
        self._faults_token = faults_token
        self._endpoints: Endpoints | None = None
        self._is_open = False
        self._closing = asyncio.Event()

    async def __aenter__(self) -> asyncio.Future[Any]:
        self._task: asyncio.Task[Any] = asyncio.create_task(self._serve(), name="control endpoint")
        return self._task

    async def __aexit__(self, *error: object) -> None:
        self._closing.set()
        await asyncio.wait([self._task])

    async def _serve(self) -> None:
        control = await asyncio.to_thread(import_module, "outbox.ops.admins.control")
        async with control.serve_control(self._admin, self._folder):
            self._is_open = True
            self._write()
            await self._closing.wait()
            self._is_open = False

    def add_endpoints(self, endpoints: Endpoints) -> None:
        """Add the clients' endpoints, and the token of their fault endpoints, to the control file."""
        self._endpoints = endpoints
        self._write()

    def _write(self) -> None:
        if self._is_open and self._endpoints is not None:
            known = self._endpoints
            ports = {"amqp_port": known.amqp_port, "cosmos_port": known.cosmos_port, "blob_port": known.blob_port}
            add_endpoints(self._folder, ports, self._faults_token)


def stop_on_signals(stopping: asyncio.Event) -> None:
    """Set the event on the first SIGINT or SIGTERM; a second one ends the process at once."""
    loop = asyncio.get_running_loop()
    both = (signal.SIGINT, signal.SIGTERM)

    def stop() -> None:
        stopping.set()
        for number in both:
            loop.remove_signal_handler(number)

    for number in both:
        loop.add_signal_handler(number, stop)
