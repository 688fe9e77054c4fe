"""HTTP entries over a store and a bus that are watched, and on an engine: early answers, limits, sweeps."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Engine, Retries, Worker
from outbox.engine.backend.apart import EngineStore
from outbox.engine.limits import EngineLimits
from outbox.engine.log.disk import MemoryDisk
from outbox.http import Response
from outbox.http_entry import HttpEntry, Pending
from outbox.message import Message
from outbox.ports import Output, Replace
from outbox.runtime.delivery.retrying import ATTEMPT_COUNT_MAX
from outbox.stored import record_key, state_key
from outbox.testing import START_S, VirtualClock
from tests.unit.runtime.jobs import Note
from tests.unit.runtime.purse import Ask, Book, Paid, Pay, Purse, paying
from tests.unit.stores.http_site import INBOX, post, serving, settled
from tests.unit.stores.store_site import Site, site, swept
from tests.unit.waiting import until


@pytest.fixture
def book() -> Book:
    """Of handlers that wait until they are let go."""
    return Book(gate=asyncio.Event())


async def test_a_failed_request_is_made_again_after_each_declared_delay() -> None:
    app, slept = App("a"), list[float]()

    @app.http("POST", "/pay", retries=Retries(limit=4, delays_s=(1.0, 10.0)))
    def fail(pay: Pay) -> None:
        raise ValueError

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with Engine.in_memory() as engine, HttpEntry(app, engine, sleep=sleep, mark_after_s=0) as entry:
        body = msgspec.json.encode(Pay("a", 5))
        assert (await entry.handle("POST", "/pay", {"idempotency-key": "k"}, body)).status >= 400
    assert slept == [1.0, 10.0, 10.0]


# Replies in records


async def test_a_record_keeps_its_reply_when_it_is_marked(at: Site) -> None:
    async with serving(at) as entry:
        first = await post(entry, Pay("a", 5))
        await settled(entry)
        key = record_key("Purse:a", INBOX)
        record = json.loads(await at.document(key.partition, key.id) or b"")
        assert "pending" not in record and "outputs" not in record and record["reply"][0] == 200
        assert await post(entry, Pay("a", 5)) == first


async def test_an_entry_registers_its_retention_counts_what_it_sends_and_marks_at_its_end(scope: str) -> None:
    async with site(scope) as at:
        async with HttpEntry(paying(), at, mark_after_s=60.0, drain_s=0.0) as entry:
            assert (await post(entry, Pay("a", 5), method="post")).status == 200
            async with asyncio.timeout(5):
                while not at.engine.broker.queue("paid").tasks:  # noqa: ASYNC110  # no event says so
                    await asyncio.sleep(0)
            assert entry._plan.counts.sent == 1 and await entry._operations.note("retention:purse") is not None
        assert (await swept(at, paying())).seen_count == 0


async def test_the_end_waits_for_a_request_then_marks_and_logs_what_was_not_sent(
    scope: str, book: Book, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(scope) as at:
        entry = await HttpEntry(paying(book), at, mark_after_s=60.0).__aenter__()
        asked = asyncio.create_task(post(entry, Pay("a", 5)))
        await until(lambda: book.runs)
        assert entry._settlement is not None
        entry._settlement.failed_pushes.note([Output("paid", 0, Message(body=b"", outbox_id="lost"))], "no answer")
        ending = asyncio.create_task(entry.drain())
        await until(lambda: entry._is_stopping)
        book.gate.set()
        await ending
        assert (await asked).status == 200 and (await swept(at, paying())).seen_count == 0
        entry._settlement.failed_pushes.note([Output("paid", 0, Message(body=b"", outbox_id="later"))], "no answer")
        await entry.drain()
        assert [record.__dict__["ids"] for record in caplog.records] == [["lost"], ["later"]]


async def test_what_ends_a_request_ends_those_who_wait_for_it_unless_they_are_answered() -> None:
    async def fails(error: BaseException) -> Response:
        raise error

    for error in (asyncio.CancelledError(), ValueError("x")):
        pending, answered = Pending(), Pending()
        answered.answer(Response(200))
        for each in (pending, answered):
            with pytest.raises(type(error)):
                await each.take(partial(fails, error))
        assert answered.response.result().status == 200
        with pytest.raises(type(error)):
            pending.response.result()


async def test_outputs_that_fill_a_blob_leave_the_reply_in_the_record(scope: str) -> None:
    app = paying()

    @app.http("POST", "/many", key="purse")
    def many(message: Ask, purse: Purse, ctx: Context) -> int:
        purse.count += message.amount
        for n in range(message.amount):
            ctx.send("paid", Paid("x" * 150_000, n))
        return purse.count

    async with site(scope) as at, serving(at, app) as entry:
        first = await post(entry, Ask("a", 20), path="/many")
        await settled(entry)
        assert (first.status, first.json()) == (200, 20) and len(at.engine.broker.queue("paid").tasks) == 20
        assert await post(entry, Ask("a", 20), path="/many") == first


async def test_a_state_too_large_to_store_is_refused_for_good(scope: str) -> None:
    app = App("large")

    @app.http("POST", "/large", key="purse")
    def large(message: Ask, note: Note) -> None:
        note.text = "x" * 3_000_000

    async with site(scope) as at, serving(at, app) as entry:
        first = await post(entry, Ask("a"), path="/large")
        assert (first.status, first.json()["code"], "retry-after" in first.headers) == (500, "oversize", False)
        assert await post(entry, Ask("a"), path="/large") == first


async def test_a_reply_is_given_while_the_bus_is_silent_and_the_sweeper_sends(scope: str) -> None:
    async with site(scope) as at, serving(at) as entry:
        at.bus.is_mute = True
        response = await asyncio.wait_for(post(entry, Pay("a", 5)), timeout=5)
        assert response.status == 200 and at.engine.broker.queue("paid").tasks == {}
        await settled(entry)
        at.bus.is_mute = False
        at.clock.seconds += 120
        assert (await swept(at, paying())).finished_count == 1
        (task,) = at.engine.broker.queue("paid").tasks.values()
        assert msgspec.json.decode(task.message.body, type=Paid) == Paid("a", 5)
        assert await post(entry, Pay("a", 5)) == response


async def test_what_cannot_be_sent_is_left_to_the_sweeper_after_one_round_of_tries(scope: str) -> None:
    async with site(scope) as at, serving(at) as entry:
        at.bus.is_mute, tries = True, 0
        send = at.bus.send

        async def counted(outputs: Sequence[Output]) -> None:
            nonlocal tries
            tries += 1
            await send(outputs)

        at.bus.send = counted  # type: ignore[method-assign]  # to count what goes through it
        await post(entry, Pay("a", 5))
        await settled(entry)
        assert 1 < tries <= 1 + ATTEMPT_COUNT_MAX


async def test_a_worker_without_queues_sweeps_for_the_entries(scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.runtime.shell.SWEEP_EVERY_S", 0.01)
    async with site(scope) as at:
        async with serving(at) as entry:
            at.bus.is_mute = True
            assert (await post(entry, Pay("a", 5))).status == 200
        at.bus.is_mute = False
        at.clock.seconds += 120
        async with Worker(paying(), at):
            assert await at.engine.broker.wait_any(["paid"], 5)


async def test_an_entry_beside_a_worker_may_share_what_that_has_at_hand(at: Site) -> None:
    async with Worker(paying(), at) as worker:
        scope: Any = worker._scope
        async with serving(at, plan=worker._plan, protocol=scope.protocol) as entry:
            await post(entry, Pay("a", 5), "k1")
            before = at.store.calls["read"]
            await post(entry, Pay("a", 5), "k2")
            assert at.store.calls["read"] == before


# Waiting and limits


async def test_a_client_that_waits_too_long_is_asked_to_repeat(engine: Engine, book: Book) -> None:
    async with serving(engine, paying(book), wait_s=0.01) as entry:
        first, second = await asyncio.gather(post(entry, Pay("a", 5)), post(entry, Pay("a", 5)))
        assert (first.status, first.headers["retry-after"]) == (503, "1")
        assert (second.status, second.json()["code"]) == (409, "in-progress")
        book.gate.set()
        assert (await post(entry, Pay("a", 5))).status == 200 and book.runs == ["a"]


@pytest.mark.parametrize("other", [Pay("a", 6), Pay("b", 5)], ids=["amount", "purse"])
async def test_another_request_under_a_key_that_is_at_work_does_not_share_its_answer(
    engine: Engine, book: Book, other: Pay
) -> None:
    async with serving(engine, paying(book)) as entry:
        asked = [asyncio.create_task(post(entry, message)) for message in (Pay("a", 5), other)]
        await book.let_go()
        first, second = await asyncio.gather(*asked)
        assert (first.status, first.json()["balance"]) == (200, 5)
        assert (second.status, second.json()["code"]) == (422, "idempotency-key-reused")


async def test_a_client_that_hangs_up_cancels_nothing(engine: Engine, book: Book) -> None:
    async with serving(engine, paying(book)) as entry:
        asked = asyncio.create_task(post(entry, Pay("a", 5)))
        await asyncio.sleep(0.01)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        book.gate.set()
        assert (await post(entry, Pay("a", 5))).json()["balance"] == 5 and book.runs == ["a"]


@pytest.mark.parametrize("keys", ["abc", "aaa"], ids=["of a request each", "that wait for one request"])
async def test_more_clients_than_an_entry_takes_are_sent_away(engine: Engine, book: Book, keys: str) -> None:
    async with serving(engine, paying(book), request_count_max=2) as entry:
        asked = [asyncio.create_task(post(entry, Pay("a", 1), key)) for key in keys]
        await book.let_go()
        assert [response.status for response in await asyncio.gather(*asked)] == [200, 200, 503]
        assert (await post(entry, Pay("a", 1), keys[-1])).status == 200


async def test_requests_whose_clients_have_gone_are_counted_until_they_end(engine: Engine, book: Book) -> None:
    options: dict[str, Any] = {"wait_s": 0.01, "request_count_max": 3}
    async with serving(engine, paying(book), **options) as entry:
        first, *later = [await post(entry, Pay("a", 1), f"k{n}") for n in range(8)]  # behind the first one's turn
        look = await entry.handle("GET", "/purses/a", {})
        assert first.status == 503 and "in progress" not in first.json()["detail"] and len(entry._tasks.running) == 3
        assert [(answer.status, answer.headers["retry-after"]) for answer in (*later, look)] == [(503, "1")] * 8
        assert all("3 requests are in progress" in answer.json()["detail"] for answer in (*later[2:], look))
        assert (await post(entry, Pay("a", 1), "k0")).json()["code"] == "in-progress"
        book.gate.set()
        await settled(entry)
        assert (await post(entry, Pay("a", 1), "k9")).json()["balance"] == 4 and entry._working == set()


async def test_requests_that_are_answered_count_while_their_outputs_cannot_leave(scope: str) -> None:
    silent = asyncio.Event()
    async with site(scope) as at, serving(at, request_count_max=2) as entry:

        async def send(outputs: Sequence[Output]) -> None:
            await silent.wait()

        at.bus.send = send  # type: ignore[method-assign]  # a bus that neither takes nor refuses
        answers = [await post(entry, Pay(f"p{n}", 1), f"k{n}") for n in range(20)]
        assert [answer.status for answer in answers] == [200] * 2 + [503] * 18 and len(entry._tasks.running) == 2
        silent.set()
        await settled(entry)
        assert (await post(entry, Pay("a", 1))).status == 200


async def test_a_state_that_cannot_be_read_puts_requests_off_and_is_named(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(scope) as at, serving(at) as entry:
        await post(entry, Pay("a", 5))
        key, store = state_key("Purse:a"), EngineStore(at.engine.core, at.engine.documents)
        document = await store.read(key)
        assert document is not None
        await store.write([Replace(key, b'{"value": 3, "version": "x"}', document.version)])
        async with serving(at) as fresh:
            look = await fresh.handle("GET", "/purses/a", {})
            paid = await post(fresh, Pay("a", 5), "k2")
        assert (look.status, paid.status) == (503, 503) and look.headers["retry-after"] == "1"
        named = [
            vars(record)["error"]
            for record in caplog.records
            if record.message == "request met an unreadable document; repair or delete it"
        ]
        assert len(named) == 2 and all("Purse:a" in error for error in named)


async def test_draining_lets_requests_end_and_takes_no_more(engine: Engine, book: Book) -> None:
    entry = await HttpEntry(paying(book), engine).__aenter__()
    asked = asyncio.create_task(post(entry, Pay("a", 5)))
    await asyncio.sleep(0.01)
    draining = asyncio.create_task(entry.drain())
    await asyncio.sleep(0.01)
    assert (await post(entry, Pay("a", 5), "k2")).status == 503 and not draining.done()
    book.gate.set()
    assert (await asked).status == 200
    await draining


async def test_a_request_cut_off_by_draining_is_safe_to_repeat(engine: Engine, book: Book) -> None:
    entry = await HttpEntry(paying(book), engine, drain_s=0.01).__aenter__()
    asked = asyncio.create_task(post(entry, Pay("a", 5)))
    await asyncio.sleep(0.01)
    await entry.drain()
    assert (await asked).status == 503
    book.gate.set()
    async with serving(engine, paying(book)) as again:
        assert (await post(again, Pay("a", 5))).json()["balance"] == 5


async def test_requests_of_one_state_take_turns_and_of_others_do_not_wait(engine: Engine, book: Book) -> None:
    async with serving(engine, paying(book)) as entry:
        asked = [
            asyncio.create_task(post(entry, Pay(purse, 1), key)) for purse, key in (("a", "1"), ("a", "2"), ("b", "3"))
        ]
        await asyncio.sleep(0.01)
        assert sorted(book.runs) == ["a", "b"]
        book.gate.set()
        assert [response.status for response in await asyncio.gather(*asked)] == [200, 200, 200]
        assert entry._turns._lanes == {} and entry._pending == {}


# On an engine


async def test_requests_side_by_side_share_a_flush() -> None:
    async with Engine.open(MemoryDisk("disk"), clock=VirtualClock(START_S)) as engine, serving(engine) as entry:
        before = engine.core.flush_count
        await asyncio.gather(*[post(entry, Pay(f"p{n}", 1), f"k{n}") for n in range(50)])
        assert engine.core.flush_count - before <= 3


async def test_a_replayed_reply_waits_until_its_record_is_durable() -> None:
    disk = MemoryDisk("disk")
    async with Engine.open(disk, clock=VirtualClock(START_S)) as engine, serving(engine) as entry:
        await post(entry, Pay("a", 5))
        log = engine.log
        engine.broker.send("paid", [Message(body=b"{}", outbox_id="1")])
        assert log is not None and log.synced < log.appended
        await post(entry, Pay("a", 5))
        assert log.synced == log.appended


async def test_a_read_waits_until_what_it_has_seen_is_durable() -> None:
    """Others write whenever something is read; what they write is not flushed."""
    engine = Engine.open(MemoryDisk("disk"), clock=VirtualClock(START_S))
    ports = engine.ports()
    load = ports.journal.load

    async def busy(states: Sequence[str], markers: Sequence[bytes]) -> Any:
        engine.broker.send("paid", [Message(body=b"{}", outbox_id="of another")])
        return await load(states, markers)

    ports.journal.load = busy  # type: ignore[method-assign]  # one instance, for this test
    async with engine, serving(SimpleNamespace(ports=lambda: ports)) as entry:
        await post(entry, Pay("a", 5))
        log = engine.log
        assert log is not None
        for path, balance in (("/purses/a", 5), ("/purses/b", None)):  # that there is none is seen as well
            found = await entry.handle("GET", path, {})
            assert found.json().get("balance") == balance
            assert log.synced == log.appended, path


async def test_an_engine_counts_the_replies_that_it_remembers() -> None:
    clock, disk = VirtualClock(START_S), MemoryDisk("disk")
    async with Engine.open(disk, clock=clock) as engine:
        async with serving(engine) as entry:
            before = engine.state.body_bytes
            response = await post(entry, Ask("a" * 1_000), path="/echoes")
            grown = engine.state.body_bytes - before
            assert len(response.body) <= grown < len(response.body) + 200
        engine.compact()
        assert engine.state.body_bytes == before + grown
    async with Engine.open(disk, clock=clock) as engine:
        assert engine.state.body_bytes >= grown
        after = engine.state.body_bytes
        async with serving(engine) as entry:
            assert await post(entry, Ask("a" * 1_000), path="/echoes") == response
        engine.state.forget(engine.now_ms() + 8 * 86_400_000)
        assert engine.state.body_bytes <= after - grown and engine.state.markers.known == {}


async def test_an_engine_that_is_full_takes_no_requests() -> None:
    limits = EngineLimits(memory_bytes_max=10_000)
    async with Engine.in_memory(limits=limits) as engine, serving(engine) as entry:
        statuses = [(await post(entry, Ask("a" * 3_000, n), f"k{n}", "/echoes")).status for n in range(6)]
        assert statuses[0] == 200 and statuses[-1] == 503
        first = await post(entry, Ask("a" * 3_000, 0), "k0", "/echoes")
        assert first.status == 200


async def test_where_two_requests_race_for_a_state_in_two_processes_both_count(engine: Engine, book: Book) -> None:
    async with serving(engine, paying(book)) as one, serving(engine, paying(book)) as two:
        asked = [
            asyncio.create_task(post(entry, Pay("a", 1), key)) for entry, key in ((one, "1"), (two, "2"), (two, "1"))
        ]
        await asyncio.sleep(0.01)
        assert len(book.runs) == 2
        book.gate.set()
        replies = [response.json() for response in await asyncio.gather(*asked)]
        assert sorted(reply["balance"] for reply in replies[:2]) == [1, 2] and replies[0] == replies[2]
        assert len(engine.broker.queue("paid").tasks) == 2
