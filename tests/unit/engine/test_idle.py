"""What an engine without work writes: one witness for each second of rest, and only behind something new."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from outbox.engine import engine as engines
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import MemoryDisk
from outbox.message import Message

REST_TICKS = round(1 / engines.TICK_S)
"""The ticks of a second without work, whatever they last in this test."""
WITNESS_BYTES_MAX = 4_300


async def written(monkeypatch: pytest.MonkeyPatch, tick_count: int, sends_at: Callable[[int], bool]) -> tuple[int, int]:
    """How many records and bytes an engine writes of its own over so many ticks; a message is sent at some of them."""
    monkeypatch.setattr(engines, "TICK_S", 0)
    ticks = sent = sent_bytes = 0
    counted = asyncio.get_running_loop().create_future()
    async with Engine.open(MemoryDisk("idle")) as engine:
        log, tick = engine.log, engine.tick
        assert log is not None
        engine.declare(QueueSettings("q"))
        engine.core.flush()
        before, size_bytes = log.appended, log.size_bytes

        def ticked() -> None:
            nonlocal ticks, sent, sent_bytes
            tick()
            ticks += 1
            if ticks == tick_count:
                counted.set_result((log.appended - before - sent, log.size_bytes - size_bytes - sent_bytes))
            elif sends_at(ticks):
                size = log.size_bytes
                engine.broker.send("q", [Message(body=b"{}")])
                engine.core.flush()
                sent, sent_bytes = sent + 1, sent_bytes + log.size_bytes - size

        engine.tick = ticked  # type: ignore[method-assign]  # counted
        found: tuple[int, int] = await asyncio.wait_for(counted, 30)
        return found


async def test_an_idle_engine_writes_one_witness_and_then_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    records, size_bytes = await written(monkeypatch, 20 * REST_TICKS, lambda tick: False)
    assert records == 2 and 4_096 < size_bytes < WITNESS_BYTES_MAX


async def test_an_engine_that_never_rests_for_a_second_writes_no_witness(monkeypatch: pytest.MonkeyPatch) -> None:
    assert await written(monkeypatch, 20 * REST_TICKS, lambda tick: tick % (REST_TICKS - 1) == 1) == (0, 0)


async def test_there_is_at_most_one_witness_for_a_second_of_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    every, rests = REST_TICKS + 2, 10
    records, size_bytes = await written(monkeypatch, rests * every, lambda tick: tick % every == 1)
    assert records == 2 * rests and size_bytes < rests * WITNESS_BYTES_MAX
