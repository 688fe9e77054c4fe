"""The store protocols by what they ask of a store and a bus: how many requests, what lies where, who finishes what."""

from __future__ import annotations

import asyncio
from collections import Counter as Tally
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.engine.adapters import EngineStore
from outbox.engine.blobs import MemoryBlobStore
from outbox.engine.narrow import NarrowEngine
from outbox.errors import CorruptRecord, OutcomeUnknown, Throttled
from outbox.message import Message, Scalar
from outbox.ports import (
    Create,
    Document,
    DocumentKey,
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
from outbox.runtime import items, spill
from outbox.runtime.cache import Held, StateCache
from outbox.runtime.items import Record, StateItem, state_key
from outbox.runtime.scopes import store_protocol, stores_of
from outbox.runtime.sweep import sweep
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


class Watched:
    """A store of partition or item scope that counts what it is asked, and may be told to fail a write."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.calls: Tally[str] = Tally()
        self.capabilities: StoreCapabilities = store.capabilities
        self.lost: str = ""
        """The meaning of a write whose answer is lost, once."""
        self.late: str = ""
        """The meaning of a write that lands later, once."""
        self.on_its_way: Sequence[Write] = ()

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        self.calls["read"] += 1
        return await self._store.read(key, session=session)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        what = operations[0].tag.what
        self.calls[what] += 1
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


class Site:
    """An engine as a store and a bus that are watched."""

    def __init__(self, engine: Engine, scope: str, clock: VirtualClock) -> None:
        self.engine, self.clock = engine, clock
        ports = NarrowEngine(engine, "item" if scope == "item" else "partition").ports()
        self.store, self.bus = Watched(ports.store), Mute(ports.bus)
        self._ports = StorePorts(self.store, self.bus, ports.operations, ports.blobs)

    def ports(self) -> StorePorts:
        return self._ports

    async def document(self, partition: str, id: str) -> bytes | None:
        found = await EngineStore(self.engine).read(DocumentKey(partition, id))
        return None if found is None else found.body

    async def documents(self, partition: str) -> list[str]:
        return [document.key.id async for document in EngineStore(self.engine).scan(partition)]


@asynccontextmanager
async def site(scope: str = "partition") -> AsyncIterator[Site]:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        yield Site(engine, scope, clock)


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


async def test_a_cold_message_costs_a_read_and_a_batch_and_a_mark() -> None:
    async with site() as at:
        await handled(at, adding(), Add("a"))
        at.store.calls.pop("note")
        assert at.store.calls == {"read": 2, "commit": 1, "mark": 1}  # one read is the registry's


async def test_messages_of_one_key_that_come_together_share_a_commit_and_a_mark() -> None:
    async with site() as at:
        worker = await handled(at, adding(), *[Add("a", n) for n in range(40)])
        assert await worker.state(Sum, "a") == Sum(sum(range(40)))
        assert at.store.calls["commit"] == 1 and at.store.calls["mark"] == 1
        assert at.engine.queue("told").counts()["active"] == 40


async def test_a_warm_key_is_not_read_again() -> None:
    async with site() as at:
        worker = Worker(adding(), at)
        async with worker:
            for number in range(5):
                await worker.send("adds", Add("a"), id=f"m{number}")
                await worker.wait_idle()
        assert at.store.calls["read"] == 2 and at.store.calls["commit"] == 5


async def test_more_messages_than_a_batch_holds_are_several_batches() -> None:
    async with site() as at:
        at.store.capabilities = StoreCapabilities("partition", 5, 2 << 20, True, True)
        worker = await handled(at, adding(), *[Add("a") for _ in range(13)])
        assert await worker.state(Sum, "a") == Sum(13)
        assert at.store.calls["commit"] == 4  # four records and the state in each


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_message_that_comes_twice_in_one_batch_acts_once(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", 5), Add("a", 2), again=True)
        assert await worker.state(Sum, "a") == Sum(7)
        assert at.engine.queue("told").counts()["active"] == 2


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_outputs_that_do_not_fit_lie_in_a_blob_until_they_have_left(scope: str) -> None:
    async with site(scope) as at:
        await handled(at, adding(), Add("a", text="shout"))
        assert at.engine.queue("told").counts()["active"] == 20
        blobs = at.engine.blobs
        names = [name for name in getattr(blobs, "_blobs", {}) if name.startswith("overflow/")]
        assert names == []


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_blob_that_cannot_be_deleted_keeps_nobody_from_going_on(
    scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(name: str) -> None:
        raise Throttled(f"{name}: not now")

    async with site(scope) as at:
        monkeypatch.setattr(at.engine.blobs, "delete", refused)
        worker = await handled(at, adding(), Add("a", text="shout"), Add("a", 2))
        assert await worker.state(Sum, "a") == Sum(3)
        assert at.engine.queue("told").counts()["active"] == 21


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_state_that_is_too_large_refuses_its_message_and_stays_as_it_was(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", 5))
        await worker.send("adds", Add("a", 1, "grow"), id="large")
        async with Worker(adding(), at) as again:
            await again.wait_idle()
            assert await again.state(Sum, "a") == Sum(5)
            (letter,) = await again.dead_letters("adds")
            assert letter.reason == "oversize" and letter.id == "large"


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_what_a_crash_left_unsent_is_sent_by_a_sweeper(scope: str) -> None:
    async with site(scope) as at:
        app = adding()
        at.bus.is_mute = True
        worker = Worker(app, at, drain_s=0.2)
        async with worker:
            await worker.send("adds", Add("a"), id="m1")
            await asyncio.sleep(0.3)
        assert at.engine.queue("told").counts()["active"] == 0
        for task in list(at.engine.queue("adds").tasks.values()):  # the input is gone, and nobody will deliver it again
            at.engine.lapse_lock("adds", task.sequence)
        at.bus.is_mute = False
        at.clock.seconds += 61
        endings: Any = worker._scope._endings  # type: ignore[union-attr]  # a sweep has no delivery to end
        options = {"now_ms": at.engine.now_ms, "new_tx": lambda: "t", "is_stopping": lambda: False}
        protocol = store_protocol(worker._plan, at.ports(), endings, **options)  # type: ignore[arg-type]  # plain options
        swept = await sweep(protocol, *stores_of(at.ports()), now_ms=at.engine.now_ms)
        assert swept.finished_count >= 1 and at.engine.queue("told").counts()["active"] == 1
        again = await sweep(protocol, *stores_of(at.ports()), now_ms=at.engine.now_ms)
        assert again.seen_count == 0 and at.engine.queue("told").counts()["active"] == 1


@pytest.mark.parametrize("what", ["commit", "mark"])
async def test_a_lost_answer_is_read_back_and_nothing_is_doubled(what: str) -> None:
    async with site() as at:
        at.store.lost = what
        worker = await handled(at, adding(), Add("a", 5))
        assert await worker.state(Sum, "a") == Sum(5)
        assert at.engine.queue("told").counts()["active"] == 1


@pytest.mark.parametrize("what", ["stage", "swap", "processed", "dispatched", "clear", "unstage"])
async def test_a_lost_answer_at_any_step_of_item_scope_is_read_back(what: str) -> None:
    async with site("item") as at:
        at.store.lost = what
        worker = await handled(at, adding(), Add("a", 5), Add("a", 2))
        assert await worker.state(Sum, "a") == Sum(7) and not at.store.lost
        ids = {task.message.identity for task in at.engine.queue("told").tasks.values()}
        assert len(ids) == 2
        item = items.decode(await found(at, state_key("Sum:a")), StateItem)
        assert item.pending == "" and item.version == 2


async def found(at: Site, key: DocumentKey) -> Document:
    document = await EngineStore(at.engine).read(key)
    assert document is not None
    return document


async def test_item_scope_leaves_no_staged_record_behind() -> None:
    async with site("item") as at:
        await handled(at, adding(), Add("a"), Add("a"), Add("a", text="reject"))
        assert [id for id in await at.documents("Sum:a") if id.startswith("staged:")] == []


@pytest.mark.parametrize(("scope", "is_kept"), [("partition", False), ("item", True)])
async def test_a_deleted_state_leaves_a_tombstone_that_partition_scope_lets_expire(scope: str, is_kept: bool) -> None:
    async with site(scope) as at:
        app = adding(retention=timedelta(hours=1), margin=timedelta(hours=1))
        worker = await handled(at, app, Add("a", text="delete"))
        assert await worker.state(Sum, "a") is None
        assert items.decode(await found(at, state_key("Sum:a")), StateItem).is_tombstone
        at.clock.seconds += 3 * 3_600
        at.engine.tick()
        assert (await at.document("Sum:a", "state") is not None) == is_kept


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_a_document_that_is_not_ours_puts_its_messages_off_and_stops_nobody_else(scope: str) -> None:
    async with site(scope) as at:
        await EngineStore(at.engine).write([Create(state_key("Sum:a"), b'{"version": "none"}')])
        worker = await handled(at, adding(), Add("a"), Add("b"))
        assert await worker.state(Sum, "b") == Sum(1)
        counts = at.engine.queue("adds").counts()
        assert counts["active"] + counts["scheduled"] == 1 and await worker.dead_letters("adds") == []


async def test_a_marked_record_has_lost_its_outputs_and_keeps_its_verdict() -> None:
    async with site() as at:
        await handled(at, adding(), Add("a"))
        (id,) = [id for id in await at.documents("Sum:a") if id.startswith("inbox:")]
        record = items.decode(await found(at, DocumentKey("Sum:a", id)), Record)
        assert not record.pending and record.outputs == () and record.fingerprint and record.reason == ""


async def test_two_workers_at_once_add_up(scope: str = "partition") -> None:
    async with site(scope) as at:
        app = adding(retry=Retries(limit=3))
        async with Worker(app, at, concurrency=3) as one, Worker(app, at, concurrency=3) as two:
            for number in range(60):
                await one.send("adds", Add(f"k{number % 3}"), id=f"m{number}")
                await two.send("adds", Add(f"k{number % 3}"), id=f"m{number}")
            await one.wait_idle()
            await two.wait_idle()
            assert [await one.state(Sum, f"k{n}") for n in range(3)] == [Sum(20), Sum(20), Sum(20)]
        assert len({task.message.identity for task in at.engine.queue("told").tasks.values()}) == 60


async def test_a_resubmission_whose_swap_is_unknown_is_not_refused_for_what_it_was_refused_before() -> None:
    async with site("item") as at:
        app, refuses = App("adding"), [True]

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            if refuses[0]:
                raise Reject("no money")
            total.n += message.n

        async with Worker(app, at) as worker:
            await worker.send("adds", Add("a"), id="m1")
            await worker.wait_idle()
            refuses[0], at.store.late = False, "swap"
            await worker.resubmit("adds", "m1")
            await worker.wait_idle()
            await at.store._store.write(at.store.on_its_way)  # it lands after all, and loses
            await worker.send("adds", Add("a"), id="m2")
            await worker.wait_idle()
            assert await worker.state(Sum, "a") == Sum(2) and await worker.dead_letters("adds") == []


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_another_payload_does_not_pass_as_a_resubmission(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", text="reject"))
        properties: dict[str, Scalar] = {"outbox-id": "m0", "outbox-type": "Add", "outbox-attempt": 1}
        async with worker:
            pass
        async with Worker(adding(), at) as again:
            await again.send_raw("adds", b'{"key":"a","n":7,"text":""}', properties=properties)
            await again.wait_idle()
            assert await again.state(Sum, "a") is None
            assert {letter.reason for letter in await again.dead_letters("adds")} == {"no", "payload-differs"}


async def test_a_state_that_only_the_pointer_makes_too_large_is_refused() -> None:
    async with site("item") as at:
        at.store.capabilities = StoreCapabilities("item", 1, 1_000, True, True)
        app = App("large")

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            total.text = "x" * message.n

        async with Worker(app, at) as worker:
            for size in range(840, 1_000, 10):
                await worker.send("adds", Add(f"k{size}", size), id=f"m{size}")
            await worker.wait_idle(timeout_s=20)
            letters = {letter.id: letter.reason for letter in await worker.dead_letters("adds")}
            assert "m990" in letters and set(letters.values()) == {"oversize"} and "m840" not in letters


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_an_attempt_past_its_deadline_writes_nothing_and_another_is_made(scope: str) -> None:
    async with site(scope) as at:
        app, runs = App("slow"), list[int]()

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            runs.append(len(at.store.calls))
            if len(runs) == 1:
                at.clock.seconds += 3_000  # over half of the margin
            total.n += 1

        async with Worker(app, at) as worker:
            await worker.send("adds", Add("a"), id="m1")
            await worker.wait_idle()
            assert await worker.state(Sum, "a") == Sum(1) and len(runs) == 2
        assert at.store.calls["commit"] + at.store.calls["swap"] == 1


def test_a_cache_takes_nothing_older_than_it_has() -> None:
    cache = StateCache(count_max=2)
    newer, older = Held(StateItem(version=3), "c"), Held(StateItem(version=2), "b")
    cache.remember("a", newer)
    cache.remember("a", older)
    assert cache.find("a") == newer
    cache.remember("x", older)
    cache.remember("y", older)
    assert cache.find("a") is None and cache.find("y") == older


async def test_overflow_that_is_not_what_was_written_is_told() -> None:
    record, name, _ = spill.spilled(Record("tx", b"", 0, outputs=(Output("q", 0, Message(body=b"1")),)))
    blobs = MemoryBlobStore()
    assert await spill.outputs_of(record, blobs) is None
    await blobs.write(name, b"[]")
    with pytest.raises(CorruptRecord, match="not what was written"):
        await spill.outputs_of(record, blobs)
