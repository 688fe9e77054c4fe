"""Judged rows to messages: what runs on executors while a feed is planned.

Spark brings all rows of an identity into one partition; here they become one message, or a conflict.  Rows of equal
identity and body are one message; of equal identity and unequal body none at all: which of them a broker or an inbox
would keep would be chance.  A partition belongs to one chunk, so what a chunk sends depends on nothing but the plan.

Memory holds the messages of a partition; `partitions_of` makes these small, by the bytes of the input.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from spark_jobs.reading.arrow import buffers_of, integer_column, text_column
from spark_jobs.reading.judging import VALID

PARTITION_BYTES = 64 * 1024 * 1024
PARTITION_COUNT_MAX = 16_384
STAGED = f"{VALID}, copies bigint"
STAGED_SCHEMA = pa.schema(
    [(part.split()[0], pa.string() if part.endswith("string") else pa.int64()) for part in STAGED.split(", ")]
)
VALID_SCHEMA = pa.schema(list(STAGED_SCHEMA)[:-1])
CHUNK = "chunk"
CONFLICTS = "conflicts"
"""In the column `chunk`: what is sent in none."""

Staged = tuple[bytes, bytes | None, int | None, bytes | None, int, int]
"""A row of `STAGED`; without a body it stands for the rows of an identity that differ."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many there are, and the creation time of messages that have none."""

    count: int
    created_ms: int

    def of_rows(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The messages of a partition's rows as `STAGED` has them, with their chunk; its conflicts behind them."""
        return self._parted(*messages_of(batches))

    def of_messages(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The same of messages and conflicts that `grouped` has made."""
        rows = pa.Table.from_batches(batches, STAGED_SCHEMA)
        has_body = rows.column("body").is_valid()
        return self._parted(rows.filter(has_body), rows.filter(pc.invert(has_body)))

    def _parted(self, messages: pa.Table, conflicts: pa.Table) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        if messages.column("created_ms").null_count:
            at, created = messages.schema.get_field_index("created_ms"), constant(self.created_ms, messages.num_rows)
            messages = messages.set_column(at, STAGED_SCHEMA.field("created_ms"), created)
        for rows, value in ((messages, str(context.partitionId() % self.count)), (conflicts, CONFLICTS)):
            yield from rows.append_column(CHUNK, pa.array([value] * rows.num_rows, pa.string())).to_batches()


def partitions_of(chunks: int, size: int) -> int:
    """How many partitions hold an input of so many bytes: a multiple of the chunks, each of a bounded size."""
    wanted = min(PARTITION_COUNT_MAX, -(-size // PARTITION_BYTES))
    return chunks * max(1, -(-wanted // chunks))


@dataclass(slots=True)
class Grouping:
    """The messages of some rows."""

    bodies: dict[bytes, bytes] = field(default_factory=dict)
    marks: dict[bytes, tuple[int | None, bytes | None]] = field(default_factory=dict)
    positions: dict[bytes, int] = field(default_factory=dict)
    copies: dict[bytes, int] = field(default_factory=dict)
    """Those of which there are more than one."""
    conflicts: set[bytes] = field(default_factory=set)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows {id, body, created_ms, session, position}."""
        created, session = batch.column(2), batch.column(3)
        marks: Iterator[tuple[int | None, bytes | None]] | None = None
        if created.null_count < len(created) or session.null_count < len(session):
            marks = zip(created.to_pylist(), buffers_of(session), strict=True)
        rows = zip(buffers_of(batch.column(0)), buffers_of(batch.column(1)), batch.column(4).to_pylist(), strict=True)
        bodies, positions = self.bodies, self.positions
        for id, body, position in rows:
            assert id is not None and body is not None
            mark = next(marks) if marks is not None else None
            known = bodies.setdefault(id, body)
            if known is body:
                positions[id] = position
                if mark is not None:
                    self.marks[id] = mark
                continue
            self.copies[id] = self.copies.get(id, 1) + 1
            positions[id] = min(position, positions[id])
            if known != body:
                self.conflicts.add(id)

    def messages(self) -> list[Staged]:
        """Id, body, creation time, session, position and copies of each, in the order of their first rows."""
        return [
            (id, body, *self.marks.get(id, (None, None)), self.positions[id], self.copies.get(id, 1))
            for id, body in self.bodies.items()
            if id not in self.conflicts
        ]


def messages_of(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, pa.Table]:
    """The messages of rows, and the identities whose rows differ, both as `STAGED` has them."""
    rows = pa.Table.from_batches(batches, VALID_SCHEMA).combine_chunks()
    count = rows.num_rows
    if pc.count_distinct(rows.column("id")).as_py() == count:
        return rows.append_column(STAGED_SCHEMA.field("copies"), constant(1, count)), table_of([])
    found = Grouping()
    for batch in rows.to_batches():
        found.add(batch)
    return table_of(found.messages()), table_of([(id, None, None, None, 0, 0) for id in sorted(found.conflicts)])


def constant(value: int, count: int) -> pa.Array:
    """A column of one integer."""
    return pa.Array.from_buffers(pa.int64(), count, [None, pa.py_buffer(array("q", [value]) * count)])


def grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, and its conflicts as rows without a body."""
    for rows in messages_of(batches):
        yield from rows.to_batches()


def table_of(rows: Sequence[Staged]) -> pa.Table:
    """Rows as `STAGED` has them."""
    ids, bodies, created, sessions, positions, copies = zip(*rows, strict=True) if rows else [()] * 6
    columns = [
        text_column(ids),
        text_column(bodies),
        integer_column(created),
        text_column(sessions),
        integer_column(positions),
        integer_column(copies),
    ]
    return pa.Table.from_arrays(columns, schema=STAGED_SCHEMA)
