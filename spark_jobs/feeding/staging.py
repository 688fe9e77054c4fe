"""Judged rows to staged messages: what runs on executors while a feed is planned.

Spark brings all rows of an identity into one partition; here they become one message, or a conflict.  Rows of equal
identity and body are one message; of equal identity and unequal body none at all: which of them a broker or an inbox
would keep would be chance.  Each partition is one file, created whole and once under the partition's name, so a task
that Spark runs twice leaves what it left the first time.

Memory holds the messages of a partition; `partitions_of` makes these small, by the bytes of the input.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext

from spark_jobs.common.folder import Folder
from spark_jobs.reading.arrow import buffers_of, integer_column, text_column
from spark_jobs.reading.judging import VALID

PARTITION_BYTES = 64 * 1024 * 1024
PARTITION_COUNT_MAX = 16_384
STAGED = f"{VALID}, copies bigint"
STAGED_SCHEMA = pa.schema(
    [(part.split()[0], pa.string() if part.endswith("string") else pa.int64()) for part in STAGED.split(", ")]
)
COUNTS = "messages bigint, copies bigint, conflicts bigint"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where messages are staged, in how many chunks, and the creation time of those that have none."""

    path: str
    chunks: int
    created_ms: int


def partitions_of(chunks: int, size: int) -> int:
    """How many partitions hold an input of so many bytes: a multiple of the chunks, each of a bounded size."""
    wanted = min(PARTITION_COUNT_MAX, -(-size // PARTITION_BYTES))
    return chunks * max(1, -(-wanted // chunks))


@dataclass(slots=True)
class Grouping:
    """The messages of some rows."""

    bodies: dict[bytes, bytes | None] = field(default_factory=dict)
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

    def messages(self) -> list[tuple[bytes, bytes, int | None, bytes | None, int, int]]:
        """Id, body, creation time, session, position and copies of each, in the order of their positions."""
        found = [
            (id, body, *self.marks.get(id, (None, None)), self.positions[id], self.copies.get(id, 1))
            for id, body in self.bodies.items()
            if body is not None and id not in self.conflicts
        ]
        return sorted(found, key=lambda row: row[4])


def grouped(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The messages of a partition, and its conflicts as rows without a body."""
    found = Grouping()
    for batch in batches:
        found.add(batch)
    yield table_of([*found.messages(), *((id, None, None, None, 0, 0) for id in sorted(found.conflicts))])


def table_of(rows: Sequence[tuple[bytes, bytes | None, int | None, bytes | None, int, int]]) -> pa.RecordBatch:
    """Rows as `STAGED` has them."""
    columns = list(zip(*rows, strict=True)) or [()] * len(STAGED_SCHEMA)
    makers = (text_column, text_column, integer_column, text_column, integer_column, integer_column)
    made = [make(column) for make, column in zip(makers, columns, strict=True)]  # type: ignore[operator]  # by column
    return pa.RecordBatch.from_arrays(made, schema=STAGED_SCHEMA)


def staged(stage: Stage, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Group the rows of a partition and write its file; gives one row of `COUNTS`."""
    found = Grouping()
    for batch in batches:
        found.add(batch)
    yield written(stage, found.messages(), sorted(found.conflicts))


def staged_again(stage: Stage, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the file of a partition of messages that are grouped already; gives one row of `COUNTS`."""
    rows = [row for batch in batches for row in zip(*map(values_of, batch.columns), strict=True)]
    messages = sorted((row for row in rows if row[1] is not None), key=lambda row: row[4])
    yield written(stage, messages, sorted(row[0] for row in rows if row[1] is None))


def values_of(column: pa.Array) -> list[object]:
    """The values of a column, texts as bytes."""
    return list(buffers_of(column)) if pa.types.is_string(column.type) else column.to_pylist()


def written(stage: Stage, messages: Sequence[tuple[object, ...]], conflicts: Sequence[bytes]) -> pa.RecordBatch:
    """Write a partition's files; the row of `COUNTS`."""
    context = TaskContext.get()
    assert context is not None
    number = context.partitionId()
    if messages:
        rows = [(id, body, stage.created_ms if at is None else at, *rest) for id, body, at, *rest in messages]
        folder = Folder(stage.path) / "messages" / f"chunk={number % stage.chunks}"
        folder.create(f"part-{number:05}.parquet", parquet_of(table_of(rows)))  # type: ignore[arg-type]  # as above
    if conflicts:
        ids = pa.RecordBatch.from_arrays([text_column(conflicts)], names=["id"])
        (Folder(stage.path) / "conflicts").create(f"part-{number:05}.parquet", parquet_of(ids))
    counts = [[len(messages)], [sum(row[5] for row in messages)], [len(conflicts)]]  # type: ignore[misc]
    names = [part.split()[0] for part in COUNTS.split(", ")]
    return pa.RecordBatch.from_arrays([integer_column(count) for count in counts], names=names)


def parquet_of(batch: pa.RecordBatch) -> bytes:
    """The bytes of a Parquet file; ids and bodies rarely repeat, so there are no dictionaries."""
    made = io.BytesIO()
    pq.write_table(pa.Table.from_batches([batch]), made, use_dictionary=False)
    return made.getvalue()
