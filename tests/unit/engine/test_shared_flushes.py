"""Who shares a flush: tasks that write side by side; one that writes alone does not wait for others each time."""

from __future__ import annotations

import asyncio

from outbox.engine.core import ALONE_COUNT_MAX
from outbox.engine.engine import Engine
from outbox.engine.log.disk import MemoryDisk
from outbox.ports import Create, DocumentKey
from outbox.testing import START_S, VirtualClock

COUNT = 32


async def write(engine: Engine, who: str, count: int = COUNT) -> None:
    store = engine.store()
    for n in range(count):
        await store.write([Create(DocumentKey(who, str(n)), b"{}")])


class Turns:
    """How often another task had its turn meanwhile."""

    def __init__(self) -> None:
        self.count = 0
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self.count += 1
            await asyncio.sleep(0)

    def end(self) -> int:
        self._task.cancel()
        return self.count


async def test_a_task_that_writes_alone_flushes_at_once_and_gives_others_a_turn_now_and_then() -> None:
    async with Engine.open(MemoryDisk("alone"), clock=VirtualClock(START_S), accept_clock=True) as engine:
        turns, before = Turns(), engine.core.flush_count
        await write(engine, "a")
        assert engine.core.flush_count - before == COUNT
        assert COUNT // (ALONE_COUNT_MAX + 1) <= turns.end() <= COUNT // 2


async def test_tasks_that_write_side_by_side_share_their_flushes() -> None:
    async with Engine.open(MemoryDisk("together"), clock=VirtualClock(START_S), accept_clock=True) as engine:
        await write(engine, "before", 1)
        before = engine.core.flush_count
        await asyncio.gather(*(write(engine, f"w{n}") for n in range(4)))
        assert engine.core.flush_count - before <= COUNT + ALONE_COUNT_MAX + 2


async def test_a_task_whose_flush_takes_long_lets_others_join_each_time() -> None:
    clock = VirtualClock(START_S)
    async with Engine.open(MemoryDisk("slow"), clock=clock, accept_clock=True) as engine:
        log = engine.log
        assert log is not None
        sync = log.sync

        def slowly() -> None:
            clock.seconds += 0.005
            sync()

        log.sync = slowly  # type: ignore[method-assign]  # a disk that takes its time
        turns = Turns()
        await write(engine, "a")
        assert turns.end() >= COUNT
