"""An engine as a store and a bus that are watched, and an application that adds up, for tests of store protocols."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import msgspec

from outbox import App, Context, Engine, Reject, Worker
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.operations import EngineOperations
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Throttled
from outbox.message import Message
from outbox.ports import (
    Document,
    DocumentKey,
    First,
    Lost,
    MessageBus,
    Output,
    Session,
    StateStore,
    StoreCapabilities,
    StorePorts,
    Won,
    Write,
)
from outbox.runtime.commit.sweeper import Swept, sweep
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.scopes import store_protocol, stores_of
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_scope import StoreParts, StoreProtocol
from outbox.testing import START_S, VirtualClock


@dataclass
class Add:
    key: str
    n: int = 1
    text: str = ""


@dataclass
class Sum:
    n: int = 0
    text: str = ""


@dataclass
class Told:
    n: int
    text: str = ""


def adding(**options: Any) -> App:
    app = App("adding", **options)
    app.queue("told")

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        total.n += message.n
        if message.text == "reject":
            raise Reject("no")
        if message.text == "delete":
            ctx.delete()
        if message.text.startswith("grow"):
            total.text = "x" * 3_000_000
        ctx.send("told", Told(total.n, "y" * 150_000 if message.text == "shout" else ""))
        if message.text == "shout":
            for _ in range(19):
                ctx.send("told", Told(total.n, "y" * 150_000))

    return app


@dataclass
class Step:
    key: str
    n: int


@dataclass
class Trail:
    steps: list[int] = field(default_factory=list)


@dataclass
class Seen:
    steps: list[int] = field(default_factory=list)


class AtTheEnd(EngineOperations):
    """Puts what is resubmitted behind everything that waits, as Service Bus does."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.core, engine.broker, engine.topology, engine.documents, engine.dead_letters)

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        (dead_letter,) = [found for found in await self.dead_letters(queue) if found.sequence == sequence]
        if first is not None:
            await first()
        again = msgspec.structs.replace(
            edit or dead_letter.message, attempt=max(attempt, dead_letter.message.attempt + 1)
        )
        await self.send([Output(queue, 0, again)])
        await self.discard(queue, sequence)


class Watched:
    """A store of partition or item scope that counts what it is asked, and may be told to fail a write."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.calls: Tally[str] = Tally()
        self.capabilities: StoreCapabilities = store.capabilities
        self.lost: str = ""
        """The meaning of a write whose answer is lost, once."""
        self.refused: str = ""
        """The meaning of writes that are refused."""
        self.late: str = ""
        """The meaning of a write that lands later, once."""
        self.on_its_way: Sequence[Write] = ()

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        self.calls["read"] += 1
        return await self._store.read(key, session=session)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        what = operations[0].tag.what
        self.calls[what] += 1
        if what == self.refused:
            raise Throttled("not now")
        if what == self.late:
            self.late, self.on_its_way = "", operations
            raise OutcomeUnknown("no answer yet")
        answer = await self._store.write(operations)
        if what == self.lost:
            self.lost = ""
            raise OutcomeUnknown("the answer is lost")
        return answer

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._store.scan(partition, prefix=prefix)

    def unfinished(self) -> AsyncIterator[Document]:
        return self._store.unfinished()

    def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        self.calls["unsent"] += 1
        return self._store.unsent(first, before)  # type: ignore[attr-defined,no-any-return]  # where a ledger is kept


class Mute:
    """A bus that does not send while it is mute."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus
        self.is_mute = False
        self.receive, self.settle, self.renew = bus.receive, bus.settle, bus.renew

    async def send(self, outputs: Sequence[Output]) -> None:
        if self.is_mute:
            raise OutcomeUnknown("nothing comes back")
        await self._bus.send(outputs)


class HasPorts(Protocol):
    """Whatever can be swept."""

    engine: Engine

    def ports(self) -> StorePorts: ...


class Site:
    """An engine as a store and a bus that are watched."""

    def __init__(
        self, engine: Engine, scope: str, clock: VirtualClock, *, ledger: bool = False, staged: bool = False
    ) -> None:
        self.engine, self.clock = engine, clock
        ports = NarrowEngine(engine, "item" if scope == "item" else "partition", dispatch_ledger=ledger).ports()
        self.store, self.bus = Watched(ports.store), Mute(ports.bus)
        if staged:  # as large outputs are
            self.store.capabilities = replace(self.store.capabilities, inline_bytes_max=0)
        self._ports = StorePorts(self.store, self.bus, ports.operations, ports.blobs)

    def ports(self) -> StorePorts:
        return self._ports

    async def document(self, partition: str, id: str) -> bytes | None:
        found = await EngineStore(self.engine.core, self.engine.documents).read(DocumentKey(partition, id))
        return None if found is None else found.body

    async def documents(self, partition: str) -> list[str]:
        return [
            document.key.id async for document in EngineStore(self.engine.core, self.engine.documents).scan(partition)
        ]


@asynccontextmanager
async def site(scope: str = "partition", *, ledger: bool = False, staged: bool = False) -> AsyncIterator[Site]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        yield Site(engine, scope, clock, ledger=ledger, staged=staged)


def slow_first_blob(at: Site) -> list[str]:
    """Let the first blob take longer than an attempt may; the names of all that are written."""
    blobs, written = at.ports().blobs, list[str]()
    write = blobs.write

    async def takes_long(name: str, data: bytes) -> bool:
        written.append(name)
        if len(written) == 1:
            at.clock.seconds += 3_000
        return await write(name, data)

    blobs.write = takes_long  # type: ignore[method-assign]  # a store of blobs that is slow once
    return written


async def handled(at: Site, app: App, *messages: Add, again: bool = False) -> Worker:
    """Send messages m0, m1, ... all at once and handle them."""
    worker = Worker(app, at)
    await worker.declare()
    for number, message in enumerate(messages):
        await worker.send("adds", message, id=f"m{number}")
        if again:
            await worker.send("adds", message, id=f"m{number}")
    async with worker:
        await worker.wait_idle()
    return worker


async def found(at: Site, key: DocumentKey) -> Document:
    document = await EngineStore(at.engine.core, at.engine.documents).read(key)
    assert document is not None
    return document


NO_WAIT = Backoff(lambda _: asyncio.sleep(0), count_max=2)


def protocol_of(at: HasPorts, app: App) -> StoreProtocol:
    """The protocol of a site as a sweeper has it: with no deliveries to end."""
    plan, ports = compile_app(app), at.ports()
    options: Any = {"now_ms": at.engine.now_ms, "new_tx": lambda: "t"}
    settlement = Settlement(plan, ports.bus, ports.blobs, backoff=NO_WAIT, settled=lambda _: None, **options)
    return store_protocol(StoreParts(plan, ports, settlement, is_stopping=lambda: False, **options))


async def swept(at: HasPorts, app: App, **options: Any) -> Swept:
    """Sweep a site once."""
    return await sweep(protocol_of(at, app), *stores_of(at.ports()), now_ms=at.engine.now_ms, **options)
