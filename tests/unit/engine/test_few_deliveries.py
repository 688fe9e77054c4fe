"""A kill ends no message that was not begun, however few deliveries its queue allows."""

from __future__ import annotations

from typing import Literal

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, dead_letter_path
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.message import Message


def dead_letters(engine: Engine) -> set[str]:
    return {task.message.outbox_id for task in engine.broker.queue(dead_letter_path("a")).tasks.values()}


@pytest.mark.parametrize("ordering", ["unordered", "per_key"])
@pytest.mark.parametrize(("limit", "kills"), [(1, 1), (2, 2), (3, 3)])
async def test_a_kill_ends_no_message_but_the_one_that_was_handled(
    ordering: Literal["unordered", "per_key"], limit: int, kills: int
) -> None:
    """Of what is claimed the first is handled, and each kill comes within its handler."""
    disk, begun = MemoryDisk("killed"), set[str]()
    engine = Engine.open(disk)
    engine.declare(QueueSettings("a", ordering, max_delivery_count=limit), QueueSettings("b", max_delivery_count=9))
    for n in range(20):
        engine.broker.send("a", [Message(body=b"x", outbox_id=f"a{n}", session_id=f"s{n % 2}")])
        engine.broker.send("b", [Message(body=b"x", outbox_id=f"b{n}")])
    for _ in range(kills):
        deliveries = await engine.ports().journal.claim(["a", "b"], count_max=64, wait_s=0)
        begun.add(deliveries[0].message.outbox_id)
        disk = disk.crash(Crash.PROCESS)
        engine = Engine.open(disk)
        assert dead_letters(engine) <= begun
    engine.close()


async def test_of_what_waits_behind_a_dead_letter_a_kill_ends_at_most_one() -> None:
    disk = MemoryDisk("killed")
    engine = Engine.open(disk)
    engine.declare(QueueSettings("a", "per_key", max_delivery_count=1, stop_key=True))
    engine.broker.send("a", [Message(body=b"x", outbox_id=f"a{n}", session_id="s") for n in range(9)])
    for _ in range(2):  # the first is dead-lettered and blocks its key; the second claim shows what waits behind it
        assert len(await engine.ports().journal.claim(["a"], count_max=64, wait_s=0)) == 1
        disk = disk.crash(Crash.PROCESS)
        engine = Engine.open(disk)
    assert len(dead_letters(engine)) <= 2
    engine.close()


async def test_a_message_that_may_be_delivered_once_is_alone_in_its_claim() -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("a", max_delivery_count=1), QueueSettings("b"))
    for path in ("a", "a", "b", "b", "b", "b"):
        engine.broker.send(path, [Message(body=b"x")])
    journal = engine.ports().journal
    claims = [await journal.claim(["a", "b"], count_max=3, wait_s=0) for _ in range(5)]
    found = [[delivery.queue for delivery in claim] for claim in claims if claim]
    assert sorted(found) == [["a"], ["a"], ["b"], ["b", "b", "b"]]


async def test_a_claim_of_several_queues_has_no_more_than_it_was_asked_for() -> None:
    engine = Engine.in_memory()
    engine.declare(QueueSettings("a"), QueueSettings("b"), QueueSettings("c"))
    for path in "abcabc":
        engine.broker.send(path, [Message(body=b"x")])
    journal = engine.ports().journal
    assert [len(await journal.claim(["a", "b", "c"], count_max=3, wait_s=0)) for _ in range(3)] == [3, 3, 0]
