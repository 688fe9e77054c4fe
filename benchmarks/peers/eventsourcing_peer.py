"""The peer: a process application of `eventsourcing` that adds up numbers, one notification a step, on SQLite.

    python -m benchmarks.peers.eventsourcing_peer FOLDER COUNT

prints one line of JSON: entries a second, versions, and how SQLite runs.  The numbers are recorded before the clock
starts, each as an event of one aggregate.  A step is the library's own: `pull_and_process` reads notifications, and
for each the policy changes an aggregate whose new event is recorded in one transaction with the tracking position.

What a careful user sets: a database for each application, sections of 64 notifications instead of 10, the topics that
are followed, and an aggregate cache; without one each step would replay all events before it.  The cache neither looks
for events of others nor copies what it gives out, which is faster by a tenth and safe for a process that alone writes
its aggregate and ends at an error.  SQLite runs as the library's recorder opens it.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from eventsourcing.application import (  # type: ignore[import-not-found]  # in the peers' environment only
    AggregateNotFoundError,
    Application,
)
from eventsourcing.dispatch import singledispatchmethod  # type: ignore[import-not-found]  # as above
from eventsourcing.domain import Aggregate, event  # type: ignore[import-not-found]  # as above
from eventsourcing.system import ProcessApplication  # type: ignore[import-not-found]  # as above
from eventsourcing.utils import get_topic  # type: ignore[import-not-found]  # as above

SAVED_COUNT = 500
SECTION_COUNT = 64
SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


class Log(Aggregate):  # type: ignore[misc]  # the base is of the peers' environment
    """What the numbers are events of."""

    @event("Numbered")  # type: ignore[untyped-decorator]  # as above
    def number(self, n: int) -> None:
        """Add a number."""


class Total(Aggregate):  # type: ignore[misc]  # as above
    """The state of the processor; its events are what it emits."""

    def __init__(self) -> None:
        self.sum = 0

    @staticmethod
    def create_id() -> Any:
        """The one that there is."""
        return uuid5(NAMESPACE_URL, "total")

    @event("Added")  # type: ignore[untyped-decorator]  # as above
    def add(self, sum: int) -> None:
        """Take on another sum."""
        self.sum = sum


class Numbers(Application):  # type: ignore[misc]  # as above
    """Where the numbers are recorded."""

    name = "numbers"
    log_section_size = SECTION_COUNT


class Sums(ProcessApplication):  # type: ignore[misc]  # as above
    """Adds them up."""

    name = "sums"
    pull_section_size = SECTION_COUNT
    topics = (get_topic(Log.Numbered),)

    @singledispatchmethod  # type: ignore[untyped-decorator]  # as above
    def policy(self, domain_event: Any, processing_event: Any) -> None:
        """One output for each input."""

    @policy.register(Log.Numbered)  # type: ignore[untyped-decorator]  # as above
    def _(self, domain_event: Any, processing_event: Any) -> None:
        try:
            total = self.repository.get(Total.create_id())
        except AggregateNotFoundError:
            total = Total()
        total.add(total.sum + domain_event.n)
        processing_event.collect_events(total)


def environment(path: Path) -> dict[str, str]:
    """The settings of an application."""
    return {
        "PERSISTENCE_MODULE": "eventsourcing.sqlite",
        "SQLITE_DBNAME": str(path),
        "AGGREGATE_CACHE_MAXSIZE": "8",
        "AGGREGATE_CACHE_FASTFORWARD": "n",
        "DEEPCOPY_FROM_AGGREGATE_CACHE": "n",
    }


def filled(path: Path, count: int) -> Any:
    """An application with so many numbers."""
    numbers, source = Numbers(environment(path)), Log()
    for n in range(count):
        source.number(n)
        if n % SAVED_COUNT == SAVED_COUNT - 1:
            numbers.save(source)
    numbers.save(source)
    return numbers


def pragmas(sums: Any) -> dict[str, str]:
    """How SQLite runs under the processor."""
    with sums.recorder.datastore.get_connection(commit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode")
        mode = str(cursor.fetchone()[0])
        cursor.execute("PRAGMA synchronous")
        return {"journal_mode": mode, "synchronous": SYNCHRONOUS[cursor.fetchone()[0]]}


def run(folder: Path, count: int) -> dict[str, Any]:
    """Handle so many numbers, and check that each counts once."""
    numbers, sums = filled(folder / "numbers.db", count), Sums(environment(folder / "sums.db"))
    sums.follow(numbers.name, numbers.notification_log)
    began_s = time.perf_counter()
    sums.pull_and_process(numbers.name)
    took_s = time.perf_counter() - began_s
    for _ in range(2):
        total = sums.repository.get(Total.create_id())
        found = (total.sum, total.version, sums.recorder.max_notification_id())
        if found != (count * (count - 1) // 2, count + 1, count + 1):  # one event more: the aggregate's creation
            raise AssertionError(f"do not publish: {found} for {count} numbers")
        sums.pull_and_process(numbers.name)  # a second time, which must change nothing
    answer = {"entries_per_s": count / took_s, "version": metadata.version("eventsourcing"), **pragmas(sums)}
    sums.close()
    numbers.close()
    return answer


def main(arguments: list[str]) -> int:
    folder, count = arguments
    print(json.dumps(run(Path(folder), int(count))))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
