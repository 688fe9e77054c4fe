"""Operators at work: cores, which take a frame and return one.

A core has no ports, awaits nothing and reads no clock, so what it returns is decided by the frames that it was given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

import msgspec

from outbox.codec import StateCodec
from outbox.errors import OutboxError, PoisonMessage
from outbox.lineage import Key, as_key
from outbox.runtime.failures.error_text import as_text, safe_text
from outbox.streams.cells import Position
from outbox.streams.pipeline.operators import Emitted, Frame, Operator, Record
from outbox.streams.pipeline.state_fields import fields_of, may_share
from outbox.streams.pipeline.states import KeyedStates
from outbox.streams.pipeline.undo import Undo
from outbox.streams.plan import Skip


class OperatorFailed(OutboxError):
    """An operator fails at a position; the pipeline stands still there, nothing is lost."""

    def __init__(self, pipeline: str, operator: str, at: Position, error: BaseException) -> None:
        is_refusal = isinstance(error, PoisonMessage) and error.reason not in ("unstorable", "undecodable")
        aside = ", or refused=log, which takes what it refuses" if is_refusal else ""
        super().__init__(
            f"pipeline {pipeline}: operator {operator} fails on the entry at {at} of the source "
            f"({type(error).__name__}: {error}); mend it and give the pipeline the next version={aside}"
        )
        self.position = at


class Refusal(NamedTuple):
    """Why an operator refuses what it was given; of a window also its values, as stored."""

    reason: str
    value: msgspec.Raw | None = None


def refused(
    pipeline: str, operator: Operator, record: Record, error: Exception, value: msgspec.Raw | None = None
) -> Record:
    """The refusal of a record that an operator fails on, by its own decision.

    Its text is a function of the error's class and message, so every process makes the same.

    Raises:
        OperatorFailed: it is no refusal, or nothing takes it.
    """
    if not operator.refuses or not isinstance(error, PoisonMessage):
        raise OperatorFailed(pipeline, operator.name, record[0], error) from error
    text = safe_text(f"{operator.name}: {type(error).__name__}: {as_text(error)}")
    return (*record[:3], Refusal(text, value))


class Core(Protocol):
    """An operator at work."""

    def feed(self, frame: Frame) -> Frame:
        """Take a frame, and return the frame of its results.

        Raises:
            OperatorFailed: the operator's function fails.
        """


class Stateless:
    """A map, a filter, a flat_map, or the late values of a window."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        self._pipeline = pipeline
        self._operator = operator
        self._run = {"map": self._map, "late": self._map, "filter": self._filter, "flat_map": self._flat_map}[
            operator.kind
        ]

    def feed(self, frame: Frame) -> Frame:
        made: list[Record] = []
        aside: list[Record] = []
        for record in frame.records:
            try:
                self._run(record, made)
            except Exception as error:
                aside.append(refused(self._pipeline, self._operator, record, error))
        return Frame(made, frame.watermark, frame.ticks, aside)

    def _map(self, record: Record, made: list[Record]) -> None:
        at, path, at_ms, value = record
        result = self._operator.function(value)
        if not is_skip(result):
            made.append((at, path, at_ms, result))

    def _filter(self, record: Record, made: list[Record]) -> None:
        if self._operator.function(record[3]):
            made.append(record)

    def _flat_map(self, record: Record, made: list[Record]) -> None:
        at, path, at_ms, value = record
        results = several(self._operator.function(value))
        made += [(at, (*path, index), at_ms, each) for index, each in enumerate(results) if not is_skip(each)]


def several(results: Any) -> Iterable[Any]:
    """The results of a function that returns several.

    Raises:
        TypeError: it returns something else.
    """
    if not isinstance(results, Iterable) or isinstance(results, str | bytes):
        raise TypeError(f"it returns {type(results).__name__}, not a list or an iterator of results")
    return results


def is_skip(value: Any) -> bool:
    """Whether a result is nothing."""
    return value is Skip or isinstance(value, Skip)


def _emits(result: Any) -> None:
    """Check the result of a reduce's function.

    Raises:
        TypeError: it has one, which nobody would see.
    """
    if result is not None:
        raise TypeError(f"it returns a {type(result).__name__}, which goes nowhere; give it to emit(...)")


class Copied(Emitted[Any]):
    """Emitted values as they are when they are emitted: later calls may change what the state has of them."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def __call__(self, value: Any) -> None:
        self.append(_apart(self._state, value))


def _apart(state: Any, value: Any) -> Any:
    """Copy a value of which a state of this class may keep a part and change it."""
    kind: Any = type(value)
    return deepcopy(value) if may_share(state, kind) else value


class Reduce:
    """A reduce: a state for each key, which a record that is refused leaves as it was."""

    def __init__(self, pipeline: str, operator: Operator) -> None:
        assert operator.codec is not None and operator.key is not None
        self._pipeline = pipeline
        self._operator = operator
        self._codec: StateCodec = operator.codec
        self._key: Callable[[Any], Any] = operator.key
        codec = self._codec
        self.states = KeyedStates(
            self._stored, codec.decode, codec.version, fields_of(codec.codec.type), operator=operator.name
        )
        self._undo = Undo(codec.codec.type, codec.codec.fields) if operator.refuses else None
        kind: Any = codec.codec.type
        self._is_apart = operator.emits is not None and not may_share(kind, operator.emits)

    def _stored(self, state: Any) -> bytes:
        """A state's bytes, which are read back: else nothing could begin at their checkpoint."""
        data = self._codec.encode(state)
        self._codec.check(data)
        return data

    def key_of(self, record: Record) -> Key | None:
        """The key of a record; None where it has none."""
        try:
            return as_key(self._key(record[3]))
        except Exception:
            return None

    def _emitted(self) -> Emitted[Any]:
        """Where calls emit to."""
        return Emitted() if self._is_apart else Copied(self._codec.codec.type)

    def fresh_copy(self, key: Key) -> Any:
        """A copy of a key's state, or its first one."""
        state = self.states.state(key)
        return self._codec.fresh() if state is None else self.states.copied(state)

    def results(self, state: Any, record: Record) -> list[Record]:
        """Apply a record to a copy of a state; what the operator raises is not caught."""
        at, path, at_ms, value = record
        emitted = self._emitted()
        emitted.at_ms = at_ms
        _emits(self._operator.function(state, _apart(self._codec.codec.type, value), emitted))
        return [(at, (*path, index), at_ms, each) for index, each in enumerate(emitted)]

    def feed(self, frame: Frame) -> Frame:
        made: list[Record] = []
        aside: list[Record] = []
        emitted = self._emitted()
        by_key, touch, undo = self.states.by_key, self.states.touch, self._undo
        key_of, function = self._key, self._operator.function
        kind: Any = self._codec.codec.type
        given_kind: Any = None
        is_shared = False
        for record in frame.records:
            at, path, at_ms, value = record
            try:
                key = key_of(value)
                if type(key) is not str or not key:
                    key = as_key(key)
            except Exception as error:
                aside.append(refused(self._pipeline, self._operator, record, error))
                continue
            try:
                state = touch(key, at)
                if undo is not None:
                    undo.begin(state)
                if state is None:
                    state = by_key[key] = self._codec.fresh()
            except Exception as error:  # also a state that cannot be stored, which refuses no record
                raise OperatorFailed(self._pipeline, self._operator.name, at, error) from error
            emitted.at_ms = at_ms
            if type(value) is not given_kind:
                given_kind = type(value)
                is_shared = may_share(kind, given_kind)
            try:
                if (result := function(state, deepcopy(value) if is_shared else value, emitted)) is not None:
                    _emits(result)
            except Exception as error:
                aside.append(refused(self._pipeline, self._operator, record, error))
                if undo is not None and not undo.undo():
                    del by_key[key]
                emitted.clear()
            if emitted:
                for index, each in enumerate(emitted):
                    made.append((at, (*path, index), at_ms, each))
                emitted.clear()
        return Frame(made, frame.watermark, frame.ticks, aside)
