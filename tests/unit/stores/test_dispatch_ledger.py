"""The dispatch ledger: what it saves, when it is written, and how what a crash has left leaves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from outbox import Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.errors import CorruptRecord
from outbox.ports import Document, DocumentKey, Lost, Replace, Tag, Won, Write
from outbox.runtime.commit import dispatch_ledger
from outbox.runtime.commit.dispatch_ledger import MARGIN_S, RENEW_MS, SAVE_COUNT, DispatchLedger, unsent_of
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import may_be_sent_to
from outbox.stored import LEDGER_PREFIX, LedgerItem, Record, entry_of, ledger_key
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Add, Site, Sum, adding, site, swept
from tests.unit.stores.test_marks import remembering, send_apart
from tests.unit.waiting import until

PLAN = compile_app(adding())


def ledger_on(at: Site) -> DispatchLedger:
    ids = iter(("l1", "l2", "l3"))
    return DispatchLedger(PLAN, at.store, now_ms=at.engine.now_ms, new_id=lambda: next(ids))


async def item(at: Site, id: str = "l1") -> LedgerItem:
    found = await EngineStore(at.engine.core, at.engine.documents).read(ledger_key(id))
    assert found is not None
    return stored.decode(found, LedgerItem)


async def ledgers(at: Site) -> list[LedgerItem]:
    store = EngineStore(at.engine.core, at.engine.documents)
    found = [document async for document in store.unfinished() if document.key.id.startswith(LEDGER_PREFIX)]
    return [stored.decode(document, LedgerItem) for document in found]


# What a worker writes


@pytest.fixture
async def at() -> AsyncIterator[Site]:
    async with site(ledger=True) as at:
        yield at


async def test_a_message_costs_a_batch_and_a_share_of_the_ledger(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 10)
        assert await worker.state(Sum, "k0") == Sum(10)
        assert at.store.calls["commit"] == 10 and at.store.calls["mark"] == 0 and at.store.calls["ledger"] == 1
    (kept,) = await ledgers(at)
    assert (kept.last, kept.open, at.store.calls["ledger"]) == (10, (), 2), "a worker that stops saves it"
    assert (await swept(at, adding())).finished_count == 0
    assert at.engine.broker.queue("told").counts()["active"] == 10


async def test_it_is_written_after_so_many_and_at_each_sweep(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, SAVE_COUNT)
        (kept,) = await ledgers(at)
        assert kept.last == SAVE_COUNT
        await send_apart(worker, 1)
        assert worker._recovery is not None
        await worker._recovery.sweep()
        assert (await ledgers(at))[0].open == ()


async def test_a_handler_that_sends_nothing_takes_no_entry(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await deliver(worker, "adds", Add("a", text="reject"), id="m")
    assert await ledgers(at) == []


async def test_outputs_that_overflow_keep_their_mark(at: Site) -> None:
    at.store.capabilities = replace(at.store.capabilities, item_bytes_max=400)
    async with Worker(adding(), at) as worker:
        await deliver(worker, "adds", Add("a"), id="m")
    assert at.store.calls["mark"] == 1 and at.engine.broker.queue("told").counts()["active"] == 1


async def test_the_entry_of_a_batch_that_cannot_land_any_more_is_closed_with_that_of_the_next(at: Site) -> None:
    at.store.late = "commit"
    async with Worker(adding(), at) as worker:
        await deliver(worker, "adds", Add("a"), id="m")
        assert await worker.state(Sum, "a") == Sum(1)
    (kept,) = await ledgers(at)
    assert (kept.last, kept.open) == (2, ())


async def test_the_entry_of_a_batch_that_was_refused_is_closed(at: Site) -> None:
    at.store.refused = "commit"
    async with Worker(adding(), at) as worker:
        await worker.send("adds", Add("a"), id="m")
        await until(lambda: at.store.calls["commit"] >= 2)
        at.store.refused = ""
        await worker.wait_idle()
    (kept,) = await ledgers(at)
    assert kept.last > 2 and kept.open == ()


async def test_it_is_stored_before_the_first_entry_and_lives_longer_than_its_records(at: Site) -> None:
    ledger = ledger_on(at)
    assert await ledger.take() == entry_of("l1", 1)
    assert (await item(at)).last == 0
    at.clock.seconds += PLAN.record_life_ms / 1_000 + MARGIN_S - 1
    assert (await item(at)).pending == "l1"
    at.clock.seconds += 2
    assert await at.store.read(ledger_key("l1")) is None


async def test_it_is_renewed_while_numbers_are_handed_out(at: Site) -> None:
    ledger = ledger_on(at)
    await ledger.take()
    at.clock.seconds += RENEW_MS / 1_000 - 1
    await ledger.take()
    assert at.store.calls["ledger"] == 1
    at.clock.seconds += 1
    await ledger.take()
    assert at.store.calls["ledger"] == 2 and (await item(at)).open == (1, 2)


async def test_its_age_is_that_of_the_oldest_open_entry(at: Site) -> None:
    ledger = ledger_on(at)
    first_ms = at.engine.now_ms()
    entries = []
    for _ in range(3):
        entries.append(await ledger.take())
        at.clock.seconds += 10
    ledger.close(entries[1:2])
    await ledger.save()
    assert ((await item(at)).at_ms, (await item(at)).open) == (first_ms, (1, 3))
    ledger.close(entries)
    await ledger.save()
    assert (await item(at)).at_ms == at.engine.now_ms()


async def test_what_is_closed_while_it_is_written_is_written_with_the_next(
    at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, write = ledger_on(at), at.store.write
    first, second = [await ledger.take() for _ in range(2)]

    async def closing(operations: Sequence[Write]) -> Won | Lost:
        ledger.close([second])
        return await write(operations)

    ledger.close([first])
    monkeypatch.setattr(at.store, "write", closing)
    await ledger.save()
    assert (await item(at)).open == (2,)
    await ledger.save()
    assert (await item(at)).open == ()


async def test_with_too_many_open_entries_another_begins(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_ledger, "OPEN_COUNT_MAX", 3)
    ledger = ledger_on(at)
    taken = [await ledger.take() for _ in range(4)]
    assert taken[3] == entry_of("l2", 1)
    ledger.close(taken)  # those of the ledger that it has left are a sweeper's
    assert ledger.is_closed(taken[3]) and not ledger.is_closed(taken[0])


async def test_tasks_that_begin_at_once_begin_one_ledger(at: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    write = at.store.write

    async def slow(operations: Sequence[Write]) -> Won | Lost:
        await asyncio.sleep(0)
        return await write(operations)

    monkeypatch.setattr(at.store, "write", slow)
    ledger = ledger_on(at)
    taken = await asyncio.gather(*(ledger.take() for _ in range(5)))
    assert sorted(taken) == [entry_of("l1", number) for number in range(1, 6)]
    assert at.store.calls["ledger"] == 1


async def test_what_a_sweeper_has_closed_is_taken_over(at: Site) -> None:
    ledger = ledger_on(at)
    taken = [await ledger.take() for _ in range(3)]
    ledger.close(taken[2:])
    await ledger.save()
    swept_one = stored.encode(LedgerItem("l1", 1, 1, 3, (2,)))
    found = await at.store.read(ledger_key("l1"))
    assert found is not None
    await write_over(at, found.key, swept_one, found.version)
    ledger.close(taken[1:2])
    await ledger.save()  # loses, and learns
    await ledger.save()
    assert ((await item(at)).last, (await item(at)).open) == (3, ())
    assert ledger.is_closed(taken[0])


async def test_what_a_sweeper_had_not_seen_stays_open(at: Site) -> None:
    ledger = ledger_on(at)
    taken = [await ledger.take() for _ in range(5)]
    found = await at.store.read(ledger_key("l1"))
    assert found is not None
    await write_over(at, found.key, stored.encode(LedgerItem("l1", 1, 1, 3, (1, 2))), found.version)
    ledger.close(taken[:1])
    await ledger.save()  # loses, and learns
    await ledger.save()
    assert ((await item(at)).last, (await item(at)).open) == (5, (2, 4, 5))
    assert [ledger.is_closed(entry) for entry in taken] == [True, False, True, False, False]


async def write_over(at: Site, key: DocumentKey, body: bytes, version: str) -> None:
    assert isinstance(await at.store.write([Replace(key, body, version, tag=Tag("sweep"))]), Won)


async def test_a_ledger_that_is_gone_is_left_for_another(at: Site) -> None:
    ledger = ledger_on(at)
    await ledger.take()
    at.clock.seconds += PLAN.record_life_ms / 1_000 + MARGIN_S + 1
    with pytest.raises(NothingCommitted):
        await ledger.take()
    assert await ledger.take() == entry_of("l2", 1)


# What a sweeper does


async def crashed(at: Site, count: int = 1) -> None:
    """Let a worker commit messages and send nothing of them, and its messages be gone."""
    at.bus.is_mute = True
    worker = Worker(adding(), at, drain_s=0.2)
    await worker.declare()
    for number in range(count):
        await worker.send("adds", Add("a"), id=f"m{number}")
    async with worker:
        await until(lambda: at.store.calls["commit"] >= 1)
        await asyncio.sleep(0.1)
    at.bus.is_mute = False


async def test_what_a_crash_left_unsent_leaves_once_and_is_closed(at: Site) -> None:
    await crashed(at, 3)
    at.clock.seconds += 61
    found = await swept(at, adding())
    assert (found.finished_count, found.idle_count) == (1, 0)
    assert at.engine.broker.queue("told").counts()["active"] == 3
    at.clock.seconds += 61
    again = await swept(at, adding())
    assert (again.seen_count, again.finished_count, again.idle_count, again.oldest_s) == (1, 0, 1, 0)
    assert at.engine.broker.queue("told").counts()["active"] == 3


async def test_a_ledger_that_does_not_change_is_looked_at_less_and_less_often(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 1)
    async with Worker(adding(), at) as worker:
        assert worker._recovery is not None
        at.clock.seconds += 100
        at.store.calls.clear()
        for _ in range(10):
            await worker._recovery.sweep(grace_s=0)
        assert at.store.calls["unsent"] == 1
        at.clock.seconds += 51
        await worker._recovery.sweep(grace_s=0)
        assert at.store.calls["unsent"] == 2
        for _ in range(2):  # once an hour, however old it is
            at.clock.seconds += 40_000
            await worker._recovery.sweep(grace_s=0)
            at.clock.seconds += 3_601
            await worker._recovery.sweep(grace_s=0)
        assert at.store.calls["unsent"] == 6


async def test_a_ledger_that_has_changed_is_looked_at_at_once(at: Site) -> None:
    async with Worker(adding(), at) as worker:
        await send_apart(worker, 1)
    async with Worker(adding(), at) as worker:
        assert worker._recovery is not None
        at.clock.seconds += 100
        at.store.calls.clear()
        await worker._recovery.sweep(grace_s=0)
        store = EngineStore(at.engine.core, at.engine.documents)
        (found,) = [each async for each in store.unfinished() if each.key.id.startswith(LEDGER_PREFIX)]
        await write_over(at, found.key, found.body, found.version)
        await worker._recovery.sweep(grace_s=0)
        assert at.store.calls["unsent"] == 2


async def test_what_cannot_be_sent_for_an_hour_is_kept_until_it_can(at: Site) -> None:
    await crashed(at)
    at.bus.is_mute = True
    at.clock.seconds += 3_599
    found = await swept(at, adding())
    assert (found.seen_count, found.finished_count, found.idle_count) == (1, 0, 0), "it is not done"
    assert 3_599 <= found.oldest_s < 3_660, "what an alert looks at"
    assert await pending_records(at) == 0
    at.clock.seconds += 2
    await swept(at, adding())
    assert await pending_records(at) == 1
    at.bus.is_mute = False
    at.clock.seconds += 365 * 86_400
    assert (await swept(at, adding())).finished_count == 1
    assert at.engine.broker.queue("told").counts()["active"] == 1


async def test_what_another_application_keeps_lives_as_long_as_its_writer_said(at: Site) -> None:
    await crashed(at)
    at.bus.is_mute = True
    at.clock.seconds += 3_601
    await swept(at, remembering("short", timedelta(seconds=60)))
    store = EngineStore(at.engine.core, at.engine.documents)
    (kept,) = [one async for one in store.unfinished() if not one.key.id.startswith(LEDGER_PREFIX)]
    assert stored.decode(kept, Record).life_ms == PLAN.record_life_ms


async def pending_records(at: Site) -> int:
    store = EngineStore(at.engine.core, at.engine.documents)
    found = [document async for document in store.unfinished() if not document.key.id.startswith(LEDGER_PREFIX)]
    return sum(stored.decode(document, Record).pending for document in found)


async def test_a_worker_that_keeps_none_sweeps_those_of_others(at: Site) -> None:
    await crashed(at)
    at.store.capabilities = replace(at.store.capabilities, dispatch_ledger=False)
    at.clock.seconds += 61
    assert (await swept(at, adding())).finished_count == 1
    assert at.engine.broker.queue("told").counts()["active"] == 1


@pytest.mark.parametrize(("count_max", "last", "left"), [(3, 3, (1, 2)), (2, 0, ())])
async def test_a_sweeper_leaves_numbers_between_open_that_may_land_later(
    at: Site, count_max: int, last: int, left: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the limit of open numbers: a number far beyond the last must not cost memory for all between."""
    monkeypatch.setattr(dispatch_ledger, "OPEN_COUNT_MAX", count_max)
    await crashed(at, 1)
    (kept,) = await ledgers(at)
    store = EngineStore(at.engine.core, at.engine.documents)
    found = [one async for one in unsent_of(store, kept)]
    record = found[0][1]
    third = stored.encode(msgspec.structs.replace(record, entry=entry_of(kept.pending, 3)))
    await write_over(at, found[0][0].key, third, found[0][0].version)
    at.clock.seconds += 61
    await swept(at, adding())
    (after,) = await ledgers(at)
    assert (after.last, after.open) == (last, left)
    assert at.engine.broker.queue("told").counts()["active"] == 1, "its outputs leave all the same"


async def test_a_sweeper_that_closes_an_early_number_forgets_no_later_one(at: Site) -> None:
    await crashed(at, 1)
    (kept,) = await ledgers(at)
    known = await EngineStore(at.engine.core, at.engine.documents).read(ledger_key(kept.pending))
    assert known is not None
    later = stored.encode(msgspec.structs.replace(kept, last=3, open=(1, 2, 3)))
    await write_over(at, known.key, later, known.version)
    at.clock.seconds += 61
    await swept(at, adding())
    (after,) = await ledgers(at)
    assert (after.last, after.open) == (3, (2, 3))


async def test_a_queue_is_not_drained_while_a_ledger_has_something_for_it(at: Site) -> None:
    await crashed(at)
    assert await may_be_sent_to(["told"], at.store) and not await may_be_sent_to(["adds"], at.store)
    at.clock.seconds += 61
    await swept(at, adding())
    assert not await may_be_sent_to(["told"], at.store)


class Listing:
    """A store that lists records of a ledger by their entries."""

    async def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        for n in range(1, 9):
            record = Record("t", b"f", 0, entry=entry_of("L", n))
            if first <= record.entry < before:
                yield Document(DocumentKey("p", str(n)), stored.encode(record), "1")


@pytest.mark.parametrize("open", [(), (2,), (2, 5), (1, 2, 3, 4, 5)], ids=str)
async def test_each_record_that_a_ledger_leaves_open_is_found_once(open: tuple[int, ...]) -> None:
    store: Any = Listing()
    found = [document.key.id async for document, _ in unsent_of(store, LedgerItem("L", 0, 0, 5, open))]
    assert found == [str(n) for n in (*open, 6, 7, 8)]


async def test_a_ledger_in_a_store_that_keeps_none_is_named() -> None:
    store: Any = object()
    with pytest.raises(CorruptRecord, match="a store that cannot list its records"):
        async for _ in unsent_of(store, LedgerItem("L", 0, 0, 5, ())):
            pass
