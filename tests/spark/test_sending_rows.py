"""What an executor of `feed` puts into a batch and sends again; without Spark and without a queue."""

from __future__ import annotations

from hashlib import sha256
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from azure.servicebus.exceptions import (
    MessageSizeExceededError,
    MessagingEntityDisabledError,
    MessagingEntityNotFoundError,
    ServiceBusAuthenticationError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from outbox.message import PROPERTY_CREATED, PROPERTY_ID, PROPERTY_TYPE
from spark_jobs.common.patience import GaveUpError, Patience
from spark_jobs.feeding import sending
from spark_jobs.feeding.sending import Outgoing, send_partition, to_message
from spark_jobs.feeding.shares import Sending


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
        self.closed = list[str]()
        self.size_bytes_max = 1 << 18
        self.sizes_bytes: list[int | None] = []
        self.opening_errors: list[Exception] = []

    def client(self) -> Any:
        self.opened_count += 1
        return SimpleNamespace(get_queue_sender=lambda *_, **__: self, close=lambda: self.closed.append("client"))

    def create_message_batch(self, size_bytes: int | None = None) -> Batch:
        if self.opening_errors:
            raise self.opening_errors.pop()
        self.sizes_bytes.append(size_bytes)
        made = Batch(self.count_max)
        made.max_size_in_bytes = self.size_bytes_max
        return made

    def send_messages(self, batch: Batch, timeout: float) -> None:
        assert 0 < timeout <= sending.SEND_S, "it would wait for ever"
        self.sent.append([(one.message_id, one.session_id) for one in batch])
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error

    def close(self) -> None:
        self.closed.append("sender")
        raise OSError("it is gone already")


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
    assert (made.accepted, made.sent, made.retries, made.patience.failures) == (2, 6, 2, 0)
    assert queue.closed == ["sender", "client"] * 2


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


@pytest.mark.parametrize("error", [ServiceBusAuthorizationError(), ServiceBusAuthenticationError()])
def test_who_may_not_send_is_told_at_once(error: Exception) -> None:
    queue = Queue(error)
    with pytest.raises(GaveUpError, match="Data Sender") as told:
        fill(outgoing(queue), ("1", None))
    assert len(queue.sent) == 1 and told.value.__cause__ is error


def test_a_link_that_breaks_while_a_batch_is_begun_is_opened_again() -> None:
    queue = Queue()
    queue.opening_errors = [OSError("reset"), ServiceBusConnectionError()]
    made = outgoing(queue)
    fill(made, ("1", None))
    assert queue.sent == [[("1", None)]] and (queue.opened_count, made.retries) == (3, 2)


@pytest.mark.parametrize(("limit_bytes", "batch_bytes"), [(262_144, 258_048), (4_000, 3_000)])
def test_a_batch_leaves_room_for_its_envelope(limit_bytes: int, batch_bytes: int) -> None:
    queue = Queue()
    queue.size_bytes_max = limit_bytes
    fill(outgoing(queue), ("1", None))
    assert queue.sizes_bytes == [None, batch_bytes]


def test_no_more_messages_leave_in_a_second_than_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, slept_s = [100.0], list[float]()

    def sleep(pause_s: float) -> None:
        slept_s.append(pause_s)
        now_s[0] += pause_s

    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    made = Outgoing(Sending(cast(Any, Queue(None, OSError("reset"))), "q", "T", 60.0, rate_per_s=2.0))
    made.patience.sleep = lambda pause_s: None
    fill(made, *[(str(n), None) for n in range(6)])
    now_s[0] += 60
    fill(made, ("late", None))
    assert slept_s == [1.5, 1.5, 0.0]


def test_a_task_sends_its_rows_and_reports_them_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patience, "failed", lambda self, error: None)
    rows = [{"id": f"{n}" * 100, "body": '{"n":1}', "created_ms": 7, "session": "s"} for n in (1, 12)]
    queue, parts = Queue(OSError("reset")), [pa.RecordBatch.from_pylist([row]) for row in rows]
    [found] = send_partition(Sending(cast(Any, queue), "q", "T", 60.0), iter(parts))
    assert found.to_pylist() == [
        {"accepted": 2, "sent": 4, "batches": 1, "retries": 1, "oversize": [], "failed": None}
    ]  # fmt: skip
    assert queue.sent[0] == [(rows[0]["id"], "s"), (sha256(b"12" * 100).hexdigest(), "s")]
    assert queue.closed == ["sender", "client"] * 2


def test_a_task_whose_queue_is_away_reports_what_it_had_sent_before() -> None:
    queue, wide = Queue(None, ServiceBusAuthorizationError(), count_max=1), "x" * 11
    rows = [
        {"id": id, "body": body, "created_ms": 7, "session": None} for id, body in (("a", ""), ("b", wide), ("c", ""))
    ]
    [found] = send_partition(Sending(cast(Any, queue), "q", "T", 60.0), iter([pa.RecordBatch.from_pylist(rows)]))
    [row] = found.to_pylist()
    assert (row["accepted"], row["sent"], row["oversize"]) == (1, 2, ["b"]) and "Data Sender" in row["failed"]
    assert queue.closed[-2:] == ["sender", "client"]


def test_a_message_carries_its_identity_type_and_time_where_the_framework_looks() -> None:
    made = to_message("Transfer", "1", "{}", 1 << 40, None)
    created = {"TYPE": "LONG", "VALUE": 1 << 40}
    assert made.application_properties == {PROPERTY_ID: "1", PROPERTY_TYPE: "Transfer", PROPERTY_CREATED: created}
    assert (made.message_id, made.session_id, made.content_type) == ("1", None, "application/json")
    assert b"".join(made.body) == b"{}"


@pytest.mark.parametrize("error", [MessagingEntityNotFoundError(), MessagingEntityDisabledError()])
def test_a_queue_that_is_not_there_is_not_waited_for(error: Exception) -> None:
    with pytest.raises(GaveUpError, match=type(error).__name__) as told:
        Patience(60.0, lambda: 0.0, lambda pause_s: pytest.fail(), lambda: 0.0).failed(error)
    assert told.value.__cause__ is error


def test_pauses_double_up_to_five_seconds_and_differ_between_clients() -> None:
    slept_s = list[float]()
    for chance in (0.0, 1.0):
        patience = Patience(60.0, lambda: 0.0, slept_s.append, lambda chance=chance: chance)  # type: ignore[misc]
        for _ in range(20):
            patience.failed(OSError("away"))
    first, second = slept_s[:20], slept_s[20:]
    assert first[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.5]) and first[-1] == 2.5
    assert second == pytest.approx([2 * pause_s for pause_s in first])


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
    with pytest.raises(GaveUpError, match="no success for") as told:
        for _ in range(100):
            patience.failed(OSError("away"))
    assert isinstance(told.value.__cause__, OSError) and now[0] < 10 * 0.7 + 1.0
