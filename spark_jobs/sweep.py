"""Finish what crashes have left in a store, over many of its partitions at a time.

    python -m spark_jobs.sweep --database bank            # OUTBOX_COSMOS and OUTBOX_SERVICEBUS say where

Every worker and every Functions app has a sweeper; this is for the day when they left so much that one process would
take too long: after an outage of a namespace, a deployment that could not send, a host that was gone for a week.

Theory of operation.  The driver asks the store by which ranges of hashed keys it lies apart, and gives one to each
task.  A task goes over what is unfinished in its range by the runtime's own sweep (`spark_jobs.sweeping`): stored
bytes leave under their stored ids, and every write is conditional.  So nothing has to be remembered: a task that is
tried again, a twin, a second job, workers at work beside it only find less to do, and a job that was killed is run
again.  What a document needs of its application is how long records live, and that is registered in the store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path

if not __package__:  # run by its path, as spark-submit does
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from spark_jobs.common.installed import check_installed

    check_installed("sweep", "pyspark", "azure.servicebus")

import msgspec
from pyspark.sql import SparkSession

from outbox.azure.connecting import CONTAINER, connect
from outbox.azure.cosmos.placed_states import PlacedStates
from outbox.azure.cosmos.store import CosmosStateStore
from outbox.errors import Refused
from outbox.ports import Backend, StateStore
from outbox.runtime.scopes import longest_life, stores_of
from spark_jobs.common.arguments import CONNECTION_VARIABLE, Say, add_common, ended, silent, start, to_stderr
from spark_jobs.common.identity import connect_lent, lent_for
from spark_jobs.sweeping import RESULT, Part, Sweeping, opened, sweep_parts

GRACE_S = 300.0
"""Longer than a worker's own sweeper waits, and than the clocks of pool and workers may be apart."""
TASKS, LANES, LIMIT_S = 8, 16, 3_600.0
COUNTED = ("finished", "young", "foreign", "left", "unsent", "reads")
PART_COUNT_MAX = 10_000
TROUBLE_COUNT_MAX = 20
COSMOS_VARIABLE, BLOBS_VARIABLE, DATABASE_VARIABLE = "OUTBOX_COSMOS", "OUTBOX_BLOBS", "OUTBOX_DATABASE"
ADDRESSES = {
    COSMOS_VARIABLE: "__accountEndpoint",
    CONNECTION_VARIABLE: "__fullyQualifiedNamespace",
    BLOBS_VARIABLE: "__blobServiceUri",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """The counts of all parts' unfinished documents by outcome.

    `left` could not be finished now, `unsent` counts pushes that failed, `reads` beyond `parts` are those that began
    again.  Where Spark ran a task twice, the second one's counts stand: it found what was left.
    """

    parts: int
    finished: int
    young: int
    foreign: int
    left: int
    unsent: int
    reads: int
    oldest_s: float
    seconds: float
    is_whole: bool
    troubles: list[str]

    @property
    def seen(self) -> int:
        """Unfinished documents."""
        return self.finished + self.young + self.foreign + self.left

    @property
    def ok(self) -> bool:
        """Whether every part was read, and all old enough documents are finished."""
        return self.is_whole and not self.left and not self.foreign

    @property
    def text(self) -> str:
        """A short table."""
        rows = [
            ("seen", self.seen, f"unfinished documents, in {self.parts} parts of the store"),
            ("finished", self.finished, "sent and marked, or cleared"),
            ("young", self.young, "left to whoever is at work on them"),
            ("left", self.left, f"could not be finished now, {self.unsent} pushes failed"),
            ("foreign", self.foreign, "not ours; the log of the executors names them"),
        ]
        lines = [f"{name:<12} {count:>12,}  {note}" for name, count, note in rows]
        lines += [f"{'oldest, s':<12} {self.oldest_s:>12,.1f}", f"{'seconds':<12} {self.seconds:>12,.1f}"]
        return "\n".join([*lines, *(f"    {trouble}" for trouble in self.troubles)])


def sweep(
    spark: SparkSession,
    connect: Callable[[], Backend],
    *,
    grace_s: float = GRACE_S,
    tasks: int = TASKS,
    lanes: int = LANES,
    limit_s: float = LIMIT_S,
    say: Say = silent,
) -> SweepReport:
    """Finish documents unfinished for longer than `grace_s`, in at least `tasks` tasks of `lanes` sweeps each.

    `connect` makes a backend, on the driver and on every executor; a task stops taking up documents after `limit_s`.

    Raises:
        Refused: the backend has nothing to sweep, or no application ever ran on it.
    """
    started_s = time.monotonic()
    settings = Sweeping(connect=connect, life_ms=0, margin_ms=0, grace_s=grace_s, lanes=lanes, limit_s=limit_s)
    parts, settings = in_thread(lambda: survey(settings, tasks))
    say(f"sweep: {len(parts)} parts, what is older than {grace_s:g} s, by {lanes} at a time in each")
    numbers = spark.range(0, len(parts), 1, len(parts))
    # Collected once and used in no other job: another reading of this frame would sweep once more.
    rows = numbers.mapInArrow(partial(sweep_parts, settings, parts), RESULT).collect()
    troubles = [f"{row['part']}: {trouble}" for row in rows for trouble in row["troubles"]]
    return SweepReport(
        parts=len(rows),
        **{name: sum(row[name] for row in rows) for name in COUNTED},
        oldest_s=max(row["oldest_s"] for row in rows),
        seconds=time.monotonic() - started_s,
        is_whole=all(row["is_whole"] for row in rows),
        troubles=troubles[:TROUBLE_COUNT_MAX],
    )


def in_thread(run: Callable[[], tuple[list[Part], Sweeping]]) -> tuple[list[Part], Sweeping]:
    """Run something with an event loop of its own, even where one runs already, as in a notebook."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(run).result()


def survey(settings: Sweeping, task_count: int) -> tuple[list[Part], Sweeping]:
    """The parts to sweep, and the settings with the life of their records."""
    return asyncio.run(surveyed(settings, task_count))


async def surveyed(settings: Sweeping, task_count: int) -> tuple[list[Part], Sweeping]:
    """Ask the backend by which ranges it lies apart, and what its applications have registered."""
    async with AsyncExitStack() as stack:
        ports = await opened(stack, settings.connect)
        life_ms, margin_ms = await longest_life(ports.infrastructure or ports.store)
        parts = [
            part for number, store in enumerate(stores_of(ports)) for part in await parts_of(number, store, task_count)
        ]
    if len(parts) > PART_COUNT_MAX:
        raise Refused(f"{len(parts)} parts are over {PART_COUNT_MAX}; give fewer --tasks")
    return parts, replace(settings, life_ms=life_ms, margin_ms=margin_ms)


async def parts_of(number: int, store: StateStore, count: int) -> list[Part]:
    """Split a store into at least `count` parts: ranges where it has some, else shares."""
    if not isinstance(store, CosmosStateStore | PlacedStates):
        return [Part(number, share=share, shares=count) for share in range(count)]
    ranges = await store.key_ranges()
    each = -(-count // len(ranges))
    return [Part(number, part.start, part.end) for whole in ranges for part in whole.split(each)]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="spark_jobs.sweep", description="Finish what crashes have left, over many partitions at a time."
    )
    found.add_argument("--database", default="", help=f"of Cosmos DB; default: {DATABASE_VARIABLE}")
    found.add_argument("--container", default=CONTAINER)
    found.add_argument("--scope", choices=("partition", "item"), default="partition", help="as the workers have it")
    found.add_argument("--backend", default="", metavar="MODULE:FUNCTION", help="makes a backend; instead of Cosmos DB")
    found.add_argument("--grace-s", type=float, default=GRACE_S, help="how long something may be unfinished")
    found.add_argument("--tasks", type=int, default=TASKS, help="at least so many parts of the store")
    found.add_argument("--lanes", type=int, default=LANES, help="documents at a time in each task")
    found.add_argument("--limit-s", type=float, default=LIMIT_S, help="how long a task takes up documents")
    add_common(found)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run the job from a command line."""
    arguments = parser().parse_args(argv)
    return ended("sweep", lambda: command(arguments))


def command(arguments: argparse.Namespace) -> int:
    """Sweep, and tell."""
    if arguments.tasks < 1 or arguments.lanes < 1 or arguments.grace_s < 0:
        raise Refused("--tasks and --lanes are at least 1, --grace-s is not negative")
    connect = backend_of(arguments, os.environ)
    spark = start("sweep", arguments, os.environ)
    done = sweep(
        spark,
        connect,
        grace_s=arguments.grace_s,
        tasks=arguments.tasks,
        lanes=arguments.lanes,
        limit_s=arguments.limit_s,
        say=silent if arguments.quiet else to_stderr,
    )
    told = {"seen": done.seen, **asdict(done)}
    print(msgspec.json.encode(told).decode() if arguments.json else done.text, flush=True)
    return 0 if done.ok else 1


def backend_of(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Callable[[], Backend]:
    """The maker of the backend: the named function, or Cosmos DB and Service Bus from the environment.

    Raises:
        Refused: something is missing, or the driver's service principal cannot sign in.
    """
    if arguments.backend:
        module, _, name = arguments.backend.partition(":")
        found = getattr(import_module(module), name, None)
        if not callable(found):
            raise Refused(f"--backend {arguments.backend} names no function, for example places:backend")
        named: Callable[[], Backend] = found
        return named
    addresses = {name: environ.get(name, "") or environ.get(name + tail, "") for name, tail in ADDRESSES.items()}
    missing = [name for name in (COSMOS_VARIABLE, CONNECTION_VARIABLE) if not addresses[name]]
    database = arguments.database or environ.get(DATABASE_VARIABLE, "")
    if missing or not database:
        names = [*missing, *([] if database else ["--database"])]
        raise Refused(f"not set: {', '.join(names)}; docs/how-to/operate.md")
    lent = lent_for([address for address in addresses.values() if address], environ)
    connecting = connect if lent is None else partial(connect_lent, lent)
    return partial(
        connecting,
        cosmos=addresses[COSMOS_VARIABLE],
        database=database,
        servicebus=addresses[CONNECTION_VARIABLE],
        blobs=addresses[BLOBS_VARIABLE] or None,
        container=arguments.container,
        scope=arguments.scope,
    )


if __name__ == "__main__":
    sys.exit(main())
