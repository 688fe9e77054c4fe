"""The ledger: every message of a queue once, as a Delta table that any reader of Delta reads.

`merge` and `sweep` work without Spark; `spark_jobs.draining.merging` says how.  A glob over the folder counts wrongly,
because it also matches what has landed, what contradicts and what a killed merge left: read the files that the newest
version names, as `read_ledger` does, or any reader of Delta.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from outbox.errors import Refused
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import Folder
from spark_jobs.common.places import Place, place_of
from spark_jobs.draining import leftovers
from spark_jobs.draining.leftovers import ORPHAN_AGE_S
from spark_jobs.draining.manifest import refuse_older_form
from spark_jobs.draining.merging import CONFLICTS, CONFLICTS_NAME, LEDGER_NAME, Merged, Merger
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


def ledger_files(path: str | os.PathLike[str]) -> list[str]:
    """The names, within the ledger, of the files that its newest version has; none where there is no ledger yet."""
    return table_files(Table(place_of(str(path), os.environ), LEDGER_NAME))


def table_files(table: Table) -> list[str]:
    """The names of the files of a table's newest version."""
    found = table.read()
    return [] if found is None else list(found.files)


def read_ledger(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """The rows of the newest version.

    Raises:
        Refused: a ledger of the form before Delta; the text has the command that takes it over.
    """
    place = place_of(str(path), os.environ)
    refuse_older_form(place)
    return read_files(spark, place, table_files(Table(place, LEDGER_NAME)))


def read_conflicts(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Messages that carry an identity of the ledger and another type or body, once for each content.

    Conflicts are committed before the ledger's version, so a merge that lost its version may have left one that is the
    ledger's own row by now: what equals the ledger's row is left out.
    """
    place = place_of(str(path), os.environ)
    conflicts = read_files(spark, place / CONFLICTS, table_files(Table(place / CONFLICTS, CONFLICTS_NAME)))
    rows = read_ledger(spark, path).select("message_id", "fingerprint")
    return conflicts.join(rows, ["message_id", "fingerprint"], "left_anti").select(*conflicts.columns)


def read_files(spark: SparkSession, place: Place, names: Iterable[str]) -> DataFrame:
    """Some data files as one frame.

    Raises:
        Refused: Spark opens files of a folder only.
    """
    if not isinstance(place, Folder):
        raise Refused(f"{place}: Spark opens no address; copy the ledger to a folder")
    files = [str(place.path / name) for name in names]
    return spark.read.schema(LEDGER).parquet(*files) if files else spark.createDataFrame([], LEDGER)
