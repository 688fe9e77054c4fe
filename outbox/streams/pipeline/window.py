"""Windows: the values of each key over a span of time, when the row's time has passed its end.

Time is the log's: of an entry the greatest `at_ms` of the row up to it, so it never runs backwards, and every process
has the same.  A window closes at the first entry whose time is at or behind its end, before that entry is looked at.
So a producer whose clock is fast closes windows early, and the last window needs an entry behind it.

With `time=` it is the greatest time of the values up to one, over all keys, and a value is in the windows of its own
time.  All of these may have closed already: then it is late.  So one value far ahead makes all behind it late.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any, NamedTuple

import msgspec

from outbox.lineage import Key, as_key
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.core import is_skip, refused, several
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.states import KeyedStates, key_of, text_of
from outbox.streams.values import Values


class Window(NamedTuple):
    """The window of a key: from `start_ms` to before `end_ms`, milliseconds since 1970."""

    key: Key
    start_ms: int
    end_ms: int


class Open(msgspec.Struct):
    """The values of a key in its open windows, with their times; at `due_ms` the next one closes."""

    due_ms: int
    at_ms: list[int]
    values: list[Any]


class StoredOpen(msgspec.Struct, omit_defaults=True):
    """The same as stored."""

    due: int
    at: list[int]
    v: list[msgspec.Raw]
    types: list[str] = []


class Windows:
    """A window operator at work."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        assert operator.key is not None and operator.window is not None
        self._pipeline = pipeline
        self._operator = operator
        self._key: Callable[[Any], Any] = operator.key
        self._size_ms, self._slide_ms, kind = operator.window
        self._values = Values(operator.name, kind)
        self.states = KeyedStates(self._encode, self._decode, 1, operator=operator.name)
        self._is_timed = operator.upstream is not None and operator.upstream.kind == "time"
        self._due: list[tuple[int, str]] = []
        """The end of the next window of each key, and the key."""

    def feed(self, frame: Frame) -> Frame:
        made: list[Record] = []
        aside: list[Record] = []
        if len(self._due) < len(self.states):  # they were loaded, perhaps with the span of an earlier version
            self._due = []
            for key, state in [*self.states.all().items()]:
                self._go_on(key, state, -(-state.due_ms // self._slide_ms) * self._slide_ms)
        ticks = list(frame.ticks)
        for record in frame.records:
            while ticks and ticks[0] <= (record[0], record[2]):
                self._close(*ticks.pop(0), made, aside)
            self._add(record, aside)
        for at, at_ms in ticks:
            self._close(at, at_ms, made, aside)
        return Frame(made, frame.watermark, frame.ticks, aside)

    def _add(self, record: Record, aside: list[Record]) -> None:
        at, _, now_ms, value = record
        at_ms = now_ms
        if self._is_timed:
            at_ms, is_late, value = value
            if is_late:
                return
        try:
            key = as_key(self._key(value))
        except Exception as error:
            aside.append(refused(self._pipeline, self._operator, record, error))
            return
        state = self.states.touch(key, at)
        if state is None:
            due_ms = (now_ms // self._slide_ms + 1) * self._slide_ms
            state = self.states.by_key[key] = Open(due_ms, [], [])
            heappush(self._due, (due_ms, text_of(key)))
        state.at_ms.append(at_ms)
        state.values.append(value)

    def _close(self, at: Position, now_ms: int, made: list[Record], aside: list[Record]) -> None:
        """Close the windows that end at or before a time, which an entry has reached."""
        while self._due and self._due[0][0] <= now_ms:
            end_ms, text = heappop(self._due)
            key = key_of(text)
            state = self.states.touch(key, at)
            window = Window(key, end_ms - self._size_ms, end_ms)
            results: list[Any] = []
            try:
                found = several(self._operator.function(window, list(state.values)))
                results = [each for each in found if not is_skip(each)]
            except Exception as error:
                values = msgspec.Raw(msgspec.json.encode(self._values.encoded(state.values)[0]))
                record = (at, (now_ms, end_ms, text), now_ms, window)
                aside.append(refused(self._pipeline, self._operator, record, error, values))
            made += [(at, (now_ms, end_ms, text, index), now_ms, each) for index, each in enumerate(results)]
            self._go_on(key, state, end_ms + self._slide_ms)

    def _go_on(self, key: Key, state: Open, due_ms: int) -> None:
        """Keep what the next window of a key has as well."""
        keep = [index for index, at_ms in enumerate(state.at_ms) if at_ms >= due_ms - self._size_ms]
        if not keep:
            del self.states.by_key[key]
            return
        state.due_ms = due_ms
        state.at_ms = [state.at_ms[index] for index in keep]
        state.values = [state.values[index] for index in keep]
        heappush(self._due, (due_ms, text_of(key)))

    def _encode(self, state: Open) -> bytes:
        raws, types = self._values.encoded(state.values)
        return msgspec.json.encode(StoredOpen(state.due_ms, state.at_ms, raws, types))

    def _decode(self, data: bytes, schema: int) -> Open:
        stored = msgspec.json.decode(data, type=StoredOpen)
        cell = Cell("", 0, len(stored.v), stored.v, stored.types, schema)
        return Open(stored.due, stored.at, self._values.decoded(cell, f"a window of {self._operator.name}"))
