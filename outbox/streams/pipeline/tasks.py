"""The tasks of a replica: its operators at work, and their states, in this process.

A frame goes through the whole graph at once, so nothing is ever late, and states rest on its watermark.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, ClassVar

from outbox.errors import NotRegistrable
from outbox.lineage import Key
from outbox.streams.cells import Position
from outbox.streams.pipeline.checkpoint import Section
from outbox.streams.pipeline.cores import core_of, lead, states_of
from outbox.streams.pipeline.operators import Frame
from outbox.streams.pipeline.plan import GraphChanged, PipelinePlan
from outbox.streams.pipeline.states import KeyedStates, slot_of

STATES_AT_ONCE = 32
"""The states that a checkpoint saves or merges before it lets others go on."""
STEPS_BETWEEN = 4
"""The turns of the event loop that others get between: an entry on its way needs some, one after another."""
BETWEEN_MS_MAX = 5
"""The longest pause of a checkpoint between two parts, in milliseconds, unless one turn of others takes longer."""
Deliver = Callable[[str, Frame, bool], None]
"""Takes the frames of a sink; whether their values are as stored."""


YOUNG = 2_000
"""How many new objects are checked for garbage and frozen at once; Python by itself counts new less freed ones."""
OBJECTS_A_RECORD = 3
"""The objects that a record leaves behind, roughly."""
OBJECTS_A_PART = 8 * STATES_AT_ONCE
"""The same of a part of a checkpoint."""
WHOLE_S = 900.0
"""How often all objects are checked for garbage in cycles, which stops everything for a part of a second."""


async def give_way(now_ms: Callable[[], int]) -> None:
    """Let others go on between two parts of a checkpoint, by the clock of the pipeline's place.

    One that stands still, as in a simulation, makes the number of turns the same in each run.
    """
    Frozen.note(OBJECTS_A_PART)
    Frozen.keep_new()
    until_ms = now_ms() + BETWEEN_MS_MAX
    for _ in range(STEPS_BETWEEN):
        await asyncio.sleep(0)
        if now_ms() >= until_ms:
            break


class Frozen:
    """Keeps live objects from Python's cyclic garbage collector, which stops everything while it checks them.

    A state's members are as many objects.  `gc.freeze` takes garbage in cycles with it, so all are checked now and
    then; the last one that ends undoes it, also what somebody else froze.
    """

    _users: ClassVar[int] = 0
    _new: ClassVar[int] = 0

    def __init__(self) -> None:
        self._is_begun, self._whole_s = False, time.monotonic() + WHOLE_S

    def take(self) -> None:
        """Freeze live objects: all at first, and then new ones where there are some thousand."""
        if not self._is_begun:
            self._is_begun = True
            Frozen._users += 1
            self.note(YOUNG)
        if time.monotonic() >= self._whole_s:
            self._whole_s = time.monotonic() + WHOLE_S
            gc.unfreeze()
            gc.collect()
            gc.freeze()
        self.keep_new()

    @classmethod
    def note(cls, count: int) -> None:
        """Note about how many new objects there are.

        States let go of about as many, and the collector, which goes by the difference, would find ten thousand.
        """
        cls._new += count

    @classmethod
    def keep_new(cls) -> None:
        """Check and freeze new objects where there are some thousand."""
        is_on = gc.isenabled() and gc.get_threshold()[0]  # a collector that somebody turned off stays off
        if cls._users and is_on and cls._new >= YOUNG:
            cls._new = 0
            gc.collect(0)
            gc.freeze()

    def end(self) -> None:
        """Let the collector walk over all again."""
        if self._is_begun:
            self._is_begun = False
            Frozen._users -= 1
            if not Frozen._users:
                gc.unfreeze()


class BeginAgain(Exception):
    """The incarnation ends: another checkpoint stands than the one that it began at, or a part of it has died."""


class LocalTasks:
    """All operators at work in this process."""

    def __init__(self, plan: PipelinePlan, deliver: Deliver, now_ms: Callable[[], int] = lambda: 0) -> None:
        """Take the parts; `now_ms` is the clock by which a checkpoint gives way to others."""
        self._now_ms = now_ms
        self._plan = plan
        self._deliver = deliver
        self.at = Position(0)
        """The position that the states rest on."""
        self.beside: list[asyncio.Task[None]] = []
        """Tasks of asyncio beside it, which end with an error when nothing can go on."""
        self.cores = {operator.name: core_of(plan.name, operator) for operator in plan.operators}

    async def begin(self, at: Position) -> None:
        """Begin at a position; the states there are loaded next."""
        self.at = at

    async def load(self, section: Section) -> bool:
        """Take saved states; whether they are of another schema version than today's.

        Raises:
            GraphChanged: they are of none of the operators.
        """
        states = self.states_for(section)
        states.load(section.states, section.schema, section.changes)
        await asyncio.sleep(0)
        return section.schema != states.schema

    def states_for(self, section: Section) -> KeyedStates:
        """The states that a section belongs to.

        Raises:
            GraphChanged: there are none.
        """
        states = states_of(self.cores.get(section.operator))
        if states is None:
            raise GraphChanged(
                f"pipeline {self._plan.name}: its checkpoint has states of {section.operator}, none of its "
                "operators; keep one with states under its name, or give the pipeline another name"
            )
        return states

    async def arrived(self) -> bool:
        """Wait for outputs of frames that were fed; whether there are or may be any."""
        return False

    async def feed(self, frame: Frame, ids: Sequence[str]) -> None:
        """Lead a frame through the graph, and what it puts out to the sinks; `ids` are those of its entries."""
        made = lead(self._plan, self.cores, frame, ids)
        self.at = frame.watermark
        for name, each in made.items():
            self._deliver(name, each, False)
        Frozen.note(OBJECTS_A_RECORD * sum(len(each.records) for each in (frame, *made.values())))

    async def saved(self, since: Position | None) -> dict[tuple[str, int], Section]:
        """The states as they are now of which something changed at or behind `since`, by operator and slot.

        None: all states.
        """
        keyed = {name: states for name, core in self.cores.items() if (states := states_of(core)) is not None}
        for states in keyed.values():
            states.begin(since, self.at)
        for states in keyed.values():
            while not states.save(STATES_AT_ONCE):
                await give_way(self._now_ms)
        return sections_saved(keyed)

    async def state(self, operator: str, key: Key) -> tuple[Any, Position]:
        """A copy of a key's state, None without one, and the position that it rests on."""
        states = self.states_of(operator)
        state = states.state(key)
        return (None if state is None else states.copied(state)), self.at

    async def items(self, operator: str) -> AsyncIterator[tuple[list[tuple[Key, Any]], Position]]:
        """The keys of each slot with copies of their states, and the position that these rest on."""
        states = self.states_of(operator)
        slots: dict[int, list[Key]] = {}
        for key in list(states.all()):
            slots.setdefault(slot_of(key), []).append(key)
        for slot in sorted(slots):
            yield [(key, states.copied(states.by_key[key])) for key in slots[slot] if key in states.by_key], self.at

    def end(self) -> None:
        """Leave nobody waiting: nobody waits here."""

    def states_of(self, operator: str) -> KeyedStates:
        """The states of an operator.

        Raises:
            NotRegistrable: it has none.
        """
        states = states_of(self.cores.get(operator))
        if states is None:
            raise NotRegistrable(f"pipeline {self._plan.name}: {operator!r} is none of its operators with states")
        return states


def sections_saved(keyed: Mapping[str, KeyedStates]) -> dict[tuple[str, int], Section]:
    """Sections of all that the states of operators have saved, by operator and slot."""
    return {
        (name, slot): Section(name, slot, states.schema, *found)
        for name, states in keyed.items()
        for slot, found in states.saved().items()
    }
