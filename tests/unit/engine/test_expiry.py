"""Time to live: whose counts, when it starts, and what it leaves alone."""

from __future__ import annotations

import random

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.message import Message
from outbox.testing import START_S, VirtualClock

DEAD = "q/$DeadLetterQueue"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


def engine_of(clock: VirtualClock, **settings: object) -> Engine:
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q", **settings))  # type: ignore[arg-type]  # a table of keyword arguments
    return engine


def message(lives_s: float = 0, **fields: object) -> Message:
    return Message(body=b"m", time_to_live_ms=round(lives_s * 1_000), **fields)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize(("own_s", "default_s", "lives_s"), [(5, 0, 5), (0, 5, 5), (5, 60, 5), (60, 5, 5)], ids=str)
def test_a_message_lives_as_long_as_the_shorter_of_its_own_time_and_its_queues(
    clock: VirtualClock, own_s: float, default_s: float, lives_s: float
) -> None:
    engine = engine_of(clock, time_to_live_s=default_s)
    engine.broker.send("q", [message(own_s)])
    clock.seconds += lives_s - 0.1
    engine.tick()
    [task] = engine.broker.peek("q", 0, 9)
    assert task.expires_ms - task.enqueued_ms == lives_s * 1_000
    clock.seconds += 0.2
    engine.tick()
    assert [task.reason for task in engine.broker.peek(DEAD, 0, 9)] == ["TTLExpiredException"]


@pytest.mark.parametrize("ticks", [False, True])
def test_each_message_expires_at_its_own_millisecond(clock: VirtualClock, ticks: bool) -> None:
    engine = engine_of(clock)
    engine.broker.send("q", [message(2), message(1), message(3)])
    for at_s, alive in ((0.999, [1, 2, 3]), (1, [1, 3]), (1.999, [1, 3]), (2, [3]), (2.999, [3]), (3, [])):
        clock.seconds = START_S + at_s
        if ticks:
            engine.tick()
        claims = engine.broker.claim("q", 9)
        assert [claim.sequence for claim in claims] == alive
        for claim in claims:
            engine.broker.settle(claim.token, Settlement.RELEASE)
    assert [task.sequence for task in engine.broker.peek(DEAD, 0, 9)] == [1, 2, 3]


def test_an_expired_message_that_was_delivered_before_is_not_delivered_alone_either(clock: VirtualClock) -> None:
    engine = engine_of(clock, lock_s=1)
    engine.broker.send("q", [message(5)])
    engine.broker.claim("q", 1)
    clock.seconds += 2
    engine.tick()
    clock.seconds += 4
    assert engine.broker.take_suspect([engine.broker.queue("q")]) == []
    assert len(engine.broker.peek(DEAD, 0, 9)) == 1


def test_expired_messages_behind_one_that_somebody_holds_expire_at_once(clock: VirtualClock) -> None:
    engine = engine_of(clock, lock_s=60)
    engine.broker.send("q", [message(1), message(2)])
    engine.broker.claim("q", 1)
    clock.seconds += 3
    engine.tick()
    assert [task.sequence for task in engine.broker.peek("q", 0, 9)] == [1]


def test_a_message_that_expires_under_a_lock_can_still_be_completed(clock: VirtualClock) -> None:
    engine = engine_of(clock, lock_s=60)
    engine.broker.send("q", [message(1), message(1)])
    first, second = engine.broker.claim("q", 2)
    clock.seconds += 5
    engine.tick()
    engine.broker.settle(first.token, Settlement.COMPLETE)
    engine.broker.settle(second.token, Settlement.ABANDON)
    assert engine.broker.claim("q", 2) == []
    assert [task.sequence for task in engine.broker.peek(DEAD, 0, 9)] == [second.sequence]


def test_a_scheduled_message_begins_to_age_when_it_is_due(clock: VirtualClock) -> None:
    engine = engine_of(clock, time_to_live_s=5)
    engine.broker.send("q", [message()], due_ms=engine.now_ms() + 60_000)
    clock.seconds += 61
    engine.tick()
    [claim] = engine.broker.claim("q", 1)
    assert claim.expires_ms - claim.enqueued_ms == 5_000
    engine.broker.settle(claim.token, Settlement.ABANDON)
    clock.seconds += 5
    assert engine.broker.claim("q", 1) == []


def test_a_deferred_message_and_a_dead_letter_do_not_expire(clock: VirtualClock) -> None:
    engine = engine_of(clock)
    engine.broker.send("q", [message(1), message(1)])
    first, second = engine.broker.claim("q", 2)
    engine.broker.settle(first.token, Settlement.DEFER)
    engine.broker.settle(second.token, Settlement.DEAD_LETTER)
    clock.seconds += 60
    engine.tick()
    assert [claim.sequence for claim in engine.broker.claim_deferred("q", [first.sequence])] == [1]
    assert [claim.sequence for claim in engine.broker.claim(DEAD, 9)] == [2]


def test_a_queue_that_keeps_no_expired_messages_drops_them(clock: VirtualClock) -> None:
    engine = engine_of(clock, dead_letter_on_expiry=False)
    engine.broker.send("q", [message(1)])
    clock.seconds += 2
    assert engine.broker.claim("q", 9) == engine.broker.claim(DEAD, 9) == []


def test_what_expired_stays_expired_after_a_crash() -> None:
    disk, clock = MemoryDisk("expiry"), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    engine.declare(QueueSettings("q", time_to_live_s=60))
    engine.broker.send("q", [message(1), message(600)])
    clock.seconds += 2
    assert len(engine.broker.claim("q", 9)) == 1
    engine.core.flush()
    again = Engine.open(disk.crash(Crash.POWER, random.Random(1)), clock=clock, log_id=b"0" * 16)
    assert [task.sequence for task in again.broker.peek(DEAD, 0, 9)] == [1]
    [task] = again.broker.peek("q", 0, 9)
    assert task.expires_ms - task.enqueued_ms == 60_000
