"""What the engine holds is counted whole, and let go when its time is over."""

from __future__ import annotations

import random

import pytest

from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records, snapshot
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.errors import Throttled, TooLarge
from outbox.message import Message
from outbox.ports import Commit, StateChange
from outbox.testing import START_S, VirtualClock

BIG = b"x" * 60_000
LIMITS = EngineLimits(memory_bytes_max=100_000)


def opened(disk: MemoryDisk, clock: VirtualClock, limits: EngineLimits = LIMITS) -> Engine:
    engine = Engine.open(disk, clock=clock, limits=limits, log_id=b"0" * 16)
    engine.declare(QueueSettings("q"))
    return engine


@pytest.mark.parametrize("field", ["body", "wire", "wire_body", "properties"])
def test_every_part_of_a_message_counts_until_it_is_gone(field: str) -> None:
    disk, clock = MemoryDisk("parts"), VirtualClock(START_S)
    engine = opened(disk, clock)
    fields = {"body": b"", field: {"p": BIG.decode()} if field == "properties" else BIG}
    message = Message(**fields)  # type: ignore[arg-type]  # as the case says
    sequences = [engine.broker.send("q", [message])[0] for _ in range(2)]
    with pytest.raises(Throttled):
        engine.broker.send("q", [Message(body=b"")])
    engine.core.flush()
    again = opened(disk.crash(Crash.POWER, random.Random(1)), clock)
    assert snapshot.decode(snapshot.encode(engine.state, 0))[0].body_bytes == engine.state.body_bytes
    for found in (engine, again):
        number = found.broker.queue("q").number
        found.core.do(records.Committed(1, 1, {number: sequences}, {}, [], {}, {}, [], []))
        assert found.state.body_bytes == 0


def test_properties_count_towards_the_limit_of_a_message() -> None:
    engine = opened(MemoryDisk("one"), VirtualClock(START_S), EngineLimits(message_bytes_max=1_000))
    with pytest.raises(TooLarge):
        engine.broker.send("q", [Message(body=b"", properties={"p": "x" * 1_000})])


def test_documents_count_and_what_replaces_them_counts_instead() -> None:
    engine = opened(MemoryDisk("documents"), VirtualClock(START_S))
    for id in ("a", "b"):
        engine.documents.modify(records.Modify(documents=[records.DocWrite("n", id, BIG)]))
    with pytest.raises(Throttled):
        engine.broker.send("q", [Message(body=b"")])
    version = engine.documents.version("n", "a")
    engine.documents.modify(records.Modify(documents=[records.DocWrite("n", "a", b"xy", version)]))
    engine.documents.modify(
        records.Modify(document_deletes=[records.DocRef("n", "b", engine.documents.version("n", "b"))])
    )
    assert engine.state.body_bytes == 2
    assert engine.broker.send("q", [Message(body=b"")])[0] > 0


async def test_a_request_is_refused_where_there_is_no_room_and_a_message_that_is_there_is_handled() -> None:
    engine = opened(MemoryDisk("request"), VirtualClock(START_S))
    journal = EngineJournal(engine.core, engine.broker)
    for _ in range(2):
        engine.broker.send("q", [Message(body=BIG)])
    consumed = [*await journal.claim(["q"], count_max=1, wait_s=0)]
    states, now_ms = {"s": StateChange(b"1", 1, 1)}, engine.now_ms()
    with pytest.raises(Throttled):
        await journal.commit(Commit(now_ms, now_ms, [], {"s": 0}, states, [], {}, {}, {}, [], [], []))
    assert await journal.commit(Commit(now_ms, now_ms, consumed, {"s": 0}, states, [], {}, {}, {}, [], [], [])) is None


def test_an_expired_tombstone_leaves_memory_and_one_written_again_does_not() -> None:
    disk, clock = MemoryDisk("tombstones"), VirtualClock(START_S)
    engine = opened(disk, clock)
    expire_ms = engine.now_ms() + 10_000
    gone = {id: StateChange(b"", 1, 2) for id in ("gone", "back")}
    engine.core.do(records.Committed(engine.now_ms(), expire_ms, {}, gone, [], {}, {}, [], []))
    again = StateChange(b"value", 1, 3)
    engine.core.do(records.Committed(engine.now_ms(), expire_ms, {}, {"back": again}, [], {}, {}, [], []))
    engine.core.flush()
    recovered = opened(disk.crash(Crash.POWER, random.Random(1)), clock)
    clock.seconds += 11
    for found in (engine, recovered):
        assert found.state.documents.spaces["state"].keys() == {"gone", "back"}
        found.tick()
        assert found.state.documents.spaces["state"].keys() == {"back"} and not found.state.documents.expiring
        assert found.state.body_bytes == 5


def test_a_document_that_expired_begins_anew_whether_or_not_it_was_forgotten() -> None:
    disk, clock = MemoryDisk("serial"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.documents.modify(records.Modify(documents=[records.DocWrite("n", "d", b"1", 0, engine.now_ms() + 1_000)]))
    clock.seconds += 2
    engine.tick()
    engine.documents.modify(records.Modify(documents=[records.DocWrite("n", "d", b"2")]))
    engine.core.flush()
    recovered = opened(disk.crash(Crash.POWER, random.Random(1)), clock)
    assert recovered.documents.read("n", "d") == engine.documents.read("n", "d")
