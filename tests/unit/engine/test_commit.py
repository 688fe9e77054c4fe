"""A commit that could not take effect is refused before the log, and costs its own messages only."""

from __future__ import annotations

import random

import pytest

from outbox.engine.backend.journal import EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.errors import UnknownDestination
from outbox.message import Message
from outbox.ports import Commit, Output, Postponement
from outbox.testing import START_S, VirtualClock


@pytest.mark.parametrize("destination", ["nowhere", "keyed"])
async def test_an_output_that_could_not_take_effect_is_refused_before_the_log(destination: str) -> None:
    output = Output(destination, 0, Message(body=b"", outbox_id="o"))
    disk, clock = MemoryDisk(), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock)
    engine.declare(QueueSettings("q"), QueueSettings("keyed", ordering="per_key"))
    engine.broker.send("q", [Message(body=b"{}", outbox_id="in")])
    journal = EngineJournal(engine.core, engine.broker)
    consumed = list(await journal.claim(["q"], count_max=1, wait_s=0))
    commit = Commit(engine.now_ms(), engine.now_ms() + 9, consumed, {}, {}, [output], {}, {}, {}, [], [])
    with pytest.raises(UnknownDestination):
        await journal.commit(commit)
    commit.outputs.clear()
    assert await journal.commit(commit) is None  # the engine goes on, the lock is still held
    again = Engine.open(disk.crash(Crash.POWER, random.Random(1)), clock=clock)
    assert again.broker.queue("q").counts()["active"] == 0


async def test_a_client_sees_deliveries_and_failures_of_a_message_as_one_count() -> None:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"{}", outbox_id="in")])
    journal = EngineJournal(engine.core, engine.broker)
    (failed,) = await journal.claim(["q"], count_max=1, wait_s=0)
    commit = Commit(engine.now_ms(), 0, [], {}, {}, [], {}, {}, {}, [], [Postponement(failed, 0, 2)], [])
    assert await journal.commit(commit) is None
    (claim,) = engine.broker.claim("q", 1)
    engine.broker.settle(claim.token, Settlement.ABANDON)
    (claim,) = engine.broker.claim("q", 1)
    assert (claim.delivery_count, engine.broker.queue("q").tasks[claim.sequence].failures) == (3, 2)


async def test_an_output_is_held_to_the_settings_of_its_queue_as_any_message_is() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("plain"), QueueSettings("once", duplicate_window_s=10))
    engine.declare(QueueSettings("short", time_to_live_s=5))
    journal = EngineJournal(engine.core, engine.broker)
    for _ in range(2):
        message = Message(body=b"{}", outbox_id="o", message_id="o")
        outputs = [Output(queue, 0, message) for queue in ("plain", "once", "short", "plain")]
        commit = Commit(engine.now_ms(), 0, [], {}, {}, outputs, {}, {}, {}, [], [])
        assert await journal.commit(commit) is None
    counts = {path: engine.broker.queue(path).counts()["active"] for path in ("plain", "once", "short")}
    assert counts == {"plain": 4, "once": 1, "short": 2}
    clock.seconds += 5
    engine.tick()
    assert engine.broker.queue("short").counts()["active"] == 0 and engine.broker.queue("plain").counts()["active"] == 4


@pytest.mark.parametrize("how", ["without a tick", "after ticks", "after a restart"])
async def test_a_key_whose_message_is_postponed_rests_until_its_own_millisecond(how: str) -> None:
    disk, clock = MemoryDisk(), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock)
    engine.declare(QueueSettings("k", "per_key", lock_s=60))
    engine.broker.send("k", [Message(body=id.encode(), session_id=id) for id in "ab"])
    journal = EngineJournal(engine.core, engine.broker)
    a, b = await journal.claim(["k"], count_max=9, wait_s=0)
    now_ms = engine.now_ms()
    postponed = [Postponement(b, now_ms + 2_000, 1), Postponement(a, now_ms + 1_000, 1)]
    assert await journal.commit(Commit(now_ms, 0, [], {}, {}, [], {}, {}, {}, [], postponed, [])) is None
    engine.broker.send("k", [Message(body=b"behind a", session_id="a")])
    await engine.core.gate()
    if how == "after a restart":
        engine = Engine.open(disk.crash(Crash.POWER, random.Random(1)), clock=clock)
    for at_s, there in ((0.999, []), (1, [b"a", b"behind a"]), (1.999, []), (2, [b"b"])):
        if at_s < 1 or how != "without a tick":
            assert engine.broker.next_due_ms() == now_ms + (1_000 if at_s <= 1 else 2_000)
        clock.seconds = START_S + at_s
        if how != "without a tick":
            engine.tick()
        if at_s <= 1:
            assert engine.broker.is_idle(["k"]) == (not there)
        assert [claim.message.body for claim in engine.broker.claim("k", 9)] == there


async def test_a_delivery_whose_lock_another_has_is_not_committed_and_the_other_s_is() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.in_memory(clock=clock)
    engine.declare(QueueSettings("q"))
    engine.broker.send("q", [Message(body=b"{}", outbox_id="in")])
    journal = EngineJournal(engine.core, engine.broker)
    late = list(await journal.claim(["q"], count_max=1, wait_s=0))
    clock.seconds += 60
    engine.tick()
    found = list(await journal.claim(["q"], count_max=1, wait_s=0))
    for consumed, locks in ((late, {late[0].sequence}), (found, None)):
        commit = Commit(engine.now_ms(), 0, consumed, {}, {}, [], {}, {}, {}, [], [], [])
        conflict = await journal.commit(commit)
        assert (None if conflict is None else set(conflict.locks)) == locks
    assert not engine.broker.queue("q").tasks
