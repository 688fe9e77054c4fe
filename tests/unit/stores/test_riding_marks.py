"""Marks that ride in the next batch of their key, and what becomes of those whose batch is not written."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from outbox import App, Context, Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import MemoryBlobStore
from outbox.errors import OutcomeUnknown, Throttled, TooLarge
from outbox.ports import Create, Delete, DocumentKey, Lost, Tag, Won, Write
from outbox.runtime.commit.marks import Marks
from outbox.runtime.start.plan import compile_app
from outbox.stored import Record
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Add, Site, Sum, Told, adding, swept
from tests.unit.stores.test_marks import pending, send_apart, until_marked


class Counted:
    """An application that adds, and counts how often its handler runs."""

    def __init__(self) -> None:
        self.app = App("adding")
        self.app.queue("told")
        self.runs = 0

        @self.app.handler("adds", key="key")
        def add(message: Add, total: Sum, ctx: Context) -> None:
            self.runs += 1
            total.n += message.n
            ctx.send("told", Told(total.n, message.text))


@asynccontextmanager
async def lingering(at: Site, app: App, *, together: int = 0) -> AsyncIterator[Worker]:
    """A worker whose marks wait for the next batch of their key; it has committed so many messages `together`."""
    worker = Worker(app, at)
    await worker.declare()
    for number in range(together):
        await worker.send("adds", Add("k0"), id=f"t{number}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outbox.worker.MARK_AFTER_S", 60)
        async with worker:
            await worker.wait_idle()
            yield worker


async def add_one(worker: Worker, id: str) -> None:
    await deliver(worker, "adds", Add("k0"), id=id)


async def test_a_mark_rides_in_the_next_batch_of_its_key(at: Site) -> None:
    async with lingering(at, adding()) as worker:
        await send_apart(worker, 5)
        assert (at.store.calls["commit"], at.store.calls["mark"]) == (5, 0)
        assert await pending(at) == 1
        assert await worker.state(Sum, "k0") == Sum(5)


async def test_what_rides_does_not_lend_the_state_its_version(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lingering(at, adding()) as worker:
        write = at.store.write

        async def apart(operations: Sequence[Write]) -> Won | Lost:
            answer = await write(operations)
            if isinstance(answer, Lost):
                return answer
            marks = [
                operation.tag.what == "mark" for operation in operations
            ]  # elsewhere each has a version of its own
            versions = ["m" if is_mark else own for own, is_mark in zip(answer.versions, marks, strict=True)]
            return replace(answer, versions=tuple(versions))

        monkeypatch.setattr(at.store, "write", apart)
        await send_apart(worker, 4)
        assert at.store.calls["commit"] == 4


async def test_the_mark_of_a_key_that_is_new_waits_for_a_moment_only(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.runtime.commit.marks.RECURRING_PAUSES", 1_000_000)
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 1)
        await until_marked(at)


async def test_a_mark_that_another_has_made_takes_no_handling_with_it(at: Site) -> None:
    counted = Counted()
    async with lingering(at, counted.app) as worker:
        await send_apart(worker, 1)
        assert (await swept(at, adding(), grace_s=0)).finished_count == 1
        at.store.calls.clear()
        await add_one(worker, "m1")
        assert counted.runs == 2 and at.store.calls["commit"] == 2  # with the mark, and without
        await add_one(worker, "m2")
        assert counted.runs == 3 and at.store.calls["commit"] == 3
        assert await pending(at) == 1 and await worker.state(Sum, "k0") == Sum(3)


async def test_marks_beside_one_that_has_lost_are_still_due(at: Site) -> None:
    async with lingering(at, adding(), together=3) as worker:
        assert at.store.calls["commit"] == 1 and await pending(at) == 3
        (first, *_) = [document async for document in at.store.unfinished()]
        await mark(at, first.key)
        await add_one(worker, "m1")
        assert await pending(at) == 3  # two of before, and its own
        await add_one(worker, "m2")
        assert await pending(at) == 1 and at.store.calls["mark"] == 0


async def mark(at: Site, key: DocumentKey) -> None:
    """Mark one record, as another worker would that has pushed its outputs."""
    store = EngineStore(at.engine.core, at.engine.documents)
    found = await store.read(key)
    assert found is not None
    marks = Marks(compile_app(adding()), store, MemoryBlobStore())
    marks.add(key, found.version, stored.decode(found, Record), b"i")
    await marks.write()


@pytest.mark.parametrize("error", [Throttled("not now"), OutcomeUnknown("no answer"), TooLarge("all in all")], ids=str)
async def test_marks_whose_batch_was_not_written_are_still_due(
    at: Site, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lingering(at, adding()) as worker:
        await send_apart(worker, 1)
        refuse_once(at, monkeypatch, error)
        await add_one(worker, "m1")
        await add_one(worker, "m2")
        assert await pending(at) == 1 and at.store.calls["mark"] == 0
        assert await worker.state(Sum, "k0") == Sum(3)


async def test_a_batch_that_is_too_large_for_its_marks_alone_is_written_without(
    at: Site,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted()
    async with lingering(at, counted.app) as worker:
        await send_apart(worker, 1)
        refuse_once(at, monkeypatch, TooLarge("all in all"))
        await add_one(worker, "m1")
        assert counted.runs == 2 and await worker.state(Sum, "k0") == Sum(2)


def refuse_once(at: Site, patch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the next batch in which a mark rides fail."""
    write, errors = at.store.write, [error]

    async def refusing(operations: Sequence[Write]) -> Won | Lost:
        if errors and operations[-1].tag.what == "mark":
            raise errors.pop()
        return await write(operations)

    patch.setattr(at.store, "write", refusing)


def batches(at: Site, patch: pytest.MonkeyPatch) -> list[list[int]]:
    """The bytes of each operation of each batch from now on."""
    write, sizes = at.store.write, list[list[int]]()

    async def watched(operations: Sequence[Write]) -> Won | Lost:
        sizes.append([len(one.body) for one in operations if not isinstance(one, Delete)])
        return await write(operations)

    patch.setattr(at.store, "write", watched)
    return sizes


async def test_no_more_marks_ride_than_a_batch_has_room_for(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    at.store.capabilities = replace(at.store.capabilities, batch_count_max=4)
    async with lingering(at, adding(), together=3) as worker:
        sizes = batches(at, monkeypatch)
        await add_one(worker, "m1")
        assert [len(batch) for batch in sizes] == [4] and await pending(at) == 2


async def test_no_more_bytes_ride_than_a_batch_has_room_for(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async with lingering(at, adding()) as worker:
        sizes = batches(at, monkeypatch)
        await send_apart(worker, 2)
        record, state, mark = sizes[1]
        room = (record + state + mark // 2) * 64 // 63 + 1  # a 64th is kept for refusals
        at.store.capabilities = replace(at.store.capabilities, item_bytes_max=room)
        await add_one(worker, "m2")
        assert len(sizes[2]) == 2 and await pending(at) == 2


async def test_a_mark_of_outputs_in_a_blob_does_not_ride(at: Site) -> None:
    marks = Marks(compile_app(adding()), at.store, MemoryBlobStore())
    for id, spilled in (("m0", "a-blob"), ("m1", "")):
        key, record = DocumentKey("Sum:k0", id), Record("t", b"f", at.engine.now_ms(), True, spilled=spilled)
        won = await at.store.write([Create(key, stored.encode(record), tag=Tag("commit"))])
        assert isinstance(won, Won)
        marks.add(key, won.versions[0], record, b"i")
    taken = marks.take("Sum:k0", count_max=9, bytes_max=1 << 20)
    assert [one.write.key.id for one in taken] == ["m1"] and marks.due_count == 1


async def test_a_batch_that_lost_to_a_mark_is_not_written_past_its_deadline(
    at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted()
    async with lingering(at, counted.app) as worker:
        await send_apart(worker, 1)
        assert (await swept(at, adding(), grace_s=0)).finished_count == 1
        write, leaps = at.store.write, [86_400]

        async def slow(operations: Sequence[Write]) -> Won | Lost:
            answer = await write(operations)
            if leaps and isinstance(answer, Lost):
                at.clock.seconds += leaps.pop()
            return answer

        monkeypatch.setattr(at.store, "write", slow)
        await add_one(worker, "m1")
        assert counted.runs == 3, "it ran again, with a deadline of its own"
