"""Grouping: the order of what comes to an operator, or a sink, from several processes.

Each channel is in order, and its watermark says below which position no other record comes.  What lies below the least
watermark of all channels is complete, so it goes on by position and path.  What does not is held (`Buffered`), or
applied to copies of the states, and taken back where an earlier record comes late (`Speculative`): its results are
ready, and leave at the same watermark.  Buffering takes less CPU.

Source: FlameStream, "Optimistic exactly-once" (its grouping, and its drifting state).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from outbox.lineage import Key
from outbox.streams.cells import Position
from outbox.streams.pipeline.core import Reduce
from outbox.streams.pipeline.operators import Frame, Path, Record

_at = itemgetter(0)
_order = itemgetter(0, 1)


class Buffered:
    """Holds records until the watermark."""

    def __init__(self, channels: int, at: Position, run: Callable[[Frame], Frame] = lambda frame: frame) -> None:
        """Take how many channels there are, the position that all begin at, and what makes results of records."""
        self.run = run
        self.watermark = at
        self._watermarks = [at] * channels
        self._held: list[Record] = []
        self._ticks: set[tuple[Position, int]] = set()

    def feed(self, channel: int, frame: Frame) -> Frame | None:
        """Take a frame of a channel; returns the results up to the new watermark, None where it has not moved."""
        self._held += frame.records
        self._ticks.update(frame.ticks)  # of all channels the same
        self._watermarks[channel] = frame.watermark
        least = min(self._watermarks)
        if least <= self.watermark:
            return None
        self.watermark = least
        self._held.sort(key=_order)  # of some runs in order
        count = bisect_left(self._held, least, key=_at)
        ready, self._held = self._held[:count], self._held[count:]
        ticks = sorted(each for each in self._ticks if each[0] < least)
        self._ticks.difference_update(ticks)
        return self.run(Frame(ready, least, ticks))


class Speculative:
    """Applies records at once, to copies of the states."""

    def __init__(self, channels: int, at: Position, core: Reduce) -> None:
        """Take how many channels there are, the position that all begin at, and the operator."""
        self.group = Buffered(channels, at, self._folded)
        self.core = core
        self.ahead: dict[Key, Any] = {}
        """The copies."""
        self.pending: dict[Key, list[Record]] = {}
        """Records that are applied to the copies, and not to the states, by key and in order."""
        self.made: dict[tuple[Position, Path], list[Record]] = {}
        """The results of each of these."""

    @property
    def watermark(self) -> Position:
        """The position that the states rest on."""
        return self.group.watermark

    def feed(self, channel: int, frame: Frame) -> Frame | None:
        """Take a frame of a channel; returns the results up to the new watermark, None where it has not moved."""
        for record in frame.records:
            key = self.core.key_of(record)
            if key is not None:
                self._apply(key, record)
        return self.group.feed(channel, frame)

    def _apply(self, key: Key, record: Record) -> None:
        pending = self.pending.setdefault(key, [])
        insort(pending, record, key=_order)
        if len(pending) > 1 and key not in self.ahead:  # an earlier one has failed
            return
        again = [record]
        if len(pending) == 1 or pending[-1] is not record:  # the first, or late
            again, self.ahead[key] = pending, self.core.fresh_copy(key)
        for each in again:
            self.made.pop(_order(each), None)
        try:
            for each in again:
                self.made[_order(each)] = self.core.results(self.ahead[key], each)
        except Exception:  # of this order: the states say whether that is the right one
            del self.ahead[key]

    def _folded(self, ready: Frame) -> Frame:
        """Bring the states to the watermark: by the copies, where nothing else is applied to them."""
        keys = [self.core.key_of(record) for record in ready.records]
        counts = Counter(key for key in keys if key is not None)
        whole = {key for key, n in counts.items() if key in self.ahead and n == len(self.pending[key])}
        made: list[Record] = []
        aside: list[Record] = []
        for key, record in zip(keys, ready.records, strict=True):
            results = self.made.pop(_order(record), None)
            if key is None or results is None or key not in whole:
                results, _, _, refused = self.core.feed(Frame([record], record[0]))
                aside += refused
            else:
                self.core.states.touch(key, record[0])
            made += results
        for key, n in counts.items():
            del self.pending[key][:n]
            if not self.pending[key]:
                del self.pending[key]
                state = self.ahead.pop(key, None)
                if key in whole:
                    self.core.states.by_key[key] = state
        return ready._replace(records=made, refused=aside)
