"""A barrier: what an operator has put out for one sink, until it lies in the sink's log.

Items leave as bundles: cells that say which positions of the source they cover.  The chain of a sink is its bundles,
one behind the other, from the beginning; so what has left, and up to where, is read off the log itself.  Whoever makes
an item at a position makes the same one, so it makes no difference whose bundle lies there: a barrier that finds
another replica's takes over its `until` and drops its own items below, after comparing them.

A bundle is never empty, has at most 1,000 positions and 1 MB, and never splits a position.

Without a chain (`at_least_once`, `at_most_once`) bundles lie among whatever else is in the log, and nothing is
compared.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from outbox.errors import OutboxError, PoisonMessage, Refused
from outbox.lineage import bundle_id
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.checkpoint import Chain, Held
from outbox.streams.pipeline.operators import Frame, Record
from outbox.streams.values import CELL_BYTES_MAX, ENTRIES_MAX, Values, size_bytes

POSITIONS_MAX = 1_000
END = Position(1 << 62)
"""Behind every position."""


class NotDeterministic(OutboxError):
    """A pipeline made something else at a position than what has left; it stops."""


class OutputUnstorable(OutboxError):
    """An operator has emitted a value that its sink cannot store; the pipeline stands still there."""


class OtherWriter(Refused):
    """Something else has written into a sink; nothing more is written."""


class Names(NamedTuple):
    """The fields that name the bundles of one sink."""

    pipeline: str
    version: int
    graph: str
    sink: str

    def id(self, begin: Position, until: Position) -> str:
        """The identity of the bundle of these positions."""
        places = (begin.index, begin.offset, until.index, until.offset)
        return bundle_id(self.pipeline, self.version, self.graph, self.sink, places)


class Outputs(NamedTuple):
    """All outputs of a position, on their way: as stored, each with its type's name where the log has several."""

    at: Position
    items: Sequence[Any]


class Barrier:
    """The items of one sink on their way out; it has no ports."""

    def __init__(
        self,
        names: Names,
        values: Values,
        chain: Chain,
        at: Position,
        older: Sequence[Names] = (),
        held: Iterable[Held] = (),
        *,
        is_chained: bool = True,
    ) -> None:
        """Take where the chain is, and the position `at` from which on items are made.

        `older` are earlier versions, and `held` what was made below `at` and may not have left.
        """
        self.begin = chain.begin
        """Where the next bundle begins."""
        self.next = chain.next
        """The index of the next bundle."""
        self.watermark = at
        self._names = names
        self._older = older
        self._values = values
        self._waiting: deque[Outputs] = deque()
        self._owed: deque[Any] = deque()
        """Entries that lie in the log and that this process has not made yet."""
        self._below = chain.below
        """How many items of the next bundle are not made again."""
        self._is_chained = is_chained
        self._unowed = chain.begin if is_chained else END
        """Below this nothing is compared: an older version has released it."""
        self._counts = deque([(chain.begin, chain.below)] if chain.below else [])
        """How many items were made at each position from the last checkpoint on."""
        self._passed = deque([(chain.next, chain.begin)])
        """The bundles from the last checkpoint on: index and beginning."""
        self.bundled: Cell | None = None
        """The last bundle that was made here."""
        for line in held:
            if line.sink == names.sink:
                self._take(Outputs(line.at, self._items(line.v, line.types)))

    def feed(self, frame: Frame, is_stored: bool = False) -> None:
        """Take the outputs of an operator, encoded already where `is_stored`.

        Raises:
            OutputUnstorable: a value cannot be stored.
            NotDeterministic: something else has left at its place.
        """
        records, begin = frame.records, 0
        if records:
            items = [record[3] for record in records] if is_stored else self._encoded(records)
            for at, found in groupby(records, itemgetter(0)):
                end = begin + len([*found])
                self._take(Outputs(at, items[begin:end]))
                begin = end
        self.watermark = max(self.watermark, frame.watermark)
        self._check_owed()

    def _encoded(self, records: Sequence[Record]) -> Sequence[Any]:
        return self._items(*stored_records(self._values, records, self._names.pipeline, f"in log {self._names.sink}"))

    @staticmethod
    def _items(raws: Sequence[msgspec.Raw], types: Sequence[str]) -> Sequence[Any]:
        return list(zip(raws, types, strict=True)) if types else raws

    def _take(self, made: Outputs) -> None:
        self._counts.append((made.at, len(made.items)))
        if made.at < self.begin:
            self._compare(made)
        else:
            self._waiting.append(made)

    @property
    def released(self) -> Position:
        """The position below which everything lies in the log."""
        return self._waiting[0].at if self._waiting else max(self.begin, self.watermark)

    def held(self, since: Position, until: Position) -> Iterator[Held]:
        """The outputs from a position up to another that have not left."""
        for made in self._waiting:
            if since <= made.at < until:
                yield Held(self._names.sink, made.at, *_apart(made.items))

    def bundle(self, at_ms: int, below: Position = END) -> Cell | None:
        """The next bundle, of outputs below a position; None where nothing is ready.

        Without a chain it is the same until `pass_by`: the last try may have taken effect, or may yet.
        """
        if self.bundled is not None and not self._is_chained:
            return self.bundled
        items: list[Any] = []
        size, count, last, end = 0, 0, self.begin, min(self.watermark, below)
        for made in self._waiting:
            is_full = count >= POSITIONS_MAX or size >= CELL_BYTES_MAX or len(items) >= ENTRIES_MAX
            if made.at >= end or is_full:
                break
            items += made.items
            size += size_bytes(_apart(made.items)[0])
            count, last = count + 1, made.at
        if not items:
            return None
        until = end if count == len(self._waiting) else last.after()
        raws, types = _apart(items)
        id = self._names.id(self.begin, until)
        self.bundled = Cell(id, at_ms, len(items), raws, types, self._values.version, begin=self.begin, until=until)
        return self.bundled

    def adopt(self, index: int, there: Cell) -> None:
        """Take over a bundle, with its entries, that lies at `index`: one's own, or another replica's.

        Raises:
            OtherWriter: it is none of this pipeline's, or not the next of the chain.
            NotDeterministic: it holds something else.
        """
        begin, until = there.begin, there.until
        is_next = index == self.next and begin is not None and until is not None and begin == self.begin
        if not is_next or begin is None or until is None or not self._is_ours(there, begin, until):
            raise OtherWriter(
                f"pipeline {self._names.pipeline}: cell {index} of log {self._names.sink} is no bundle of its that "
                f"goes on at {self.begin}; a sink is one pipeline's alone: give it another log"
            )
        self.begin, self.next = until, index + 1
        self._passed.append((self.next, until))
        is_made_here = there is self.bundled
        if there.id != self._names.id(begin, until):
            self._unowed = until
        elif not is_made_here:
            self._owed.extend(self._items(there.v, there.types)[self._below :])
        self._below = 0
        while self._waiting and self._waiting[0].at < until:
            made = self._waiting.popleft()
            if not is_made_here:
                self._compare(made)
        self._check_owed()

    def pass_by(self, until: Position, next: int) -> None:
        """Go on at a position and an index, without a chain, and drop all outputs below."""
        self.begin, self.next, self.bundled = max(self.begin, until), max(self.next, next), None
        self._passed.append((self.next, self.begin))
        while self._waiting and self._waiting[0].at < self.begin:
            self._waiting.popleft()

    def _is_ours(self, there: Cell, begin: Position, until: Position) -> bool:
        return any(there.id == names.id(begin, until) for names in (self._names, *self._older))

    def chain_at(self, at: Position) -> Chain:
        """Where a replica that begins at a position finds the chain: the last bundle that begins there or before.

        All below `at` must have left: else an earlier bundle is taken for the last.
        """
        while len(self._passed) > 1 and self._passed[1][1] <= at:
            self._passed.popleft()
        index, begin = self._passed[0]
        while self._counts and self._counts[0][0] < begin:
            self._counts.popleft()
        return Chain(index, begin, sum(count for made_at, count in self._counts if made_at < at))

    def _compare(self, made: Outputs) -> None:
        if made.at < self._unowed:
            return
        for item in made.items:
            left = self._owed.popleft() if self._owed else None
            if left != item:
                raise self._differs(made.at, left, item)

    def _check_owed(self) -> None:
        if self._owed and self.watermark >= self.begin:
            raise self._differs(self.begin, self._owed[0], None)

    def _differs(self, at: Position, left: Any, made: Any) -> NotDeterministic:
        return NotDeterministic(
            f"pipeline {self._names.pipeline}: log {self._names.sink} has {_shown(left)} at or before {at} of the "
            f"source, and this process made {_shown(made)}; an operator is not pure: it reads a clock, chance or the "
            "outside, or goes through a set"
        )


def _apart(items: Sequence[Any]) -> tuple[list[msgspec.Raw], list[str]]:
    """Items as stored, and the types' names where there are several."""
    if not isinstance(items[0], tuple):
        return [*items], []
    return [raw for raw, _ in items], [type for _, type in items]


def stored_records(
    values: Values, records: Sequence[Record], pipeline: str, place: str
) -> tuple[list[msgspec.Raw], list[str]]:
    """The values of records as stored, with the type of each where there are several; `place` is where they go.

    Raises:
        OutputUnstorable: one cannot be stored.
    """
    try:
        return values.encoded([record[3] for record in records])
    except PoisonMessage as error:
        if len(records) > 1:
            for record in records:
                stored_records(values, [record], pipeline, place)
        raise OutputUnstorable(
            f"pipeline {pipeline}: what it puts out at {records[0][0]} of the source cannot be stored {place}: {error}"
        ) from error


def _shown(item: Any) -> str:
    """An output in an error's text."""
    return "nothing" if item is None else bytes(item[0] if isinstance(item, tuple) else item).decode()
