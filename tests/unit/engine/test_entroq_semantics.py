"""What EntroQ publishes of its queue holds of the engine's, as far as it has the same operation.

Each test names the heading of the README, or the test of the suite for backends, at github.com/shiblon/entroq that says
so.  What the engine has not: ids that a client gives to tasks, claims in random order, a version for each renewal.
"""

from __future__ import annotations

import asyncio
from statistics import median
from typing import Any

import pytest

from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log import records
from outbox.engine.state.tasks import Task
from outbox.errors import LockLost
from outbox.message import Message
from outbox.testing import START_S, VirtualClock

LOCK_S = 10.0


@pytest.fixture
def engine() -> Engine:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(*(QueueSettings(name, lock_s=LOCK_S, max_delivery_count=9) for name in ("in", "out", "other")))
    return engine


def insert(engine: Engine, path: str = "in", body: bytes = b"{}", due_ms: int = 0) -> Task:
    found = engine.documents.modify(records.Modify(inserts=[records.TaskInsert(path, Message(body=body), due_ms)]))
    assert found is not None
    return engine.broker.queue(path).tasks[found[0]]


def at(task: Task, version: int = 0) -> records.TaskRef:
    return records.TaskRef(task.path, task.sequence, version or task.version)


def change(task: Task, version: int = 0, **fields: Any) -> records.TaskChange:
    return records.TaskChange(task.path, task.sequence, version or task.version, **fields)


def modify(engine: Engine, **fields: Any) -> list[int] | None:
    return engine.documents.modify(records.Modify(**fields))


def later(engine: Engine, seconds: float) -> None:
    clock: Any = engine.core.clock
    clock.seconds += seconds
    engine.tick()


def everything(engine: Engine) -> object:
    """All tasks and documents, to be compared."""
    tasks = {name: dict(engine.broker.queue(name).tasks) for name in ("in", "out", "other")}
    documents = {name: dict(space) for name, space in engine.core.state.documents.spaces.items() if space}
    return repr(tasks), repr(documents)


def test_a_claim_gives_a_new_version_and_takes_the_task_from_others_for_a_time(engine: Engine) -> None:
    """README, Claims: version and arrival time change at once."""
    task = insert(engine)
    inserted = task.version
    engine.broker.claim("in", 1)
    assert task.version > inserted and engine.broker.claim("in", 1) == []
    for how in ({"deletes": [at(task, inserted)]}, {"changes": [change(task, inserted)]}):
        assert modify(engine, **how) is None
    assert modify(engine, depends=[at(task, inserted)]) is None
    later(engine, LOCK_S)
    assert len(engine.broker.claim("in", 1)) == 1


WRONG: dict[str, dict[str, Any]] = {
    "delete": {"deletes": [records.TaskRef("in", 1, 7)]},
    "delete of none": {"deletes": [records.TaskRef("in", 99, 7)]},
    "change": {"changes": [records.TaskChange("in", 1, 7, to_path="other")]},
    "change of none": {"changes": [records.TaskChange("in", 99, 7)]},
    "depend": {"depends": [records.TaskRef("in", 1, 7)]},
    "depend on none": {"depends": [records.TaskRef("in", 99, 7)]},
    "depend in another queue": {"depends": [records.TaskRef("other", 1, 7)]},
    "document": {"documents": [records.DocWrite("n", "known", b"2", 7)]},
    "document that is there": {"documents": [records.DocWrite("n", "known", b"2")]},
    "document delete": {"document_deletes": [records.DocRef("n", "known", 7)]},
    "document depend": {"document_depends": [records.DocRef("n", "known", 7)]},
    "document that must be absent": {"document_depends": [records.DocRef("n", "known", 0)]},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_modification_of_which_one_part_fails_changes_nothing(engine: Engine, name: str) -> None:
    """README, Modify: a dependency that is not there fails the whole."""
    insert(engine)
    second, third = insert(engine), insert(engine)
    assert modify(engine, documents=[records.DocWrite("n", "known", b"1")]) is not None
    right: dict[str, Any] = {
        "inserts": [records.TaskInsert("out", Message(body=b"new"))],
        "deletes": [at(second)],
        "changes": [change(third, to_path="other")],
        "documents": [records.DocWrite("n", "fresh", b"1")],
    }
    before = everything(engine)
    both = {kind: [*right.get(kind, []), *WRONG[name].get(kind, [])] for kind in right | WRONG[name]}
    assert modify(engine, **both) is None
    assert everything(engine) == before
    assert modify(engine, **right) is not None  # it was the one part
    assert everything(engine) != before


def test_a_change_keeps_the_task_and_gives_a_new_version(engine: Engine) -> None:
    """`SimpleChange`: but for queue and version it is the same task."""
    task = insert(engine, body=b'"a"')
    before = (task.sequence, task.message, task.enqueued_ms, task.version)
    assert modify(engine, changes=[change(task, to_path="out")]) is not None
    (moved,) = engine.broker.queue("out").tasks.values()
    assert (moved.sequence, moved.message, moved.enqueued_ms) == before[:3] and moved.version > before[3]
    assert not engine.broker.queue("in").tasks


def test_whoever_names_the_version_before_a_change_loses(engine: Engine) -> None:
    """README, Queues: id *and* version must fit."""
    task = insert(engine)
    first = task.version
    assert modify(engine, changes=[change(task)]) is not None
    for fields in ({"deletes": [at(task, first)]}, {"changes": [change(task, first)]}, {"depends": [at(task, first)]}):
        assert modify(engine, **fields) is None
    assert modify(engine, deletes=[at(task)]) is not None


def test_a_change_releases_a_claim_and_one_with_a_time_ahead_keeps_others_away(engine: Engine) -> None:
    """README, Modify: a change sets the arrival time."""
    task = insert(engine)
    (held,) = engine.broker.claim("in", 1)
    assert modify(engine, changes=[change(task, due_ms=engine.now_ms() + 5_000)]) is not None
    with pytest.raises(LockLost):
        engine.broker.settle(held.token, Settlement.COMPLETE)
    assert engine.broker.claim("in", 1) == []
    later(engine, 5)
    assert len(engine.broker.claim("in", 1)) == 1
    assert modify(engine, changes=[change(task)]) is not None
    assert len(engine.broker.claim("in", 1)) == 1


def test_a_task_that_is_rescheduled_again_arrives_at_its_last_time_only(engine: Engine) -> None:
    """README, Modify: a change sets the arrival time."""
    task = insert(engine, due_ms=engine.now_ms() + 1_000)
    assert modify(engine, changes=[change(task, due_ms=engine.now_ms() + 5_000)]) is not None
    later(engine, 4)
    assert engine.broker.claim("in", 1) == []
    later(engine, 1)
    assert len(engine.broker.claim("in", 1)) == 1


def test_what_is_depended_upon_is_not_changed_by_it(engine: Engine) -> None:
    """README, Modify: depending requires presence, so that many may depend on one version."""
    task = insert(engine)
    version = task.version
    for _ in range(3):
        assert modify(engine, depends=[at(task)], inserts=[records.TaskInsert("out", Message(body=b"1"))]) is not None
    assert task.version == version and len(engine.broker.queue("out").tasks) == 3
    assert modify(engine, depends=[at(task)], deletes=[at(insert(engine))]) is not None
    assert modify(engine, deletes=[at(task)]) is not None
    assert modify(engine, depends=[at(task, version)]) is None


async def test_who_waits_for_a_queue_is_woken_by_a_task_that_is_moved_to_it(engine: Engine) -> None:
    """README, Claims: without a task `Claim` blocks; a change may bring one as an insertion does."""
    task = insert(engine)
    waiting = asyncio.create_task(engine.broker.wait_any(["out"], 30))
    await asyncio.sleep(0)
    assert modify(engine, changes=[change(task, to_path="out")]) is not None
    assert await asyncio.wait_for(waiting, 1)


async def test_a_claim_of_several_queues_is_fair_to_the_small_ones(engine: Engine) -> None:
    """`MultiWorker`: a median place is that of taking turns, and at most the queue's own length behind it."""
    sizes = {"in": 300, "out": 60, "other": 20}
    for path, size in sizes.items():
        engine.broker.send(path, [Message(body=b"{}", outbox_id=f"{path}{n}") for n in range(size)])
    journal = EngineJournal(engine.core, engine.broker)
    taken: list[str] = []
    while deliveries := await journal.claim([*sizes], count_max=1, wait_s=0):
        (delivery,) = deliveries  # one, of one of them
        taken.append(delivery.queue)
    places = {path: [place for place, name in enumerate(taken) if name == path] for path in sizes}
    assert {path: len(found) for path, found in places.items()} == sizes
    three, two = 20, 40  # rounds in which so many queues have a task
    assert median(places["other"]) <= 3 * three / 2 + 20
    assert median(places["out"]) <= (3 * three + 2 * two) / 2 + 60
