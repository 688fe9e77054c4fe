"""What the engine answers as a store or hands out: after the gate, whatever the answer is, and up to its limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from outbox.engine.backend.store import BATCH_COUNT_MAX, EngineStore
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.errors import TooLarge
from outbox.message import Message
from outbox.ports import Create, DocumentKey, Lost, Won
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


async def test_a_batch_is_taken_up_to_its_limit() -> None:
    site = Site()
    writes = [Create(DocumentKey("p", str(number)), b"{}") for number in range(BATCH_COUNT_MAX + 1)]
    assert isinstance(await site.store.write(writes[1:]), Won)
    with pytest.raises(TooLarge):
        await site.store.write(writes)
