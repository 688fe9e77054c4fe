"""The indexes that a look goes by say what is there: dead letters by number and identity, and blocked keys."""

from __future__ import annotations

import random

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, dead_letter_path
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.records import Modify, TaskChange
from outbox.engine.state import queues
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import SessionOrder
from outbox.message import Message
from outbox.testing import START_S, VirtualClock
from tests.unit.engine.drawn_engine import Actor, declared


def check(queue: Queue) -> None:
    """Compare what the indexes of a queue say with a look at all of it."""
    seen = [task for some in queue.slices(0, 3) for task in some]
    assert [task.sequence for task in seen] == sorted(queue.tasks)
    if isinstance(queue.order, SessionOrder):
        assert queue.order.blocked == sorted(s.id for s in queue.order.sessions.values() if s.blocked_by)
    if queue.letters is not None:
        for identity in {task.message.identity for task in queue.tasks.values()} | {"no-such"}:
            same = [each for each in seen if identity and each.message.identity == identity]
            assert queue.letters.of(identity) == same


@pytest.mark.parametrize("seed", range(10))
async def test_what_the_indexes_say_is_what_a_look_at_all_says(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SPARE_COUNT", 2)
    clock, disk = VirtualClock(START_S), MemoryDisk("letters")
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    declared(engine)
    actor = Actor(engine, clock, random.Random(seed))
    for _ in range(300):
        await actor.act()
        for queue in engine.state.queues:
            check(queue)
    engine.state.rebuild()
    for queue in engine.state.queues:
        check(queue)


def test_numbers_that_are_gone_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "SPARE_COUNT", 10)
    engine = Engine.in_memory()
    engine.declare(QueueSettings("q"))
    dead = engine.broker.queue(dead_letter_path("q"))
    for number in range(200):
        engine.broker.send("q", [Message(body=b"1", outbox_id=f"m{number}")])
        for claim in engine.broker.claim("q", 1):
            engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="")
        for task in list(dead.tasks.values()):
            engine.dead_letters.discard("q", task.sequence)
    assert dead.letters is not None
    assert len(dead.letters.numbers(0, 1_000)) <= 11


def test_a_dead_letter_that_is_rewritten_or_moved_is_found_as_it_is_now() -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("q"))
    dead = engine.broker.queue(dead_letter_path("q"))
    engine.broker.send("q", [Message(body=b"1", outbox_id="old"), Message(body=b"1", outbox_id="moved")])
    for claim in engine.broker.claim("q", 2):
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="no", description="")
    rewritten, moved = dead.tasks.values()
    again = Message(body=b"2", outbox_id="new")
    changes = [
        TaskChange(dead.path, rewritten.sequence, rewritten.version, message=again),
        TaskChange(dead.path, moved.sequence, moved.version, to_path="q"),
    ]
    assert engine.documents.modify(Modify(changes=changes)) is not None
    assert dead.letters is not None
    assert [dead.letters.of(id) for id in ("old", "moved", "new")] == [[], [], [dead.tasks[rewritten.sequence]]]
    check(dead)


@pytest.mark.parametrize(("copies", "asked", "attempt"), [((3,), 0, 4), ((3,), 3, 4), ((3,), 7, 7), ((3, 5), 0, 6)])
def test_a_dead_letter_comes_back_as_the_attempt_that_was_asked_for_or_a_later_one(
    copies: tuple[int, ...], asked: int, attempt: int
) -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"1", outbox_id="m", attempt=each) for each in copies])
    for claim in engine.broker.claim("q", 9):
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER)
    engine.dead_letters.resubmit("q", 1, attempt=asked)
    assert [task.message.attempt for task in engine.broker.peek("q", 1, 9)] == [attempt]
