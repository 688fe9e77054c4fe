"""What waits behind a dead letter: shown once in a block to who puts it on record, which stays until it is replaced."""

from __future__ import annotations

import asyncio
import math
import random
from hashlib import sha256
from typing import Any

import pytest

from outbox.engine.backend.journal import BLOCKED_EVERY, EngineJournal
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.limits import EngineLimits
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.message import Message
from outbox.ports import Commit, DeadLettering, Delivery, Marker, Postponement, Refusal
from outbox.testing import START_S, VirtualClock

KEY = sha256(b"key").digest()
WAITING = Refusal(b"f" * 32, "waiting", "", -1)
ANY_CLOCK = EngineLimits(clock_ahead_max_s=math.inf)
YEAR_S = 366 * 86_400


class World:
    """An engine on a disk of its own, with an ordered queue `k` and a plain one."""

    def __init__(self) -> None:
        self.disk = MemoryDisk("blocked")
        self.clock = VirtualClock(START_S)
        self.open()
        self.engine.declare(
            QueueSettings("k", "per_key", lock_s=30, stop_key=True, max_delivery_count=2), QueueSettings("plain")
        )

    def open(self) -> None:
        self.engine = Engine.open(self.disk, clock=self.clock, log_id=b"0" * 16, limits=ANY_CLOCK)
        self.journal = EngineJournal(self.engine.core, self.engine.broker)

    def kill(self) -> None:
        self.disk = self.disk.crash(Crash.POWER, random.Random(1))
        self.open()

    def send(self, *names: str, session: str = "a", queue: str = "k") -> None:
        self.engine.broker.send(queue, [Message(body=b"m", outbox_id=name, session_id=session) for name in names])

    async def claim(self, count_max: int = 9) -> list[Delivery]:
        return list(await self.journal.claim(["k", "plain"], count_max=count_max, wait_s=0))

    async def names(self) -> list[str]:
        """Claim whatever is there: the ids, those that wait with a star."""
        return [delivery.message.identity + "*" * delivery.waits for delivery in await self.claim()]

    async def block(self, *others: str, session: str = "a") -> None:
        """Block a key by its first message; the others wait behind it."""
        self.send("bad", *others, session=session)
        first, *rest = await self.claim()
        await self.commit(dead_lettered=[DeadLettering(first, "no", "", 1, True)])
        await self.journal.release(rest)

    async def commit(self, *, expire_ms: int = 1, refused: dict[bytes, Refusal] | None = None, **parts: object) -> None:
        empty: dict[str, Any] = {"consumed": [], "applied": {}, "replacing": {}, "dead_lettered": [], "postponed": []}
        known = {"if_versions": {}, "states": {}, "outputs": [], **empty, **parts}
        commit = Commit(self.engine.now_ms(), expire_ms, refused=refused or {}, **known)
        assert await self.journal.commit(commit) is None

    async def look(self) -> list[str]:
        """Look at what waits, as a worker does that finds nothing to put on record."""
        found = [delivery for delivery in await self.claim() if delivery.waits]
        if found:
            await self.commit(postponed=[Postponement(delivery, 0, 0) for delivery in found])
        return [delivery.message.identity for delivery in found]

    async def unblock(self) -> None:
        self.engine.dead_letters.discard("k", self.engine.broker.peek("k/$DeadLetterQueue", 0, 1)[0].sequence)

    async def marker(self) -> Marker | None:
        return (await self.journal.load([], [KEY]))[1].get(KEY)


@pytest.fixture
def world() -> World:
    return World()


async def test_what_waits_is_shown_once_in_a_block(world: World) -> None:
    await world.block("1", "2")
    assert await world.look() == ["1", "2"]
    assert await world.look() == []
    world.send("3")
    assert await world.look() == ["3"] and await world.look() == []
    await world.unblock()
    assert await world.names() == ["1", "2", "3"]


async def test_what_is_released_or_whose_lock_ran_out_is_redelivered(world: World) -> None:
    await world.block("1")
    await world.journal.release(await world.claim())
    assert await world.names() == ["1*"]
    world.clock.seconds += 31
    world.engine.tick()
    assert await world.look() == ["1"] and await world.look() == []


async def test_what_waits_is_shown_again_after_a_crash_and_in_the_next_block(world: World) -> None:
    await world.block("1", "2")
    assert await world.look() == ["1", "2"]
    world.kill()
    assert await world.look() == ["1", "2"] and await world.look() == []
    await world.unblock()
    first, second = await world.claim()
    await world.commit(dead_lettered=[DeadLettering(first, "no", "", 1, True)])
    await world.journal.release([second])
    assert await world.look() == ["2"]


async def test_what_is_postponed_in_a_later_block_is_shown_in_it(world: World) -> None:
    await world.block("1", "2")
    assert await world.look() == ["1", "2"]
    await world.unblock()
    first, second = await world.claim()
    await world.commit(dead_lettered=[DeadLettering(first, "no", "", 1, True)])
    await world.commit(postponed=[Postponement(second, 0, 0)])
    assert await world.look() == ["2"] and await world.look() == []


async def test_what_was_ready_when_its_key_was_blocked_is_shown(world: World) -> None:
    world.send("bad", "1")
    (first,) = await world.claim(1)
    await world.commit(dead_lettered=[DeadLettering(first, "no", "", 1, True)])
    assert await world.look() == ["1"]


async def test_nothing_of_a_key_is_handled_while_an_operator_inspects_what_waits(world: World) -> None:
    await world.block("1", "2")
    (first,) = await world.claim(1)
    assert first.waits
    await world.unblock()
    assert await world.names() == []
    await world.commit(postponed=[Postponement(first, 0, 0)])
    assert await world.names() == ["1", "2"]


async def test_what_is_ready_comes_before_what_waits_and_does_not_keep_it_for_ever(world: World) -> None:
    await world.block("1")
    world.send("p", queue="plain")
    assert await world.names() == ["p"]
    for turn in range(2 * BLOCKED_EVERY):
        world.send(f"p{turn}", queue="plain")
        if await world.names() == ["1*"]:
            return
    raise AssertionError("what waits was never shown beside a stream of others")


async def test_what_is_waited_for_includes_what_is_behind_a_dead_letter(world: World) -> None:
    await world.block()
    assert not await world.engine.broker.wait_any(["k"], 0, blocked=True)
    world.send("1")
    assert not await world.engine.broker.wait_any(["k"], 0)
    assert await world.engine.broker.wait_any(["k"], 0, blocked=True)
    assert not world.engine.broker.is_idle(["k"])
    assert await world.look() == ["1"]
    assert not await world.engine.broker.wait_any(["k"], 0, blocked=True) and world.engine.broker.is_idle(["k"])
    claim = asyncio.create_task(world.journal.claim(["k"], count_max=9, wait_s=60))
    await asyncio.sleep(0)
    world.send("2")
    assert [delivery.waits for delivery in await asyncio.wait_for(claim, 5)] == [True]


async def test_what_a_receiver_had_for_itself_is_shown_when_it_lets_go(world: World) -> None:
    world.send("bad", "1", "2")
    lock = world.engine.sessions.accept("k", "a")
    assert lock is not None
    for _ in range(2):  # too often: the engine blocks the key
        (claim,) = world.engine.broker.claim("k", 1, session="a")
        world.engine.broker.settle(claim.token, Settlement.ABANDON)
    assert await world.names() == []
    world.engine.sessions.release(lock.token)
    assert await world.names() == ["1*", "2*"]


async def test_a_marker_of_what_waits_is_kept_until_it_is_replaced(world: World) -> None:
    await world.block("1")
    (first,) = await world.claim()
    await world.commit(expire_ms=0, refused={KEY: WAITING}, postponed=[Postponement(first, 0, 0)])
    for step in ("live", "replayed", "from a snapshot"):
        world.clock.seconds += YEAR_S
        world.engine.tick()
        assert await world.marker() == WAITING, step
        if step == "replayed":
            world.engine.compact()
        world.kill()
    await world.unblock()
    (first,) = await world.claim()
    until_ms = world.engine.now_ms() + 1_000
    await world.commit(expire_ms=until_ms, consumed=[first], applied={KEY: b"f" * 32}, replacing={KEY: 0})
    assert await world.marker() == b"f" * 32
    world.clock.seconds += 2
    world.send("other", queue="plain")
    (other,) = await world.claim()
    await world.commit(expire_ms=until_ms + 9_000, consumed=[other], applied={b"o" * 32: b"f" * 32})
    assert await world.marker() is None
