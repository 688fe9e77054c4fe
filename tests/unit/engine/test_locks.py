"""A lock that is over is over: to the millisecond, whether or not anybody has looked at the time since."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from outbox.engine.backend.apart import EngineBus
from outbox.engine.backend.journal import SUSPECT_EVERY, EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.engine.state.tasks import pack_token
from outbox.errors import LockLost
from outbox.message import Message
from outbox.ports import Commit, Conflict, DeadLettering, Delivery, Postponement, Settle
from outbox.testing import START_S, VirtualClock

LOCK_S = 10


class Locked:
    """An engine whose lock and session were taken at one time."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START_S)
        self.engine = Engine.in_memory(clock=self.clock)
        self.engine.declare(QueueSettings("q", lock_s=LOCK_S), QueueSettings("k", "per_key", lock_s=LOCK_S))
        self.engine.broker.send("q", [Message(body=b"1", outbox_id="1")])
        self.engine.broker.send("k", [Message(body=b"2", outbox_id="2", session_id="s")])
        (self.claim,) = self.engine.broker.claim("q", 1)
        session = self.engine.sessions.accept("k", "s")
        assert session is not None
        self.session = session
        (self.held,) = self.engine.broker.claim("k", 1, session="s")


VERBS: dict[str, Callable[[Locked], object]] = {
    "renew": lambda at: at.engine.broker.renew(at.claim.token),
    "settle": lambda at: at.engine.broker.settle(at.claim.token, Settlement.COMPLETE),
    "renew a session": lambda at: at.engine.sessions.renew(at.session.token),
    "set a session's state": lambda at: at.engine.sessions.set_state(at.session.token, b"state"),
    "release a session": lambda at: at.engine.sessions.release(at.session.token),
    "renew a message of a session": lambda at: at.engine.broker.renew(at.held.token),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("ticks", [False, True])
def test_after_its_end_a_lock_is_refused_and_before_it_is_not(verb: str, ticks: bool) -> None:
    for early_s in (LOCK_S - 0.001, LOCK_S):
        at = Locked()
        at.clock.seconds += early_s
        if ticks:
            at.engine.tick()
        if early_s < LOCK_S:
            VERBS[verb](at)
            continue
        with pytest.raises(LockLost):
            VERBS[verb](at)
        at.engine.tick()
        assert at.engine.broker.queue("q").counts()["active"] == 1, "it is there for somebody else"
        (again,) = at.engine.broker.claim("q", 1)
        assert again.delivery_count == 1


def test_a_renewal_counts_from_its_own_time_and_the_old_end_does_not_hold_any_more() -> None:
    at = Locked()
    at.clock.seconds += LOCK_S - 1
    assert at.engine.broker.renew(at.claim.token) == at.engine.now_ms() + LOCK_S * 1_000
    assert at.engine.sessions.renew(at.session.token) == at.engine.now_ms() + LOCK_S * 1_000
    at.clock.seconds += LOCK_S - 1
    at.engine.tick()
    for token in (at.claim.token, at.held.token):
        at.engine.broker.renew(token)
    at.clock.seconds += LOCK_S
    with pytest.raises(LockLost):
        at.engine.broker.renew(at.claim.token)


async def claimed(clock: VirtualClock, engine: Engine, count: int) -> list[Delivery]:
    """Deliveries that were claimed a second after each other."""
    engine.declare(QueueSettings("q", lock_s=LOCK_S))
    journal = EngineJournal(engine.core, engine.broker)
    found: list[Delivery] = []
    for number in range(count):
        engine.broker.send("q", [Message(body=b"x", outbox_id=str(number))])
        found += await journal.claim(["q"], count_max=1, wait_s=0)
        clock.seconds += 1
    return found


async def test_one_lock_that_is_over_keeps_no_other_from_its_renewal() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    deliveries = await claimed(clock, engine, 3)
    clock.seconds = START_S + LOCK_S
    assert await EngineJournal(engine.core, engine.broker).renew(deliveries) == 2
    clock.seconds += LOCK_S - 1
    engine.tick()
    again = await EngineJournal(engine.core, engine.broker).claim(["q"], count_max=3, wait_s=0)
    assert [delivery.message.identity for delivery in again] == ["0"]


async def test_one_lock_that_is_over_keeps_no_other_from_being_released() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    deliveries = await claimed(clock, engine, 3)
    clock.seconds = START_S + LOCK_S
    await EngineJournal(engine.core, engine.broker).release(deliveries)
    assert [
        d.delivery_count for d in await EngineJournal(engine.core, engine.broker).claim(["q"], count_max=3, wait_s=0)
    ] == [0, 0]


@pytest.mark.parametrize("how", ["consumed", "postponed", "dead-lettered"])
async def test_a_commit_loses_by_each_lock_that_is_over_whatever_it_does_with_the_message(how: str) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    (delivery,) = await claimed(clock, engine, 1)
    engine.broker.lapse_locks()
    commit = Commit(engine.now_ms(), 0, [], {}, {}, [], {}, {}, {}, [], [], [])
    if how == "consumed":
        commit.consumed.append(delivery)
    elif how == "postponed":
        commit.postponed.append(Postponement(delivery, 0, 1))
    else:
        commit.dead_lettered.append(DeadLettering(delivery, "failed", "", 1, False))
    assert await EngineJournal(engine.core, engine.broker).commit(commit) == Conflict(frozenset({delivery.sequence}))


@pytest.mark.parametrize("how", ["complete", "abandon", "dead-letter", "release"])
async def test_the_bus_settles_nothing_under_a_lock_that_is_over(how: str) -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    (delivery,) = await claimed(clock, engine, 1)
    clock.seconds = START_S + LOCK_S
    for due_ms in (0, engine.now_ms() + 5_000):
        with pytest.raises(LockLost):
            await EngineBus(engine.core, engine.broker).settle(delivery, Settle(how, due_ms=due_ms))  # type: ignore[arg-type]  # one of the words
    with pytest.raises(LockLost):
        await EngineBus(engine.core, engine.broker).renew(delivery)


def test_a_copy_of_a_resubmitted_message_stays_with_its_lock_holder() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q", lock_s=LOCK_S))
    engine.broker.send("q", [Message(body=b"x", outbox_id="1") for _ in range(2)])
    for claim in engine.broker.claim("q", 2):
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER)
    (held,) = engine.broker.claim(dead_letter_path("q"), 1)
    (free,) = [s for s in engine.broker.queue(dead_letter_path("q")).tasks if s != held.sequence]
    engine.dead_letters.resubmit("q", free)
    engine.broker.settle(held.token, Settlement.COMPLETE)  # it is still there, and its own
    assert not engine.broker.queue(dead_letter_path("q")).tasks and len(engine.broker.queue("q").tasks) == 1


def test_each_lock_runs_out_at_its_own_time() -> None:
    at = Locked()
    broker, queue = at.engine.broker, at.engine.broker.queue("q")
    at.clock.seconds = START_S + 5
    broker.send("q", [Message(body=b"3"), Message(body=b"4")])
    later, renewed = broker.claim("q", 2)
    for at_s, locked in ((7, 3), (9.999, 3), (10, 2), (12, 2), (14.999, 2), (15, 1), (21.999, 1), (22, 0)):
        at.clock.seconds = START_S + at_s
        at.engine.tick()
        free = broker.claim("q", 9)
        assert len(queue.tasks) - len(free) == locked
        for claim in free:
            broker.settle(claim.token, Settlement.RELEASE)
        if at_s == 12:
            broker.renew(renewed.token)
    with pytest.raises(LockLost):
        broker.settle(later.token, Settlement.COMPLETE)


def test_a_token_of_no_queue_locks_nothing() -> None:
    at = Locked()
    count = len(at.engine.core.state.queues)
    for number in (count, count + 1, 60_000):
        with pytest.raises(LockLost):
            at.engine.broker.settle(pack_token(at.engine.core.epoch, 1, 1, number), Settlement.COMPLETE)


@pytest.mark.parametrize("size_bytes", [0, 15, 17])
def test_a_token_of_another_size_locks_nothing(size_bytes: int) -> None:
    at = Locked()
    with pytest.raises(LockLost):
        at.engine.broker.settle(bytes(size_bytes), Settlement.COMPLETE)
    with pytest.raises(LockLost):
        at.engine.sessions.release((at.session.token + b"x")[:size_bytes])


async def test_a_suspect_has_its_turn_beside_a_stream_of_others() -> None:
    at, found = Locked(), list[str]()
    at.clock.seconds += LOCK_S
    at.engine.tick()
    at.engine.broker.send("q", [Message(body=b"", outbox_id="other") for _ in range(9)])
    journal = EngineJournal(at.engine.core, at.engine.broker)
    for _ in range(SUSPECT_EVERY):
        found += [delivery.message.outbox_id for delivery in await journal.claim(["q"], count_max=1, wait_s=0)]
    assert found == ["other"] * (SUSPECT_EVERY - 1) + ["1"]


def test_of_the_suspects_of_several_queues_the_least_is_taken_and_locked() -> None:
    at = Locked()
    at.engine.declare(QueueSettings("p", lock_s=LOCK_S))
    at.engine.broker.send("p", [Message(body=b"twice")])
    queues = [at.engine.broker.queue(path) for path in ("p", "q")]
    for round_s in (LOCK_S, 2 * LOCK_S):
        at.engine.broker.claim("p", 1)
        at.clock.seconds = START_S + round_s
        at.engine.tick()
    (once,), (twice,) = at.engine.broker.take_suspect(queues), at.engine.broker.take_suspect(queues)
    assert [(task.path, task.delivery_count) for task in (once, twice)] == [("q", 1), ("p", 2)]
    assert at.engine.broker.take_suspect(queues) == []
    for task in (once, twice):
        assert task.locked_until_ms == at.engine.now_ms() + LOCK_S * 1_000 and task.lock
    assert once.lock != twice.lock
