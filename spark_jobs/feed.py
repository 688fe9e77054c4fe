"""A DataFrame, or CSV, JSON or Parquet files, to a queue: every row once, however often the job runs.

    python -m spark_jobs.feed --input transfers.csv --queue transfers --type Transfer --id id --connection "$CONNECTION"

Theory of operation.  The first run judges every row and stores the messages with their creation time
(`spark_jobs.feeding.plan`); only then something is sent, chunk by chunk, each ending in a record.  A run that dies
starts again at the first chunk without one.  What it sends twice has equal ids, equal bodies and equal times, whoever
sends it: a retried task, a speculative twin, a second driver, next week's re-run.  The receiver's inbox drops it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("feed", "pyspark", "azure.servicebus")

import msgspec
from pyspark.sql import DataFrame, SparkSession

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.arguments import (
    CONNECTION_HELP,
    Say,
    add_common,
    add_input,
    connection_of,
    ended,
    silent,
    source_of,
    start,
    to_stderr,
)
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.folder import Folder, local_path
from spark_jobs.common.identity import CredentialSource
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Item, Place, check_reached, is_address, joined, place_of
from spark_jobs.common.until import Until, asked_by_signal
from spark_jobs.feeding.app_check import AppCheck
from spark_jobs.feeding.aside import COPIED, Copying, Fed, name_aside
from spark_jobs.feeding.plan import FILES_MAX, ChunkRecord, Manifest, Snapshot, Target, open_plan
from spark_jobs.feeding.shares import Sending, send
from spark_jobs.feeding.watching import Watch, WatchReport
from spark_jobs.reading.files import Files, check_apart, files_at
from spark_jobs.reading.frame import FrameRows
from spark_jobs.reading.input import Input, refusals
from spark_jobs.reading.judging import BODY_BYTES_MAX, Judge, Shape
from spark_jobs.reading.source import Source

if TYPE_CHECKING:
    from azure.core.credentials import TokenCredential


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """The counts of the rows by outcome.

    `progress` is the folder that remembers what was sent, to whatever broker.
    rows = messages + duplicates + all quarantined; `accepted` is what the queue acknowledged in this run, `sent`
    counts what a lost connection made this run send again as well, `skipped` is what earlier runs had sent.
    """

    rows: int
    messages: int
    duplicates: int
    quarantined: dict[str, int]
    sent: int
    accepted: int
    skipped: int
    retries: int
    chunks: int
    chunks_skipped: int
    seconds: float
    progress: str = ""

    @property
    def text(self) -> str:
        """A short table."""
        lines = [
            ("rows", self.rows, ""),
            ("messages", self.messages, "distinct ids"),
            ("duplicates", self.duplicates, "equal rows of an id, sent once"),
            *(("quarantined", count, reason) for reason, count in sorted(self.quarantined.items())),
            ("accepted", self.accepted, f"{self.sent} sent, {self.retries} retries"),
            ("skipped", self.skipped, f"already done: {self.chunks_skipped} of {self.chunks} chunks"),
        ]
        if self.chunks_skipped:
            lines.append(("", self.chunks_skipped, f"chunks done, says {self.progress}; remove it to send all again"))
        table = [f"{name:<12} {count:>12,}  {note}".rstrip() for name, count, note in lines]
        return "\n".join([*table, f"{'seconds':<12} {self.seconds:>12,.1f}"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast, how long and in how many parts; `rate_per_s` 0 and `chunks` 0 leave it to the job.

    Raises:
        Refused: no feed can go on so.
    """

    tasks: int = 2
    chunks: int = 0
    rate_per_s: float = 0.0
    timeout_s: float = 120.0
    bad_ratio_max: float = 1.0

    def __post_init__(self) -> None:
        if self.tasks < 1 or not min(self.chunks, self.rate_per_s, self.timeout_s) >= 0:
            raise Refused("tasks are at least 1; chunks, rate and timeout are not negative")


@dataclass(frozen=True, slots=True)
class Feed:
    """One feed: what goes where and by which folders."""

    target: Target
    source: CredentialSource
    progress: Place
    quarantine: Place
    pace: Pace
    say: Say
    now_ms: Callable[[], int]
    crash_point: CrashPoint


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def feed(
    frame: DataFrame,
    *,
    queue: str,
    type: str,
    id: str | Sequence[str],
    connection: str,
    credential: TokenCredential | None = None,
    created: str = "",
    session: str = "",
    order: str = "",
    app: str = "",
    body_bytes_max: int = BODY_BYTES_MAX,
    progress: str = "",
    quarantine: str = "",
    pace: Pace | None = None,
    say: Say = silent,
    now_ms: Callable[[], int] = wall_ms,
    crash_point: CrashPoint = no_crash,
) -> FeedReport:
    """Send the rows of a frame to a queue, each identity once.

    `id` names one or several key columns, `created` the column of creation times (else the first run's time counts
    for all), `session` the column of session ids, within which `order` (an integer column; else the order of the
    input) decides.  `app`, as `module:app`, sets rows aside that its handlers of the queue could not decode.
    `progress` and `quarantine` are places (`spark_jobs.common.places`), by default folders beside the frame's file.
    `connection` is a connection string, or a host name, for which `credential` signs in (else the
    environment's: `spark_jobs.common.identity`).

    Raises:
        Refused: nothing was sent; the text tells what to change.
        OutcomeUnknown: a part was sent; run the same again, and it goes on where it stopped.
    """
    ids = (id,) if isinstance(id, str) else tuple(id)
    if not (progress and quarantine):
        beside = beside_input(frame.inputFiles())
        progress, quarantine = progress or f"{beside}.feed/{queue}", quarantine or f"{beside}.quarantine"
    shape = Shape(created, session, order, body_bytes_max)
    job = Feed(
        Target(queue, type, ids, shape),
        CredentialSource.of(connection, os.environ, credential),
        place_of(progress, os.environ, credential),
        place_of(quarantine, os.environ, credential),
        pace or Pace(),
        say,
        now_ms,
        crash_point,
    )
    return run(frame.sparkSession, job, FrameRows(frame, Judge(ids, shape, check_of(app, queue, type))))


def check_of(app: str, queue: str, type: str) -> AppCheck | None:
    """The check of rows by an application; None without one.

    Raises:
        Refused: the application takes no such messages.
    """
    if not app:
        return None
    check = AppCheck(app, queue, type, str(Path.cwd()))
    check.check()
    return check


def beside_input(files: Sequence[str]) -> str:
    """The name that folders beside an input begin with.

    Raises:
        Refused: there is no single place to be beside of.
    """
    far = next((file for file in files if is_address(file)), "")
    if far:
        raise Refused(f"the frame was read from {far}; give progress=... and quarantine=..., folders or addresses")
    if len(files) == 1:
        return str(local_path(files[0]))
    folders = {str(local_path(file).parent) for file in files}
    if len(folders) == 1:
        return folders.pop()
    raise Refused("the frame comes from no single file or folder; give progress=... and quarantine=... folders")


def run(spark: SparkSession, job: Feed, rows: Input | FrameRows) -> FeedReport:
    """Plan once, then send every chunk that has no record yet."""
    started_s = time.monotonic()
    snapshot = snapshot_of(rows)
    job.say(f"feed: {snapshot.rows} rows for {job.target.queue}")
    with refusals(rows.check_unchanged):
        folder, manifest = open_plan(
            job.progress,
            job.target,
            snapshot,
            rows,
            now_ms=job.now_ms,
            token=uuid4().hex,
            chunks=job.pace.chunks,
            crash_point=job.crash_point,
        )
    fed = Fed(digest=snapshot.digest, files=list(rows.listing[:FILES_MAX]))
    quarantine_of(job, manifest).create(fed.name, fed.encoded)
    set_aside(spark, job, folder, manifest)
    done = records(folder)
    skipped = len(done)
    for chunk in range(manifest.chunks):
        if chunk not in done:
            done[chunk] = send_chunk(spark, job, folder, manifest, chunk)
            accepted = sum(record.accepted for record in done.values())
            job.say(
                f"feed: chunk {len(done)} of {manifest.chunks}, {accepted} of {manifest.messages} messages accepted, "
                f"{time.monotonic() - started_s:.1f} s"
            )
    return report(manifest, done, skipped, seconds=time.monotonic() - started_s, progress=str(job.progress))


def snapshot_of(rows: Input | FrameRows) -> Snapshot:
    """The snapshot of the input now, by one pass over it."""
    return Snapshot(rows.survey.rows, rows.digest, tuple(sorted(rows.files)[:FILES_MAX]))


def set_aside(spark: SparkSession, job: Feed, folder: Place, manifest: Manifest) -> None:
    """Copy the rejected rows to the quarantine; too many of them stop the feed before anything is sent.

    A file of the stage is a file of the quarantine of the same name, so that who copies it again changes nothing.
    """
    bad = sum(manifest.quarantined.values())
    if not bad:
        return
    target = quarantine_of(job, manifest)
    there = {item.name for item in target.list("rows/", ".json")}
    missing = [file.name for file in manifest.rejected if name_aside(file.name) not in there]
    if missing:
        numbers = spark.range(0, len(missing), 1, min(len(missing), job.pace.tasks))
        copying = Copying(folder.lend(), target.lend(), tuple(missing))
        failed = [row["failed"] for row in numbers.mapInArrow(copying.copy, COPIED).collect() if row["failed"]]
        if failed:
            raise Refused(f"{target} cannot be written: {failed[0]}; nothing was sent")
    reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(manifest.quarantined.items()))
    job.say(f"feed: {bad} rows set aside in {target}/rows: {reasons}")
    if bad == manifest.rows:
        raise Refused(f"not one of {bad} rows can be sent ({reasons}); nothing was sent; see {target}/rows")
    if bad > job.pace.bad_ratio_max * manifest.rows:
        raise Refused(
            f"{bad} of {manifest.rows} rows cannot be sent ({reasons}), more than the ratio {job.pace.bad_ratio_max}; "
            f"nothing was sent; see {target}/rows"
        )


def quarantine_of(job: Feed, manifest: Manifest) -> Place:
    """The part of the quarantine that this plan has, whatever else was fed beside it."""
    return job.quarantine / f"{job.target.queue.replace('/', '~')}.{manifest.stage.removeprefix('stage-')[:16]}"


def records(folder: Place) -> dict[int, ChunkRecord]:
    """The chunks that are sent."""
    found = {}
    for item in folder.list("chunk-", ".json"):
        record = msgspec.json.decode(folder.read(item.name) or b"", type=ChunkRecord)
        found[record.chunk] = record
    return found


def send_chunk(spark: SparkSession, job: Feed, folder: Place, manifest: Manifest, chunk: int) -> ChunkRecord:
    """Send one chunk and record it.

    Raises:
        OutcomeUnknown: the queue did not answer for longer than the limit, or takes nobody that can sign in.
    """
    files, results, failed = manifest.of_chunk(chunk), list[dict[str, Any]](), list[str]()
    if files:
        rate_per_s = job.pace.rate_per_s / job.pace.tasks
        try:
            access = job.source.access()
            settings = Sending(access, manifest.queue, manifest.type, job.pace.timeout_s, rate_per_s)
            results = send(spark, folder, files, settings, job.pace.tasks, by_session=bool(job.target.shape.session))
        except GaveUpError as error:
            failed.append(str(error))
    failed += [row["failed"] for row in results if row["failed"]]
    if failed:
        raise OutcomeUnknown(
            f"queue {manifest.queue}, chunk {chunk + 1} of {manifest.chunks}: {failed[0]}; mend that and run the "
            f"same command again, it goes on at this chunk and repeats only equal ids"
        )
    record = ChunkRecord(
        chunk=chunk,
        accepted=sum(row["accepted"] for row in results),
        sent=sum(row["sent"] for row in results),
        retries=sum(row["retries"] for row in results),
        oversize=sorted(identity for row in results for identity in row["oversize"]),
    )
    job.crash_point("sent")
    if record.oversize:
        lines = [
            {"id": identity, "reason": "oversize", "detail": f"larger than queue {manifest.queue} takes", "row": None}
            for identity in record.oversize
        ]
        text = b"\n".join(map(msgspec.json.encode, lines)) + b"\n"
        quarantine_of(job, manifest).create(f"sending-{chunk:05}.json", text)
    folder.create(f"chunk-{chunk:05}.json", msgspec.json.encode(record))
    job.crash_point("recorded")
    return record


def report(
    manifest: Manifest, done: dict[int, ChunkRecord], skipped: int, *, seconds: float, progress: str
) -> FeedReport:
    """Sum up; the first `skipped` records are earlier runs'."""
    before, now = list(done.values())[:skipped], list(done.values())[skipped:]
    quarantined = dict(manifest.quarantined)
    oversize = sum(len(record.oversize) for record in done.values())
    if oversize:
        quarantined["oversize"] = quarantined.get("oversize", 0) + oversize
    return FeedReport(
        rows=manifest.rows,
        messages=manifest.messages - oversize,
        duplicates=manifest.duplicates,
        quarantined=quarantined,
        sent=sum(record.sent for record in now),
        accepted=sum(record.accepted for record in now),
        skipped=sum(record.accepted for record in before),
        retries=sum(record.retries for record in now),
        chunks=manifest.chunks,
        chunks_skipped=skipped,
        seconds=seconds,
        progress=progress,
    )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.feed", description="Send the rows of files to a queue, each once.")
    add_input(found, required=False)
    found.add_argument("--watch", default="", metavar="PLACE", help="feed its files as they come, each once")
    found.add_argument("--for-s", type=float, default=0.0, metavar="SECONDS", help="end a watch after so long")
    found.add_argument("--files", type=int, default=0, metavar="COUNT", help="end a watch after so many files")
    found.add_argument(
        "--settle-s", type=float, default=5.0, metavar="SECONDS", help="a file is whole that nobody wrote for so long"
    )
    found.add_argument("--queue", required=True)
    found.add_argument("--type", required=True, help="the messages' wire type, for example Transfer")
    found.add_argument("--connection", default="", help=CONNECTION_HELP)
    found.add_argument("--created", default="", metavar="COLUMN", help="creation times; default: the first run's time")
    found.add_argument("--session", default="", metavar="COLUMN", help="session ids, for an ordered queue")
    found.add_argument("--order", default="", metavar="COLUMN", help="order within a session; default: the input's")
    found.add_argument("--app", default="", metavar="MODULE:APP", help="set aside what its handlers cannot decode")
    found.add_argument(
        "--quarantine", default="", metavar="PLACE", help="a folder or an address; default: beside the input"
    )
    found.add_argument(
        "--progress", default="", metavar="PLACE", help="a folder or an address; default: beside the input"
    )
    found.add_argument("--body-bytes-max", type=int, default=BODY_BYTES_MAX)
    found.add_argument(
        "--bad-max", type=float, default=1.0, metavar="RATIO", help="more bad rows stop it before sending"
    )
    found.add_argument("--chunks", type=int, default=0, help="default: one for 50,000 rows")
    found.add_argument("--tasks", type=int, default=2, help="senders at a time")
    found.add_argument("--rate", type=float, default=0.0, metavar="MESSAGES", help="a second, over all tasks")
    found.add_argument("--timeout-s", type=float, default=120.0, help="the longest outage to sit out")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("feed", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    """Feed one input, or what a watch finds.

    Raises:
        Refused: both or neither are named.
    """
    if bool(arguments.input) == bool(arguments.watch):
        raise Refused("say what to feed: --input PATH, or --watch PLACE for files as they come")
    done = fed(arguments) if arguments.input else watched(arguments)
    print(msgspec.json.encode(asdict(done)).decode() if arguments.json else done.text, flush=True)
    return 1 if isinstance(done, WatchReport) and done.failed else 0


def fed(arguments: argparse.Namespace) -> FeedReport:
    """Feed one input."""
    source = source_of(arguments)
    progress = arguments.progress or joined(source.path, f".feed/{arguments.queue}")
    job = job_of(arguments, progress, arguments.quarantine or joined(source.path, ".quarantine"))
    check = check_of(arguments.app, arguments.queue, arguments.type)
    files = files_at(source.path, os.environ)
    files.check()
    if not files.name:
        check_apart(files.place, job.progress, job.quarantine)
    check_reached(job.progress, job.quarantine)
    return feed_source(start("feed", arguments, os.environ), job, source, files, check)


def watched(arguments: argparse.Namespace) -> WatchReport:
    """Feed the files of a place as they come, in one session."""
    until = Until(seconds=arguments.for_s, count=arguments.files, option="--files COUNT")
    place = place_of(arguments.watch, os.environ)
    kept = place_of(arguments.progress or joined(arguments.watch, f".feed/{arguments.queue}"), os.environ)
    aside = arguments.quarantine or joined(arguments.watch, ".quarantine")
    job, check = job_of(arguments, str(kept), aside), check_of(arguments.app, arguments.queue, arguments.type)
    if isinstance(place, Folder) and not place.path.is_dir():
        raise Refused(f"there is no folder {place} to watch; make it, or mend its name")
    check_apart(place, kept, job.quarantine)
    check_reached(place, kept, job.quarantine)
    spark, given = start("feed", arguments, os.environ), source_of(arguments)

    def feed_one(item: Item) -> dict[str, Any]:
        source = replace(given, path=joined(arguments.watch, f"/{item.name}"))
        own = replace(job, progress=kept / "files" / item.name, quarantine=job.quarantine / item.name)
        files = Files(place, item.name)  # its folders below the place are columns of it
        return asdict(feed_source(spark, own, source, files, check))

    with asked_by_signal() as is_asked:
        return Watch(place, kept, feed_one, replace(until, is_asked=is_asked), arguments.settle_s, job.say).run()


def feed_source(spark: SparkSession, job: Feed, source: Source, files: Files, check: AppCheck | None) -> FeedReport:
    """Feed files as their source says to read them."""
    judge = Judge(job.target.ids, job.target.shape, check)
    return run(spark, job, Input(spark, source, judge, files))


def job_of(arguments: argparse.Namespace, progress: str, quarantine: str) -> Feed:
    """Make the feed of a command line."""
    return Feed(
        Target(
            arguments.queue,
            arguments.type,
            tuple(arguments.id or ["id"]),
            Shape(arguments.created, arguments.session, arguments.order, arguments.body_bytes_max),
        ),
        CredentialSource.of(connection_of(arguments, os.environ), os.environ),
        place_of(progress, os.environ),
        place_of(quarantine, os.environ),
        Pace(
            tasks=arguments.tasks,
            chunks=arguments.chunks,
            rate_per_s=arguments.rate,
            timeout_s=arguments.timeout_s,
            bad_ratio_max=arguments.bad_max,
        ),
        silent if arguments.quiet else to_stderr,
        wall_ms,
        no_crash,
    )


if __name__ == "__main__":
    sys.exit(main())
