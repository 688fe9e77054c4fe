"""A key that a dead letter blocks: what unblocks it, in which order, and what does not."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from outbox import App, Client, Reject, Worker
from outbox.engine.backend.apart import EngineStore
from outbox.errors import OutboxError, Throttled
from outbox.ports import Delete, Delivery, Document, DocumentKey, Replace
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.blocked_sessions import _key as block_key
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.scopes import scope_over
from outbox.runtime.start.plan import compile_app
from tests.unit.stores.store_site import Site, site


@dataclass
class Line:
    book: str
    n: int


@dataclass
class Book:
    ns: list[int] = field(default_factory=list)


def strict(bad: Container[int] = (1,), **options: Any) -> App:
    app = App("strict", **options)
    app.queue("lines", "per_key")

    @app.handler("lines", key="book", on_dead_letter="stop_key")
    def write(line: Line, book: Book) -> None:
        if line.n in bad:
            raise Reject("no")
        book.ns.append(line.n)

    return app


async def rest(at: Site, seconds: int) -> None:
    for _ in range(seconds // 5):
        at.clock.seconds += 5
        at.engine.tick()
        await asyncio.sleep(0.01)


async def test_a_key_whose_dead_letter_was_purged_is_logged_and_unblocked(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(scope) as at, Worker(strict(), at) as worker:
        for n in range(3):
            await worker.send("lines", Line("red", n), id=f"l{n}")
        await rest(at, 30)
        operations = at.engine.ports().operations  # the broker's own tool
        for dead_letter in await operations.dead_letters("lines"):
            await operations.discard("lines", dead_letter.sequence)
        await rest(at, 120)
        reported = [record for record in caplog.records if "key blocked" in record.message]
        assert [(r.levelno, r.__dict__["id"], r.__dict__["session"]) for r in reported] == [
            (logging.WARNING, "l1", "red")
        ]
        for wrong in ("l0", "l2"):
            with pytest.raises(LookupError):
                await worker.discard("lines", wrong, key="red")
        await worker.discard("lines", "l1", key="red")
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])


@asynccontextmanager
async def blocked(scope: str) -> AsyncIterator[tuple[Site, Worker, set[int]]]:
    """A worker whose key is blocked behind line 1 of three, and the lines that it refuses."""
    bad = {1}
    async with site(scope) as at, Worker(strict(bad), at) as worker:
        for n in range(3):
            await worker.send("lines", Line("red", n), id=f"l{n}")
        await rest(at, 30)
        assert await letters(worker) == [("l1", "no")]
        yield at, worker, bad


async def letters(worker: Worker) -> list[tuple[str, str]]:
    return [(dead_letter.id, dead_letter.reason) for dead_letter in await worker.dead_letters("lines")]


async def test_a_block_is_of_one_queue_whatever_key_another_has(scope: str) -> None:
    app = strict()
    app.queue("notes", "per_key")

    @app.handler("notes", key="book", on_dead_letter="stop_key")
    def note(line: Line, book: Book) -> None:
        book.ns.append(10 + line.n)

    async with site(scope) as at, Worker(app, at) as worker:
        for n in range(3):
            await worker.send("lines", Line("red", n), id=f"l{n}")
        await rest(at, 30)
        await worker.send("notes", Line("red", 0), id="n0")
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 10]) and await letters(worker) == [("l1", "no")]


async def test_what_waits_is_put_on_record_again_after_an_unknown_outcome(scope: str) -> None:
    ages: dict[str, Any] = {
        "retention": timedelta(minutes=5),
        "margin": timedelta(minutes=1),
        "clock_skew": timedelta(seconds=30),
    }
    async with site(scope) as at, Worker(strict(**ages), at) as worker:
        at.store.late = "wait"  # and it never lands
        for n in range(3):
            await worker.send("lines", Line("red", n), id=f"l{n}")
        await rest(at, 400)
        assert await letters(worker) == [("l1", "no")] and at.store.on_its_way
        await worker.discard("lines", "l1")
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2]) and await letters(worker) == []


async def test_what_was_resubmitted_is_completed_only_when_its_key_is_unblocked(scope: str) -> None:
    async with blocked(scope) as (at, worker, bad):
        bad.clear()
        at.store.refused = "let-go"
        await worker.resubmit("lines", "l1")
        await rest(at, 30)
        waiting = {task.message.identity for task in at.engine.broker.queue("lines").tasks.values()}
        assert await worker.state(Book, "red") == Book([0, 1]) and waiting == {"l1", "l2"}
        at.store.refused = ""
        await rest(at, 60)
        assert await worker.state(Book, "red") == Book([0, 1, 2])


async def test_a_dead_letter_is_discarded_only_when_its_key_is_unblocked(scope: str) -> None:
    async with blocked(scope) as (at, worker, _):
        at.store.refused = "let-go"
        with pytest.raises(OutboxError):
            await worker.discard("lines", "l1")
        assert await letters(worker) == [("l1", "no")]  # else nobody could unblock the key by it
        at.store.refused = ""
        await worker.discard("lines", "l1")
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])


async def test_a_dead_letter_is_resubmitted_only_when_its_key_has_the_note(scope: str) -> None:
    async with blocked(scope) as (at, worker, _):
        at.store.refused = "resubmitted"
        with pytest.raises(OutboxError):
            await worker.resubmit("lines", "l1")
        assert await letters(worker) == [("l1", "no")]
        assert {task.message.identity for task in at.engine.broker.queue("lines").tasks.values()} == {"l2"}


async def test_another_payload_under_the_id_of_a_dead_letter_waits_behind_it(scope: str) -> None:
    async with blocked(scope) as (at, worker, bad):
        await worker.send("lines", Line("red", 7), id="l1")
        await rest(at, 30)
        assert await letters(worker) == [("l1", "no")] and await worker.state(Book, "red") == Book([0])
        bad.clear()
        await worker.resubmit("lines", "l1")
        await rest(at, 60)
        assert await letters(worker) == [("l1", "payload-differs")]
        assert await worker.state(Book, "red") == Book([0, 1, 2])


async def test_another_payload_under_the_id_of_a_dead_letter_does_not_unblock_its_key(scope: str) -> None:
    async with blocked(scope) as (at, worker, _):
        (dead_letter,) = await at.ports().operations.dead_letters("lines")
        stops = BlockedSessions(at.ports().store, at.ports().blobs)
        other = msgspec.structs.replace(dead_letter.message, body=b'{"book":"red","n":7}')
        await stops.unblock("lines", other)
        await stops.note_resubmission("lines", msgspec.structs.replace(dead_letter, message=other), 1)
        stop = await stops.blocked_behind(Delivery("lines", 0, other, 0, 0, 0))
        assert stop is not None and not stop.resubmitted and not stop.is_behind(other)
        await stops.unblock("lines", dead_letter.message)
        assert await stops.blocked_behind(Delivery("lines", 0, other, 0, 0, 0)) is None
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])


async def test_a_block_of_another_writer_blocks_its_key_until_it_goes(scope: str) -> None:
    async with blocked(scope) as (at, worker, _):
        store = EngineStore(at.engine.core, at.engine.documents)
        found = await store.read(block_key("lines", "red"))
        assert found is not None
        await store.write([Replace(found.key, b'{"by":"hand"}', found.version)])
        await rest(at, 60)
        assert await worker.state(Book, "red") == Book([0])
        found = await store.read(found.key)
        assert found is not None
        await store.write([Delete(found.key, found.version)])
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])


async def test_a_key_does_not_count_as_unblocked_while_the_store_cannot_be_read(scope: str) -> None:
    async with blocked(scope) as (at, worker, _):
        read, away = at.store.read, list[str]()

        async def reads_no_blocks(key: DocumentKey, *, session: str = "") -> Document | None:
            if key.id == "stopped":
                away.append(key.id)
                raise Throttled("not now")
            return await read(key, session=session)

        at.store.read = reads_no_blocks  # type: ignore[method-assign]  # a store that is away for a while
        await rest(at, 60)
        assert away and await worker.state(Book, "red") == Book([0])
        at.store.read = read  # type: ignore[method-assign]  # as above
        await worker.discard("lines", "l1")
        async with asyncio.timeout(30):  # what was given back in vain rests for longer each time, by the real clock
            while await worker.state(Book, "red") != Book([0, 2]):
                await rest(at, 30)


async def test_what_arrives_while_the_blocks_cannot_be_read_does_not_go_ahead(scope: str) -> None:
    async with site(scope) as at:
        app, read, rests, is_back = strict(()), at.store.read, asyncio.Event(), asyncio.Event()

        async def reads_no_blocks(key: DocumentKey, *, session: str = "") -> Document | None:
            if key.id == "stopped" and not is_back.is_set():
                raise Throttled("not now")
            return await read(key, session=session)

        async def pause(seconds: float) -> None:
            rests.set()
            await is_back.wait()

        at.store.read = reads_no_blocks  # type: ignore[method-assign]  # a store that is away for a while
        client, plan = Client(app, at), compile_app(app)
        await client.declare()
        for n in range(2):
            await client.send("lines", Line("red", n), id=f"l{n}")
        now_ms = at.engine.now_ms
        options: Any = {"spawn": asyncio.ensure_future, "settled": lambda _: None, "is_stopping": lambda: False}
        options |= {"new_tx": lambda: "t", "failure_log": FailureLog(now_ms)}
        handling = scope_over(plan, at.ports(), now_ms=now_ms, backoff=Backoff(pause), **options)
        first, second = await at.ports().bus.receive("lines", count_max=2, wait_s=0)
        attempt = asyncio.create_task(handling.attempt([first]))
        await rests.wait()
        await handling.attempt([second])
        is_back.set()
        await attempt
        async with Worker(app, at) as worker:
            await rest(at, 30)
            assert await worker.state(Book, "red") == Book([0, 1])


async def test_a_copy_of_what_ran_behind_one_block_does_not_wait_behind_the_next(scope: str) -> None:
    async with blocked(scope) as (at, worker, bad):
        await worker.discard("lines", "l1")  # l2 waited, and runs
        await rest(at, 30)
        assert await worker.state(Book, "red") == Book([0, 2])
        bad.add(3)
        await worker.send("lines", Line("red", 3), id="l3")
        await rest(at, 30)
        assert await letters(worker) == [("l3", "no")]
        await worker.send("lines", Line("red", 2), id="l2")
        await rest(at, 30)
        assert not at.engine.broker.queue("lines").tasks
