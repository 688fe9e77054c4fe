"""What an executor of `feed` puts into a batch and sends again; without Spark and without a queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.feeding import sending
from spark_jobs.feeding.sending import Outgoing, Sending


class Batch(list[Any]):
    """A batch of so many messages at most; none with a body over ten bytes."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.max_size_in_bytes = 1 << 18

    def add_message(self, message: Any) -> None:
        if len(self) == self.count_max or len(b"".join(message.body)) > 10:
            raise MessageSizeExceededError
        self.append(message)


class Queue:
    """A queue that notes every send, and fails those that it is told to, behind the send or before it."""

    def __init__(self, *errors: Exception | None, count_max: int = 3) -> None:
        self.errors = list(errors)
        self.count_max = count_max
        self.sent: list[list[tuple[str, str | None]]] = []
        self.opened_count = 0

    def client(self) -> Any:
        self.opened_count += 1
        return SimpleNamespace(get_queue_sender=lambda *_, **__: self, close=lambda: None)

    def create_message_batch(self, size_bytes: int = 0) -> Batch:
        return Batch(self.count_max)

    def send_messages(self, batch: Batch, timeout: float) -> None:
        self.sent.append([(one.message_id, one.session_id) for one in batch])
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def close(self) -> None: ...


def outgoing(queue: Queue, timeout_s: float = 60.0) -> Outgoing:
    made = Outgoing(Sending(cast(Any, queue), "q", "T", timeout_s))
    made.patience.sleep = lambda pause_s: None
    return made


def fill(made: Outgoing, *rows: tuple[str, str | None], body: str = "{}") -> None:
    for identity, session in rows:
        made.add(identity, body, 1, session)
    made.flush()


def test_a_batch_holds_messages_of_one_session() -> None:
    queue = Queue()
    fill(outgoing(queue), ("1", "a"), ("2", "a"), ("3", "b"), ("4", "a"))
    assert queue.sent == [[("1", "a"), ("2", "a")], [("3", "b")], [("4", "a")]]


def test_what_does_not_fit_begins_the_next_batch() -> None:
    queue = Queue(count_max=2)
    made = outgoing(queue)
    fill(made, *[(str(n), None) for n in range(5)])
    assert [[id for id, _ in batch] for batch in queue.sent] == [["0", "1"], ["2", "3"], ["4"]]
    assert (made.accepted, made.sent, made.batches, made.retries) == (5, 5, 3, 0)


def test_a_batch_without_an_answer_is_sent_again_under_the_same_ids_on_another_connection() -> None:
    queue = Queue(ServiceBusConnectionError(), OSError("reset"))
    made = outgoing(queue)
    fill(made, ("1", None), ("2", None))
    assert queue.sent == [[("1", None), ("2", None)]] * 3 and queue.opened_count == 3
    assert (made.accepted, made.sent, made.retries) == (2, 6, 2)


def test_what_no_queue_takes_is_set_aside_and_the_rest_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    made = outgoing(queue)
    made.add("1", "{}", 1, None)
    made.add("large", "x" * 11, 1, None)
    fill(made, ("2", None))
    assert made.oversize == ["large"] and [id for batch in queue.sent for id, _ in batch] == ["1", "2"]
    monkeypatch.setattr(sending, "OVERSIZE_COUNT_MAX", 1)
    with pytest.raises(GaveUpError, match="more than 1"):
        made.add("larger", "x" * 12, 1, None)


def test_who_may_not_send_is_told_at_once() -> None:
    queue = Queue(ServiceBusAuthorizationError())
    with pytest.raises(GaveUpError, match="Data Sender"):
        fill(outgoing(queue), ("1", None))
    assert len(queue.sent) == 1


def test_patience_is_for_one_outage_and_not_for_all_of_them() -> None:
    now, slept = [0.0], list[float]()

    def sleep(pause_s: float) -> None:
        slept.append(pause_s)
        now[0] += pause_s

    patience = Patience(1.0, lambda: now[0], sleep, lambda: 0.0)
    for _ in range(10):
        patience.failed(OSError("away"))
        now[0] += 0.6
        patience.succeeded()
    assert patience.failures == 0 and slept == [0.1] * 10
    with pytest.raises(GaveUpError, match="no success for"):
        for _ in range(100):
            patience.failed(OSError("away"))
    assert now[0] < 10 * 0.7 + 1.0
