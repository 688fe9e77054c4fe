"""A player's session: one world, the scenario that is shown in it, and the play by chance."""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import msgspec

from outbox.errors import Refused
from outbox.ops.play.chance import FAULT_COUNT, ChancePlayer
from outbox.ops.play.gate import Step
from outbox.ops.play.look import View, look
from outbox.ops.play.scenarios import RANDOM, RANDOM_END, SCENARIOS
from outbox.ops.play.world import Act, Does, World

RATE_MIN, RATE_MAX = 0.5, 100.0
"""How many actions a second the play by chance makes."""
NAMES = {name: scenario.name for name, scenario in SCENARIOS.items()}


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A request of the page: an action on the world or on the session, such as `begin` a scenario."""

    do: Does | Literal["reset", "begin", "next", "back", "auto", "stop"]
    worker: int = 0
    id: str = ""
    step: Step | Literal[""] = ""
    rate: float = 4.0


@dataclass(frozen=True, slots=True)
class Guide:
    """The shown scenario: its progress, its text, and the label of its next step (empty at its end)."""

    name: str
    title: str
    index: int
    scene_count: int
    text: str
    next_label: str


@dataclass(frozen=True, slots=True)
class Shown:
    """All that the page shows; `left` is a scenario that was given up for another play."""

    revision: int
    view: View
    guide: Guide | None
    left: str
    scenarios: dict[str, str]
    is_auto: bool
    rate: float


class Session:
    """The one session of a server; use it as an async context manager."""

    def __init__(self, *, seed: int | None = None) -> None:
        self.world = World()
        self._seeds = random.Random(seed)  # chosen by a seed on purpose
        self._base = 0
        """The revisions of the worlds before this one."""
        self._scenario = ""
        self._left = ""
        self._index = 0
        self._auto: asyncio.Task[None] | None = None
        self._rate = 4.0
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self.world.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()
        await self.world.__aexit__(kind, error, trace)

    @property
    def revision(self) -> int:
        """How often anything has changed in this session."""
        return self._base + self.world.revision

    async def wait_change(self, revision: int, *, within_s: float) -> None:
        """Wait until there is something new since a revision, within a time limit."""
        await self.world.wait_change(revision - self._base, within_s=within_s)

    def show(self) -> Shown:
        """Everything to show now."""
        return Shown(self.revision, look(self.world), self._guide(), self._left, NAMES, self._is_auto, self._rate)

    @property
    def _is_auto(self) -> bool:
        return self._auto is not None and not self._auto.done()

    def _guide(self) -> Guide | None:
        scenario = SCENARIOS.get(self._scenario)
        if scenario is None:
            return None
        scenes, index = scenario.scenes, self._index
        has_played = self._auto is not None and self._auto.done()
        text = scenes[index - 1].text if index else RANDOM_END if has_played else scenario.intro
        label = scenes[index].label if index < len(scenes) else ""
        return Guide(self._scenario, scenario.title, index, len(scenes), text, label)

    # Moves

    async def make(self, move: Move) -> None:
        """Make a move, one after the other; whoever acts by hand, or lets it play by itself, leaves the scenario.

        Raises:
            Refused: it cannot be made now.
        """
        async with self._turn:
            try:
                await self._make(move)
            finally:
                self.world.change()  # last: what a page has seen meanwhile is older

    async def _make(self, move: Move) -> None:
        if move.do == "begin" and move.id not in SCENARIOS:
            raise Refused(f"there is no scenario {move.id[:40]!r}; there are {', '.join(SCENARIOS)}")
        if move.do == "next" and (not self._scenario or self._index >= len(SCENARIOS[self._scenario].scenes)):
            raise Refused("the scenario is over; begin another one, or play on by hand")
        if move.do == "auto":
            self._play_by_chance(move.rate)
            if self._scenario != RANDOM:
                self._left, self._scenario = self._scenario or self._left, ""
            return
        await self._stop()
        match move.do:
            case "stop":
                pass
            case "reset":
                await self._renew("", 0)
            case "begin":
                await self._renew(move.id, 0)
                if move.id == RANDOM:
                    self._play_by_chance(move.rate)
            case "back":
                await self._renew(self._scenario, max(0, self._index - 1))
            case "next":
                await self._next()
            case do:
                self._left, self._scenario = self._scenario or self._left, ""  # first: it may be refused half-way
                await self.world.act(Act(do, move.worker, move.id, move.step))

    async def _next(self) -> None:
        for act in SCENARIOS[self._scenario].scenes[self._index].acts:
            await self.world.act(act)
        self._index += 1

    async def _renew(self, scenario: str, index: int) -> None:
        """Replace the world by a new one, and play a scenario's first scenes in it."""
        former, world = self.world, World()
        await world.__aenter__()
        self._base += former.revision + 1
        self.world, self._scenario, self._left, self._index = world, scenario, "", 0
        former.change()  # for whoever waits there
        await former.__aexit__(None, None, None)
        while self._index < index:
            await self._next()

    # Play by chance

    def _play_by_chance(self, rate: float) -> None:
        """Begin to play by chance, or go on at another rate."""
        if not RATE_MIN <= rate <= RATE_MAX:
            raise Refused(f"a rate of {rate} actions a second; give {RATE_MIN} to {RATE_MAX:.0f}")
        self._rate = rate
        if not self._is_auto:
            self._auto = asyncio.create_task(self._play(self.world), name="play by chance")

    async def _play(self, world: World) -> None:
        """Play until the faults are over and nothing is on its way; the verdict stays for the player to read."""
        player = ChancePlayer(self._seeds.getrandbits(32), world.fault_count + FAULT_COUNT)
        while (act := player.next_act(world)) is not None:
            with suppress(Refused):  # a worker may rest by now
                await world.act(act)
            await asyncio.sleep(1 / self._rate)
        world.say("The faults are over, and nothing is on its way.", "player")  # last: it wakes pages

    async def _stop(self) -> None:
        if self._auto is not None:
            self._auto.cancel()
            await asyncio.gather(self._auto, return_exceptions=True)
            self._auto = None
