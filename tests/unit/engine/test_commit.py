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
