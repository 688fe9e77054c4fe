"""The rows between the tasks of a pipeline: records on their way, states, and times.

A row's place orders it as the pipeline does on one machine: the position of the source's entry, then its path.  Spark
compares bytes, so a path is stored such that its bytes have the order of its parts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import pyarrow as pa

from outbox.errors import CorruptRecord
from outbox.streams.cells import Position
from outbox.streams.pipeline.checkpoint import Section
from outbox.streams.pipeline.operators import Path
from spark_jobs.reading.arrow import binary_column, integer_column, text_column

ROWS = (
    "target string, slot bigint, kind bigint, cell bigint, entry bigint, path binary, at_ms bigint, value binary, "
    "type string"
)
SECTION, RECORD, TICK = 0, 1, 2
"""Kinds of rows: a section of a part, a record, and a position at which the time has risen."""
BATCH_COUNT, BATCH_BYTES = 1_000, 16 << 20
SECTION_BYTES = 64 << 10
"""The bytes of states in one row: a batch of `BATCH_COUNT` such rows still fits into memory."""
INT, TEXT = b"\x01", b"\x02"
_int = struct.Struct(">Q")
SIGN = 1 << 63


class Stored(NamedTuple):
    """A row.

    Of a section `cell` is the number of its part and `entry` that of a piece; a tick has neither path nor value.
    """

    target: str
    slot: int
    kind: int
    cell: int
    entry: int
    path: bytes = b""
    at_ms: int = 0
    value: bytes = b""
    type: str = ""

    @property
    def position(self) -> Position:
        """The position of a record or a tick."""
        return Position(self.cell, self.entry)


class Batches:
    """Rows, collected into batches of Arrow."""

    def __init__(self) -> None:
        self._rows: list[Stored] = []
        self._bytes = 0

    def add(self, row: Stored) -> Iterator[pa.RecordBatch]:
        """Take a row, and yield a batch where there are enough."""
        self._rows.append(row)
        self._bytes += len(row.value)
        if len(self._rows) >= BATCH_COUNT or self._bytes >= BATCH_BYTES:
            yield from self.rest()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """The last batch, where there is one."""
        if self._rows:
            yield batch_of(self._rows)
            self._rows, self._bytes = [], 0


def batch_of(rows: list[Stored]) -> pa.RecordBatch:
    """A batch of rows."""
    target, slot, kind, cell, entry, path, at_ms, value, type = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            text_column([each.encode() for each in target]),
            *map(integer_column, (slot, kind, cell, entry)),
            binary_column(path),
            integer_column(at_ms),
            binary_column(value),
            text_column([each.encode() for each in type]),
        ],
        names=list(Stored._fields),
    )


def rows_in(batch: pa.RecordBatch) -> Iterator[Stored]:
    """The rows of a batch."""
    return map(Stored._make, zip(*(column.to_pylist() for column in batch.columns), strict=True))


def stored_path(path: Path) -> bytes:
    """A path as bytes with its order."""
    return b"".join(
        TEXT + part.encode().replace(b"\0", b"\0\xff") + b"\0\0"
        if isinstance(part, str)
        else INT + _int.pack(part + SIGN)
        for part in path
    )


def path_in(data: bytes) -> Path:
    """A path that was stored.

    Raises:
        CorruptRecord: it is none.
    """
    found: list[int | str] = []
    at = 0
    while at < len(data):
        kind, at = data[at : at + 1], at + 1
        if kind == INT and len(data) >= at + _int.size:
            found.append(_int.unpack_from(data, at)[0] - SIGN)
            at += _int.size
        elif kind == TEXT and (end := data.find(b"\0\0", at)) >= 0:
            found.append(data[at:end].replace(b"\0\xff", b"\0").decode())
            at = end + 2
        else:
            raise CorruptRecord(f"{data!r} is no path of a record")
    return tuple(found)


def pieces_of(section: Section) -> Iterator[Section]:
    """A section in pieces of few bytes; a state is never cut."""
    states, changes, size_bytes = dict[str, msgspec.Raw](), dict[str, msgspec.Raw](), 0
    for into, found in ((states, section.states), (changes, section.changes)):
        for key, raw in found.items():
            if size_bytes >= SECTION_BYTES:
                yield msgspec.structs.replace(section, states={**states}, changes={**changes})
                states.clear()
                changes.clear()
                size_bytes = 0
            into[key] = raw
            size_bytes += len(memoryview(raw)) + len(key)
    if states or changes:
        yield msgspec.structs.replace(section, states=states, changes=changes)
