"""What is planted on store and bus apart for the tables of situations: an application, its messages, and faults.

The emulators run in a thread of their own, once for a module, and so does the application, on the real SDKs.  All
messages of a table are sent at once and handled by one worker for each scope; faults last for one command.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Client, Engine, Reject, Worker, azure
from outbox.azure.connecting import AzureBackend
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule, Faults
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.state.tasks import ACTIVE, LOCKED
from outbox.message import Message
from outbox.ops.cli.parser import main
from outbox.ops.messages.pending import pending_in
from tests.unit.messages import Count, Order
from tests.unit.ops.situations import shop
from tests.wire.conftest import LoopThread

Run = Callable[..., tuple[int, str]]
"""Runs a command of these words: its exit code, and all that it said."""
BEHIND_MS = 1_200_000
"""How far the clock of the host lags that leaves something pending: what is older than ten minutes is an error."""
KEY = "c2VjcmV0LWtleS1vZi1vbmUtdGVzdA=="


def add_topic(app: App) -> None:
    """A topic with two subscriptions, and a queue that nobody handles."""
    app.queue("idle")
    app.topic("news")

    @app.handler("news", subscription="audit", key="key")
    def audit(order: Order, count: Count) -> None:
        if order.how == "refuse":
            raise Reject("not in the books")

    @app.handler("news", subscription="archive", key="key")
    def archive(order: Order, count: Count) -> None:
        count.n += 1


@dataclass(frozen=True)
class Sent:
    """A message that the application was sent, and handled as far as it could."""

    queue: str
    id: str
    how: str = ""
    key: str = "a"
    after_s: float = 0.0
    created: float | None = None
    is_awaited: bool = False
    """Whether it is handled before the next one is sent."""
    stays: bool = False
    """Whether it stays where it is, and is not waited for."""


@dataclass(frozen=True)
class Stuck:
    """A message whose outputs the bus refuses while it is handled, by a host that is gone since."""

    queue: str
    id: str
    key: str


@dataclass(frozen=True)
class Put:
    """A message as any program sends it."""

    queue: str
    message: Message
    stays: bool = False

    def __hash__(self) -> int:
        return hash((self.queue, self.message.outbox_id))


@dataclass(frozen=True)
class Done:
    """What was done to queues or documents beforehand, on the loop of the emulators."""

    work: Callable[[Site], Any]


@dataclass(frozen=True)
class During:
    """What goes wrong while the command runs."""

    cosmos: FaultRule | None = None
    bus: FaultRule | None = None


@dataclass(frozen=True)
class Typed:
    """What somebody typed before."""

    command: str


@dataclass(frozen=True)
class Asked:
    """The command is given other addresses."""

    options: dict[str, str]


Step = Sent | Stuck | Put | Done | During | Typed | Asked


class Counting(Faults):
    """Fault rules that also count what was asked for; they stand where each request comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def __bool__(self) -> bool:
        return True

    def ask(self, operation: str, **about: Any) -> FaultRule | None:
        self.asked.append(operation)
        return super().ask(operation, **about)


class Site:
    """The application on both emulators, in a thread; commands run outside of it, as an operator's process does."""

    def __init__(self) -> None:
        self.thread = LoopThread()
        self.bus_faults = Counting()
        self.cosmos_faults = Faults()
        self.engine: Engine
        self.bus: ServiceBusServer
        self.cosmos: CosmosEmulator
        self.backends: dict[str, AzureBackend] = {}
        self.thread.run(self._open)

    async def _open(self) -> None:
        self.engine = await Engine.in_memory().__aenter__()
        self.bus = await ServiceBusServer(self.engine, key=KEY, faults=self.bus_faults).__aenter__()
        self.cosmos = await CosmosEmulator(self.engine, port=0, faults=self.cosmos_faults).__aenter__()

    async def backend(self, container: str, **options: Any) -> AzureBackend:
        """Clients of a process's own, open for the life of the site."""
        place: dict[str, Any] = {"container": container, "database": "shop", "servicebus": self.bus.connection_string}
        made = azure.connect(cosmos=self.cosmos.connection.connection_string, **({"create": True} | place | options))
        self.backends[f"{container}{len(self.backends)}"] = made
        return made

    def prepare(self) -> None:
        """Make the database and its container, for no application."""

        async def made() -> None:
            await (await self.backend("outbox-partition")).operations.declare({}, {})

        self.thread.run(made)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        """Stop everything."""

        async def stop() -> None:
            for backend in self.backends.values():
                await backend.close()
            await self.cosmos.__aexit__(None, None, None)
            await self.bus.__aexit__(None, None, None)
            await self.engine.__aexit__(None, None, None)

        self.thread.run(stop)
        self.thread.stop()

    # Planting

    def plant(self, steps: Iterable[Step], *, prefix: str = "", scope: str = "partition") -> None:
        """Send and put what the steps say, let a worker handle it, and then do the rest."""
        self.thread.run(lambda: self._plant(list(steps), prefix, scope))

    async def _plant(self, steps: list[Step], prefix: str, scope: str) -> None:
        app, backend = shop(prefix), await self.backend(container_of(scope), scope=scope)
        if not prefix:
            add_topic(app)
        client = Client(app, backend)
        await client.declare()
        async with Worker(app, backend) as worker:
            for put in dict.fromkeys(step for step in steps if isinstance(step, Put)):
                self.engine.broker.send(prefix + put.queue, [put.message])
            for sent in dict.fromkeys(step for step in steps if isinstance(step, Sent)):
                when: dict[str, Any] = {"after_s": sent.after_s, "created": sent.created}
                await worker.send(prefix + sent.queue, Order(sent.key, sent.how), id=sent.id, **when)
                if sent.is_awaited:
                    await self._wait_handled(app, steps)
            await self._wait_handled(app, steps)
        await self._leave_pending(
            app, backend, prefix, list(dict.fromkeys(step for step in steps if isinstance(step, Stuck)))
        )
        await backend.close()  # an open link takes messages from the next host
        for done in dict.fromkeys(step.work for step in steps if isinstance(step, Done)):
            answer = done(self)
            if hasattr(answer, "__await__"):
                await answer

    def handle(self, app: App, *, stays: Sequence[str] = (), until: Callable[[], bool] | None = None) -> None:
        """Let a host with this application handle what is there but for what stays, or run until something holds."""

        async def run() -> None:
            backend = await self.backend(container_of("partition"))  # a process of its own, which ends here
            async with backend, Worker(app, backend, drain_s=0.1), asyncio.timeout(20):
                while until is not None and not until():  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0.01)
                if until is None:
                    await self._wait_handled(app, [Sent("", id, stays=True) for id in stays])

        self.thread.run(run)

    def statuses(self, path: str) -> dict[str, int]:
        """The messages of a queue and their statuses, as the broker has them."""
        return {task.message.identity: task.status for task in self.engine.broker.peek(path, 0, 1_000)}

    async def _wait_handled(self, app: App, steps: Iterable[Step]) -> None:
        """Wait until no message of the application's queues is left to its worker, but for those that stay."""
        stay = {step.message.identity for step in steps if isinstance(step, Put) and step.stays}
        stay |= {step.id for step in steps if isinstance(step, Sent) and step.stays}
        async with asyncio.timeout(20):
            while any(  # noqa: ASYNC110  # no event says so
                task.status in (ACTIVE, LOCKED) and task.message.identity not in stay
                for handler in app.handlers
                for task in self.engine.broker.peek(handler.source, 0, 1_000)
            ):
                await asyncio.sleep(0.01)

    async def _leave_pending(self, app: App, backend: AzureBackend, prefix: str, stuck: list[Stuck]) -> None:
        """Have these handled by a host whose clock is slow, and which sends nothing."""
        if not stuck:
            return
        self.bus_faults.install(FaultRule(kind="refused", operation="send", where=f"{prefix}away", count=None))
        backend.operations.now_ms = lambda: wall_ms() - BEHIND_MS
        async with Worker(app, backend, drain_s=0.1) as worker:
            for step in stuck:
                await worker.send(prefix + step.queue, Order(step.key, "away"), id=step.id)
            async with asyncio.timeout(20):
                while sum(bool(x.outputs) for x in await pending_in(backend.ports())) < len(stuck):  # noqa: ASYNC110  # same
                    await asyncio.sleep(0.02)
        self.bus_faults.clear()
        backend.operations.now_ms = wall_ms

    # Commands

    def command(self, line: str, *, scope: str = "partition", **options: str) -> int:
        """Run a command line; its exit code."""
        return self.run(line.split(), scope=scope, **options)

    def run(self, words: Sequence[str], *, scope: str = "partition", **options: str) -> int:
        """Run a command; its exit code."""
        known = {
            "cosmos": self.cosmos.connection.connection_string,
            "servicebus": self.bus.connection_string,
            "database": "shop",
            "container": container_of(scope),
        } | options
        where = [text for name, value in known.items() for text in (f"--{name}", value)]
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("OUTBOX_BLOBS", raising=False)
            return main([*words, *where])

    @contextmanager
    def faulty(self, rules: Iterable[During]) -> Iterator[None]:
        """Let these faults happen meanwhile."""
        for during in rules:
            if during.cosmos is not None:
                self.cosmos_faults.install(during.cosmos)
            if during.bus is not None:
                self.bus_faults.install(during.bus)
        try:
            yield
        finally:
            self.cosmos_faults.clear()
            self.bus_faults.clear()


def container_of(scope: str) -> str:
    return f"outbox-{scope}"


def wall_ms() -> int:
    return round(time.time() * 1_000)


def count(run: Run, key: str) -> int:
    """How often a key has counted."""
    found: Any = json.loads(run("state", "Count", key, "--json")[1])
    return 0 if found is None else int(found["n"])
