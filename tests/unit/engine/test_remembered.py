"""What the engine remembers of a message and of time: who has had it, when it came, when its window is over."""

from __future__ import annotations

import asyncio
import random

import pytest

from outbox.engine import engine as engines
from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.state import state as states
from outbox.engine.state.tasks import Task
from outbox.errors import Refused
from outbox.message import Message
from outbox.ports import Commit, Output, Postponement, Refusal, StateChange
from outbox.testing import START_S, VirtualClock


def opened(disk: MemoryDisk, clock: VirtualClock | None = None) -> Engine:
    return Engine.open(disk, clock=clock or VirtualClock(START_S), log_id=b"0" * 16)


def after_a_crash(disk: MemoryDisk, engine: Engine) -> Engine:
    engine.core.flush()
    return opened(disk.crash(Crash.POWER, random.Random(1)))


def emit(engine: Engine) -> Task:
    """A message that a commit made, which no marker remembers."""
    output = Output("q", 0, Message(body=b"{}", outbox_id="inner"))
    engine.core.do(records.Committed(engine.now_ms(), 1, {}, {}, [output], {}, {}, [], []))
    (task,) = engine.broker.peek("q", 0, 1)
    assert not task.external
    return task


async def test_a_message_that_was_released_is_remembered_by_a_marker() -> None:
    disk = MemoryDisk("postponed")
    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    emit(engine)
    journal = EngineJournal(engine.core, engine.broker)
    (delivery,) = await journal.claim(["q"], count_max=1, wait_s=0)
    commit = Commit(engine.now_ms(), 1, [], {}, {}, [], {}, {}, {}, [], [Postponement(delivery, 0, 0)])
    assert await journal.commit(commit) is None
    for found in (after_a_crash(disk, engine), engine):
        (again,) = await EngineJournal(found.core, found.broker).claim(["q"], count_max=1, wait_s=0)
        assert again.from_outside


@pytest.mark.parametrize("deferred", [False, True])
def test_a_message_that_an_outside_receiver_held_is_remembered_by_a_marker(deferred: bool) -> None:
    disk = MemoryDisk("outside")
    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    task = emit(engine)
    if deferred:
        engine.broker.take(engine.broker.queue("q"), 1)
        engine.core.do(records.Settled(engine.now_ms(), 0, Settlement.DEFER, [task.sequence]))
        assert not task.external
        engine.broker.claim_deferred("q", [task.sequence])
    else:
        engine.broker.claim("q", 1)
    assert task.external and after_a_crash(disk, engine).broker.peek("q", 0, 1)[0].external


def test_a_scheduled_message_ages_from_its_due_time() -> None:
    clock = VirtualClock(START_S)
    engine = opened(MemoryDisk("due"), clock)
    engine.declare(QueueSettings("q"))
    due_ms = engine.now_ms() + 8 * 86_400_000
    engine.broker.send("q", [Message(body=b"{}")], due_ms=due_ms)
    clock.seconds += 9 * 86_400
    engine.tick()
    assert [claim.enqueued_ms for claim in engine.broker.claim("q", 1)] == [due_ms]


def test_an_id_is_free_again_when_its_own_window_is_over() -> None:
    clock = VirtualClock(START_S)
    engine = opened(MemoryDisk("window"), clock)
    for id, window_s in (("long", 1_000), ("short", 10)):
        engine.declare(QueueSettings("q", duplicate_window_s=window_s))
        engine.broker.send("q", [Message(body=b"1", message_id=id)])
    clock.seconds += 20
    assert engine.broker.send("q", [Message(body=b"2", message_id="short")])[0] > 0
    assert engine.broker.send("q", [Message(body=b"3", message_id="short")]) == [0]
    assert engine.broker.send("q", [Message(body=b"4", message_id="long")]) == [0]


def test_an_id_whose_window_is_over_goes_from_memory_when_another_comes() -> None:
    clock = VirtualClock(START_S)
    engine = opened(MemoryDisk("over"), clock)
    engine.declare(QueueSettings("q", duplicate_window_s=10))
    for at_s, id in ((0, "1"), (5, "2"), (10, "3")):
        clock.seconds = START_S + at_s
        engine.broker.send("q", [Message(body=b"{}", message_id=id)])
    assert engine.broker.queue("q").seen.keys() == {"2", "3"}


def test_an_id_that_comes_again_keeps_none_behind_it_in_memory() -> None:
    clock = VirtualClock(START_S)
    engine = opened(MemoryDisk("places"), clock)
    for at_s, id, window_s in ((0, "long", 100), (0, "again", 10), (0, "short", 10), (20, "again", 200)):
        clock.seconds = START_S + at_s
        engine.declare(QueueSettings("q", duplicate_window_s=window_s))
        assert engine.broker.send("q", [Message(body=b"1", message_id=id)])[0] > 0
    queue = engine.broker.queue("q")
    clock.seconds = START_S + 100
    queue.forget_seen(engine.now_ms())
    assert queue.seen.keys() == {"again"}


@pytest.mark.parametrize("by", ["deliveries", "age"])
async def test_a_dead_letter_of_the_engine_itself_stops_its_key_where_that_was_asked_for(by: str) -> None:
    disk, clock = MemoryDisk("stops"), VirtualClock(START_S)
    engine = opened(disk, clock)
    engine.declare(QueueSettings("k", "per_key", max_delivery_count=1))
    await engine.ports().operations.declare({"k": "per_key"}, {}, stop_keys={"k"})
    assert engine.topology.queues["k"] == QueueSettings("k", "per_key", max_delivery_count=1, stop_key=True)
    lives_ms = 1_000 if by == "age" else 0
    engine.broker.send(
        "k", [Message(body=b"1", session_id="a", time_to_live_ms=lives_ms), Message(body=b"2", session_id="a")]
    )
    if by == "age":
        clock.seconds += 2
        engine.tick()
    else:
        lock = engine.sessions.accept("k", "a")
        assert lock is not None
        (held,) = engine.broker.claim("k", 1, session="a")
        engine.broker.settle(held.token, Settlement.ABANDON)
        assert engine.broker.claim("k", 1, session="a") == []  # nothing goes on in its holder's hands
        engine.sessions.release(lock.token)
    assert engine.broker.queue(dead_letter_path("k")).counts()["active"] == 1
    for found in (after_a_crash(disk, engine), engine):
        assert found.broker.take(found.broker.queue("k"), 9) == [] and found.sessions.accept("k", "a") is None
        found.dead_letters.discard("k", 1)
        assert found.sessions.accept("k", "a") is not None


@pytest.mark.parametrize("sync", ["interval:0.01", "every_n:1000"])
async def test_what_was_written_is_synced_without_further_traffic(sync: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "TICK_S", 0.002)
    async with Engine.open(MemoryDisk("idle"), sync=sync) as engine:
        engine.declare(QueueSettings("q"))
        engine.broker.send("q", [Message(body=b"{}")])
        await engine.core.gate()
        assert engine.log is not None
        appended = engine.log.appended
        for _ in range(1_000):
            await asyncio.sleep(0.005)
            if engine.log.synced >= appended:
                break
        assert engine.log.synced >= appended


async def test_an_engine_whose_time_fails_stops_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "TICK_S", 0.002)
    async with Engine.open(MemoryDisk("stuck")) as engine:

        def broken() -> None:
            raise RuntimeError("no time")

        stopped = asyncio.Event()
        engine.core.on_stop = lambda reason: stopped.set()
        engine.tick = broken  # type: ignore[method-assign]  # what is tried
        await asyncio.wait_for(stopped.wait(), 5)
        assert "no time" in str(engine.stopped)


@pytest.mark.parametrize("ages_s", [(60, 10), (9, 65, 21), (10, 60), (30,)])
@pytest.mark.parametrize("applied", [False, True])
def test_a_refusal_is_remembered_for_the_longest_of_its_ages(ages_s: tuple[int, ...], applied: bool) -> None:
    """Each attempt after a resubmission replaces the marker, under the retention of its own time."""
    disk, clock = MemoryDisk("ages"), VirtualClock(START_S)
    engine = opened(disk, clock)
    for attempt, age_s in enumerate(ages_s):
        is_last = attempt == len(ages_s) - 1
        taken = {b"key": b"f" * 32 + b"reply"} if applied and is_last else {}
        refused = {} if taken else {b"key": Refusal(b"f", "no", "too little", attempt)}
        now_ms = engine.now_ms()
        engine.core.do(records.Committed(now_ms, now_ms + age_s * 1_000, {}, {}, [], taken, refused, [], []))
    engine.core.flush()
    for step in range(1, 8):
        clock.seconds = START_S + max(ages_s) * step / 8
        for found in (opened(disk.crash(Crash.POWER), clock), engine):
            found.tick()
            assert b"key" in found.state.markers.known, f"forgotten after {clock.seconds - START_S} s"
    clock.seconds = START_S + max(ages_s)
    for found in (opened(disk.crash(Crash.POWER), clock), engine):
        found.tick()
        state = found.state
        assert not (state.markers.known or state.markers.renewed or state.markers.ages or state.body_bytes)


async def test_what_a_client_reads_is_durable_when_it_is_answered() -> None:
    engine = opened(MemoryDisk())
    engine.declare(QueueSettings("q"))
    log, operations = engine.log, engine.ports().operations
    assert log is not None
    for reading in (lambda: operations.state("Purse:a"), lambda: operations.dead_letters("q")):
        engine.broker.send("q", [Message(body=b"{}")])
        assert log.synced < log.appended
        await reading()
        assert log.synced == log.appended


async def test_what_is_released_is_uncounted_when_the_process_dies_right_behind_it() -> None:
    disk = MemoryDisk("released")
    engine = opened(disk)
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"{}")])
    journal = EngineJournal(engine.core, engine.broker)
    await journal.release(await journal.claim(["q"], count_max=1, wait_s=0))
    again = opened(disk.crash(Crash.PROCESS))
    (task,) = again.broker.peek("q", 0, 1)
    assert task.delivery_count == 0


def test_a_document_is_gone_in_the_millisecond_in_which_it_expires() -> None:
    clock = VirtualClock(START_S)
    engine = opened(MemoryDisk("document"), clock)
    write = records.DocWrite("n", "d", b"1", 0, engine.now_ms() + 1_000)
    engine.documents.modify(records.Modify(documents=[write]))
    clock.seconds += 0.999
    assert engine.documents.read("n", "d") is not None
    clock.seconds += 0.001
    assert engine.documents.read("n", "d") is None and engine.documents.version("n", "d") == 0


def test_a_dead_letter_is_resubmitted_for_as_long_as_its_refusal_is_on_record() -> None:
    for age_s in (9.999, 10):
        clock = VirtualClock(START_S)
        engine = opened(MemoryDisk("refused"), clock)
        engine.declare(QueueSettings("q"))
        engine.broker.send("q", [Message(body=b"{}", outbox_id="1")])
        (task,) = engine.broker.take(engine.broker.queue("q"), 1)
        now_ms, refusal = engine.now_ms(), {b"key": Refusal(b"f", "no", "")}
        buried = records.DeadLettered(0, task.sequence, "no", "", 1, False)
        engine.core.do(records.Committed(now_ms, now_ms + 10_000, {}, {}, [], {}, refusal, [buried], []))
        clock.seconds += age_s
        engine.tick()
        if b"key" in engine.state.markers.known:
            engine.dead_letters.resubmit("q", task.sequence)
        else:
            with pytest.raises(Refused, match="the record of it is gone"):
                engine.dead_letters.resubmit("q", task.sequence)
        assert (len(engine.broker.peek("q", 0, 9)) == 1) is (age_s < 10)


def test_so_many_operations_are_remembered_and_the_oldest_is_forgotten_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(states, "OPERATION_COUNT_MAX", 2)
    engine = opened(MemoryDisk("operations"))
    for id in ("a", "b", "a", "c"):
        engine.documents.modify(records.Modify(operation_id=id))
    assert list(engine.state.operations) == ["b", "c"]


async def test_a_state_that_was_deleted_is_none_to_a_client() -> None:
    engine = opened(MemoryDisk("tombstone"))
    now_ms = engine.now_ms()
    for value in (b"1", b""):
        change = {"s": StateChange(value, 1, 1)}
        engine.core.do(records.Committed(now_ms, now_ms + 9_000, {}, change, [], {}, {}, [], []))
        found = await engine.ports().operations.state("s")
        assert (found is not None) is bool(value)
