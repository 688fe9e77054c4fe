"""A pipeline on Spark, for history and for what outgrows one machine.

    python -m spark_jobs.pipeline catch-up takings:View --log orders/ --state state/ --until 120000.0

Theory of operation.  A job is a replica that catches up fast (`spark_jobs.replaying.catching_up`).  An epoch reads the
register once, takes entries up to a position, appends what the pipeline puts out, and swaps the register to a
checkpoint there.  A job is as many epochs as there are entries for.  Where it is killed, what it has appended stays,
and the next one takes that over; run twice or beside a live pipeline it changes nothing, because whoever makes a bundle
makes the same.

`--state` is a folder of the embedded engine, which no other process has open: it gets the register, the checkpoints and
the sinks, and `outbox pipeline run --from-state` goes on from there.  With `--store` these are in Cosmos DB or in Blob
Storage, where live replicas may go on meanwhile, and the job exports the source itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("pipeline", "pyspark")

import msgspec
from pyspark.sql import SparkSession

from outbox.engine.engine import Engine
from outbox.errors import OutcomeUnknown, Refused
from outbox.ops.shared.loading import make_pipeline
from outbox.ops.streams.command import BLOB_STATES
from outbox.ops.streams.export import export
from outbox.ops.values.requests import Admin
from outbox.streams import Position
from outbox.streams.log_places import Place as StreamPlace
from outbox.streams.log_places import place_of as stream_place
from outbox.streams.pipeline.checkpoint import PIPELINE, PipelineRegister
from outbox.streams.pipeline.exchange import identity_of
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.release import RELEASES, Release
from outbox.streams.pipeline.tasks import BeginAgain
from outbox.streams.register import RegisterCell
from spark_jobs.common.arguments import Say, add_common, ended, silent, start, to_stderr
from spark_jobs.common.places import Place, place_of
from spark_jobs.common.until import Until, asked_by_signal, never
from spark_jobs.exporting.files import BEGIN, Export, Files, exported, listed
from spark_jobs.exporting.rows import Span
from spark_jobs.replaying.catching_up import TIMEOUT_S, CatchUp, patiently
from spark_jobs.replaying.epoch import Epoch
from spark_jobs.replaying.here import Here
from spark_jobs.replaying.on_spark import OnSpark, Tables
from spark_jobs.replaying.splits import check_begins, check_fits, end_of, span_of
from spark_jobs.replaying.tasks import Replayed

EPOCH_ENTRIES = 1_000_000
DRIVER_ENTRIES, DRIVER_STATES_BYTES = 10_000, 16 << 20
"""The epoch, and the checkpoint before it, that the driver takes itself: on Spark the least epoch needs a second."""
BEGIN_COUNT_MAX = 5
STORE_VARIABLE, BLOBS_VARIABLE = "OUTBOX_STORE", "OUTBOX_BLOBS"
BLOB_MARKS = ("DefaultEndpointsProtocol=", "BlobEndpoint=", "AccountName=", ".blob.")
"""Texts that only addresses and connection strings of Blob Storage have."""
CHAINED = {each.name.replace("_", "-"): each for each in RELEASES if each.chained}


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUpReport:
    """The epochs of a job, from the checkpoint at `begin` to the one at `end`, and their entries."""

    pipeline: str
    begin: str
    end: str
    entries: int
    epochs: int
    seconds: float

    @property
    def text(self) -> str:
        """One line."""
        if self.begin == self.end:
            return f"{self.pipeline}: its checkpoint stands at {self.end}; there is nothing behind it to take"
        return (
            f"{self.pipeline}: {self.entries:,} entries from {self.begin} to {self.end} in {self.epochs} epochs, "
            f"{self.seconds:,.1f} s"
        )


@dataclass(frozen=True, slots=True)
class Job:
    """A pipeline, as `module:name`, the place of its register and sinks, and its source's entries in files.

    `tables` makes what the operators run on, anew for each epoch.
    """

    tables: Callable[[], Tables[Any]]
    name: str
    place: StreamPlace
    log: Place
    scratch: Place
    release: Release = RELEASES[0]
    entries_max: int = EPOCH_ENTRIES
    say: Say = silent
    timeout_s: float = TIMEOUT_S
    admin: Admin | None = None
    """Asked for what the source has more than the files."""
    driver_entries: int = DRIVER_ENTRIES
    """The entries up to which the driver takes an epoch itself, where its states are few as well."""

    def made(self) -> tuple[PipelinePlan, StreamPlace]:
        """The plan of the pipeline over that place, and the place as the pipeline wraps it.

        Raises:
            Refused: there is no such pipeline.
            ReleaseRefused, NotRegistrable: it cannot run here.
        """
        pipeline = make_pipeline(self.name, self.place)
        plan = pipeline.plan(self.release)
        plan.check_release()
        return plan, pipeline.on(self.place)


async def run_epoch(job: Job, until: Position | None = None) -> tuple[Position, Position, int]:
    """Take one epoch: from the checkpoint that stands up to a position, at most `entries_max` entries.

    Returns where it began, where the checkpoint stands now, and how many entries are between.

    Raises:
        Refused: the files do not reach so far, or do not begin at the checkpoint.
        OperatorFailed, NotDeterministic, GraphChanged, Superseded: as a live replica.
    """
    plan, place = job.made()
    export = await _export_of(job, plan)
    end = check_fits(plan, export, job.log, until)
    for _ in range(BEGIN_COUNT_MAX):
        scratch = job.scratch / uuid4().hex
        replica = CatchUp(plan, place, scratch, export.begin, timeout_s=job.timeout_s)
        try:
            await patiently(replica.begin, job.timeout_s)
            return await _epoch(job, plan, export, replica, end)
        except BeginAgain:
            continue
        finally:
            replica.end()
            with suppress(Refused, OutcomeUnknown):  # they take room, and nobody reads them
                for name in replica.files:
                    await asyncio.to_thread(scratch.delete, name)
    raise Refused(f"pipeline {plan.name}: others make checkpoints all the time; run the same command again")


async def _export_of(job: Job, plan: PipelinePlan) -> Export:
    """The source's entries in files; where the source can be asked, with all that it has behind the checkpoint."""
    if job.admin is None:
        return exported(job.log)
    row = plan.source_row()
    _, log, name = row.name.split("/")
    cell = RegisterCell(job.place.store, f"{PIPELINE}{plan.name}", PipelineRegister, new_id=job.place.new_id)
    found = await cell.read()
    begin = Position(await row.first()) if found is None else found.register.stands.c
    await asyncio.to_thread(job.log.create, BEGIN, Span(log, name, begin, begin).encoded())
    try:
        await export(job.admin, partial(Files, job.log), log, name)
    except LookupError as error:  # nobody has written to it
        raise Refused(f"pipeline {plan.name}: {error}") from error
    return exported(job.log) if listed(job.log) else Export(log, name, begin, begin, ())


async def _epoch(
    job: Job, plan: PipelinePlan, export: Export, replica: CatchUp, until: Position
) -> tuple[Position, Position, int]:
    begin = replica.at
    check_begins(plan, export, job.log, begin)
    end = end_of(export, job.log, begin, until, job.entries_max)
    if end <= begin:
        return begin, begin, 0
    pipeline = Replayed(job.name, str(Path.cwd()), identity_of(plan))
    span = span_of(export, job.log, pipeline, begin, end, replica.time_ms)
    is_little = span.count <= job.driver_entries and replica.states_bytes <= DRIVER_STATES_BYTES
    tables = Here() if is_little else job.tables()
    epoch = await asyncio.to_thread(Epoch, tables, plan, span.entries, replica.parts, saves_all=replica.saves_all)
    stands = await replica.take(epoch, end, span.time_ms)
    return begin, stands, span.count


async def catch_up(
    job: Job, until: Position | None = None, follow: Until | None = None, every_s: float = 10.0
) -> CatchUpReport:
    """Take epochs until all entries up to a position (default: what the source has now) are taken.

    With `follow` it goes on with what comes next, an epoch every `every_s` seconds, until that is over.

    Raises:
        Refused, OutcomeUnknown: it has not come so far; run the same again.
    """
    began_s, first, entries, epochs = time.monotonic(), None, 0, 0
    if follow is None and until is None:
        until = (await _export_of(job, job.made()[0])).end  # else there is no end where entries keep coming
    while True:
        turn_s = time.monotonic()
        begin, stands, count = await run_epoch(job, until)
        first = begin if first is None else first
        if count:
            entries, epochs = entries + count, epochs + 1
            job.say(f"pipeline: {entries:,} entries, checkpoint at {stands}, {time.monotonic() - began_s:,.1f} s")
        passed_s = time.monotonic() - began_s
        if not count if follow is None else follow.is_over(passed_s, 0):
            return CatchUpReport(
                pipeline=job.name, begin=str(first), end=str(stands), entries=entries, epochs=epochs, seconds=passed_s
            )
        if follow is not None:
            await asyncio.sleep(max(0.0, follow.left_s(passed_s, every_s) - (time.monotonic() - turn_s)))


def position(text: str) -> Position:
    """A position as it prints."""
    index, _, offset = text.partition(".")
    try:
        found = Position(int(index), int(offset or 0))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no position such as 120000.0") from None
    return found


def seconds(text: str) -> float:
    """A time such as 10s or 2min."""
    for unit, factor in (("min", 60.0), ("h", 3_600.0), ("s", 1.0), ("", 1.0)):
        if text.endswith(unit):
            try:
                found = float(text.removesuffix(unit) if unit else text) * factor
            except ValueError:
                continue
            if 0 < found < 86_400:
                return found
    raise argparse.ArgumentTypeError(f"{text!r} is no time such as 10s")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.pipeline", description="Run a pipeline's operators on Spark.")
    found.add_argument("verb", choices=["catch-up"], help="take entries from the checkpoint that stands on")
    found.add_argument("pipeline", metavar="MODULE:PIPELINE", help="as `outbox pipeline run` takes it")
    found.add_argument("--log", metavar="PLACE", help="the source, as `outbox stream export` wrote it")
    where = found.add_mutually_exclusive_group()
    where.add_argument("--state", type=Path, metavar="FOLDER", help="of an engine: register and sinks")
    where.add_argument(
        "--store",
        metavar="ADDRESS",
        help=f"of Cosmos DB or Blob Storage, which has logs and register; default: {STORE_VARIABLE}",
    )
    found.add_argument("--database", default="outbox", help="of Cosmos DB (outbox)")
    found.add_argument("--container", default="outbox", help="of Cosmos DB (outbox)")
    found.add_argument("--blobs", metavar="ADDRESS", help="of Blob Storage, for checkpoints beside Cosmos DB")
    found.add_argument("--blob-states", default=BLOB_STATES, metavar="NAME", help=f"of Blob Storage ({BLOB_STATES})")
    found.add_argument("--until", type=position, metavar="I.O", help="before this position (the export's end)")
    found.add_argument("--follow", type=seconds, metavar="TIME", help="go on with what is exported next, so often")
    found.add_argument("--for-s", type=float, default=0.0, metavar="SECONDS", help="end following after so long")
    found.add_argument("--release", choices=[*CHAINED], default="in-order", help="when outputs leave (in-order)")
    found.add_argument(
        "--epoch-entries", type=int, default=EPOCH_ENTRIES, metavar="N", help=f"between checkpoints ({EPOCH_ENTRIES:,})"
    )
    found.add_argument(
        "--driver-entries",
        type=int,
        default=DRIVER_ENTRIES,
        metavar="N",
        help="epochs up to it run in the driver (10,000)",
    )
    found.add_argument("--scratch", metavar="PLACE", help="where executors read what the driver wrote (a local folder)")
    found.add_argument("--timeout-s", type=float, default=TIMEOUT_S, help="the longest outage to sit out (120)")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("pipeline", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    """Catch up as the arguments say; what cannot be is refused before Spark starts."""
    follow = until_of(arguments)
    if arguments.state is not None:
        if not arguments.log:
            raise Refused("--state needs --log, the place to which `outbox stream export` wrote the source")
        exported(place_of(arguments.log, os.environ))
    else:
        store_of(arguments)
    spark = start("pipeline", arguments, os.environ)
    with asked_by_signal() if follow else nullcontext(never) as is_asked:
        done = asyncio.run(_command(arguments, spark, follow and replace(follow, is_asked=is_asked)))
    print(msgspec.json.encode(asdict(done)).decode() if arguments.json else done.text, flush=True)
    return 0


async def _command(arguments: argparse.Namespace, spark: SparkSession, follow: Until | None) -> CatchUpReport:
    with tempfile.TemporaryDirectory(prefix="outbox-pipeline-") as folder:
        scratch = place_of(arguments.scratch or folder, os.environ)
        async with opened(arguments) as (place, admin):
            job = Job(
                partial(OnSpark, spark),
                arguments.pipeline,
                place,
                place_of(arguments.log, os.environ) if arguments.log else scratch / "log",
                scratch,
                CHAINED[arguments.release],
                arguments.epoch_entries,
                silent if arguments.quiet else to_stderr,
                arguments.timeout_s,
                admin,
                arguments.driver_entries,
            )
            return await catch_up(job, arguments.until, follow, arguments.follow or 0.0)


@asynccontextmanager
async def opened(arguments: argparse.Namespace) -> AsyncIterator[tuple[StreamPlace, Admin | None]]:
    """The place of the register and the sinks; where the source is there as well, whom to ask for it."""
    if arguments.state is not None:
        async with Engine.open(arguments.state) as engine:
            yield stream_place(engine), None
        return
    from outbox.ops.admins.azure import Addresses, connect_streams  # its SDKs take half a second to import

    store = store_of(arguments)
    is_blobs = any(mark in store for mark in BLOB_MARKS)
    addresses = Addresses(
        cosmos="" if is_blobs else store,
        servicebus="",
        database=arguments.database,
        container=arguments.container,
        blobs=store if is_blobs else arguments.blobs or os.environ.get(BLOBS_VARIABLE, ""),
        blob_states=arguments.blob_states if is_blobs else "",
    )
    async with connect_streams(addresses) as (place, admin):
        yield place, admin


def store_of(arguments: argparse.Namespace) -> str:
    """The address of the store that has the logs and the register; no list of processes shows the environment's.

    Raises:
        Refused: there is neither that nor a folder.
    """
    store = str(arguments.store or os.environ.get(STORE_VARIABLE, ""))
    if not store:
        raise Refused(f"say where register and sinks are: --state FOLDER, --store ADDRESS, or {STORE_VARIABLE}")
    return store


def until_of(arguments: argparse.Namespace) -> Until | None:
    """When following ends; None where nothing is followed.

    Raises:
        Refused: following is given no end, or one that it does not have.
    """
    if arguments.epoch_entries < 1:
        raise Refused("--epoch-entries is at least 1")
    if arguments.follow:
        if arguments.until:
            raise Refused("--follow goes on behind --until; leave one of them out")
        return Until(seconds=arguments.for_s or 86_400.0 * 365)
    if arguments.for_s:
        raise Refused("--for-s ends what --follow began")
    return None


if __name__ == "__main__":
    sys.exit(main())
