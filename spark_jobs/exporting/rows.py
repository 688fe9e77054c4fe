"""The rows of an export, the file of them, and the span of a log that a file states."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from outbox.errors import CorruptRecord
from outbox.streams.cells import Position

ENTRY = pa.schema(
    [
        ("position", pa.string()),
        ("index", pa.int64()),
        ("offset", pa.int32()),
        ("id", pa.string()),
        ("at_ms", pa.int64()),
        ("type", pa.string()),
        ("schema", pa.int32()),
        ("value", pa.string()),
    ]
)
"""`value` is the log's JSON, of a schema version; `type` is empty where the log has one type."""
FORMAT = 1
MEASURED = ["index", "offset", "at_ms"]
"""The columns with statistics; others would repeat texts in the footer that readers read first."""


class Entry(NamedTuple):
    """An entry of a log, its value as stored."""

    position: Position
    id: str
    at_ms: int
    type: str
    schema: int
    value: bytes


class Target(Protocol):
    """A table that entries of one row of a log are written to, in order."""

    def reached(self) -> Position | None:
        """Where the next entry belongs; None where there is no table yet.

        Raises:
            Refused: something else is there.
            CorruptRecord: it cannot be read.
        """
        ...

    def add(self, entries: Sequence[Entry], begin: Position, end: Position) -> Position | None:
        """Write the entries of [begin, end); where another writer has written from there on, where it has ended.

        Raises:
            Refused, OutcomeUnknown: they may be written; the same again finds out.
            CorruptRecord: an entry is no text, or what is there cannot be read.
        """
        ...

    def sync(self) -> None:
        """Wait until the disk has all that is there, also of other writers.

        Raises:
            Refused: it cannot.
        """
        ...


@dataclass(frozen=True, slots=True)
class Span:
    """The entries of a row of a log from `begin` on, up to before `end`."""

    log: str
    row: str
    begin: Position
    end: Position

    def encoded(self) -> bytes:
        """The text in the metadata of a file."""
        return msgspec.json.encode(Told(log=self.log, row=self.row, begin=str(self.begin), end=str(self.end)))


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """A span as stored, in the metadata of a file."""

    format: int = FORMAT
    log: str
    row: str
    begin: str
    end: str


def span_of(data: bytes) -> Span:
    """A span from what a file says of itself.

    Raises:
        ValueError: it is none.
    """
    try:
        told = msgspec.json.decode(data, type=Told)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"it does not say what it has: {error}") from error
    if told.format != FORMAT:
        raise ValueError(f"it is of format {told.format}, which a newer build has written, and reads")
    return Span(told.log, told.row, _position(told.begin), _position(told.end))


def _position(text: str) -> Position:
    index, _, offset = text.partition(".")
    return Position(int(index), int(offset))


def encoded(entries: Sequence[Entry], span: Span) -> bytes:
    """A Parquet file of entries, which says which span they are.

    Raises:
        CorruptRecord: a value is no text.
    """
    columns = (
        *([str(entry.position) for entry in entries], [entry.position.index for entry in entries]),
        *([entry.position.offset for entry in entries], [entry.id for entry in entries]),
        *([entry.at_ms for entry in entries], [entry.type for entry in entries]),
        *([entry.schema for entry in entries], [entry.value for entry in entries]),
    )
    try:
        arrays = [pa.array(values, kind) for values, kind in zip(columns, ENTRY.types, strict=True)]
    except pa.ArrowInvalid as error:
        raise CorruptRecord(
            f"log {span.log}, row {span.row}: an entry from {span.begin} on is no UTF-8 text ({error}); restore its "
            "cell from a backup"
        ) from error
    rows = pa.Table.from_arrays(arrays, schema=ENTRY.with_metadata({"outbox": span.encoded()}))
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, use_dictionary=["type"], write_statistics=MEASURED)
    return buffer.getvalue()
