"""What a receiver of `consume` completes, and when; without Spark and without a queue."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus.exceptions import (
    MessageAlreadySettled,
    MessageLockLostError,
    OperationTimeoutError,
    ServiceBusConnectionError,
    SessionCannotBeLockedError,
)

from spark_jobs.common.patience import GaveUpError
from spark_jobs.draining import landing
from spark_jobs.draining.landing import Incoming, Receiving


class Queue:
    """A queue whose receivers are asked for again and again: messages by the batch, or errors in their place."""

    def __init__(self, *batches: list[str] | Exception) -> None:
        self.batches = list(batches)
        self.wanted: list[int] = []
        self.completed: list[str] = []
        self.opened_count = 0
        self.closed_count = 0
        self.before_completing: Callable[[str], None] = lambda message: None

    def client(self) -> Any:
        return SimpleNamespace(get_queue_receiver=self._opened, close=lambda: None)

    def _opened(self, queue: str, **options: Any) -> Any:
        self.opened_count += 1
        return SimpleNamespace(
            receive_messages=self._receive, complete_message=self._complete, close=self._closed
        )  # fmt: skip

    def _receive(self, wanted: int, max_wait_time: float) -> list[str]:
        self.wanted.append(wanted)
        found = self.batches.pop(0) if self.batches else []
        if isinstance(found, Exception):
            raise found
        return found

    def _complete(self, message: str) -> None:
        self.before_completing(message)
        self.completed.append(message)

    def _closed(self) -> None:
        self.closed_count += 1


def incoming(queue: Queue, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Incoming:
    monkeypatch.setattr(landing, "as_row", lambda message: {"message_id": message})
    given = {"idle_s": 0.0, "deadline_s": 30.0, "timeout_s": 5.0} | options
    settings = Receiving(cast(Any, queue), "q", str(folder), (10,), **given)
    made = Incoming(settings, 10)
    made.patience.sleep = lambda pause_s: None
    return made


def landed(folder: Path) -> int:
    return len(list(folder.glob("*.parquet")))


def test_a_message_is_completed_when_it_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue, on_disk = Queue(["a", "b"]), list[int]()
    queue.before_completing = lambda message: on_disk.append(landed(tmp_path))
    found = incoming(queue, tmp_path, monkeypatch)
    found.drain()
    assert (queue.completed, on_disk) == (["a", "b"], [1, 1])
    assert (found.landed, found.files, found.completed, found.lost, found.idle) == (2, 1, 2, 0, True)


def test_nothing_is_completed_of_a_batch_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(["a"])
    found = incoming(queue, tmp_path / "missing", monkeypatch)
    with pytest.raises(FileNotFoundError):
        found.drain()
    assert queue.completed == []


def test_no_more_is_taken_than_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue([str(n) for n in range(7)], [str(n) for n in range(3)], ["over"])
    found = incoming(queue, tmp_path, monkeypatch)
    found.drain()
    assert queue.wanted == [10, 3] and found.landed == 10 and not found.idle


@pytest.mark.parametrize(
    ("error", "completed", "lost"),
    [(MessageLockLostError(), 2, 1), (MessageAlreadySettled(), 2, 1), (ServiceBusConnectionError(), 1, 2)],
)
def test_what_cannot_be_completed_is_counted_and_the_drain_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, completed: int, lost: int
) -> None:
    queue = Queue(["a", "b", "c"], ["d"])

    def fails(message: str) -> None:
        if message == "b":
            raise error

    queue.before_completing = fails
    found = incoming(queue, tmp_path, monkeypatch)
    found.drain()
    assert (found.landed, found.completed, found.lost) == (4, completed + 1, lost)
    assert queue.opened_count == (2 if lost == 2 else 1)


@pytest.mark.parametrize("error", [OperationTimeoutError(), SessionCannotBeLockedError()])
def test_a_queue_without_another_session_is_idle_and_no_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    queue = Queue(["a"], error)
    found = incoming(queue, tmp_path, monkeypatch, sessions=True, timeout_s=0.0)
    found.drain()
    assert found.idle and found.landed == 1 and found.patience.failures == 0


def test_an_outage_is_neither_idle_nor_borne_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(*[ServiceBusConnectionError() for _ in range(3)], ["a"])
    found = incoming(queue, tmp_path, monkeypatch)
    found.drain()
    assert found.landed == 1 and queue.opened_count == 4
    endless = incoming(Queue(*[ServiceBusConnectionError() for _ in range(100)]), tmp_path, monkeypatch, timeout_s=0.0)
    with pytest.raises(GaveUpError):
        endless.drain()
    assert not endless.idle
