"""A dead letter that stops its key: whatever becomes of it, the key goes on, live and after a replay."""

from __future__ import annotations

import random

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, dead_letter_path
from outbox.engine.log import records
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.state.tasks import Task
from outbox.message import Message
from outbox.testing import START_S, VirtualClock

DEAD = dead_letter_path("k")


def stopped(disk: MemoryDisk) -> tuple[Engine, Task]:
    """An engine whose key `a` is stopped by its first message, with a second one waiting."""
    engine = Engine.open(disk, clock=VirtualClock(START_S), log_id=b"0" * 16)
    engine.declare(QueueSettings("k", ordering="per_key"), QueueSettings("q"))
    engine.broker.send("k", [Message(body=b"%d" % n, outbox_id=str(n), session_id="a") for n in range(2)])
    queue = engine.broker.queue("k")
    (task, _) = engine.broker.take(queue, 2)
    buried = records.DeadLettered(queue.number, task.sequence, "no", "", 1, True)
    engine.core.do(records.Committed(1, 1, {}, {}, [], {}, {}, [buried], []))
    engine.broker.lapse_locks()
    assert not engine.broker.take(queue, 2)
    return engine, task


def reopened(disk: MemoryDisk, engine: Engine) -> Engine:
    engine.core.flush()
    return Engine.open(disk.crash(Crash.POWER, random.Random(1)), clock=VirtualClock(START_S), log_id=b"0" * 16)


@pytest.mark.parametrize("path", ["k", "q", dead_letter_path("q")])
def test_a_stopping_dead_letter_that_is_moved_lets_its_key_go_on(path: str) -> None:
    disk = MemoryDisk("moved")
    engine, task = stopped(disk)
    change = records.TaskChange(DEAD, task.sequence, task.version, to_path=path)
    assert engine.documents.modify(records.Modify(changes=[change])) is not None
    engine.tick()
    for found in (reopened(disk, engine), engine):
        taken = found.broker.take(found.broker.queue("k"), 9)
        assert [t.message.identity for t in taken] == (["0", "1"] if path == "k" else ["1"])
        found.core.do(
            records.Committed(
                1, 1, {found.broker.queue("k").number: [t.sequence for t in taken]}, {}, [], {}, {}, [], []
            )
        )
        assert not found.broker.queue("k").tasks
    reopened(disk, engine)


def test_a_key_that_two_dead_letters_stop_goes_on_behind_the_last_of_them() -> None:
    disk = MemoryDisk("two")
    engine = Engine.open(disk, clock=VirtualClock(START_S), log_id=b"0" * 16)
    engine.declare(QueueSettings("k", ordering="per_key"))
    engine.broker.send("k", [Message(body=b"%d" % n, outbox_id=str(n), session_id="a") for n in range(3)])
    queue = engine.broker.queue("k")
    first, second, _ = engine.broker.take(queue, 3)
    buried = [records.DeadLettered(queue.number, task.sequence, "no", "", 1, True) for task in (first, second)]
    engine.core.do(records.Committed(1, 1, {}, {}, [], {}, {}, buried, []))
    engine.broker.lapse_locks()
    engine.dead_letters.discard("k", first.sequence)
    for found in (reopened(disk, engine), engine):
        assert not found.broker.take(found.broker.queue("k"), 9)
    engine.dead_letters.discard("k", second.sequence)
    for found in (reopened(disk, engine), engine):
        assert [t.message.identity for t in found.broker.take(found.broker.queue("k"), 9)] == ["2"]


def test_a_stopping_dead_letter_rewritten_where_it_lies_stops_the_key_that_it_then_has() -> None:
    disk = MemoryDisk("rewritten")
    engine, task = stopped(disk)
    message = msgspec.structs.replace(task.message, session_id="b")
    change = records.TaskChange(DEAD, task.sequence, task.version, message=message)
    assert engine.documents.modify(records.Modify(changes=[change])) is not None
    for found in (reopened(disk, engine), engine):
        sessions = found.broker.queue("k").sessions
        assert sessions.session("b").blocked_by == {task.sequence} and not sessions.session("a").blocked_by


def test_a_stopping_dead_letter_that_is_deleted_lets_its_key_go_on() -> None:
    disk = MemoryDisk("deleted")
    engine, task = stopped(disk)
    engine.documents.modify(records.Modify(deletes=[records.TaskRef(DEAD, task.sequence, task.version)]))
    for found in (reopened(disk, engine), engine):
        assert [t.message.identity for t in found.broker.take(found.broker.queue("k"), 9)] == ["1"]


def test_what_waits_is_shown_again_when_it_was_resubmitted_meanwhile() -> None:
    engine, _ = stopped(MemoryDisk("again"))
    queue = engine.broker.queue("k")
    (second,) = engine.broker.take_blocked(queue, 9)
    buried = records.DeadLettered(queue.number, second.sequence, "no", "", 1, False)
    engine.core.do(records.Committed(1, 1, {}, {}, [], {}, {}, [buried], []))
    engine.dead_letters.resubmit("k", second.sequence)
    assert [task.message.identity for task in engine.broker.take_blocked(queue, 9)] == ["1"]


def test_a_key_goes_on_when_a_modification_changes_what_was_claimed_of_it() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("k", ordering="per_key"))
    engine.broker.send("k", [Message(body=b"1", session_id="a")])
    (task,) = engine.broker.take(engine.broker.queue("k"), 1)
    change = records.TaskChange("k", task.sequence, task.version)
    assert engine.documents.modify(records.Modify(changes=[change])) is not None
    assert len(engine.broker.take(engine.broker.queue("k"), 1)) == 1
