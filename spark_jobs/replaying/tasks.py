"""A pipeline's operators in the tasks of Spark: frames come in, and rows of what they put out leave.

Theory of operation.  What an operator puts out at a position is decided by the source up to there, so the same cores
that a live replica runs make the same here.  A slot of an operator's states is one task's: its sections of the
checkpoint's parts come first, oldest first, then its records in the order of their places.  Operators without states
run where their records are made.  Only the times at which windows may close go another way: they come from all records,
are few, and every task of the window gets them.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from outbox.errors import CorruptRecord
from outbox.streams.cells import Cell, Position
from outbox.streams.pipeline.barrier import stored_records
from outbox.streams.pipeline.checkpoint import Section, line_of
from outbox.streams.pipeline.cores import ENTRIES, WITH_STATES, core_of, lead_on, states_of
from outbox.streams.pipeline.exchange import SINK, Exchange, identity_of, slot_in
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.plan import GraphChanged, PipelinePlan
from outbox.streams.pipeline.worker import plan_of
from outbox.streams.plan import REFUSED
from spark_jobs.common.places import Place
from spark_jobs.replaying.rows import RECORD, SECTION, TICK, Batches, Stored, path_in, pieces_of, rows_in, stored_path

FRAME_COUNT = 1_000
"""The records of a frame: the fewer the less a task holds, and more at once are not cheaper."""
SAVED_AT_ONCE = 1_000
Ticks = Sequence[tuple[Position, int]]


@dataclass(frozen=True)
class Replayed:
    """A pipeline for tasks: the name to import, a folder to import from, and its identity."""

    name: str
    folder: str
    identity: bytes

    def plan(self) -> PipelinePlan:
        """The plan, as this process imports it.

        Raises:
            GraphChanged: it is another one than the driver's.
        """
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        plan = _plan_of(self.name)
        if identity_of(plan) != self.identity:
            raise GraphChanged(
                f"a task of Spark has another pipeline under {self.name} than the driver: give all machines one version"
            )
        return plan


@lru_cache(maxsize=4)
def _plan_of(name: str) -> PipelinePlan:
    return plan_of(name)


class Outgoing:
    """The rows that one task puts out."""

    def __init__(self, plan: PipelinePlan) -> None:
        self.exchange = Exchange(plan, 1)
        self._plan = plan
        self._cores = {each.name: core_of(plan.name, each) for each in plan.operators if each.kind not in WITH_STATES}
        self._batches = Batches()
        self._slides: dict[str, int] = {}
        """The span of the last tick of each window."""

    def put(self, made_by: str, frame: Frame) -> Iterator[pa.RecordBatch]:
        """Yield the rows of an output, led through the operators without states behind it."""
        made = lead_on(self._plan, self._cores, made_by, frame)
        if self.exchange.refused:
            aside = self.exchange.aside(made, frame.watermark)
            yield from self._records(self.exchange.refused, aside, [0] * len(aside.records))
        for operator in self._plan.operators:
            before = made.get(operator.upstream.name if operator.upstream else ENTRIES)
            if operator.kind in WITH_STATES and before is not None:
                yield from self._records(operator.name, before, [slot_in(operator, each) for each in before.records])
        for name, (operator, _) in self._plan.sinks.items():
            if operator.name in made and operator.name != REFUSED:
                records = made[operator.name]
                yield from self._records(SINK + name, records, [0] * len(records.records))
        for operator in self._plan.operators:
            if operator.window is not None and operator.kind == "window" and clock_of(operator) == made_by:
                yield from self._ticks(operator.name, operator.window[1], frame.ticks)

    def _records(self, target: str, frame: Frame, slots: Sequence[int]) -> Iterator[pa.RecordBatch]:
        records = frame.records
        if not records:
            return
        raws, types = stored_records(
            self.exchange.values[target], records, self._plan.name, f"on its way to {target.lstrip(SINK)}"
        )
        for slot, record, raw, type in zip(slots, records, raws, types or [""] * len(raws), strict=True):
            at, path, at_ms, _ = record
            row = Stored(target, slot, RECORD, at.index, at.offset, stored_path(path), at_ms, bytes(raw), type)
            yield from self._batches.add(row)

    def _ticks(self, window: str, slide_ms: int, ticks: Ticks) -> Iterator[pa.RecordBatch]:
        """The ticks at which a window may close: the first in each of its spans."""
        for at, at_ms in ticks:
            if self._slides.get(window) != at_ms // slide_ms:
                self._slides[window] = at_ms // slide_ms
                yield from self._batches.add(Stored(window, 0, TICK, at.index, at.offset, at_ms=at_ms))

    def section(self, section: Section) -> Iterator[pa.RecordBatch]:
        """The saved states of a slot."""
        for number, piece in enumerate(pieces_of(section)):
            row = Stored(piece.operator, piece.slot, SECTION, 0, number, value=line_of(piece))
            yield from self._batches.add(row)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The last batch."""
        return self._batches.rest()


def clock_of(operator: Operator) -> str:
    """Where the times come from at which a window closes: an operator of time before it, or the source."""
    one = operator.upstream
    while one is not None and one.kind != "time":
        one = one.upstream
    return ENTRIES if one is None else one.name


# Entries


@dataclass(frozen=True)
class Split:
    """A file of entries from one position to before another, and the greatest time before it."""

    file: str
    size: int
    begin: Position
    end: Position
    time_ms: int


@dataclass(frozen=True)
class Entries:
    """The entries of a log from one position to before another, in files of a place."""

    pipeline: Replayed
    place: Place
    splits: Sequence[Split]
    begin: Position
    until: Position


def read_entries(given: Entries, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Read the files of these numbers, and put out what the pipeline makes of each entry before it needs states."""
    plan = given.pipeline.plan()
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            outgoing, split = Outgoing(plan), given.splits[number]
            for frame in frames_of(plan, given, split):
                yield from outgoing.put(ENTRIES, frame)
            yield from outgoing.rest()


def entries_at(plan: PipelinePlan, given: Entries, positions: Sequence[Position]) -> tuple[list[Record], list[str]]:
    """The entries at some positions, in order, and their ids."""
    wanted, records, ids = set(positions), list[Record](), list[str]()
    for split in given.splits:
        if split.begin <= max(positions) and split.end > min(positions):
            for rows in entry_rows(given.place, split):
                found = [row for row in rows if Position(row[0], row[1]) in wanted]
                values = values_of(plan, found)
                records += [
                    (Position(row[0], row[1]), (), row[2], each) for row, each in zip(found, values, strict=True)
                ]
                ids += [row[6] for row in found]
    return records, ids


def entry_rows(place: Place, split: Split) -> Iterator[list[Sequence[Any]]]:
    """The entries of a file, some at a time: index, offset, time, value, type, schema version and id."""
    from spark_jobs.draining.parquet import DataFile, batches

    columns = ["index", "offset", "at_ms", "value", "type", "schema", "id"]
    for batch in batches(place, DataFile(split.file, split.size), columns):
        yield list(zip(*(batch.column(name).to_pylist() for name in columns), strict=True))


def frames_of(plan: PipelinePlan, given: Entries, split: Split) -> Iterator[Frame]:
    """The entries of a file in frames; a record's time is the greatest up to it."""
    time_ms = split.time_ms
    for batch in entry_rows(given.place, split):
        rows = [row for row in batch if given.begin <= Position(row[0], row[1]) < given.until]
        for begin in range(0, len(rows), FRAME_COUNT):
            records: list[Record] = []
            ticks: list[tuple[Position, int]] = []
            chunk = rows[begin : begin + FRAME_COUNT]
            for (index, offset, at_ms, *_), value in zip(chunk, values_of(plan, chunk), strict=True):
                at = Position(index, offset)
                if at_ms > time_ms:
                    time_ms = at_ms
                    ticks.append((at, at_ms))
                records.append((at, (), time_ms, value))
            yield Frame(records, records[-1][0], ticks)


def values_of(plan: PipelinePlan, rows: Sequence[Sequence[Any]]) -> Iterator[Any]:
    """The values of entries as they were stored, each by its schema version."""
    log = plan.source.log
    for schema, found in groupby(rows, lambda row: row[5]):
        chunk = list(found)
        raws, types = [msgspec.Raw(row[3].encode()) for row in chunk], [row[4] for row in chunk]
        cell = Cell("", 0, len(raws), raws, types if any(types) else [], schema)
        yield from log.values.decoded(cell, f"log {log.name}")


# Operators with states


@dataclass(frozen=True)
class Slots:
    """An operator with states, for the tasks that have its slots.

    `since` is the checkpoint from which on changes are saved; None: everything is.
    """

    pipeline: Replayed
    operator: str
    ticks: Ticks
    since: Position | None
    until: Position


def run_slots(given: Slots, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run an operator on the slots of a task, in order: of each its states, and then its records."""
    plan = given.pipeline.plan()
    outgoing = Outgoing(plan)
    rows = (row for batch in batches for row in rows_in(batch))
    for slot, found in groupby(rows, attrgetter("slot")):
        yield from run_slot(plan, given, outgoing, slot, found)
    yield from outgoing.rest()


def run_slot(
    plan: PipelinePlan, given: Slots, outgoing: Outgoing, slot: int, rows: Iterable[Stored]
) -> Iterator[pa.RecordBatch]:
    """Run an operator on one slot, and put out what it makes, and what changed of its states."""
    operator = next(each for each in plan.operators if each.name == given.operator)
    core = core_of(plan.name, operator)
    states, values = states_of(core), outgoing.exchange.values[operator.name]
    assert states is not None
    ticks, at = given.ticks, 0
    waiting: list[Stored] = []

    def fed(until: tuple[Position, int] | None) -> Iterator[pa.RecordBatch]:
        """Feed what waits, and the ticks up to a position and a time there; None: all."""
        nonlocal at, waiting
        end = len(ticks) if until is None else bisect_right(ticks, until, at)
        data = b"[" + b",".join(row.value for row in waiting) + b"]"
        found = values.read(data, [row.type for row in waiting] if waiting and waiting[0].type else [])
        records: list[Record] = [
            (row.position, path_in(row.path), row.at_ms, value) for row, value in zip(waiting, found, strict=True)
        ]
        frame = Frame(records, given.until, ticks[at:end])
        at, waiting = end, []
        yield from outgoing.put(operator.name, core.feed(frame))

    for row in rows:
        if row.kind == SECTION:
            section = msgspec.json.decode(row.value, type=Section)
            states.load(section.states, section.schema, section.changes)
            continue
        waiting.append(row)
        if len(waiting) >= FRAME_COUNT:
            yield from fed((row.position, row.at_ms))
    yield from fed(None)
    states.begin(given.since, given.until)
    while not states.save(SAVED_AT_ONCE):
        pass
    for number, saved in states.saved().items():
        if number != slot:
            raise CorruptRecord(f"slot {slot} of operator {operator.name} has states of slot {number}")
        yield from outgoing.section(Section(operator.name, slot, states.schema, *saved))
