"""One epoch of a pipeline as tasks over rows: entries and states come in, outputs and changed states leave.

entries -> what needs no states -> by slot: the first operator with states -> ... -> sinks, in order
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
import pyarrow as pa

from outbox.errors import CorruptRecord
from outbox.streams.pipeline.checkpoint import Section
from outbox.streams.pipeline.cores import WITH_STATES, refused_entries
from outbox.streams.pipeline.exchange import SINK, Exchange, came_aside
from outbox.streams.pipeline.operators import Frame, Operator, Record
from outbox.streams.pipeline.plan import PipelinePlan
from spark_jobs.common.places import Place
from spark_jobs.replaying.on_spark import Tables
from spark_jobs.replaying.rows import RECORD, SECTION, TICK, Batches, Stored, path_in, pieces_of
from spark_jobs.replaying.tasks import Entries, Slots, Ticks, entries_at, read_entries, run_slots

POSITIONS_AT_ONCE = 1_000


@dataclass(frozen=True)
class Parts:
    """The parts of a checkpoint, the oldest first, in files of a place."""

    place: Place
    files: Sequence[str]


def read_parts(given: Parts, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The sections in the parts of these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            found, name, count = Batches(), given.files[number], 0
            data = given.place.read(name)
            if data is None:
                raise CorruptRecord(f"{given.place / name} is missing; run the same command again")
            for line in BytesIO(data):
                for piece_number, piece in enumerate(pieces_of(msgspec.json.decode(line, type=Section)), count):
                    value = msgspec.json.encode(piece)
                    yield from found.add(Stored(piece.operator, piece.slot, SECTION, number, piece_number, value=value))
                    count = piece_number + 1
            yield from found.rest()


class Epoch:
    """The entries of a span and the states before them, at work."""

    def __init__(
        self, tables: Tables[Any], plan: PipelinePlan, entries: Entries, parts: Parts, *, saves_all: bool
    ) -> None:
        """Take the entries, and the parts with the states before them; `saves_all`: also what has not changed."""
        self._tables, self._plan, self._entries = tables, plan, entries
        self._exchange = Exchange(plan, 1)
        self.saves_all = saves_all
        self._made = [tables.numbered(len(entries.splits), partial(read_entries, entries))]
        loaded = [tables.numbered(len(parts.files), partial(read_parts, parts))] if parts.files else []
        for operator in plan.operators:
            if operator.kind in WITH_STATES:
                since = None if saves_all else entries.begin
                slots = Slots(entries.pipeline, operator.name, self._ticks(operator), since, entries.until)
                self._made.append(tables.by_slot([*self._made, *loaded], operator.name, partial(run_slots, slots)))

    def _ticks(self, operator: Operator) -> Ticks:
        if operator.kind != "window":
            return ()
        return [(row.position, row.at_ms) for row in self._tables.rows(self._made, TICK, operator.name)]

    def outputs(self, sink: str) -> Iterator[tuple[Frame, bool]]:
        """The outputs for a sink, in order, a position's in one frame; with each whether they are as stored."""
        if SINK + sink != self._exchange.refused:
            yield from ((frame, True) for frame in self._frames(sink))
            return
        values = self._exchange.values[self._exchange.refused]
        for frame in self._frames(sink):
            found = values.read(b"[" + b",".join(bytes(each[3]) for each in frame.records) + b"]", [])
            records = [(*record[:3], value) for record, value in zip(frame.records, found, strict=True)]
            entries, ids = entries_at(self._plan, self._entries, [record[0] for record in records])
            yield Frame(refused_entries(self._plan, entries, ids, came_aside(records)), frame.watermark), False

    def _frames(self, sink: str) -> Iterator[Frame]:
        """The stored records of a sink, in order; a position's are in one frame."""
        records: list[Record] = []
        count, last = 0, None
        for row in self._tables.rows(self._made, RECORD, SINK + sink):
            at = row.position
            if at != last:
                if count >= POSITIONS_AT_ONCE:
                    yield Frame(records, at)
                    records, count = [], 0
                count, last = count + 1, at
            raw = msgspec.Raw(row.value)
            records.append((at, path_in(row.path), row.at_ms, (raw, row.type) if row.type else raw))
        if records and last is not None:
            yield Frame(records, last.after())

    def sections(self) -> Iterator[bytes]:
        """The states that are saved: lines of a part, in the order of operators and slots."""
        return (row.value for row in self._tables.rows(self._made, SECTION))

    def end(self) -> None:
        """Let go of what tasks keep."""
        self._tables.end()
