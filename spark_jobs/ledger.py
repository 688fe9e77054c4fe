"""The ledger: every message of a queue once, as a Delta table that any reader of Delta reads.

`merge` and `sweep` work without Spark; `spark_jobs.draining.merging` says how.  A glob over the folder counts wrongly,
because it also matches what has landed, what contradicts and what a killed merge left: read the files that the newest
version names, as `read_ledger` does, or any reader of Delta.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Place, place_of
from spark_jobs.draining import leftovers
from spark_jobs.draining.leftovers import ORPHAN_AGE_S
from spark_jobs.draining.manifest import refuse_older_form
from spark_jobs.draining.merging import CONFLICTS, CONFLICTS_NAME, LEDGER_NAME, Merged, Merger
from spark_jobs.draining.parquet import DataFile, batches
from spark_jobs.draining.received import ROW
from spark_jobs.draining.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEDGER = (
    "message_id string, type string, correlation_id string, causation_id string, traceparent string, "
    "created_ms bigint, enqueued_ms bigint, sequence_number bigint, delivery_count bigint, session_id string, "
    "body string, raw binary, properties string, fingerprint string"
)


def merge(path: str | os.PathLike[str], *, crash_point: CrashPoint = no_crash) -> Merged:
    """Add what has landed to the ledger, each identity once.

    Raises:
        Refused: other mergers won every time, or the table is none of ours.
        OutcomeUnknown: a commit got no answer; run it again.
    """
    return Merger(place_of(str(path), os.environ), crash_point).merge()


def sweep(path: str | os.PathLike[str], *, age_s: float = ORPHAN_AGE_S) -> int:
    """Remove what killed writers left, once it is older than any writer; gives the count."""
    return leftovers.sweep(place_of(str(path), os.environ), age_s=age_s)


def is_ledger(path: str | os.PathLike[str]) -> bool:
    """Whether a ledger is there, with rows or without.

    Raises:
        Refused: one of the form before Delta; the text has the command that takes it over.
    """
    place = place_of(str(path), os.environ)
    refuse_older_form(place)
    return Table(place, LEDGER_NAME).read() is not None


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a ledger: its data files, of which `older` were there in an earlier one already."""

    place: Place
    number: int
    newer: list[DataFile]
    older: list[DataFile]

    @property
    def names(self) -> list[str]:
        """Of all files."""
        return [file.name for file in (*self.newer, *self.older)]


def newest_version(path: str | os.PathLike[str], since: int | None = None) -> Version | None:
    """The newest version, what it has beyond that of `since` apart; None where there is no ledger.

    Raises:
        Refused: a ledger of the form before Delta, or there is no such version; the text has the cure.
    """
    place = place_of(str(path), os.environ)
    refuse_older_form(place)
    table = Table(place, LEDGER_NAME)
    newest = table.read()
    if newest is None:
        return None
    before = {} if since is None else table.files_at(newest, since)
    newer = [file for name, file in newest.files.items() if name not in before]
    older = [file for name, file in newest.files.items() if name in before]
    return Version(place, newest.version, newer, older)


def ledger_files(path: str | os.PathLike[str]) -> list[str]:
    """The names, within the ledger, of the files that its newest version has; none where there is no ledger yet."""
    return [file.name for file in newest_files(path)]


def newest_files(path: str | os.PathLike[str]) -> list[DataFile]:
    """The data files of the newest version; none where there is no ledger yet."""
    return files_of(Table(place_of(str(path), os.environ), LEDGER_NAME))


def read_ledger(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """The rows of the newest version.

    Raises:
        Refused: a ledger of the form before Delta; the text has the command that takes it over.
    """
    place = place_of(str(path), os.environ)
    refuse_older_form(place)
    return read_files(spark, place, newest_files(path))


def read_conflicts(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Messages that carry an identity of the ledger and another type or body, once for each content.

    Conflicts are committed before the ledger's version, so a merge that lost its version may have left one that is the
    ledger's own row by now: what equals the ledger's row is left out.
    """
    beside = place_of(str(path), os.environ) / CONFLICTS
    conflicts = read_files(spark, beside, files_of(Table(beside, CONFLICTS_NAME)))
    rows = read_ledger(spark, path).select("message_id", "fingerprint")
    return conflicts.join(rows, ["message_id", "fingerprint"], "left_anti").select(*conflicts.columns)


def files_of(table: Table) -> list[DataFile]:
    """The files of a table's newest version."""
    found = table.read()
    return [] if found is None else list(found.files.values())


def read_files(spark: SparkSession, place: Place, files: Sequence[DataFile]) -> DataFrame:
    """Some data files as one frame: by Spark in a folder, by tasks through the place anywhere else."""
    if not files:
        return spark.createDataFrame([], LEDGER)
    if isinstance(place, Folder):
        return spark.read.schema(LEDGER).parquet(*(str(place.path / file.name) for file in files))
    numbers = spark.range(0, len(files), 1, len(files))
    return numbers.mapInArrow(partial(read_parts, place.lend(), tuple(files)), LEDGER)


def read_parts(place: Place, files: Sequence[DataFile], parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files whose numbers come in; what an executor does."""
    for part in parts:
        for number in part.column(0).to_pylist():
            for batch in batches(place, files[number], ROW.names):
                yield batch.select(ROW.names)
