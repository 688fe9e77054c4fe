"""How much a sync policy leaves unsynced at most, who shares a flush, and what is written unasked."""

from __future__ import annotations

import asyncio

import pytest

from outbox.engine import engine as engines
from outbox.engine.core import LONE_COUNT, LONE_S, SyncPolicy
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import MemoryDisk
from outbox.errors import EngineStopped
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


class Writers:
    """An engine on a disk in memory, writers of it, and how many turns of the loop another task has had meanwhile."""

    def __init__(self, *, sync_s: float = 0.0) -> None:
        self.clock, self.sync_s = VirtualClock(START_S), sync_s
        self.engine = Engine.open(MemoryDisk("writers"), clock=self.clock)
        self.engine.declare(QueueSettings("q"))
        self.engine.core.flush()
        self.turns = 0

    async def write(self, writer_count: int, each: int) -> int:
        """Let so many write so many messages each, every one durable before the next; how many flushes it took."""
        before, counting = self.engine.core.flush_count, asyncio.create_task(self._count())
        await asyncio.gather(*(self._one(each) for _ in range(writer_count)))
        counting.cancel()
        return self.engine.core.flush_count - before

    async def _one(self, count: int) -> None:
        log = self.engine.log
        assert log is not None
        for _ in range(count):
            self.engine.broker.send("q", [Message(body=b"{}")])
            ordinal = log.appended
            await self.engine.core.gate()
            assert log.synced >= ordinal
            self.clock.seconds += self.sync_s

    async def _count(self) -> None:
        while True:
            self.turns += 1
            await asyncio.sleep(0)


async def test_who_writes_alone_waits_for_no_turn_of_the_loop_but_gives_it_one_now_and_then() -> None:
    writers = Writers()
    assert await writers.write(1, each=10 * LONE_COUNT) == 10 * LONE_COUNT
    assert LONE_COUNT + 8 <= writers.turns <= 4 * LONE_COUNT  # two for each that is waited for


async def test_who_writes_alone_to_a_slow_disk_gives_others_a_turn_after_every_other_flush() -> None:
    writers = Writers(sync_s=LONE_S)
    await writers.write(1, each=10 * LONE_COUNT)
    assert writers.turns >= 10 * LONE_COUNT


async def test_writers_side_by_side_share_a_flush_also_after_one_alone() -> None:
    writers = Writers()
    assert await writers.write(8, each=50) == 50
    await writers.write(1, each=50)
    assert await writers.write(8, each=50) <= 50 + LONE_COUNT


@pytest.mark.parametrize("reads", [True, False])
async def test_who_reads_what_one_has_written_does_not_count_as_another(reads: bool) -> None:
    core, alone = (engine := Writers().engine).core, 0
    for number in range(10 * LONE_COUNT):
        engine.broker.send("q", [Message(body=b"{}")])
        waiting = asyncio.gather(core.gate(), core.gate(reads=reads))
        await asyncio.sleep(0)
        alone += number >= LONE_COUNT and not core._gate_waiters
        await waiting
    assert (alone > 4 * LONE_COUNT) == reads


async def test_whoever_shares_a_flush_that_fails_learns_that_the_engine_has_stopped() -> None:
    disk = MemoryDisk("shared")
    engine = Engine.open(disk, clock=VirtualClock(START_S))
    engine.declare(QueueSettings("q"))
    engine.core.flush()
    reasons: list[str] = []
    engine.core.on_stop = lambda reason: reasons.append(str(reason))
    engine.broker.send("q", [Message(body=b"{}")])
    waiting = [asyncio.create_task(engine.core.gate()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    disk.fail("sync")
    ends = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 1)
    assert [type(end) for end in ends] == [EngineStopped, asyncio.CancelledError, EngineStopped]
    with pytest.raises(EngineStopped, match="injected"):
        engine.broker.send("q", [Message(body=b"{}")])
    assert len(reasons) == 1 and "injected" in reasons[0]


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("every", SyncPolicy()),
        ("every_n", SyncPolicy("every_n", count=64)),
        ("every_n:3", SyncPolicy("every_n", count=3)),
        ("interval", SyncPolicy("interval", interval_s=0.05)),
        ("interval:2.5", SyncPolicy("interval", interval_s=2.5)),
        ("never", SyncPolicy("never")),
    ],
)
def test_a_sync_policy_is_read_from_its_text(text: str, policy: SyncPolicy) -> None:
    assert SyncPolicy.parse(text) == policy


@pytest.mark.parametrize("text", ["", "always", "every:1", "never:0", "every_n:x", "interval:x"])
def test_another_text_is_no_sync_policy(text: str) -> None:
    with pytest.raises(ValueError):
        SyncPolicy.parse(text)


async def test_a_log_that_is_never_synced_is_written_before_it_is_acknowledged() -> None:
    engine = Engine.open(MemoryDisk("never"), sync="never", clock=VirtualClock(START_S))
    log = engine.log
    assert log is not None
    engine.declare(QueueSettings("q"))
    synced = log.synced
    await engine.core.gate()
    assert log.written == log.appended > log.synced == synced
