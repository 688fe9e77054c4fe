"""The time of a window's values: what it is at each of them, and which of them are late.

It is the greatest time of all values so far, whatever their keys: one operator before the window, which has all records
and whose time is its state, and one behind it that lets what is late out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outbox.streams.pipeline.core import refused
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.states import KeyedStates
from outbox.streams.plan import Skip

TIME_MS_MAX = 1 << 53
NOW = "now"
"""The key of the time in its states."""


class Timed:
    """The time of each value, and whether it is late; a record's time is the greatest up to it."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        assert operator.window is not None
        self._pipeline = pipeline
        self._operator = operator
        self._size_ms, self._slide_ms, _ = operator.window
        self.states = KeyedStates(msgspec.json.encode, lambda data, schema: msgspec.json.decode(data, type=int), 1)

    def feed(self, frame: Frame) -> Frame:
        made: list[Record] = []
        aside: list[Record] = []
        ticks = []
        now_ms: int = -TIME_MS_MAX - 1 if (known := self.states.state(NOW)) is None else known
        for record in frame.records:
            at, path, _, value = record
            try:
                time_ms = self._time_of(value)
            except Exception as error:
                aside.append(refused(self._pipeline, self._operator, record, error))
                continue
            if time_ms > now_ms:
                now_ms = time_ms
                ticks.append((at, now_ms))
            last_end_ms = (time_ms + self._size_ms) // self._slide_ms * self._slide_ms
            made.append((at, path, now_ms, (time_ms, last_end_ms <= now_ms, value)))
        if ticks:
            self.states.touch(NOW, ticks[-1][0])
            self.states.by_key[NOW] = now_ms
        return Frame(made, frame.watermark, ticks, aside)

    def _time_of(self, value: object) -> int:
        found = self._operator.function(value)
        if type(found) is not int or not -TIME_MS_MAX <= found <= TIME_MS_MAX:
            raise TypeError(f"its time= gives {found!r}; give milliseconds since 1970, an int")
        return found


def late_of(timed: tuple[int, bool, Any]) -> Any:
    """The value, if it is late."""
    return timed[2] if timed[1] else Skip
