"""Runs of one operator over given inputs, here and in another process that imports it by its name."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import reduce
from importlib import import_module
from operator import or_
from typing import Any, NamedTuple

import msgspec

from outbox.codec import StateCodec
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.cores import core_of, states_of
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.state_fields import state_codec
from outbox.streams.pipeline.state_types import ListState, MapState, Value
from outbox.streams.pipeline.states import text_of
from outbox.streams.values import Values, codec_of

AT_MS = 1_700_000_000_000

Name = tuple[str, str]
"""A module and a name in it."""


class Outcome(NamedTuple):
    """The outcome of a run as JSON: each output with its input's number (-1: a window's), and the states.

    Sets and dictionaries of states are sorted, so those that are equal are one text.
    """

    outputs: list[tuple[int, str]]
    states: list[str]


class Asked(msgspec.Struct):
    """The run that another process is asked for: an operator by the names of its parts, and inputs as stored."""

    function: Name
    kind: str
    key: Name | None
    state: Name | None
    window: tuple[int, int] | None
    types: list[Name]
    raws: list[msgspec.Raw]
    names: list[str]


class Inputs:
    """Values as a log stores them, read anew for each run, so none sees what another did to them."""

    def __init__(self, types: Sequence[Any], raws: Sequence[msgspec.Raw] = (), names: Sequence[str] = ()) -> None:
        self.types = types
        self.raws = list(raws)
        self.names = list(names)
        self.kind = reduce(or_, types)
        self.values = Values("inputs", self.kind)

    @classmethod
    def of(cls, values: Sequence[Any]) -> Inputs:
        """Store some values."""
        types = list(dict.fromkeys(map(type, values)))
        return cls(types, *cls(types).values.encoded(values))

    def read(self, order: Sequence[int]) -> list[Any]:
        """Some of the values, by their numbers."""
        names = [self.names[index] for index in order] if self.names else []
        return self.values.decoded(Cell("", 0, len(order), [self.raws[index] for index in order], names), "inputs")

    def shown(self, index: int) -> str:
        """A value for a person."""
        name = self.names[index] if self.names else self.values.name
        return f"input {index} ({name} {bytes(self.raws[index]).decode()})"

    def of_text(self, index: int) -> str:
        """Name the input of an output; empty for a window's."""
        return f" of {self.shown(index)}" if index >= 0 else ""


def outcome_of(operator: Operator, inputs: Inputs, order: Sequence[int]) -> Outcome:
    """Run an operator over inputs in an order, all at one time, which then passes the end of every window."""
    records: list[Record] = [(Position(number), (), AT_MS, value) for number, value in enumerate(inputs.read(order))]
    end, window = Position(len(records)), operator.window
    ticks = [] if window is None else [(Position(0), AT_MS), (end, AT_MS + 2 * sum(window[:2]))]
    core = core_of("check_operator", operator)
    made = core.feed(Frame(records, end.after(), ticks)).records
    numbers, states = [*order, -1], states_of(core)
    outputs = [(numbers[at.index], codec_of(type(value)).encode(value).decode()) for at, _, _, value in made]
    by_key = {} if states is None else states.by_key
    texts = {text_of(key): msgspec.json.encode(state, order="sorted", enc_hook=_plain) for key, state in by_key.items()}
    return Outcome(outputs, [f"{key[1:]}: {text.decode()}" for key, text in sorted(texts.items())])


def _plain(value: Any) -> Any:
    """Convert a box of a state, or a pydantic model, which msgspec does not write by itself."""
    if isinstance(value, MapState):
        return dict(value.items())
    if isinstance(value, ListState | Value):
        return list(value) if isinstance(value, ListState) else value.value
    return msgspec.json.decode(codec_of(type(value)).encode(value))


def found_by(name: Name) -> Any:
    """Find a function, class or operator by its name; None where there is none."""
    module, qualname = name
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def answer() -> None:
    """Answer one `Asked` of the standard input; prints of the operator's module go to the standard error."""
    out = os.dup(1)
    os.dup2(2, 1)
    asked = msgspec.json.decode(sys.stdin.buffer.read(), type=Asked)
    inputs = Inputs([found_by(name) for name in asked.types], asked.raws, asked.names)
    found = found_by(asked.function)
    if not isinstance(found, Operator):
        key = None if asked.key is None else found_by(asked.key)
        codec = None if asked.state is None else StateCodec(state_codec(found_by(asked.state)), 1, {})
        window = None if asked.window is None else (*asked.window, inputs.kind)
        found = Operator(asked.function[1], asked.kind, found, None, None, key, codec, window)
    with os.fdopen(out, "wb") as file:
        file.write(msgspec.json.encode(outcome_of(found, inputs, range(len(asked.raws)))))
