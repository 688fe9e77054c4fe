"""A queue into a ledger, a Delta table that has each message once.

    python -m spark_jobs.consume --queue ledger --output ledger/ --connection "$CONNECTION"

Theory of operation.  Land, complete, then merge.  Receivers on the executors write what they receive into immutable
files and complete it only then (`spark_jobs.draining.landing`); the driver merges the files into the ledger by
identity, without Spark, data and progress in one conditional commit (`spark_jobs.draining.merging`).  A kill anywhere
costs a redelivery or a second merge of the same files, never a row and never a second row.  It ends when the queue was
idle or a count is reached.

With `--follow` it goes on when the queue is idle.  Receivers then wait for messages through a whole round, one Spark
job, and the driver merges behind each round in which something landed.  So a row is in the ledger about a round after
its message came.  A day of rounds of 30 s has at most 2,880 versions, and one more for each 100,000 messages, which end
a round, 2,000 landed files or 256 MB; an idle round makes none.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("consume", "pyspark", "azure.servicebus", "deltalake")

import msgspec
from azure.core.credentials import TokenCredential
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from outbox.errors import OutboxError, OutcomeUnknown, Refused
from spark_jobs.common.arguments import CONNECTION_HELP, Say, add_common, connection_of, ended, silent, start, to_stderr
from spark_jobs.common.crash_points import CrashPoint, no_crash
from spark_jobs.common.identity import CredentialSource
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.common.places import Place, place_of
from spark_jobs.common.until import Until, asked_by_signal, never
from spark_jobs.draining.landing import RESULT, Receiving, land_partition
from spark_jobs.draining.leftovers import sweep
from spark_jobs.draining.looking import waiting_in
from spark_jobs.draining.merging import LANDING, Merged, Merger

ROUND_COUNT_MAX = 100_000
ROUND_S = 60.0
EVERY_S, EVERY_S_MAX = 30.0, 600.0
"""The time that a follower receives before it merges; a round lives on tokens lent at its beginning."""
SWEEP_EVERY_S = 24 * 3_600.0
LOOK_S = 10.0
"""The longest outage to sit out while counting the messages that are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeReport:
    """The messages that this run received, and the new ones among them; `rows` is the ledger's count now.

    `duplicates` were in the ledger already, `conflicts` carry a known identity and another body, `lost_locks` were
    landed but not completed, so they come again.  `left` counts what an idle queue still has, 200 at the most: others
    hold it, as a run that was killed does until its locks end.
    """

    received: int
    added: int
    duplicates: int
    conflicts: int
    lost_locks: int
    rows: int
    version: int
    left: int = 0
    seconds: float

    @property
    def text(self) -> str:
        """A short table."""
        lines = [
            ("received", self.received, "messages landed"),
            ("added", self.added, "rows"),
            ("duplicates", self.duplicates, "in the ledger already"),
            ("conflicts", self.conflicts, "known id, other body; see _conflicts"),
            ("lost locks", self.lost_locks, "landed, come again, no second row"),
            ("ledger", self.rows, f"rows at version {self.version}"),
        ]
        if self.left:
            lines.append(("left", self.left, "or more in the queue, locked by others; run it again when they let go"))
        table = [f"{name:<12} {count:>12,}  {note}" for name, count, note in lines]
        return "\n".join([*table, f"{'seconds':<12} {self.seconds:>12,.1f}"])


@dataclass(frozen=True, slots=True)
class Drain:
    """The queue to drain, the place to drain it to, and the limits."""

    source: CredentialSource
    queue: str
    place: Place
    receivers: int = 2
    count: int | None = None
    idle_s: float = 5.0
    timeout_s: float = 120.0
    sessions: bool = False
    say: Say = silent
    crash_point: CrashPoint = no_crash
    until: Until | None = None
    """Follow the queue until then, rather than until it was idle."""
    every_s: float = EVERY_S
    began_s: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        """Refuse limits that make no sense.

        Raises:
            Refused: with what they are at least.
        """
        check_limits(self.receivers, self.count, self.idle_s, self.every_s)

    @property
    def passed_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began_s

    @property
    def round_s(self) -> float:
        """How long receivers may take this time."""
        return ROUND_S if self.until is None else self.until.left_s(self.passed_s, self.every_s)


def check_limits(receivers: int, count: int | None, idle_s: float, every_s: float) -> None:
    """Refuse limits that make no sense.

    Raises:
        Refused: with what they are at least.
    """
    if receivers < 1 or not idle_s > 0 or (count is not None and count < 1):
        raise Refused("receivers and count are at least 1, idle_s is above 0")
    if not 0 < every_s <= EVERY_S_MAX:
        raise Refused(f"every_s is above 0 and at most {EVERY_S_MAX:g}")


def consume(
    spark: SparkSession,
    *,
    queue: str,
    output: str,
    connection: str,
    credential: TokenCredential | None = None,
    receivers: int = 2,
    count: int | None = None,
    idle_s: float = 5.0,
    timeout_s: float = 120.0,
    sessions: bool = False,
    until: Until | None = None,
    every_s: float = EVERY_S,
    say: Say = silent,
    crash_point: CrashPoint = no_crash,
) -> ConsumeReport:
    """Drain a queue into a ledger until it was idle for `idle_s`, or `count` messages were received.

    With `until` it follows the queue instead, idle or not, and merges what came about every `every_s` seconds.
    `connection` is a connection string, or a host name, for which `credential` signs in (else the environment's:
    `spark_jobs.common.identity`).

    Raises:
        Refused: the output is a ledger of the form before Delta, or a table that consume did not write.
        OutcomeUnknown: the queue cannot be reached; what was landed is in the ledger, run the same again.
    """
    source = CredentialSource.of(connection, os.environ, credential)
    place = place_of(output, os.environ, credential)
    if until is not None and count is None and until.count:
        count = until.count
    job = Drain(source, queue, place, receivers, count, idle_s, timeout_s, sessions, say, crash_point, until, every_s)
    merger = Merger(place, crash_point)
    total = drained(spark, job, merger)
    say_swept(place, say)
    if total.failed:
        raise OutcomeUnknown(
            f"queue {queue}: {total.failed}; the {total.received} messages received are in {output}; mend that and "
            "run the same command again"
        )
    left = left_in(job) if total.idle and until is None and not sessions else 0
    return total.report(merger, left, job.passed_s)


def left_in(job: Drain) -> int:
    """How many messages a queue has though nothing comes; 0 where nobody can tell."""
    try:
        return waiting_in(job.source.access(), job.queue, Patience(LOOK_S, time.monotonic, time.sleep, random.random))
    except GaveUpError as error:
        job.say(f"consume: whether others hold messages of {job.queue} cannot be looked at: {error}")
        return 0


def drained(spark: SparkSession, job: Drain, merger: Merger) -> Totals:
    """Receive and merge in turns until the end; what has landed is merged when this returns."""
    total, swept_s = Totals(), 0.0
    total.add_merge(merger.merge())  # what an earlier run landed
    merger.sync_names()
    while not is_over(job, total):
        try:
            total.add_round(drain_round(spark, job, total.received))
        except GaveUpError as error:
            total.failed = str(error)
        except (Py4JError, PySparkException, ConnectionError) as error:
            if not is_stopped(job, error):
                merger.merge()  # what has landed needs no Spark
                raise
        if merger.is_due():
            total.add_merge(merger.merge())
            job.say(f"consume: {total.received} received, {total.added} added, {job.passed_s:.1f} s")
        if job.passed_s - swept_s >= SWEEP_EVERY_S:
            say_swept(job.place, job.say)
            swept_s = job.passed_s
    return total


def is_stopped(job: Drain, error: Exception) -> bool:
    """Whether a round failed because the signal that asks for the end has ended the JVM as well."""
    is_gone = isinstance(error, ConnectionError | Py4JNetworkError) or "SparkContext was shut down" in str(error)
    return is_gone and job.until is not None and job.until.is_asked()


def is_over(job: Drain, total: Totals) -> bool:
    """Whether no further round is wanted: a queue that was idle ends a job that does not follow it."""
    if total.failed:
        return True
    if job.until is not None:
        return job.until.is_over(job.passed_s, total.received)
    return total.idle or (job.count is not None and total.received >= job.count)


def say_swept(place: Place, say: Say) -> None:
    """Remove leftovers of killed runs; a failure leaves them to the next run, and this one loses nothing."""
    try:
        swept = sweep(place)
    except OutboxError as error:
        say(f"consume: leftovers of earlier runs stay: {error}")
    else:
        if swept:
            say(f"consume: {swept} leftovers of earlier runs removed")


def drain_round(spark: SparkSession, job: Drain, received: int) -> list[Row]:
    """One Spark job: every receiver lands what it gets.

    Raises:
        GaveUpError: the driver could not sign in; nothing was received.
    """
    left = ROUND_COUNT_MAX if job.count is None else min(ROUND_COUNT_MAX, job.count - received)
    settings = Receiving(
        job.source.access(),
        job.queue,
        (job.place / LANDING).lend(),
        tuple(left // job.receivers + (number < left % job.receivers) for number in range(job.receivers)),
        job.idle_s,
        job.round_s,
        job.timeout_s,
        job.sessions,
        job.until is not None,
        job.crash_point,
    )
    numbers = spark.range(0, job.receivers, 1, job.receivers)
    return numbers.mapInArrow(partial(land_partition, settings), RESULT).collect()


@dataclass(slots=True)
class Totals:
    """Sums over the rounds."""

    received: int = 0
    added: int = 0
    duplicates: int = 0
    conflicts: int = 0
    lost_locks: int = 0
    idle: bool = False
    failed: str = ""

    def add_round(self, results: Sequence[Row]) -> None:
        self.received += sum(row["landed"] for row in results)
        self.lost_locks += sum(row["lost"] for row in results)
        # A receiver that spent its budget may have left messages; one that met silence has seen the queue empty.
        self.idle = all(row["idle"] for row in results) or not sum(row["landed"] for row in results)
        self.failed = next((row["failed"] for row in results if row["failed"]), "")

    def add_merge(self, merged: Merged) -> None:
        self.added += merged.added
        self.duplicates += merged.duplicates
        self.conflicts += merged.conflicts

    def report(self, merger: Merger, left: int, seconds: float) -> ConsumeReport:
        newest = merger.table.read_or_create()
        return ConsumeReport(
            received=self.received,
            added=self.added,
            duplicates=self.duplicates,
            conflicts=self.conflicts,
            lost_locks=self.lost_locks,
            rows=newest.rows,
            version=newest.version,
            left=left,
            seconds=seconds,
        )


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(prog="spark_jobs.consume", description="Drain a queue into a ledger, each once.")
    found.add_argument("--queue", required=True, help="a queue, or topic/Subscriptions/name")
    found.add_argument(
        "--output",
        required=True,
        metavar="PLACE",
        help="the ledger, a new one or one to add to",
    )
    found.add_argument("--connection", default="", help=CONNECTION_HELP)
    found.add_argument("--receivers", type=int, default=2, help="at a time, one a task")
    found.add_argument("--count", type=int, help="stop after so many messages")
    found.add_argument("--idle-s", type=float, default=5.0, help="stop when nothing came for so long")
    found.add_argument("--follow", action="store_true", help="go on when nothing comes, until --for-s or --count")
    found.add_argument("--for-s", type=float, default=0.0, metavar="SECONDS", help="end following after so long")
    found.add_argument(
        "--every-s", type=float, default=EVERY_S, metavar="SECONDS", help="following, merge what came so often"
    )
    found.add_argument("--timeout-s", type=float, default=120.0, help="the longest outage to sit out")
    found.add_argument("--sessions", action="store_true", help="the queue is ordered by session")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("consume", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    """Consume as the arguments say; a ledger that is none is refused before Spark starts."""
    connection, until = connection_of(arguments, os.environ), until_of(arguments)
    check_limits(arguments.receivers, arguments.count, arguments.idle_s, arguments.every_s)
    Merger(place_of(arguments.output, os.environ)).check()
    spark = start("consume", arguments, os.environ)
    with asked_by_signal() if until else nullcontext(never) as is_asked:
        done = consume(
            spark,
            queue=arguments.queue,
            output=arguments.output,
            connection=connection,
            receivers=arguments.receivers,
            count=arguments.count,
            idle_s=arguments.idle_s,
            timeout_s=arguments.timeout_s,
            sessions=arguments.sessions,
            until=until and replace(until, is_asked=is_asked),
            every_s=arguments.every_s,
            say=silent if arguments.quiet else to_stderr,
        )
    print(msgspec.json.encode(asdict(done)).decode() if arguments.json else done.text, flush=True)
    return 0


def until_of(arguments: argparse.Namespace) -> Until | None:
    """When following ends; None where the queue is drained.

    Raises:
        Refused: following has no end, or what is drained is given one.
    """
    if arguments.follow:
        return Until(seconds=arguments.for_s, count=arguments.count or 0)
    if arguments.for_s:
        raise Refused("--for-s ends what --follow began; without it the queue is drained until it was idle")
    return None


if __name__ == "__main__":
    sys.exit(main())
