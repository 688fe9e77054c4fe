"""Appends that take longer than tombstones last: what was written below the floor is taken back, nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
import pytest

from outbox.engine.engine import Engine
from outbox.errors import DeadlinePassed, OutcomeUnknown, Refused, Trimmed
from outbox.ports import Create
from outbox.streams import OrderedLog, Position
from outbox.streams.horizon import _cleared
from outbox.streams.log_places import Place, place_of
from outbox.streams.plan import RowTarget
from outbox.streams.register import Out
from outbox.testing import START_S, VirtualClock
from tests.unit.streams.making import fill, made, values

MARGIN = timedelta(seconds=10)
LARGE = "x" * 1_100_000


class Paused:
    """A store whose next creates of cells are each preceded by a pause of the process."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.pauses: list[Callable[[], Awaitable[None]]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def write(self, operations: Any) -> Any:
        if self.pauses and isinstance(operations[0], Create) and operations[0].key.id.isdigit():
            await self.pauses.pop(0)()
        return await self._store.write(operations)


class Ground:
    """An engine whose time is ours, and a process of its own that may be paused."""

    def __init__(self) -> None:
        self.clock = VirtualClock(START_S)
        self.engine = Engine.in_memory(clock=self.clock)
        self.place = place_of(self.engine)
        self.store = Paused(self.place.store)

    def log(self, kind: Any = int, *, mine: bool = False) -> OrderedLog[Any]:
        """The log as a process has it that has just begun; `mine` may be paused."""
        store: Any = self.store if mine else self.place.store
        return made("in", Place(store, self.engine.blobs, self.place.now_ms), kind, margin=MARGIN)

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        self.clock.seconds += seconds
        self.engine.tick()

    async def trim(self, kind: Any = int) -> None:
        """Let a reader read all, and trim that."""
        log = self.log(kind)
        await log.register("reader", log.end())
        await log.trim()


@pytest.fixture
async def ground() -> AsyncIterator[Ground]:
    found = Ground()
    async with found.engine:
        yield found


@pytest.mark.parametrize("pause_s", [4.0, 7.5, 9.9, 10.5, 3_600.0])
@pytest.mark.parametrize("is_early", [False, True], ids=["trimmed within the pause", "trimmed before"])
async def test_an_append_that_is_paused_is_read_once(is_early: bool, pause_s: float, ground: Ground) -> None:
    mine, other, read = ground.log(mine=True), ground.log(), list[int]()
    await mine.append(0, id="a0")

    async def others() -> None:
        for n in range(3):
            await other.append(10 + n, id=f"b{n}")
        read.extend(await values(ground.log()))
        await ground.trim()

    async def pause() -> None:
        if not is_early:
            await others()
        ground.pass_s(pause_s)

    ground.store.pauses = [pause]
    if is_early:
        await others()
        ground.pass_s(2.4)
    at = await mine.append(99, id="a1")
    assert (at, await values(ground.log())) == (Position(4), [99])
    assert (await mine.append(99, id="a1"), read) == (at, [0, 10, 11, 12])


async def behind_all(ground: Ground, log: OrderedLog[Any]) -> None:
    """Pause the next append of a log until what it should have met was trimmed, and its tombstones are gone."""

    async def pause() -> None:
        await fill(ground.log(), 10, 11)
        await ground.trim()
        ground.pass_s(11)

    ground.store.pauses = [pause]


async def test_what_is_taken_back_is_nobodys_tombstone(ground: Ground) -> None:
    mine = ground.log(mine=True)
    await mine.append(0, id="a0")
    await behind_all(ground, mine)
    await mine.append(99, id="a1")
    cell = await ground.log().row(0, 0).cells.read(1)
    assert cell is not None and (cell.gone, cell.id, cell.v) == (True, "", [])


async def test_an_append_with_since_that_was_trimmed_meanwhile_says_so_and_leaves_nothing(ground: Ground) -> None:
    mine = ground.log(mine=True)
    await ground.log().append(0, id="a0")
    await behind_all(ground, mine)
    with pytest.raises(Trimmed):
        await mine.append(99, id="a1", since=Position(1))
    cell = await ground.log().row(0, 0).cells.read(1)
    assert cell is not None and cell.gone and await values(ground.log()) == []


async def test_an_append_that_is_paused_each_time_gives_up_and_leaves_nothing(ground: Ground) -> None:
    mine, number = ground.log(mine=True), 0
    await mine.append(0, id="a0")

    async def pause() -> None:
        nonlocal number
        number += 1
        await ground.log().append(number, id=f"b{number}", since=await ground.log().end())
        await ground.trim()
        ground.pass_s(11)

    ground.store.pauses = [pause] * 3
    with pytest.raises(DeadlinePassed, match="nothing of it is left; append it again"):
        await mine.append(99, id="a1")
    assert await values(ground.log()) == []
    await mine.append(99, id="a1")
    assert await values(ground.log()) == [99]


async def test_a_replica_that_was_paused_leaves_no_cell_and_keeps_the_blob_of_the_other(ground: Ground) -> None:
    await ground.log(str).append("first", id="other")
    out, times = Out("in", [msgspec.Raw(msgspec.json.encode(LARGE))]), {"since": 0, "at_ms": 1}

    async def pause() -> None:
        other = RowTarget(ground.log(str).row(0, 0))
        assert await other.write("step", out, **times, until_ms=ground.place.now_ms() + 5_000) == 2
        await ground.log(str).register("reader", Position(1))
        assert await ground.log(str).trim() == 1
        ground.pass_s(11)

    slow = RowTarget(ground.log(str, mine=True).row(0, 0))
    ground.store.pauses = [pause]
    with pytest.raises(Trimmed):
        await slow.write("step", out, **times, until_ms=ground.place.now_ms() + 5_000)
    cell = await ground.log(str).row(0, 0).cells.read(0)
    assert cell is not None and (cell.gone, cell.id) == (True, "")
    assert await values(ground.log(str)) == [LARGE]


@pytest.mark.parametrize("is_over", [True, False], ids=["goes on", "begins again"])
async def test_an_append_below_a_trim_that_stood_still_is_made_again_or_asks_for_a_person(
    is_over: bool, ground: Ground
) -> None:
    """A trim that stood still for a margin when it had buried its cells, but not said so."""
    mine = ground.log(mine=True)
    await mine.append(0, id="a0")

    async def pause() -> None:
        await fill(ground.log(), 10, 11)
        log = ground.log()
        await log.register("reader", log.end())
        row = log.row(0, 0)
        await row.horizon.change(lambda floor: msgspec.structs.replace(floor, index=3))
        await row.cells.bury(range(3), ttl_s=10)
        ground.pass_s(11)

    ground.store.pauses = [pause]
    with pytest.raises(OutcomeUnknown, match="its cell 1 is being trimmed; whether it was read is not known"):
        await mine.append(99, id="a1")
    if is_over:
        await ground.log().row(0, 0).horizon.change(partial(_cleared, 3))
        assert await mine.append(99, id="a1") == Position(3)
        assert await values(ground.log()) == [99]
        return
    await ground.log().trim()
    for _ in range(2):
        with pytest.raises(Refused, match="ask a reader before you append it under a new id"):
            await mine.append(99, id="a1")


async def test_an_append_without_an_answer_is_known_after_another_that_had_to_look_again(
    ground: Ground, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = ground.log(mine=True)
    await mine.append(0, id="a0")

    async def lost(operations: Any) -> Any:
        await ground.place.store.write(operations)
        raise OutcomeUnknown("no answer")

    with monkeypatch.context() as patch, pytest.raises(OutcomeUnknown):
        patch.setattr(ground.store, "write", lost)
        patch.setattr(ground.store, "read", failing, raising=False)
        await mine.append(1, id="a1")
    await ground.trim()
    ground.pass_s(4)
    assert await mine.append(2, id="a2") == Position(2)
    assert await mine.append(1, id="a1") == Position(1)
    assert await values(ground.log()) == [2]


async def failing(*given: Any, **options: Any) -> Any:
    raise OutcomeUnknown("no answer")
