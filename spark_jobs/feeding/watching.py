"""The files of a place as they appear: each, unchanged for a while, is fed once, with its own progress.

    progress/done-<digest>.json       this file, in this version, is fed: its name, version and counts
    progress/files/<name>/            the progress of the file's own feed (spark_jobs.feeding.plan)

*Theory of operation.*  A file is known by its name and its version, so one that is written anew is looked at again: its
own feed then says whether that may be.  The record is written behind the feed; a watch that is killed between the two
feeds again, and finds every chunk sent.  Two watches of a place repeat equal ids at worst.  A file that is refused
holds up no other: it is told, left, and tried again by the next watch.  An outage of the queue ends the watch,
and SIGTERM or SIGINT does behind the file that is being fed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import msgspec
from pyspark.errors import PySparkException

from outbox.errors import OutboxError, OutcomeUnknown, Refused
from spark_jobs.common.arguments import Say, silent, text_of
from spark_jobs.common.places import Item, Place
from spark_jobs.common.until import Until
from spark_jobs.reading.files import is_input

PAUSE_S = 2.0
FAILED_COUNT_MAX = 1_000
"""With more files than this refused something else is wrong."""


class Watched(msgspec.Struct, frozen=True, kw_only=True):
    """A file that is fed."""

    name: str
    version: str
    report: dict[str, Any]


@dataclass(slots=True)
class WatchReport:
    """The counts of this watch's feeds; `failed` has the files that were refused, and why."""

    files: int = 0
    rows: int = 0
    accepted: int = 0
    quarantined: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def text(self) -> str:
        """A short table."""
        lines = [
            ("files", self.files, "fed"),
            ("rows", self.rows, ""),
            ("accepted", self.accepted, "messages"),
            ("quarantined", self.quarantined, "rows"),
            ("refused", len(self.failed), "files, which the next watch tries again"),
        ]
        table = [f"{name:<12} {count:>12,}  {note}".rstrip() for name, count, note in lines]
        table += [f"    {name}: {why}" for name, why in sorted(self.failed.items())]
        return "\n".join([*table, f"{'seconds':<12} {self.seconds:>12,.1f}"])


@dataclass(slots=True)
class Watch:
    """The watch of a place, its known files, and the `feed` of one, which returns a report as a dictionary."""

    place: Place
    kept: Place
    feed: Callable[[Item], dict[str, Any]]
    until: Until
    settle_s: float
    say: Say = silent
    clock_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    report: WatchReport = field(default_factory=WatchReport)
    _left: set[str] = field(default_factory=set)
    """Records of the files that are done, or that this watch has refused."""

    def run(self) -> WatchReport:
        """Feed present and new files, until the end.

        Raises:
            OutcomeUnknown: the queue did not answer for longer than the limit; run the same again.
            Refused: the place cannot be listed, or too many files were refused.
        """
        began_s = self.clock_s()
        self._left = {item.name for item in self.kept.list("done-", ".json")}
        while not self._is_over(began_s):
            for item in self._ready():
                if self._is_over(began_s):
                    break
                self._fed(item)
            else:
                if not self._is_over(began_s):
                    self.sleep(PAUSE_S)
        self.report.seconds = self.clock_s() - began_s
        return self.report

    def _is_over(self, began_s: float) -> bool:
        return self.until.is_over(self.clock_s() - began_s, self.report.files)

    def _ready(self) -> list[Item]:
        """The files that are neither done nor refused, and that nobody has written for a while."""
        found = [item for item in self.place.list() if is_input(item.name) and record_of(item) not in self._left]
        settled_s = self.place.now_s() - self.settle_s if found else 0.0
        return [item for item in found if item.changed_s <= settled_s]

    def _fed(self, item: Item) -> None:
        self.say(f"feed: {self.place}/{item.name}")
        try:
            report = self.feed(item)
        except OutcomeUnknown:
            raise
        except (OutboxError, PySparkException, ValueError) as error:
            self.report.failed[item.name] = text_of(error)
            self.say(f"feed: {item.name} is refused: {text_of(error)}")
            if len(self.report.failed) > FAILED_COUNT_MAX:
                raise Refused(f"more than {FAILED_COUNT_MAX} files were refused, the last: {error}") from error
        else:
            done = Watched(name=item.name, version=item.version, report=report)
            self.kept.create(record_of(item), msgspec.json.encode(done))
            self.report.failed.pop(item.name, None)
            self.report.files += 1
            self.report.rows += report["rows"]
            self.report.accepted += report["accepted"]
            self.report.quarantined += sum(report["quarantined"].values())
        self._left.add(record_of(item))


def record_of(item: Item) -> str:
    """The name of the record that a file, in this version, is fed."""
    known = f"{item.name}\0{item.version}".encode(errors="surrogateescape")
    return f"done-{sha256(known).hexdigest()[:32]}.json"
