"""How much a sync policy leaves unsynced at most, and what is written although nobody waits for it."""

from __future__ import annotations

import asyncio

import pytest

from outbox.engine import engine as engines
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import MemoryDisk
from outbox.message import Message
from outbox.testing import START_S, VirtualClock


async def test_every_n_syncs_the_nth_record_with_the_others() -> None:
    engine = Engine.open(MemoryDisk("count"), sync="every_n:3", clock=VirtualClock(START_S))
    log = engine.log
    assert log is not None
    engine.declare(QueueSettings("q"))
    engine.core.flush()
    unsynced = []
    for _ in range(6):
        engine.broker.send("q", [Message(body=b"{}")])
        await engine.core.gate()
        unsynced.append(log.written - log.synced)
    assert unsynced == [1, 2, 0, 1, 2, 0]


async def test_an_interval_begins_again_with_every_sync() -> None:
    clock = VirtualClock(START_S)
    engine = Engine.open(MemoryDisk("interval"), sync="interval:10", clock=clock)
    log = engine.log
    assert log is not None
    engine.declare(QueueSettings("q"))
    is_synced = []
    for at_s in (9, 10, 11, 19, 20):
        clock.seconds = START_S + at_s
        engine.broker.send("q", [Message(body=b"{}")])
        await engine.core.gate()
        is_synced.append(log.synced == log.appended)
    assert is_synced == [False, True, False, False, True]


async def test_what_time_brings_is_written_although_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "TICK_S", 0)
    async with Engine.open(MemoryDisk("unasked"), clock=VirtualClock(START_S)) as engine:
        log = engine.log
        assert log is not None
        engine.declare(QueueSettings("q"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert log.written == log.appended
