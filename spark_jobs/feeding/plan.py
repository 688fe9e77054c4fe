"""The plan of a feed: what the first run read, when, and what of it is sent in which chunk.  Written once.

    progress/<run>/manifest.json      settings, snapshot of the input, creation time, counts, name of the stage
    progress/<run>/stage-<token>/     the messages and the rejected rows, as the first run judged them; the manifest
                                      names the files of each chunk and reason, and others there count for nothing
    progress/<run>/chunk-00003.json   this chunk is sent; a restart leaves it out

The manifest is created only where there is none, before anything is sent: every later run, and a twin that started at
the same time, sends the same messages with the same creation time.  Where a column tells the time, a changed input is
a new run (`<run>` is its digest); where the manifest does, a changed input is refused, because a row that was sent
before would get a second creation time and outlive the memory of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol

import msgspec
from pyspark import RDD
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn

from outbox.errors import FormatTooNew, Refused
from spark_jobs.common.crash_points import CrashPoint
from spark_jobs.common.places import Place
from spark_jobs.common.staging import StagedFile, Writing, stage, stage_tasks, staged
from spark_jobs.common.tasks import parted
from spark_jobs.feeding.grouping import (
    CHUNK,
    CONFLICTS,
    STAGED,
    Chunks,
    Packet,
    messages_in,
    messages_of,
    packed,
    partitions_of,
    regrouped,
)
from spark_jobs.reading.input import Pack
from spark_jobs.reading.judging import Shape

FORMAT = 2
"""1: messages in folders `chunk=N` that Spark had written, of rows that it had read."""
MANIFEST = "manifest.json"
ORPHAN_AGE_S = 86_400
CHUNK_MESSAGES = 50_000
CHUNK_COUNT_MAX = 256
FILES_MAX = 10_000
CONFLICT = "conflicting-duplicates"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions of the first run."""

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
    staged: list[StagedFile]
    """Of messages; the value is the chunk."""
    rejected: list[StagedFile]
    """Of rows that are set aside; the value is the reason."""

    def of_chunk(self, chunk: int) -> list[StagedFile]:
        """The files of one chunk."""
        return [file for file in self.staged if file.value == str(chunk)]


class ChunkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of one chunk's run."""

    chunk: int
    accepted: int
    sent: int
    retries: int
    oversize: list[str]


@dataclass(frozen=True, slots=True)
class Target:
    """The identity of a feed: another queue, type, id or shape is another feed."""

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


class Rows(Protocol):
    """The rows of an input, judged (`spark_jobs.reading`)."""

    @property
    def size(self) -> int:
        """How many bytes the rows have."""

    def packets(self, pack: Pack) -> RDD[Packet]:
        """Pack the rows {id, body, created_ms, session, position} that can be sent, by `pack`."""

    def judged(self, *, texts: bool = False) -> DataFrame:
        """Every row, with the reason why it cannot be sent."""

    def check_unchanged(self) -> None:
        """Refuse an input that is not what it was."""


def run_name(target: Target, snapshot: Snapshot) -> str:
    """The folder of a run: one for each state of an input whose rows tell their times, else one."""
    return snapshot.digest[:16] if target.shape.created else "first"


def open_plan(
    folder: Place,
    target: Target,
    snapshot: Snapshot,
    rows: Rows,
    *,
    now_ms: Callable[[], int],
    token: str,
    chunks: int,
    crash_point: CrashPoint,
) -> tuple[Place, Manifest]:
    """The run's folder and its manifest: the first run's, or a new one for this input.

    Raises:
        Refused: the folder belongs to another feed, or the input has changed since.
    """
    run = folder / run_name(target, snapshot)
    existing = run.read(MANIFEST)
    if existing is None:
        place = f"stage-{token}"
        manifest = stage_messages(
            run, place, target, snapshot, rows, now_ms=now_ms, chunks=chunks, crash_point=crash_point
        )
        rows.check_unchanged()
        crash_point("staged")
        if run.create(MANIFEST, msgspec.json.format(msgspec.json.encode(manifest))):
            crash_point("planned")
            return run, manifest
        remove_stages(run, lambda file: file.startswith(f"{place}/"), 0.0)  # a twin was first; its plan counts
        existing = run.read(MANIFEST)
    assert existing is not None
    manifest = check(decode(existing, run), target, snapshot, run)
    remove_stages(run, lambda file: not file.startswith(f"{manifest.stage}/"), ORPHAN_AGE_S)
    return run, manifest


def remove_stages(run: Place, is_meant: Callable[[str], bool], age_s: float) -> None:
    """Remove staged files that nobody's manifest names, once they are so old."""
    orphans = [item for item in run.list("stage-") if is_meant(item.name)]
    horizon_s = run.now_s() - age_s if orphans and age_s else float("inf")
    for orphan in orphans:
        if orphan.changed_s <= horizon_s:
            run.delete(orphan.name)


def decode(data: bytes, run: Place) -> Manifest:
    """A manifest.

    Raises:
        FormatTooNew: a later version wrote it.
        Refused: an earlier one did.
    """
    format = msgspec.json.decode(data).get("format")
    if format == 1:
        raise Refused(
            f"{run}/{MANIFEST} is of an earlier version, which read rows otherwise: let that version finish this feed, "
            "or, if nothing of it was sent, give another --progress folder"
        )
    if format != FORMAT:
        raise FormatTooNew(f"{run}/{MANIFEST} has another format than {FORMAT}; use the version that wrote it")
    return msgspec.json.decode(data, type=Manifest)


def check(manifest: Manifest, target: Target, snapshot: Snapshot, run: Place) -> Manifest:
    """The manifest, if it is this feed's and the input is what it was."""
    known = (manifest.queue, manifest.type, tuple(manifest.ids), manifest.shape)
    if known != (target.queue, target.type, target.ids, asdict(target.shape)):
        raise Refused(
            f"{run} keeps the progress of another feed ({manifest.type} by {', '.join(manifest.ids)} to "
            f"{manifest.queue}, {manifest.shape}); give this one a --progress folder of its own"
        )
    if (manifest.rows, manifest.digest) != (snapshot.rows, snapshot.digest):
        raise Refused(
            f"the input has changed since its first run ({manifest.rows} rows then, {snapshot.rows} now; see "
            f"{run}/{MANIFEST}); feed new rows from a file of their own, or name the column that holds each "
            "row's creation time with --created, which keeps a repeated row's time the same"
        )
    return manifest


def stage_messages(
    run: Place,
    folder: str,
    target: Target,
    snapshot: Snapshot,
    rows: Rows,
    *,
    now_ms: Callable[[], int],
    chunks: int,
    crash_point: CrashPoint,
) -> Manifest:
    """Judge every row once and keep the result: later runs depend on nothing else."""
    created_ms = 0 if target.shape.created else now_ms()
    count = chunks or max(1, min(CHUNK_COUNT_MAX, -(-snapshot.rows // CHUNK_MESSAGES)))
    rejects, files = list[StagedFile](), stage_valid(run, folder, target, rows, count, created_ms, crash_point)
    sent = [file for file in files if file.value != CONFLICTS]
    copies, kept = sum(file.weight for file in sent), sum(file.rows for file in sent)
    if copies != snapshot.rows:  # else every row is in a message, and a second pass would find none
        judged = rows.judged(texts=True)
        differing = staged(judged.sparkSession, run, [file for file in files if file.value == CONFLICTS], STAGED)
        aside = rejected(judged, differing).withColumn("by", fn.col("reason"))
        rejects = stage(aside, Writing(run.lend(), f"{folder}/rejected", "by", crash_point=crash_point))
    quarantined = Counter[str]()
    for file in rejects:
        quarantined[file.value] += file.rows
    if copies + quarantined.total() != snapshot.rows:
        raise Refused(
            f"of {snapshot.rows} rows {copies} can be sent and {quarantined.total()} cannot; the input has changed "
            "while it was read. Nothing was sent; run the same command again"
        )
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
        stage=folder,
        messages=kept,
        duplicates=copies - kept,
        quarantined=dict(sorted(quarantined.items())),
        staged=sent,
        rejected=rejects,
    )


def stage_valid(
    run: Place, folder: str, target: Target, rows: Rows, chunks: int, created_ms: int, crash_point: CrashPoint
) -> list[StagedFile]:
    """Stage the rows that can be sent as messages by chunk, and the identities whose rows differ."""
    making, partitions = Chunks(chunks, created_ms), partitions_of(chunks, rows.size)
    packets, made = parted(rows.packets(partial(packed, partitions)), partitions), messages_of
    if target.shape.session:  # a session's messages stay in one chunk, in order
        packets, made = parted(packets.mapPartitions(partial(regrouped, partitions)), partitions), messages_in
    return stage_tasks(
        packets.mapPartitions(partial(making.of_packets, made)),
        Writing(run.lend(), f"{folder}/messages", CHUNK, "copies", crash_point),
    )


def rejected(judged: DataFrame, conflicts: DataFrame) -> DataFrame:
    """The rows that are set aside: the invalid ones, and all of an identity whose rows differ."""
    differing = judged.where(fn.col("reason").isNull()).join(conflicts, "id", "left_semi")
    told = fn.lit(CONFLICT).alias("reason"), fn.lit("rows of this id differ; which one is meant?").alias("detail")
    place = fn.col("text").alias("row"), "file", "line"
    invalid = judged.where(fn.col("reason").isNotNull()).select("id", "reason", "detail", *place)
    return invalid.unionByName(differing.select("id", *told, *place))
