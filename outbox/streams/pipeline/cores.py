"""The cores of a pipeline's operators, by their kinds, and the way of a frame through them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

from outbox.streams.pipeline.core import Core, Reduce, Stateless
from outbox.streams.pipeline.event_time import Timed
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.states import KeyedStates
from outbox.streams.pipeline.window import Windows
from outbox.streams.plan import REFUSED, RefusedEntry

WITH_STATES = ("reduce", "time", "window")
ENTRIES = ""
"""Where the entries of the source go that a map, a filter or a flat_map takes first."""
CORES: dict[str, type[Any]] = {
    "map": Stateless,
    "filter": Stateless,
    "flat_map": Stateless,
    "reduce": Reduce,
    "window": Windows,
    "time": Timed,
    "late": Stateless,
}


def core_of(pipeline: str, operator: Operator) -> Core:
    """An operator at work, in a process that has just begun."""
    made: Core = CORES[operator.kind](pipeline, operator)
    return made


def states_of(core: Core | None) -> KeyedStates | None:
    """The states of an operator at work; None where it has none."""
    return core.states if isinstance(core, Reduce | Windows | Timed) else None


def lead(plan: PipelinePlan, cores: Mapping[str, Core], frame: Frame, ids: Sequence[str]) -> dict[str, Frame]:
    """Lead a frame of the source through the graph: what it puts out for each sink.

    `ids` are those of the frame's entries.  Operators are in the order in which they were declared.
    """
    made: dict[str, Frame] = {}
    for operator in plan.operators:
        given = frame if operator.upstream is None else made[operator.upstream.name]
        made[operator.name] = cores[operator.name].feed(given)
    found = [record for each in made.values() for record in each.refused]
    made[REFUSED] = Frame(refused_entries(plan, frame.records, ids, found), frame.watermark)
    return {name: made[operator.name] for name, (operator, _) in plan.sinks.items()}


def lead_on(plan: PipelinePlan, cores: Mapping[str, Core], to: str, frame: Frame) -> dict[str, Frame]:
    """Lead what an operator made through those without states behind it, up to the next ones with states.

    `to` is its name, or `ENTRIES` for the source.
    """
    made = {to: frame}
    for operator in plan.operators:
        before = operator.upstream.name if operator.upstream else ENTRIES
        if operator.kind not in WITH_STATES and before in made:
            made[operator.name] = cores[operator.name].feed(made[before])
    return made


def refused_entries(
    plan: PipelinePlan, entries_fed: Sequence[Record], ids: Sequence[str], found: Sequence[Record]
) -> list[Record]:
    """Make the entries of the log of refused ones: each once, by the first operator that refuses some of it."""
    found = sorted(found, key=itemgetter(0))
    entries = {record[0]: (record[3], id) for record, id in zip(entries_fed, ids, strict=True)} if found else {}
    log = plan.source.log
    records: list[Record] = []
    for at, path, at_ms, (reason, value) in found:
        id = ""
        if value is None and at in entries:
            given, id = entries.pop(at)
            ((value,), _) = log.values.encoded([given])
        if value is not None:
            records.append((at, path, at_ms, RefusedEntry(log.name, str(at), id, reason, value)))
    return records
