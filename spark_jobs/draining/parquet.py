"""Parquet files of a place: read by ranges, written whole."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from outbox.errors import CorruptRecord
from spark_jobs.common.places import Place

BATCH_ROWS = 65_536
UNREADABLE = (pa.ArrowException, OSError, ValueError)


class Ranged(io.RawIOBase):
    """A file of a place as Parquet's reader wants it: each read is a range."""

    def __init__(self, place: Place, name: str, size: int) -> None:
        super().__init__()
        self.place, self.name, self.size, self.at = place, name, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self.at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self.at, io.SEEK_END: self.size}[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def read(self, size: int = -1) -> bytes:
        wanted = self.size - self.at if size < 0 else size
        data = self.place.read(self.name, self.at, wanted) if wanted > 0 else b""
        if data is None:
            raise FileNotFoundError(f"{self.place / self.name}")
        self.at += len(data)
        return data


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file of a table; a writer need not state its rows."""

    name: str
    size: int
    rows: int | None = None


def batches(place: Place, file: DataFile, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Some columns of a data file, a batch of rows at a time.

    Raises:
        CorruptRecord: the file is missing or no such Parquet file.
    """
    try:
        yield from opened(place, file).iter_batches(BATCH_ROWS, columns=list(columns))
    except UNREADABLE as error:
        raise unreadable(place, file, error) from error


def row_count(place: Place, file: DataFile) -> int:
    """How many rows a data file has, by its footer.

    Raises:
        CorruptRecord: the file is missing or no Parquet file.
    """
    try:
        count: int = opened(place, file).metadata.num_rows
    except UNREADABLE as error:
        raise unreadable(place, file, error) from error
    return count


def opened(place: Place, file: DataFile) -> pq.ParquetFile:
    """A Parquet file whose reads are ranges."""
    return pq.ParquetFile(pa.PythonFile(Ranged(place, file.name, file.size), mode="r"))


def unreadable(place: Place, file: DataFile, error: Exception) -> CorruptRecord:
    """The error of a data file that a version names and nobody can read."""
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return CorruptRecord(f"{place / file.name} cannot be read: {reason}; a version names it, so restore it from a copy")


def encoded(rows: pa.Table) -> bytes:
    """A Parquet file of these rows; ids and fingerprints repeat nowhere, so no dictionary is tried for them."""
    buffer = io.BytesIO()
    plain = {"message_id", "fingerprint", "body", "raw", "properties"}
    pq.write_table(rows, buffer, use_dictionary=[name for name in rows.column_names if name not in plain])
    return buffer.getvalue()
