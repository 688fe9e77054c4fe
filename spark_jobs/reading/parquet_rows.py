"""Parquet by row groups: Arrow batches of a size that is bounded by the bytes of their rows.

Files of one input may have different columns: a row has those of its own file, and one that is missing is as a null.
A column that several files have is of one group of types in all of them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from outbox.errors import Refused
from spark_jobs.reading.arrow import groups_of
from spark_jobs.reading.files import File, Files

BATCH_ROWS, BATCH_BYTES = 8_192, 16 * 1024 * 1024
GROUP_BYTES_MAX = 4 * 1024**3
BUFFER_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file: its columns with their groups of types, rows and bytes of each row group."""

    columns: tuple[tuple[str, str], ...]
    groups: tuple[tuple[int, int], ...]


def footer_of(files: Files, file: File) -> Footer:
    """The footer of a file.

    Raises:
        Refused: it is no whole Parquet file, or holds what has no JSON.
    """
    name = files.shown(file)
    with files.open(file) as raw:
        told = opened(raw, name)
        schema, metadata = told.schema_arrow, told.metadata
        columns = groups_of(schema, name)
        sizes = [(metadata.row_group(at).num_rows, metadata.row_group(at).total_byte_size) for at in
                 range(metadata.num_row_groups)]  # fmt: skip
    for at, (_, size) in enumerate(sizes):
        if size > GROUP_BYTES_MAX:
            raise Refused(f"{name}: row group {at} has {size:,} bytes; write groups of at most {GROUP_BYTES_MAX:,}")
    return Footer(tuple(columns.items()), tuple(sizes))


def opened(raw: io.RawIOBase, name: str) -> pq.ParquetFile:
    """A Parquet file to read from.

    Raises:
        Refused: it is none, or is not whole.
    """
    try:
        return pq.ParquetFile(pa.PythonFile(raw, mode="r"), coerce_int96_timestamp_unit="us", pre_buffer=False,
                              buffer_size=BUFFER_BYTES)  # fmt: skip
    except (pa.ArrowException, OSError) as error:
        raise Refused(f"{name} is no whole Parquet file: {str(error).partition(chr(10))[0]}") from None


def batches(
    files: Files, file: File, group: int, rows: int, size: int, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a row group, with the columns among `columns` that the file has.

    Raises:
        Refused: they cannot be read.
    """
    name = files.shown(file)
    with files.open(file) as raw:
        told = opened(raw, name)
        wanted = max(1, min(BATCH_ROWS, BATCH_BYTES * rows // max(1, size)))
        legacy = {
            told.schema.column(at).path for at in range(len(told.schema))
            if told.schema.column(at).physical_type == "INT96"
        }  # fmt: skip
        names = None if columns is None else [name for name in told.schema_arrow.names if name in columns]
        try:
            for batch in told.iter_batches(wanted, row_groups=[group], columns=names):
                yield zoned(batch, legacy)
        except (pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise Refused(f"{name}: row group {group} cannot be read: {reason}; write the file again") from None


def zoned(batch: pa.RecordBatch, legacy: set[str]) -> pa.RecordBatch:
    """The same with times of Spark's old form as what they are: times in UTC."""
    if not legacy:
        return batch
    columns = [
        column.cast(pa.timestamp("us", "UTC")) if name in legacy else column
        for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)
