"""The ledger: every message of a queue once, as Parquet files that a log of commits names.

    ledger/data/<version>-<token>/part-*.parquet    rows
    ledger/_landing/<token>.parquet                 what receivers landed, merged or not yet
    ledger/_log/                                    spark_jobs.draining.manifest

Theory of operation.  `merge` reads what has landed and no commit has consumed, keeps one row for each identity that
the ledger does not hold, writes it under a new name and commits names and consumed files in one record, on condition
that the version it read is still the newest.  Two mergers may race: one commit is lost, and its owner decides anew.
Equal identity with another type or body is no duplicate but a conflict; it is kept beside the ledger, not in it.
Deduplication is against everything committed, so a message that comes back after a year is still found.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as fn

from outbox.errors import Refused
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import TMP_SUFFIX, Folder, older_than
from spark_jobs.draining.manifest import LANDING, Commit, ManifestLog, State

DATA = "data"
CONFLICTS = "_conflicts"
LEDGER = (
    "message_id string, type string, correlation_id string, causation_id string, traceparent string, "
    "created_ms bigint, enqueued_ms bigint, sequence_number bigint, delivery_count bigint, session_id string, "
    "body string, raw binary, properties string, fingerprint string"
)
ATTEMPT_COUNT_MAX = 20
ORPHAN_AGE_S = 3_600
"""Longer than any merge or receiver's batch, so that nobody's unfinished work is swept."""


@dataclass(frozen=True, slots=True)
class Merged:
    """What one merge did: landed rows, those that were new, those seen before, those that contradict."""

    version: int = 0
    landed: int = 0
    added: int = 0
    duplicates: int = 0
    conflicts: int = 0


def read_ledger(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """The committed rows, and nothing that a writer left unfinished."""
    folder = Folder(path)
    return read_files(spark, folder, ManifestLog(folder.path).read().files)


def read_conflicts(spark: SparkSession, path: str | os.PathLike[str]) -> DataFrame:
    """Messages that carry an identity of the ledger and another type or body."""
    folder = Folder(path)
    return read_files(spark, folder, ManifestLog(folder.path).read().conflicts)


def read_files(spark: SparkSession, folder: Folder, names: Iterable[str]) -> DataFrame:
    """Some files of a ledger as one frame."""
    files = [str(folder.path / name) for name in names]
    return spark.read.schema(LEDGER).parquet(*files) if files else spark.createDataFrame([], LEDGER)


def merge(
    spark: SparkSession,
    path: str | os.PathLike[str],
    *,
    token: str | None = None,
    crash_point: CrashPoint = no_crash,
) -> Merged:
    """Add what has landed to the ledger, each identity once.

    Raises:
        Refused: other mergers won every time.
    """
    folder, log = Folder(path), ManifestLog(path)
    for attempt in range(ATTEMPT_COUNT_MAX):
        state = log.read()
        consumed = set(state.consumed)
        waiting = [name for name in (folder / LANDING).names(".parquet") if name not in consumed]
        if not waiting:
            return Merged(version=state.version)
        name = f"{state.version + 1:08}-{token or uuid4().hex}-{attempt}"
        merged, commit = prepare(spark, folder, state, waiting, name)
        crash_point("prepared")
        if log.append(state, commit):
            crash_point("committed")
            return merged
        for place in (DATA, CONFLICTS):  # another merger was first: its commit may hold these rows
            shutil.rmtree(folder.path / place / name, ignore_errors=True)
    raise Refused(f"{folder.path}: {ATTEMPT_COUNT_MAX} commits were lost to other mergers; let one of them finish")


def prepare(spark: SparkSession, folder: Folder, state: State, waiting: list[str], name: str) -> tuple[Merged, Commit]:
    """Write the data files of the next version; nobody reads them before the commit."""
    landed = read_files(spark, folder, [f"{LANDING}/{file}" for file in waiting])
    marked = judged(landed, read_files(spark, folder, state.files)).persist()
    try:
        counts = {row["verdict"]: row["count"] for row in marked.groupBy("verdict").count().collect()}
        add = write(marked, "new", folder, f"{DATA}/{name}") if counts.get("new") else []
        conflicts = write(marked, "conflict", folder, f"{CONFLICTS}/{name}") if counts.get("conflict") else []
    finally:
        marked.unpersist()
    merged = Merged(
        version=state.version + 1,
        landed=sum(counts.values()),
        added=counts.get("new", 0),
        duplicates=counts.get("duplicate", 0),
        conflicts=counts.get("conflict", 0),
    )
    commit = Commit(version=merged.version, add=add, conflicts=conflicts, consumed=waiting, rows=merged.added)
    return merged, commit


def judged(landed: DataFrame, committed: DataFrame) -> DataFrame:
    """Landed rows with a verdict: new, duplicate or conflict.

    Of several copies the first delivery counts; its fingerprint decides what the others are.
    """
    first = Window.partitionBy("message_id").orderBy("sequence_number", "delivery_count", "fingerprint")
    known = committed.select("message_id", fn.col("fingerprint").alias("known"))
    ranked = landed.withColumn("rank", fn.row_number().over(first)).withColumn(
        "own", fn.first("fingerprint").over(first)
    )
    return (
        ranked.join(known, "message_id", "left")
        .withColumn(
            "verdict",
            fn.when(fn.col("fingerprint") != fn.coalesce("known", "own"), "conflict")
            .when(fn.col("known").isNotNull() | (fn.col("rank") > 1), "duplicate")
            .otherwise("new"),
        )
        .select(*landed.columns, "verdict")
    )


def write(marked: DataFrame, verdict: str, folder: Folder, name: str) -> list[str]:
    """Write the rows of one verdict; gives the files' names within the ledger."""
    marked.where(fn.col("verdict") == verdict).drop("verdict").write.parquet(str(folder.path / name))
    return [f"{name}/{file}" for file in Folder(folder.path / name).names(".parquet")]


def sweep(path: str | os.PathLike[str], *, age_s: float = ORPHAN_AGE_S) -> int:
    """Remove what killed writers left and what is merged, once it is older than any writer; gives the count."""
    folder, state = Folder(path), ManifestLog(path).read()
    named = {Path(name).parent.name for name in (*state.files, *state.conflicts)}
    consumed = set(state.consumed)
    landing = folder.path / LANDING
    gone = [file for file in landing.glob("*.parquet") if file.name in consumed] + list(landing.glob(f"*{TMP_SUFFIX}"))
    for place in (DATA, CONFLICTS):
        gone += [part for part in (folder.path / place).glob("*") if part.name not in named]
    old = older_than(gone, age_s)
    for item in old:
        if item.is_dir():
            shutil.rmtree(item, ignore_errors=True)
        else:
            item.unlink(missing_ok=True)
    return len(old)
