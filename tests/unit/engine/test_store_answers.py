"""What the engine answers as a store or hands out: after the gate, whatever the answer is, and up to its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from outbox.engine.backend.apart import BATCH_COUNT_MAX, ITEM_BYTES_MAX, EngineStore
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.errors import TooLarge
from outbox.message import Message
from outbox.ports import Create, Delete, DocumentKey, Lost, Operations, Output, Replace, Settle, Won
from outbox.testing import START_S, VirtualClock

PENDING = b'{"pending":"tx"}'
KEY = DocumentKey("p", "a")


class Site:
    """An engine as a store, with documents that nobody has waited for."""

    def __init__(self) -> None:
        self.engine = Engine.open(MemoryDisk("answers"), clock=VirtualClock(START_S))
        self.store = EngineStore(self.engine.core, self.engine.documents)

    def put(self, id: str) -> None:
        version = self.engine.documents.version("p/p", id)
        self.engine.documents.modify(records.Modify(documents=[records.DocWrite("p/p", id, PENDING, version)]))
        assert not self.is_synced

    @property
    def is_synced(self) -> bool:
        log = self.engine.log
        assert log is not None
        return log.synced == log.appended


async def scanned(store: EngineStore) -> list[str]:
    return [document.key.id async for document in store.scan("p")]


async def unfinished(store: EngineStore) -> list[str]:
    return [document.key.id async for document in store.unfinished()]


READINGS: dict[str, Callable[[EngineStore], Awaitable[object]]] = {
    "a read": lambda store: store.read(KEY),
    "a read of nothing": lambda store: store.read(DocumentKey("p", "none")),
    "a write that lost": lambda store: store.write([Create(KEY, b"{}")]),
    "a scan": scanned,
    "a scan of nothing": lambda store: store.scan("none").__anext__(),
    "a list of what is unfinished": unfinished,
}


@pytest.mark.parametrize("reading", READINGS)
async def test_what_a_store_answers_is_durable(reading: str) -> None:
    site = Site()
    site.put("a")
    try:
        answer = await READINGS[reading](site.store)
    except StopAsyncIteration:
        answer = None
    assert site.is_synced
    assert isinstance(answer, Lost) or reading != "a write that lost"


@pytest.mark.parametrize("waits", [False, True])
async def test_what_is_claimed_is_written_before_it_is_handed_out(waits: bool) -> None:
    """Else a message that kills its host whenever it comes would never count a delivery."""
    engine = Engine.open(MemoryDisk("claims"), clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    journal, log = engine.ports().journal, engine.log
    assert log is not None
    if not waits:
        engine.broker.send("q", [Message(body=b"1")])
    claiming = asyncio.create_task(journal.claim(["q"], count_max=1, wait_s=60))
    await asyncio.sleep(0)
    if waits:
        engine.broker.send("q", [Message(body=b"1")])
    assert len(await claiming) == 1 and log.written == log.appended


async def test_what_the_bus_hands_out_is_durable() -> None:
    engine = Engine.open(MemoryDisk("bus"), clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1")])
    log = engine.log
    assert log is not None and log.synced < log.appended
    assert len(await engine.apart().bus.receive("q", count_max=1, wait_s=0)) == 1 and log.synced == log.appended


OPERATIONS: dict[str, Callable[[Operations, int], Awaitable[object]]] = {
    "a declaration": lambda operations, dead: operations.declare({"other": "unordered"}, {}),
    "a sending": lambda operations, dead: operations.send([Output("q", 0, Message(body=b"2"))]),
    "a state": lambda operations, dead: operations.state("none"),
    "a list of dead letters": lambda operations, dead: operations.dead_letters("q"),
    "a resubmission": lambda operations, dead: operations.resubmit("q", dead),
    "a discarding": lambda operations, dead: operations.discard("q", dead),
}


@pytest.mark.parametrize("operation", OPERATIONS)
async def test_what_a_client_is_answered_is_durable(operation: str) -> None:
    engine = Engine.open(MemoryDisk("operations"), clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    (sequence,) = engine.broker.send("q", [Message(body=b"1", outbox_id="1")])
    engine.broker.settle(engine.broker.claim("q", 1)[0].token, Settlement.DEAD_LETTER)
    log = engine.log
    assert log is not None and log.synced < log.appended
    await OPERATIONS[operation](engine.ports().operations, sequence)
    assert log.synced == log.appended


@pytest.mark.parametrize("due_ms", [0, 1])
@pytest.mark.parametrize("how", ["complete", "abandon", "release", "defer", "dead-letter"])
async def test_what_the_bus_has_settled_is_durable(how: Any, due_ms: int) -> None:
    engine = Engine.open(MemoryDisk("settled"), clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1")])
    bus, log = engine.apart().bus, engine.log
    assert log is not None
    (delivery,) = await bus.receive("q", count_max=1, wait_s=0)
    before = log.appended
    await bus.settle(delivery, Settle(how, due_ms=due_ms and engine.now_ms() + 5_000))
    assert before < log.appended == log.synced


@pytest.mark.parametrize("due_s", [0, 5])
@pytest.mark.parametrize(("how", "counted"), [("abandon", 1), ("release", 0), ("dead-letter", 1)])
async def test_the_bus_counts_a_delivery_that_failed_and_none_that_was_given_back(
    how: Any, counted: int, due_s: int
) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1", outbox_id="1")])
    bus = engine.apart().bus
    for count in range(3):
        (delivery,) = await bus.receive("q", count_max=1, wait_s=0)
        assert (delivery.failures, delivery.delivery_count) == (0, count)
        await bus.settle(delivery, Settle("abandon", due_ms=engine.now_ms() + 1_000))
        clock.seconds += 1
        engine.tick()
    (delivery,) = await bus.receive("q", count_max=1, wait_s=0)
    await bus.settle(delivery, Settle(how, "no", "for this", due_s and engine.now_ms() + due_s * 1_000))
    clock.seconds += due_s
    engine.tick()
    if how == "dead-letter":
        (dead,) = await engine.ports().operations.dead_letters("q")
        assert (dead.reason, dead.description, dead.delivery_count) == ("no", "for this", 3 + counted)
        return
    assert [task.description for task in engine.broker.peek("q", 0, 9)] == ["for this"]
    (delivery,) = await bus.receive("q", count_max=1, wait_s=0)
    assert delivery.delivery_count == 3 + counted
    await bus.settle(delivery, Settle("release"))
    assert [task.description for task in engine.broker.peek("q", 0, 9)] == ["for this"]  # why it was put back last


@pytest.mark.parametrize("how", ["written", "deleted"])
async def test_who_waits_for_a_document_is_woken_by_its_change(how: str) -> None:
    store = EngineStore((engine := Engine.in_memory(clock=VirtualClock(START_S))).core, engine.documents)
    won = await store.write([Create(KEY, b"{}")])
    assert isinstance(won, Won)
    seen = [(DocumentKey("p", "other"), ""), (KEY, won.versions[0])]
    waiting = asyncio.create_task(store.changed(seen, wait_s=30))
    await asyncio.sleep(0)
    await store.write([Delete(KEY, won.versions[0]) if how == "deleted" else Replace(KEY, b"[]", won.versions[0])])
    await asyncio.wait_for(waiting, 1)


async def test_that_nothing_is_unfinished_is_durable_when_it_is_answered() -> None:
    site = Site()
    change = records.DocWrite("p/p", "a", b"{}")
    site.engine.documents.modify(records.Modify(documents=[change]))
    assert await unfinished(site.store) == [] and site.is_synced


@pytest.mark.parametrize("listed", ["scan", "unfinished"])
async def test_what_is_written_while_documents_are_listed_is_durable_when_it_is_handed_out(listed: str) -> None:
    site = Site()
    for id in ("a", "b"):
        site.put(id)
    found = site.store.scan("p") if listed == "scan" else site.store.unfinished()
    assert (await anext(found)).key.id == "a"
    site.put("b")
    assert (await anext(found)).key.id == "b" and site.is_synced


@pytest.mark.parametrize("other", [DocumentKey("another", "a"), KEY])
async def test_a_batch_stays_in_one_partition_and_names_each_document_once(other: DocumentKey) -> None:
    site = Site()
    with pytest.raises(TooLarge):
        await site.store.write([Create(KEY, b"{}"), Create(other, b"{}")])
    assert await site.store.read(KEY) is None


async def test_a_batch_is_taken_up_to_its_limit() -> None:
    site = Site()
    writes = [Create(DocumentKey("p", str(number)), b"{}") for number in range(BATCH_COUNT_MAX + 1)]
    assert isinstance(await site.store.write(writes[1:]), Won)
    with pytest.raises(TooLarge):
        await site.store.write(writes)
    assert await scanned(site.store) == sorted(await scanned(site.store)) != [write.key.id for write in writes[1:]]
    large = b"x" * (ITEM_BYTES_MAX - 2)
    batch = [Create(DocumentKey("large", id), body) for id, body in (("a", large), ("b", b"{}"), ("c", b"1"))]
    with pytest.raises(TooLarge, match="move large values"):
        await site.store.write(batch)
    assert isinstance(await site.store.write(batch[:2]), Won)


async def test_records_of_a_ledger_are_listed_from_the_first_to_before_the_last() -> None:
    site = Site()
    entries = [f"l/{number:012d}" for number in range(4)]
    await site.store.write([Create(DocumentKey("p", each), b'{"entry":"%s"}' % each.encode()) for each in entries])
    await site.store.write([Create(DocumentKey("p", "none"), b"{}"), Create(DocumentKey("p", "foreign"), b"\xff")])
    found = [document.key.id async for document in site.store.unsent(entries[1], entries[3])]
    assert found == entries[1:3]
