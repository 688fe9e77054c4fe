"""Rows of a frame as immutable Parquet files of a place: written by tasks, named by whoever commits them.

*Theory of operation.*  Spark opens no address, so each task writes what it holds through a place, as files under names
that nobody else has, and gives their names back.  Spark hands the driver the names of one attempt of each task, and the
driver puts them into a record that exactly one writer creates: what that names is staged, and nothing else.  A retried
or speculative task writes files that nobody names; they go with the stage of a plan that lost, or by their age.

A file holds rows of one value of the column `by`, which is in its record and not in the file, and at most
`FILE_MAX_BYTES` of them as Arrow counts: that, and a copy of it as Parquet, is what a task holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import RDD
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from outbox.errors import CorruptRecord, OutboxError, Refused
from spark_jobs.common.arrow_rows import as_batches
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Place
from spark_jobs.common.tasks import collected, rows_of

FILE_MAX_BYTES = 64 << 20
BATCH_COUNT = 10_000
WRITTEN = "name string, value string, rows bigint, weight bigint, failed string"
WRITTEN_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("value", pa.string()),
        ("rows", pa.int64()),
        ("weight", pa.int64()),
        ("failed", pa.string()),
    ]
)


class StagedFile(msgspec.Struct, frozen=True):
    """A file below the place: its value of `by`, its rows, and the sum of their `weight`."""

    name: str
    value: str
    rows: int
    weight: int = 0


@dataclass(frozen=True, slots=True)
class Writing:
    """Where tasks write to; `by` and `weight` are columns, or empty."""

    place: Place
    folder: str
    by: str = ""
    weight: str = ""
    crash_point: CrashPoint = no_crash


def stage(frame: DataFrame, writing: Writing) -> list[StagedFile]:
    """Write a frame; the files are to be named in a record, or they are nobody's.

    Raises:
        Refused: a task could not write; nothing of it counts.
    """
    ordered = frame.sortWithinPartitions(writing.by) if writing.by else frame
    return named(writing, ordered.mapInArrow(partial(write_files, writing), WRITTEN).collect())


def stage_tasks(made: RDD[pa.RecordBatch], writing: Writing) -> list[StagedFile]:
    """Write the rows of tasks as the files of a frame, those of one value of `by` together.

    Raises:
        Refused: a task could not write; nothing of it counts.
    """
    return named(writing, collected(made.mapPartitions(partial(write_files, writing)).mapPartitions(rows_of)))


def named(writing: Writing, found: Sequence[Row | dict[str, Any]]) -> list[StagedFile]:
    """The files that tasks say they wrote.

    Raises:
        Refused: a task could not write.
    """
    failed = [row["failed"] for row in found if row["failed"]]
    if failed:
        raise Refused(f"{writing.place}/{writing.folder} cannot be written: {failed[0]}")
    return sorted(
        (StagedFile(row["name"], row["value"], row["rows"], row["weight"]) for row in found), key=lambda file: file.name
    )


def staged(
    spark: SparkSession, place: Place, files: Sequence[StagedFile], schema: str | StructType, tasks: int = 0
) -> DataFrame:
    """The rows of some files as one frame; `tasks` read them, one for each if 0."""
    if not files:
        return spark.createDataFrame([], schema)
    names = tuple(file.name for file in files)
    numbers = spark.range(0, len(names), 1, min(len(names), tasks or len(names)))
    return numbers.mapInArrow(partial(read_files, place.lend(), names), schema)


def write_files(writing: Writing, parts: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows ordered by `by`, and yield a row of `WRITTEN` for each file, or one with the failure."""
    try:
        written = [msgspec.structs.asdict(file) for file in _written(writing, parts)]
    except (OutboxError, GaveUpError) as error:
        written = [{"failed": f"{type(error).__name__}: {error}"}]
    if written:
        yield from as_batches(written, WRITTEN_SCHEMA)


def _written(writing: Writing, parts: Iterable[pa.RecordBatch]) -> Iterator[StagedFile]:
    held, held_bytes, held_value = list[pa.RecordBatch](), 0, ""
    for part in parts:
        for value, rows in _runs(part, writing.by):
            if held and (value != held_value or held_bytes + rows.nbytes > FILE_MAX_BYTES):
                yield _file(writing, held_value, held)
                held, held_bytes = [], 0
            held.append(rows)
            held_bytes, held_value = held_bytes + rows.nbytes, value
    if held:
        yield _file(writing, held_value, held)


def _runs(part: pa.RecordBatch, by: str) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The parts of a batch that have one value, without its column."""
    if not part.num_rows:
        return
    if not by:
        yield "", part
        return
    encoded = pc.run_end_encode(part.column(by))
    at = part.schema.get_field_index(by)
    rest = pa.RecordBatch.from_arrays(
        [column for index, column in enumerate(part.columns) if index != at],
        schema=part.schema.remove(at),
    )
    start = 0
    for end, value in zip(encoded.run_ends.to_pylist(), encoded.values.to_pylist(), strict=True):
        yield str(value), rest.slice(start, end - start)
        start = end


def _file(writing: Writing, value: str, held: list[pa.RecordBatch]) -> StagedFile:
    table, sink = pa.Table.from_batches(held), pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", compression_level=1, use_dictionary=False)
    name = f"{writing.folder}/{uuid4().hex}.parquet"
    writing.crash_point("staging")
    writing.place.create(name, sink.getvalue().to_pybytes())
    writing.crash_point("staged file")
    weight = pc.sum(table.column(writing.weight)).as_py() or 0 if writing.weight else 0
    return StagedFile(name, value, table.num_rows, weight)


def read_files(place: Place, names: Sequence[str], parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files whose numbers come in.

    Raises:
        CorruptRecord: one is not there, or is no Parquet file.
    """
    for part in parts:
        for number in part.column(0).to_pylist():
            yield from read_file(place, names[number])


def read_file(place: Place, name: str) -> Iterator[pa.RecordBatch]:
    """The rows of one file.

    Raises:
        CorruptRecord: it is not there, or is no Parquet file.
    """
    data = place.read(name)
    if data is None:
        raise CorruptRecord(f"{place}/{name} is gone, and its rows are in no other file; restore it")
    try:
        yield from pq.ParquetFile(pa.BufferReader(data)).iter_batches(BATCH_COUNT)
    except pa.ArrowInvalid as error:
        raise CorruptRecord(f"{place}/{name} cannot be read: {error}; restore it") from error
