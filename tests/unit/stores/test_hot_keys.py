"""The store protocols when things come in an unkind order: a part that is throttled, a sweep in between, a hot key."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from outbox import App, Reject, Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.errors import CorruptRecord, Throttled
from outbox.ports import Create, Delivery, DocumentKey, Lost, Settle, StorePorts, Won, Write
from outbox.runtime.commit.marks import Marks
from outbox.runtime.start.plan import compile_app
from outbox.stored import Record, record_key
from tests.unit.stores.store_site import Add, AtTheEnd, Seen, Site, Step, Sum, Trail, adding, site, swept


def throttle(at: Site, patch: pytest.MonkeyPatch, refuses: Callable[[Sequence[Write]], bool]) -> None:
    """Let the store refuse some writes for now."""
    write = at.store.write

    async def throttled(operations: Sequence[Write]) -> Won | Lost:
        if refuses(operations):
            raise Throttled("not now")
        return await write(operations)

    patch.setattr(at.store, "write", throttled)


async def pass_time(at: Site, seconds: int) -> None:
    for _ in range(seconds):
        at.clock.seconds += 1
        at.engine.tick()
        await asyncio.sleep(0.005)


async def pass_until(at: Site, read: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Let time pass until something is as it is wanted."""
    for _ in range(2_000):
        if await read() == wanted:
            return
        await pass_time(at, 1)
    assert await read() == wanted


def two_readers(bad: set[int]) -> App:
    app = App("steps")
    app.queue("steps", "per_key")

    @app.handler("steps", key="key", on_dead_letter="stop_key")
    def follow(step: Step, trail: Trail) -> None:
        if step.n in bad:
            raise Reject("bad")
        trail.steps.append(step.n)

    @app.handler("steps", key="key", on_dead_letter="stop_key")
    def look(step: Step, seen: Seen) -> None:
        seen.steps.append(step.n)

    return app


async def test_a_released_branch_does_not_unblock_its_key(scope: str) -> None:
    bad = {1}
    async with site(scope) as at:
        ports = at.ports()
        at._ports = StorePorts(ports.store, ports.bus, AtTheEnd(at.engine), ports.blobs)
        async with Worker(two_readers(bad), at) as worker:
            for n in range(4):
                await worker.send("steps", Step("a", n), id=f"s{n}")
            await pass_until(at, lambda: worker.state(Seen, "a"), Seen([0, 1]))
            while not await worker.dead_letters("steps"):
                await pass_time(at, 1)
            bad.clear()
            with pytest.MonkeyPatch.context() as patch:
                throttle(at, patch, lambda operations: "Trail" in operations[0].key.partition)
                await worker.resubmit("steps", "s1")
                await pass_time(at, 30)
                assert await worker.state(Trail, "a") == Trail([0]) and await worker.state(Seen, "a") == Seen([0, 1])
            await pass_until(at, lambda: worker.state(Trail, "a"), Trail([0, 1, 2, 3]))
            await pass_until(at, lambda: worker.state(Seen, "a"), Seen([0, 1, 2, 3]))


async def test_a_key_whose_lane_never_empties_is_marked_all_the_same(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    worker, settle, write = Worker(adding(), at), at.bus.settle, at.store.write
    await worker.declare()
    for number in range(400):
        await worker.send("adds", Add("a"), id=f"m{number}")
    marks_while_busy: list[int] = []

    async def slow_settle(delivery: Delivery, how: Settle) -> None:
        await asyncio.sleep(0.002)  # one after the other: what is freed is filled before the lane is through
        await settle(delivery, how)

    async def counting_write(operations: Sequence[Write]) -> Won | Lost:
        if operations[0].tag.what == "commit" and at.engine.broker.queue("adds").counts()["active"] > 60:
            marks_while_busy.append(at.store.calls["mark"])
        return await write(operations)

    monkeypatch.setattr(at.bus, "settle", slow_settle)
    monkeypatch.setattr(at.store, "write", counting_write)
    async with worker:
        await worker.wait_idle()
    assert marks_while_busy[-1] > 0


async def test_a_record_that_two_have_followed_is_marked_with_the_others_of_its_batch(at: Site) -> None:
    store = EngineStore(at.engine.core, at.engine.documents)
    marks = Marks(compile_app(adding()), store, at.engine.blobs)
    record = Record("t", b"", 0, pending=True)
    for number in range(5):
        key = record_key("Sum:a", bytes([number]))
        won = await store.write([Create(key, stored.encode(record))])
        assert isinstance(won, Won)
        for _ in range(2):
            marks.add(key, won.versions[0], record, bytes([number]))
    assert marks.due_count == 5
    await marks.write()
    assert [document async for document in store.unfinished()] == [] and marks.due_count == 0


DEPTH = 20_000  # beyond what a decoder goes down: the recursion limit up to Python 3.11, 10,000 calls of C after it
DEEP = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH


@pytest.mark.parametrize("name", ["handlers:adding", "retention:adding"])
@pytest.mark.parametrize("body", [b"[", DEEP])
async def test_a_note_that_cannot_be_read_is_named_with_what_to_do(at: Site, name: str, body: bytes) -> None:
    await EngineStore(at.engine.core, at.engine.documents).write([Create(DocumentKey("notes", name), body)])
    with pytest.raises(CorruptRecord, match=f"notes/{name} .* Delete it"):
        async with Worker(adding(), at):
            pass


async def test_a_document_nested_without_end_keeps_no_client_from_the_rest(scope: str) -> None:
    async with site(scope) as at:
        await EngineStore(at.engine.core, at.engine.documents).write([Create(DocumentKey("Sum:a", "state"), DEEP)])
        await EngineStore(at.engine.core, at.engine.documents).write(
            [Create(DocumentKey("Sum:c", "state"), b'{"pending":"t","x":' + DEEP + b"}")]
        )
        async with Worker(adding(), at, drain_s=0.1) as worker:
            for key in ("a", "b"):
                await worker.send("adds", Add(key), id=key)
            await pass_until(at, lambda: worker.state(Sum, "b"), Sum(1))
            assert (
                at.engine.broker.queue("adds").counts()["active"] + at.engine.broker.queue("adds").counts()["scheduled"]
                == 1
            )
            at.clock.seconds += 100
            assert (await swept(at, adding())).next_start == 0  # it came to the end
