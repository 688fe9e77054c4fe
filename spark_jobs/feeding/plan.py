"""The plan of a feed: what the first run read, when, and what of it is sent in which chunk.  Written once.

    progress/<run>/manifest.json      settings, snapshot of the input, creation time, counts, name of the stage
    progress/<run>/stage-<token>/     the messages, by chunk, and the rejected rows if any, as the first run judged them
    progress/<run>/chunk-00003.json   this chunk is sent; a restart leaves it out

The manifest is created only where there is none, before anything is sent: every later run, and a twin that started at
the same time, sends the same messages with the same creation time.  Where a column tells the time, a changed input is
a new run (`<run>` is its digest); where the manifest does, a changed input is refused, because a row that was sent
before would get a second creation time and outlive the memory of the first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as fn

from outbox.errors import FormatTooNew, Refused
from spark_jobs.common.crash_points import CrashPoint
from spark_jobs.common.folder import Folder, older_than
from spark_jobs.transforms import Shape, chunk_of, judged, messages, rejected

FORMAT = 1
MANIFEST = "manifest.json"
ORPHAN_AGE_S = 86_400
CHUNK_MESSAGES = 50_000
CHUNK_COUNT_MAX = 256
FILES_MAX = 10_000


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the first run fixed."""

    format: int
    queue: str
    type: str
    ids: list[str]
    shape: dict[str, Any]
    created_ms: int
    rows: int
    digest: str
    files: list[tuple[str, int]]
    chunks: int
    stage: str
    messages: int
    duplicates: int
    quarantined: dict[str, int]


class ChunkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What one chunk's run counted."""

    chunk: int
    accepted: int
    sent: int
    retries: int
    oversize: list[str]


@dataclass(frozen=True, slots=True)
class Target:
    """What a feed is: another queue, type, id or shape is another feed."""

    queue: str
    type: str
    ids: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The input as it was read: rows, a digest of their contents in any order, the files and their sizes."""

    rows: int
    digest: str
    files: tuple[tuple[str, int], ...] = ()


def snapshot_of(raw: DataFrame) -> Snapshot:
    """One pass over the input."""
    return snapshot_with(raw)[0]


def snapshot_with(raw: DataFrame, *also: Column) -> tuple[Snapshot, Row]:
    """The same, and the row with what other aggregates have found in that pass."""
    whole = fn.to_json(fn.struct(*(fn.col(f"`{name}`") for name in raw.columns)))
    total = fn.sum(fn.xxhash64(whole).cast("decimal(20,0)"))
    found = raw.agg(fn.count(fn.lit(1)).alias("rows"), total.cast("string").alias("total"), *also).collect()[0]
    digest = sha256(f"{found['rows']}:{found['total']}:{raw.schema.simpleString()}".encode()).hexdigest()
    return Snapshot(found["rows"], digest, files_of(raw)), found


def files_of(raw: DataFrame) -> tuple[tuple[str, int], ...]:
    """Names and sizes of the files behind a frame, for people to look at; none for a frame made in memory."""
    names = sorted(raw.inputFiles())[:FILES_MAX]
    if not names:
        return ()
    listed = raw.sparkSession.read.format("binaryFile").load(names).select("path", "length").collect()
    return tuple(sorted((row["path"], row["length"]) for row in listed))


def open_plan(
    folder: Folder,
    target: Target,
    snapshot: Snapshot,
    rows: Callable[[], DataFrame],
    *,
    now_ms: Callable[[], int],
    token: str,
    chunks: int,
    crash_point: CrashPoint,
) -> tuple[Folder, Manifest]:
    """The run's folder and its manifest: the first run's, or a new one for this input.

    Raises:
        Refused: the folder belongs to another feed, or the input has changed since.
    """
    run = folder / (snapshot.digest[:16] if target.shape.created else "first")
    existing = run.read(MANIFEST)
    if existing is None:
        stage = f"stage-{token}"
        manifest = stage_messages(run, stage, target, snapshot, rows(), now_ms=now_ms, chunks=chunks)
        crash_point("staged")
        if run.create(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest))):
            crash_point("planned")
            return run, manifest
        shutil.rmtree(run.path / stage, ignore_errors=True)  # a twin was first; its plan counts
        existing = run.read(MANIFEST)
    assert existing is not None
    manifest = check(decode(existing, run), target, snapshot, run)
    for orphan in older_than(run.path.glob("stage-*"), ORPHAN_AGE_S):
        if orphan.name != manifest.stage:
            shutil.rmtree(orphan, ignore_errors=True)
    return run, manifest


def decode(data: bytes, run: Folder) -> Manifest:
    if msgspec.json.decode(data).get("format") != FORMAT:
        raise FormatTooNew(f"{run.path / MANIFEST} has another format than {FORMAT}; use the version that wrote it")
    return msgspec.json.decode(data, type=Manifest)


def check(manifest: Manifest, target: Target, snapshot: Snapshot, run: Folder) -> Manifest:
    """The manifest, if it is this feed's and the input is what it was."""
    known = (manifest.queue, manifest.type, tuple(manifest.ids), manifest.shape)
    if known != (target.queue, target.type, target.ids, asdict(target.shape)):
        raise Refused(
            f"{run.path} keeps the progress of another feed ({manifest.type} by {', '.join(manifest.ids)} to "
            f"{manifest.queue}, {manifest.shape}); give this one a --progress folder of its own"
        )
    if (manifest.rows, manifest.digest) != (snapshot.rows, snapshot.digest):
        raise Refused(
            f"the input has changed since its first run ({manifest.rows} rows then, {snapshot.rows} now; see "
            f"{run.path / MANIFEST}); feed new rows from a file of their own, or name the column that holds each "
            "row's creation time with --created, which keeps a repeated row's time the same"
        )
    return manifest


def stage_messages(
    run: Folder,
    stage: str,
    target: Target,
    snapshot: Snapshot,
    rows: DataFrame,
    *,
    now_ms: Callable[[], int],
    chunks: int,
) -> Manifest:
    """Judge every row once and keep the result: later runs depend on nothing else."""
    created_ms = 0 if target.shape.created else now_ms()
    count = chunks or max(1, min(CHUNK_COUNT_MAX, -(-snapshot.rows // CHUNK_MESSAGES)))
    judged_rows = judged(rows, target.shape)
    key = fn.col("session" if target.shape.session else "id")  # a session's messages stay in one chunk, in order
    staged = messages(judged_rows).withColumn("created_ms", fn.coalesce("created_ms", fn.lit(created_ms)))
    path = run.path / stage
    staged.withColumn("chunk", chunk_of(key, count)).write.partitionBy("chunk").parquet(f"{path}/messages")
    spark, reasons = rows.sparkSession, list[Row]()
    totals = spark.read.schema(STAGED).parquet(f"{path}/messages").agg(fn.count("id"), fn.sum("copies")).collect()[0]
    if totals[1] != snapshot.rows:  # else every row is in a message, and a second pass would find none
        rejected(judged_rows).write.parquet(f"{path}/rejected")
        reasons = spark.read.schema(REJECTED).parquet(f"{path}/rejected").groupBy("reason").count().collect()
    return Manifest(
        format=FORMAT,
        queue=target.queue,
        type=target.type,
        ids=list(target.ids),
        shape=asdict(target.shape),
        created_ms=created_ms,
        rows=snapshot.rows,
        digest=snapshot.digest,
        files=list(snapshot.files),
        chunks=count,
        stage=stage,
        messages=totals[0],
        duplicates=(totals[1] or 0) - totals[0],
        quarantined={row["reason"]: row["count"] for row in sorted(reasons)},
    )


STAGED = "id string, body string, created_ms bigint, session string, position bigint, copies bigint"
REJECTED = "id string, reason string, detail string, row string"
