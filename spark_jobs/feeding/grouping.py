"""Judged rows to messages: what runs on executors while a feed is planned.

All rows of an identity come into one bucket; there they become one message, or a conflict.  Rows of equal identity and
body are one message; of equal identity and unequal body none at all: which of them a broker or an inbox would keep
would be chance.  A bucket belongs to one chunk.  Rows travel packed, many in one value, because Spark's own rows cost
more than all that is done with them here; those of sessions travel one by one, as they go by their session from there.

Memory holds the rows of the buckets of a partition; `partitions_of` makes these small, by the bytes of the input.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from spark_jobs.reading.arrow import buffers_of, integer_column, text_column
from spark_jobs.reading.judging import VALID

PARTITION_BYTES = 32 * 1024 * 1024
PACKED_ROWS, PACKED_BYTES = 65_536, 8 * 1024 * 1024
PARTITION_COUNT_MAX = 16_384
STAGED = f"{VALID}, copies bigint"
STAGED_SCHEMA = pa.schema(
    [(part.split()[0], pa.string() if part.endswith("string") else pa.int64()) for part in STAGED.split(", ")]
)
VALID_SCHEMA = pa.schema(list(STAGED_SCHEMA)[:-1])
BY_ID, BY_SESSION = 0, 3
"""Columns whose texts tell the bucket of a row."""
CHUNK = "chunk"
CONFLICTS = "conflicts"
"""The name, in the column `chunk`, of rows that are sent in none."""

Packet = tuple[int, bytes]
"""A bucket, and rows of it as Arrow writes a stream."""
Made = Callable[[Iterable[pa.RecordBatch]], tuple[pa.Table, pa.Table]]
"""Messages and conflicts of the rows of a bucket."""
Staged = tuple[bytes, bytes | None, int | None, bytes | None, int, int]
"""A row of `STAGED`; without a body it stands for the rows of an identity that differ."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """How many there are, and the creation time of messages that have none."""

    count: int
    created_ms: int

    def of_packets(self, made: Made, packets: Iterable[Packet]) -> Iterator[pa.RecordBatch]:
        """Make the messages of packed rows as `STAGED` has them, with their chunk; conflicts come last."""
        conflicts = list[pa.Table]()
        for number, parts in unpacked(packets, lambda number: (number % self.count, number)):
            messages, differing = made(parts)
            conflicts.append(differing)
            yield from self._of_chunk(messages, str(number % self.count))
        for differing in conflicts:
            yield from self._of_chunk(differing, CONFLICTS)

    def _of_chunk(self, rows: pa.Table, chunk: str) -> Iterator[pa.RecordBatch]:
        if chunk != CONFLICTS and rows.column("created_ms").null_count:
            at, created = rows.schema.get_field_index("created_ms"), constant(self.created_ms, rows.num_rows)
            rows = rows.set_column(at, STAGED_SCHEMA.field("created_ms"), created)
        yield from rows.append_column(CHUNK, text_column([chunk.encode()] * rows.num_rows)).to_batches()


def partitions_of(chunks: int, size: int) -> int:
    """The number of partitions for `size` bytes: a multiple of the chunks, each of a bounded size."""
    wanted = min(PARTITION_COUNT_MAX, -(-size // PARTITION_BYTES))
    return chunks * max(1, -(-wanted // chunks))


@dataclass(slots=True)
class Grouping:
    """The messages of some rows."""

    bodies: dict[bytes, bytes] = field(default_factory=dict)
    marks: dict[bytes, tuple[int | None, bytes | None]] = field(default_factory=dict)
    positions: dict[bytes, int] = field(default_factory=dict)
    copies: dict[bytes, int] = field(default_factory=dict)
    """The digests that occur more than once, with their counts."""
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


def messages_in(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Table, pa.Table]:
    """Messages, and conflicts as rows without a body, of what has both."""
    rows = pa.Table.from_batches(batches, STAGED_SCHEMA)
    has_body = rows.column("body").is_valid()
    return rows.filter(has_body), rows.filter(pc.invert(has_body))


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


def packed(buckets: int, batches: Iterable[pa.RecordBatch], by: int = BY_ID) -> Iterator[Packet]:
    """Rows by the bucket of their identity, or of another text, many in one value."""
    held, rows, size = list[pa.RecordBatch](), 0, 0
    for batch in batches:
        held.append(batch)
        rows, size = rows + batch.num_rows, size + batch.nbytes
        if rows >= PACKED_ROWS or size >= PACKED_BYTES:
            yield from packed_rows(buckets, held, by)
            held, rows, size = [], 0, 0
    if held:
        yield from packed_rows(buckets, held, by)


def packed_rows(buckets: int, batches: Sequence[pa.RecordBatch], by: int) -> Iterator[Packet]:
    """A packet for each bucket of some rows."""
    numbers = [crc32(text or b"") % buckets for batch in batches for text in buffers_of(batch.column(by))]
    order = pc.sort_indices(integer_column(numbers))
    ordered, at = pa.Table.from_batches(batches).take(order).combine_chunks(), 0
    for number, count in sorted(Counter(numbers).items()):
        made = pa.BufferOutputStream()
        with pa.ipc.new_stream(made, ordered.schema) as stream:
            stream.write_table(ordered.slice(at, count))
        yield number, made.getvalue().to_pybytes()
        at += count


def unpacked(
    packets: Iterable[Packet], order: Callable[[int], tuple[int, int]] | None = None
) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
    """The rows of each bucket, which lie in any of the packets."""
    held = dict[int, list[bytes]]()
    for number, rows in packets:
        held.setdefault(number, []).append(rows)
    for number in sorted(held, key=order):
        yield number, (part for packet in held.pop(number) for part in pa.ipc.open_stream(packet))


def regrouped(buckets: int, packets: Iterable[Packet]) -> Iterator[Packet]:
    """The messages of packed rows, and the conflicts among them, by the bucket of their session."""
    for _, parts in unpacked(packets):
        for rows in messages_of(parts):
            yield from packed(buckets, rows.to_batches(), BY_SESSION)
