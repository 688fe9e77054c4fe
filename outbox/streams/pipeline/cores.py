"""The cores of a pipeline's operators, by their kinds."""

from __future__ import annotations

from typing import Any

from outbox.streams.pipeline.core import Core, Reduce, Stateless
from outbox.streams.pipeline.operators import Operator
from outbox.streams.pipeline.states import KeyedStates
from outbox.streams.pipeline.window import Windows

CORES: dict[str, type[Any]] = {
    "map": Stateless,
    "filter": Stateless,
    "flat_map": Stateless,
    "reduce": Reduce,
    "window": Windows,
}


def core_of(pipeline: str, operator: Operator) -> Core:
    """An operator at work, in a process that has just begun."""
    made: Core = CORES[operator.kind](pipeline, operator)
    return made


def states_of(core: Core | None) -> KeyedStates | None:
    """The states of an operator at work; None where it has none."""
    return core.states if isinstance(core, Reduce | Windows) else None
