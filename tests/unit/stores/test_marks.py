"""Marks: few writes where keys repeat, none lost when a worker stops, and none needed when it dies."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from outbox import App, Context, HttpEntry, Response, Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.ports import Create, DocumentKey, Replace, Tag, Won
from outbox.runtime.commit.marks import FULL_COUNT, Marks
from outbox.runtime.start.plan import compile_app
from outbox.stored import RECORD_PREFIX, Record, record_key
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Add, Site, Sum, Told, adding, site, swept
from tests.unit.waiting import until


async def send_apart(worker: Worker, count: int, keys: int = 1) -> None:
    """Send messages one after the other, each committed before the next is sent."""
    for number in range(count):
        await deliver(worker, "adds", Add(f"k{number % keys}"), id=f"m{number}")


async def pending(at: Site, key: str = "k0") -> int:
    """How many records of a key are pending; none of them may expire."""
    found = [
        document
        async for document in EngineStore(at.engine.core, at.engine.documents).scan(f"Sum:{key}", prefix=RECORD_PREFIX)
    ]
    records = [stored.decode(document, Record) for document in found]
    return sum(record.pending for record in records)


async def until_marked(at: Site) -> None:
    async def none_is_pending() -> bool:
        return not await pending(at)

    await until(none_is_pending, within_s=5)


async def test_marks_of_one_key_are_written_together_over_time(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 60, keys=3)
        assert await worker.state(Sum, "k0") == Sum(20)
    assert at.store.calls["commit"] == 60
    assert at.store.calls["mark"] <= 30  # at most half a write a message
    assert [await pending(at, f"k{n}") for n in range(3)] == [0, 0, 0]


async def test_a_key_with_many_marks_waits_for_no_others(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.worker.MARK_AFTER_S", 60)
    worker = Worker(adding(), at)
    await worker.declare()
    for number in range(FULL_COUNT):
        await worker.send("adds", Add("k0"), id=f"m{number}")
    async with worker:
        await worker.wait_idle()
        await until_marked(at)
    assert at.store.calls["mark"] == 1


async def test_what_a_lingering_mark_is_due_for_is_marked_soon(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 3)
        await until_marked(at)


async def test_a_worker_that_stops_marks_what_is_due_at_once(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.worker.MARK_AFTER_S", 60)
    async with asyncio.timeout(10), Worker(adding(), at) as worker:
        await send_apart(worker, 3, keys=3)
        assert [await pending(at, f"k{n}") for n in range(3)] == [1, 1, 1]
    assert [await pending(at, f"k{n}") for n in range(3)] == [0, 0, 0] and at.store.calls["mark"] == 3


async def test_a_copy_of_a_message_whose_mark_lingers_is_not_pushed_again(
    at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.worker.MARK_AFTER_S", 60)
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 1)
        await send_apart(worker, 1)
        assert at.engine.broker.queue("told").counts()["active"] == 1 and await worker.state(Sum, "k0") == Sum(1)


async def test_what_a_worker_left_unmarked_is_finished_by_a_sweeper(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.worker.MARK_AFTER_S", 60)
    worker = Worker(adding(), at)
    async with worker:
        await send_apart(worker, 3, keys=3)
        worker._scope.protocol.marks._due.clear()  # type: ignore[union-attr]  # as a crash would leave it
    assert [await pending(at, f"k{n}") for n in range(3)] == [1, 1, 1]
    at.clock.seconds += 365 * 86_400
    at.engine.tick()
    assert [await pending(at, f"k{n}") for n in range(3)] == [1, 1, 1]  # however long nobody comes
    found = await swept(at, adding())
    assert found.finished_count == 3 and [await pending(at, f"k{n}") for n in range(3)] == [0, 0, 0]


async def test_a_stateless_handlers_marks_are_written_side_by_side(at: Site) -> None:
    app = App("telling")
    app.queue("told")

    @app.handler("adds")
    def tell(message: Add, ctx: Context) -> None:
        ctx.send("told", Told(message.n))

    async with Worker(app, at) as worker:
        for number in range(50):
            await worker.send("adds", Add("a"), id=f"m{number}")
        await worker.wait_idle()
    assert at.store.calls["commit"] == 50 and at.store.calls["mark"] == 50
    assert [document async for document in at.store.unfinished()] == []


async def test_a_record_that_two_attempts_push_at_once_is_due_once(at: Site) -> None:
    marks = Marks(compile_app(adding()), at.store, at.ports().blobs)
    key, record = DocumentKey("Sum:k0", f"{RECORD_PREFIX}m0"), Record("t", b"f", at.engine.now_ms())
    won = await at.store.write([Create(key, stored.encode(record), tag=Tag("commit"))])
    assert isinstance(won, Won)
    for _ in range(2):
        marks.add(key, won.versions[0], record, b"m0")
    assert marks.due_count == 1
    await marks.write()
    assert marks.due_count == 0  # else marks are dropped in the end, as if too many were due


async def test_marks_that_are_too_large_for_one_write_are_written_in_parts(at: Site) -> None:
    app = adding()

    @app.http("POST", "/adds", key="key")
    def answer(message: Add, sum: Sum, ctx: Context) -> Response:
        ctx.send("told", Told(sum.n))
        return Response(200, {}, b"x" * 240_000)

    async with HttpEntry(app, at) as entry:
        asked = [entry.handle("POST", "/adds", {"Idempotency-Key": f"{n}"}, b'{"key": "k0"}') for n in range(20)]
        assert {response.status for response in await asyncio.gather(*asked)} == {200}
        await until_marked(at)


async def test_a_mark_that_loses_leaves_the_blob_that_the_pending_record_names(at: Site) -> None:
    store, blobs = EngineStore(at.engine.core, at.engine.documents), MemoryBlobStore()
    marks, record = Marks(compile_app(adding()), store, blobs), Record("tx", b"", 0, pending=True, spilled="b")
    key, body = record_key("Sum:a", b"inbox"), stored.encode(record)
    await blobs.write("b", b"[]")
    made = await store.write([Create(key, body)])
    assert isinstance(made, Won)
    marks.add(key, made.versions[0], record, b"inbox")
    await store.write([Replace(key, body, made.versions[0])])  # as a reader does that asks for proof
    await marks.write()
    assert await blobs.read("b", bytes_max=9) == b"[]"


async def test_a_mark_that_loses_keeps_no_other_of_its_partition_from_its_own(at: Site) -> None:
    marks, record = Marks(compile_app(adding()), at.store, at.ports().blobs), Record("t", b"f", 0, pending=True)
    for inbox in (b"0", b"1", b"2"):
        made = await at.store.write([Create(key := record_key("Sum:a", inbox), stored.encode(record), tag=Tag("x"))])
        assert isinstance(made, Won)
        marks.add(key, made.versions[0], record, inbox)
        if inbox == b"1":  # as another worker does
            await at.store.write([Replace(key, stored.encode(record.marked()), made.versions[0], tag=Tag("x"))])
    await marks.write()
    assert not await pending(at, "a")


def remembering(name: str, retention: timedelta) -> App:
    app = App(name, retention=retention, margin=timedelta(seconds=60), clock_skew=timedelta(seconds=15))
    app.queue("told")

    @app.handler(f"adds-{name}", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        total.n += message.n
        ctx.send("told", Told(total.n))

    return app


async def test_who_finishes_what_another_application_began_keeps_its_record_as_long(scope: str) -> None:
    long, short = remembering("long", timedelta(days=7)), remembering("short", timedelta(seconds=60))

    async def is_remembered() -> bool:
        return any(id.startswith(("inbox:", "done:")) for id in await at.documents("Sum:a"))

    async with site(scope) as at:
        at.bus.is_mute = True
        worker = Worker(long, at, drain_s=0)
        async with worker:
            await worker.declare()
            await worker.send("adds-long", Add("a"), id="m")
            await until(lambda: worker.state(Sum, "a"))
        at.bus.is_mute = False
        assert (await swept(at, short, grace_s=0)).finished_count == 1
        at.clock.seconds += 3_600
        assert await is_remembered()
        at.clock.seconds += 8 * 86_400
        assert not await is_remembered()
