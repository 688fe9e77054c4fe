"""Two ways to know below which position nothing is under way: the acker of FlameStream, and watermarks.

Each is a machine whose states are values, so that all of its ways can be walked.  Records enter, are processed in any
order that the way allows, and fan out: the record at a position has so many results, which end at a sink.  Messages of
the acker's cluster overtake one another; watermarks go behind their records, in channels that keep the order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from outbox.streams.cells import Position
from outbox.streams.pipeline.cores import core_of
from outbox.streams.pipeline.operators import Frame, Operator, Record
from tests.simulation.prior_art.flamestream import REPAIRED, AckTable, Rules, id_of

T = TypeVar("T")

Fans = tuple[int, ...]
"""How many results the record at each position has."""


class Bounds(Protocol):
    """A way to know how far all has come."""

    @property
    def bound(self) -> int:
        """What it tells: below this position nothing is under way."""

    def under_way(self) -> Iterable[int]:
        """The positions of the records and results that have entered and not come to the sink."""

    def steps(self) -> Iterator[Bounds]:
        """What may come next."""


@dataclass(frozen=True)
class Acked:
    """A cluster with an acker: whatever is on its way may be processed next."""

    fans: Fans
    slots: tuple[int, ...] = (0, 0)
    rules: Rules = REPAIRED
    head: int = 0
    entered: int = 0
    heartbeat: int = 0
    flying: frozenset[tuple[int, int, bool]] = frozenset()
    """Positions, children (-1: the record itself), and whether they were reported as processed and have not been."""

    @property
    def bound(self) -> int:
        return self.head

    def under_way(self) -> Iterable[int]:
        return [at for at, _, _ in self.flying]

    def steps(self) -> Iterator[Bounds]:
        at, follows = self.entered, self.rules.heartbeats_follow
        has_room = at - self.head < len(self.slots) + (not self.rules.bounded)
        if at < len(self.fans) and has_room and self.heartbeat == at + (not follows):
            flying = self.flying | {(at, -1, False)}
            yield replace(self, entered=at + 1, flying=flying)._reported(at, id_of(at))
        if self.heartbeat < min(at + (not follows), len(self.fans)):
            yield replace(self, heartbeat=self.heartbeat + 1)._reported(at, 0)
        for one in self.flying:
            yield self._processed(*one)

    def _processed(self, at: int, child: int, is_reported: bool) -> Acked:
        rest = self.flying - {(at, child, is_reported)}
        own, made = id_of(at, child), range(self.fans[at] if child < 0 else 0)
        if made and not self.rules.children_first and not is_reported:
            return replace(self, flying=rest | {(at, child, True)})._reported(at, own)
        ids = sum(id_of(at, each) for each in made) ^ (0 if is_reported else own)
        return replace(self, flying=rest | {(at, each, False) for each in made})._reported(at, ids)

    def _reported(self, at: int, ids: int) -> Acked:
        table = AckTable(self.head, self.slots).acked(at, ids).promoted(self.heartbeat)
        return replace(self, head=table.head, slots=table.slots)


Channel = tuple[tuple[tuple[Record, ...], Position], ...]
"""Frames on their way: records, and the watermark behind them."""


@dataclass(frozen=True)
class Watermarks:
    """Two tasks that run a pipeline's core between source and sink; frames stay in order on each channel."""

    fans: Fans
    least: Callable[[Sequence[Position]], Position] = min
    """What a sink makes of its channels' watermarks."""
    overtakes: bool = False
    """Whether the watermark of a frame may come to the sink ahead of its records."""
    entered: int = 0
    to_tasks: tuple[Channel, ...] = ((), ())
    to_sink: tuple[Channel, ...] = ((), ())
    marks: tuple[Position, ...] = (Position(0), Position(0))

    @property
    def bound(self) -> int:
        return self.least(self.marks).index

    def under_way(self) -> Iterable[int]:
        channels = (*self.to_tasks, *self.to_sink)
        return [record[0].index for channel in channels for records, _ in channel for record in records]

    def steps(self) -> Iterator[Bounds]:
        if self.entered < len(self.fans):
            yield self._entering(self.entered)
        for task, channel in enumerate(self.to_tasks):
            if channel:
                yield self._fed(task, *channel[0])
        for task, channel in enumerate(self.to_sink):
            if channel:
                marks = _put(self.marks, task, channel[0][1])
                yield replace(self, to_sink=_put(self.to_sink, task, channel[1:]), marks=marks)
            if channel and self.overtakes and self.marks[task] < channel[0][1]:
                yield replace(self, marks=_put(self.marks, task, channel[0][1]))

    def _entering(self, at: int) -> Watermarks:
        """A record goes to its task; both learn that the source is past it."""
        record: Record = (Position(at), (), 0, self.fans[at])
        frames = [((record,) if task == at % 2 else (), Position(at + 1)) for task in range(2)]
        channels = tuple((*channel, frame) for channel, frame in zip(self.to_tasks, frames, strict=True))
        return replace(self, entered=at + 1, to_tasks=channels)

    def _fed(self, task: int, records: tuple[Record, ...], watermark: Position) -> Watermarks:
        made = core_of("pipeline", SPLIT).feed(Frame([*records], watermark))
        left = _put(self.to_tasks, task, self.to_tasks[task][1:])
        frame = tuple(made.records), made.watermark
        return replace(self, to_tasks=left, to_sink=_put(self.to_sink, task, (*self.to_sink[task], frame)))


SPLIT = Operator("split", "flat_map", range, None)
"""As many results as the record says."""


def _put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def walked(begun: Bounds) -> tuple[set[str], set[int]]:
    """The faults in any state that can be reached, and the bounds in the states where nothing more can happen."""
    found: set[str] = set()
    ends: set[int] = set()
    seen, todo = {begun}, [begun]
    while todo:
        state = todo.pop()
        least = min(state.under_way(), default=state.bound)
        if least < state.bound:
            found.add(f"the bound is {state.bound}, and {least} is under way")
        after = [*state.steps()]
        if not after:
            ends.add(state.bound)
        todo += (fresh := {*after} - seen)
        seen |= fresh
    return found, ends
