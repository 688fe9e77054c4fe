"""A barrier: what an operator has put out for one sink, until it lies in the sink's log.

Items leave as bundles: cells that say which positions of the source they cover.  The chain of a sink is its bundles,
one behind the other, from the beginning; so what has left, and up to where, is read off the log itself.  Whoever makes
an item at a position makes the same one, so it makes no difference whose bundle lies there: a barrier that finds
another replica's takes over its `until` and drops its own items below, after comparing them.

A bundle is never empty, has at most 1,000 positions and 1 MB, and never splits a position.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from outbox.errors import OutboxError, PoisonMessage, Refused
from outbox.lineage import bundle_id
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.checkpoint import Chain
from outbox.streams.pipeline.operators import Frame, Record
from outbox.streams.values import CELL_BYTES_MAX, ENTRIES_MAX, Values

POSITIONS_MAX = 1_000


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


class Item(NamedTuple):
    """An output on its way, as stored; `type` names its type where the log has several."""

    at: Position
    raw: msgspec.Raw
    type: str


class Barrier:
    """The items of one sink on their way out; it has no ports."""

    def __init__(self, names: Names, values: Values, chain: Chain, at: Position, older: Sequence[Names] = ()) -> None:
        """Take where the chain is, and the position `at` from which on items are made; `older` are earlier versions."""
        self.begin = chain.begin
        """Where the next bundle begins."""
        self.next = chain.next
        """The index of the next bundle."""
        self.watermark = at
        self._names = names
        self._older = older
        self._values = values
        self._items: deque[Item] = deque()
        self._owed: deque[msgspec.Raw] = deque()
        """Entries that lie in the log and that this process has not made yet."""
        self._below = chain.below
        """How many items of the next bundle are not made again."""
        self._unowed = chain.begin
        """Below this nothing is compared: an older version has released it."""
        self._counts = deque([(chain.begin, chain.below)] if chain.below else [])
        """How many items were made at each position from the last checkpoint on."""
        self._passed = deque([(chain.next, chain.begin)])
        """The bundles from the last checkpoint on: index and beginning."""

    def feed(self, frame: Frame) -> None:
        """Take what an operator puts out.

        Raises:
            OutputUnstorable: a value cannot be stored.
            NotDeterministic: something else has left at its place.
        """
        if frame.records:
            raws, types = self._encoded(frame.records)
            kinds = types or [""] * len(raws)
            for record, raw, kind in zip(frame.records, raws, kinds, strict=True):
                item = Item(record[0], raw, kind)
                self._count(item.at)
                if item.at < self.begin:
                    self._compare(item)
                else:
                    self._items.append(item)
        self.watermark = max(self.watermark, frame.watermark)
        self._check_owed()

    def _encoded(self, records: Sequence[Record]) -> tuple[list[msgspec.Raw], list[str]]:
        try:
            return self._values.encoded([record[3] for record in records])
        except PoisonMessage as error:
            if len(records) > 1:
                for record in records:
                    self._encoded([record])
            raise OutputUnstorable(
                f"pipeline {self._names.pipeline}: what it puts out at {records[0][0]} of the source cannot be stored "
                f"in log {self._names.sink}: {error}"
            ) from error

    @property
    def released(self) -> Position:
        """The position below which everything lies in the log."""
        return self.begin if self._items else max(self.begin, self.watermark)

    def bundle(self, at_ms: int) -> Cell | None:
        """The next bundle; None where nothing is ready."""
        items: list[Item] = []
        size_bytes, count, last = 0, 0, None
        for item in self._items:
            if item.at >= self.watermark:
                break
            if item.at != last:
                is_full = count >= POSITIONS_MAX or size_bytes >= CELL_BYTES_MAX or len(items) >= ENTRIES_MAX
                if items and is_full:
                    break
                count, last = count + 1, item.at
            items.append(item)
            size_bytes += len(memoryview(item.raw)) + 1
        if not items:
            return None
        is_all = len(items) == len(self._items)
        until = self.watermark if is_all else items[-1].at.after()
        return Cell(
            self._names.id(self.begin, until),
            at_ms,
            len(items),
            [item.raw for item in items],
            [item.type for item in items] if items[0].type else [],
            self._values.version,
            begin=self.begin,
            until=until,
        )

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
        if there.id == self._names.id(begin, until):
            self._owed.extend(there.v[self._below :])
        else:
            self._unowed = until
        self._below = 0
        while self._items and self._items[0].at < until:
            self._compare(self._items.popleft())
        self._check_owed()

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

    def _count(self, at: Position) -> None:
        if self._counts and self._counts[-1][0] == at:
            self._counts[-1] = at, self._counts[-1][1] + 1
        else:
            self._counts.append((at, 1))

    def _compare(self, item: Item) -> None:
        if item.at < self._unowed:
            return
        left = self._owed.popleft() if self._owed else None
        if left != item.raw:
            raise self._differs(item.at, "nothing" if left is None else bytes(left), bytes(item.raw))

    def _check_owed(self) -> None:
        if self._owed and self.watermark >= self.begin:
            raise self._differs(self.begin, bytes(self._owed[0]), "nothing")

    def _differs(self, at: Position, left: Any, made: Any) -> NotDeterministic:
        return NotDeterministic(
            f"pipeline {self._names.pipeline}: log {self._names.sink} has {left!r} at or before {at} of the source, "
            f"and this process made {made!r}; an operator is not pure: it reads a clock, chance or the outside, or "
            "goes through a set; try it by check_operator"
        )
