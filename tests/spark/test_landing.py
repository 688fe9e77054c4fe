"""What a receiver of `consume` completes, and when, and when a queue is idle; without Spark and without a queue."""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionCannotBeLockedError,
)

from outbox.errors import OutcomeUnknown, Refused
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.common.places import Place
from spark_jobs.consume import Totals
from spark_jobs.draining import landing
from spark_jobs.draining.landing import Incoming, Receiving, land_partition
from spark_jobs.draining.merging import Merged
from spark_jobs.draining.received import ROW


class Queue:
    """A queue whose receivers are asked for again and again: messages by the batch, or errors in their place."""

    def __init__(self, *batches: list[str] | Exception) -> None:
        self.batches = list(batches)
        self.wanted: list[int] = []
        self.waits_s: list[float] = []
        self.completed: list[str] = []
        self.opened_count = 0
        self.closed_count = 0
        self.links: list[int] = []
        self.closing: Exception | None = None
        self.clients_closed_count = 0
        self.options: dict[str, Any] = {}
        self.before_completing: Callable[[str], None] = lambda message: None

    def client(self) -> Any:
        return SimpleNamespace(get_queue_receiver=self._opened, close=self._client_closed)

    def _opened(self, queue: str, **options: Any) -> Any:
        self.opened_count += 1
        self.options = options
        return SimpleNamespace(
            receive_messages=self._receive, complete_message=self._complete, close=self._closed
        )  # fmt: skip

    def _receive(self, wanted: int, max_wait_time: float) -> list[str]:
        self.wanted.append(wanted)
        self.waits_s.append(max_wait_time)
        self.links.append(self.opened_count)
        found = self.batches.pop(0) if self.batches else []
        if isinstance(found, Exception):
            raise found
        return found

    def _complete(self, message: str) -> None:
        self.before_completing(message)
        self.completed.append(message)

    def _closed(self) -> None:
        self.closed_count += 1
        if self.closing is not None:
            raise self.closing

    def _client_closed(self) -> None:
        self.clients_closed_count += 1


class Slow(Queue):
    """A queue that takes so long to give something, by the clock that the receiver looks at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, takes_s: float, *batches: list[str] | Exception) -> None:
        super().__init__(*batches)
        self._takes_s, self._now_s = takes_s, 0.0
        monkeypatch.setattr(landing, "time", SimpleNamespace(monotonic=lambda: self._now_s, sleep=None))

    def _receive(self, wanted: int, max_wait_time: float) -> list[str]:
        self._now_s += self._takes_s
        return super()._receive(wanted, max_wait_time)


class Full(Folder):
    """A place that takes no file; without an error the file is there already."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__("full")
        self.error = error

    def create(self, name: str, data: bytes) -> bool:
        if self.error is None:
            return False
        raise self.error


@dataclass
class Site:
    """A folder that receivers land in; messages are their own rows."""

    folder: Path

    def settings(self, queue: Queue, counts: tuple[int, ...], place: Place | None, **given: Any) -> Receiving:
        return Receiving(cast(Any, queue), "q", place or Folder(self.folder), counts, **{"deadline_s": 30.0, **given})

    def incoming(self, queue: Queue, place: Place | None = None, **given: Any) -> Incoming:
        made = Incoming(self.settings(queue, (10,), place, **{"idle_s": 0.0, "timeout_s": 5.0} | given), 10)
        made.patience.sleep = lambda pause_s: None
        return made

    def drained(self, queue: Queue, **given: Any) -> Incoming:
        """What became of a receiver that was at work to its end."""
        made = self.incoming(queue, **given)
        made.drain()
        return made

    def rows(self, queue: Queue, place: Place | None = None) -> list[dict[str, Any]]:
        """What a task gives back that was given the receivers 1 and 0, of which the first may take two messages."""
        settings = self.settings(queue, (5, 2), place, idle_s=0.0, timeout_s=0.0)
        numbers = pa.RecordBatch.from_pydict({"id": [1, 0]})
        return [row for part in land_partition(settings, iter([numbers])) for row in part.to_pylist()]

    def landed(self) -> int:
        return len(list(self.folder.glob("*.parquet")))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(landing, "as_row", lambda message: {"message_id": message})
    return Site(tmp_path)


def test_a_receiver_that_goes_on_waits_through_silence_until_its_time_is_over(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Slow(monkeypatch, 4.0, ["a"], [], [], ["b"])
    found = site.drained(queue, goes_on=True, deadline_s=30.0, idle_s=7.0)
    assert queue.waits_s == [7.0] * 6 + [6.0, 2.0]
    assert queue.completed == ["a", "b"] and found.files == 2


def test_a_message_is_completed_when_it_is_on_disk(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, seen = Queue(["a", "b"]), list[tuple[str, int]]()

    def synced(handle: int) -> None:
        seen.append(("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file", site.landed()))

    monkeypatch.setattr(os, "fsync", synced)
    queue.before_completing = lambda message: seen.append((message, site.landed()))
    found = site.drained(queue)
    [table] = [pq.read_table(file) for file in site.folder.glob("*.parquet")]
    assert table.schema.equals(ROW) and table.column("message_id").to_pylist() == ["a", "b"]
    assert seen == [("file", 0), ("folder", 1), ("a", 1), ("b", 1)] and queue.completed == ["a", "b"]
    assert (found.landed, found.files, found.completed, found.lost, found.idle) == (2, 1, 2, 0, True)


def test_nothing_is_completed_of_a_batch_that_could_not_be_written(site: Site) -> None:
    queue = Queue(["a"])
    found = site.incoming(queue, Full(OSError(errno.ENOSPC, "no space left")))
    with pytest.raises(OSError, match="no space left"):
        found.drain()
    assert queue.completed == [] and found.landed == 0


@pytest.mark.parametrize("error", [Refused("there is no container"), OutcomeUnknown("no answer"), None])
def test_a_place_that_takes_no_file_is_reported_by_its_receiver(site: Site, error: Exception | None) -> None:
    queue = Queue(["a"], ["b"])
    first, second = site.rows(queue, Full(error))
    for row in (first, second):
        assert (row["landed"], row["completed"]) == (0, 0) and str(error or "is there already") in row["failed"]
    assert queue.completed == [] and queue.closed_count == 2


def test_no_more_is_taken_than_the_budget(site: Site) -> None:
    queue = Queue([str(n) for n in range(7)], [str(n) for n in range(3)], ["over"])
    found = site.drained(queue)
    assert queue.wanted == [10, 3] and found.landed == 10 and not found.idle


@pytest.mark.parametrize(
    ("error", "completed", "lost"),
    [
        (MessageLockLostError(), 3, 1),
        (MessageAlreadySettled(), 3, 1),
        (ServiceBusConnectionError(), 1, 3),
        (OSError(), 1, 3),
    ],
)
def test_what_cannot_be_completed_is_counted_and_the_drain_goes_on(
    site: Site, error: Exception, completed: int, lost: int
) -> None:
    queue = Queue(["a", "b", "c", "d"], ["e"])

    def fails(message: str) -> None:
        if message == "b":
            raise error

    queue.before_completing = fails
    found = site.drained(queue)
    assert (found.landed, found.completed, found.lost) == (5, completed + 1, lost)
    assert queue.opened_count == (2 if lost == 3 else 1)


@pytest.mark.parametrize("error", [OperationTimeoutError(), SessionCannotBeLockedError()])
def test_a_queue_without_another_session_is_idle_and_no_outage(site: Site, error: Exception) -> None:
    queue = Queue(["a"], error)
    found = site.drained(queue, sessions=True, timeout_s=0.0)
    assert found.idle and found.landed == 1 and found.patience.failures == 0


@pytest.mark.parametrize("sessions", [True, False])
def test_behind_an_empty_session_comes_the_next_and_a_queue_without_sessions_keeps_its_link(
    site: Site, monkeypatch: pytest.MonkeyPatch, sessions: bool
) -> None:
    moments = itertools.count()
    monkeypatch.setattr(landing, "time", SimpleNamespace(monotonic=lambda: float(next(moments)), sleep=None))
    queue = Queue(["a"], [], ["b"], [])
    found = site.drained(queue, sessions=sessions, idle_s=6.0)
    assert (found.landed, found.idle, queue.links[:4]) == (2, True, [1, 1, 2, 2] if sessions else [1, 1, 1, 1])
    by_session = {"session_id": NEXT_AVAILABLE_SESSION, "max_wait_time": 6.0}
    assert queue.options == {"timeout": 20} | (by_session if sessions else {"prefetch_count": 10, "keep_alive": 0})


def test_each_receiver_reports_what_it_did_and_closes_its_link(site: Site) -> None:
    queue = Queue(["a", "b"], ["c"], [])
    queue.closing = OSError("it is gone already")
    whole = {"failed": None, "lost": 0, "files": 1}
    assert site.rows(queue) == [
        whole | {"landed": 2, "completed": 2, "idle": False},
        whole | {"landed": 1, "completed": 1, "idle": True},
    ]
    assert queue.wanted[:2] == [2, 5] and queue.closed_count == queue.clients_closed_count == 2


def test_a_receiver_that_gave_up_reports_it_with_what_it_landed_before(site: Site) -> None:
    first, second = site.rows(Queue(["a"], *[ServiceBusConnectionError() for _ in range(9)]))
    assert first["landed"] == first["completed"] == 1 and "no success" in first["failed"] and not first["idle"]
    assert second["landed"] == 0 and "no success" in second["failed"]


@pytest.mark.parametrize(
    "kind", [ServiceBusConnectionError, OSError, OperationTimeoutError]
)  # sessions give the other one too
def test_an_outage_is_neither_idle_nor_borne_for_ever(site: Site, kind: type[Exception]) -> None:
    queue = Queue(*[kind() for _ in range(3)], ["a"])
    found = site.drained(queue)
    assert found.landed == 1 and queue.opened_count == 4
    endless = site.incoming(Queue(*[kind() for _ in range(100)]), timeout_s=0.0)
    with pytest.raises(GaveUpError):
        endless.drain()
    assert not endless.idle


def test_an_outage_longer_than_a_round_is_sat_out_or_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(landing, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=None))

    def sleep(pause_s: float) -> None:
        now_s[0] += pause_s

    def drained(queue: Queue) -> Incoming:
        found = site.incoming(queue, deadline_s=now_s[0] + 10, timeout_s=60.0)
        found.patience.sleep, found.patience.chance = sleep, lambda: 0.5
        found.drain()
        return found

    def outage() -> list[Exception]:
        return [ServiceBusConnectionError() for _ in range(10)]

    assert drained(Queue(*outage(), ["a"])).landed == 1 and now_s[0] > 20
    with pytest.raises(GaveUpError):
        drained(Queue(*outage(), *outage(), *outage()))


def test_a_queue_is_idle_for_so_long_after_its_last_message(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Slow(monkeypatch, 4.0, ["a"], [], ["b"], [], [], ["c"])
    found = site.drained(queue, idle_s=5.0, deadline_s=60.0)
    assert found.idle and found.landed == 2


def test_a_queue_without_another_session_ends_an_outage(site: Site) -> None:
    queue = Queue(ServiceBusConnectionError(), OperationTimeoutError(), ServiceBusConnectionError())
    found = site.drained(queue, sessions=True)
    assert found.idle and queue.opened_count == 2


@pytest.mark.parametrize(
    ("rows", "is_idle"),
    [
        ([(5, False), (0, True)], False),  # the first may have spent its budget, with more behind it
        ([(5, True), (0, True)], True),
        ([(0, False), (0, True)], True),
    ],
    ids=["some", "all", "nothing"],
)
def test_a_queue_is_idle_when_all_its_receivers_say_so_or_nothing_came(
    rows: list[tuple[int, bool]], is_idle: bool
) -> None:
    total = Totals()
    total.add_round(cast(Any, [{"landed": count, "lost": 0, "idle": idle, "failed": None} for count, idle in rows]))
    assert total.idle is is_idle


def test_the_rounds_of_a_drain_add_up_and_one_receiver_that_failed_is_enough() -> None:
    total = Totals()
    rows = [
        {"landed": 3, "lost": 1, "idle": True, "failed": None},
        {"landed": 2, "lost": 2, "idle": True, "failed": "x"},
    ]
    for _ in range(2):
        total.add_round(cast(Any, rows))
        total.add_merge(Merged(landed=9, added=4, duplicates=3, conflicts=2))
    assert (total.received, total.lost_locks, total.failed) == (10, 6, "x")
    assert (total.added, total.duplicates, total.conflicts) == (8, 6, 4)
