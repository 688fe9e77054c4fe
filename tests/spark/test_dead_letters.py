"""Dead letters of a queue are looked at, all of them, and named by the input that caused them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage, ServiceBusMessageState, ServiceBusSubQueue
from azure.servicebus.exceptions import (
    MessagingEntityNotFoundError,
    ServiceBusAuthorizationError,
    ServiceBusConnectionError,
)

from outbox.errors import OutcomeUnknown, Refused
from outbox.message import PROPERTY_CORRELATION, PROPERTY_ID
from spark_jobs.common.identity import Access
from spark_jobs.common.patience import Patience
from spark_jobs.comparing.dead_letters import peeked
from spark_jobs.draining import looking


def dead_letter(connection: str, queue: str, *messages: ServiceBusMessage) -> None:
    with ServiceBusClient.from_connection_string(connection) as client:
        with client.get_queue_sender(queue, keep_alive=0) as sender:
            for message in messages:
                sender.send_messages(message)
        with client.get_queue_receiver(queue, keep_alive=0) as receiver:
            for _ in messages:
                [received] = receiver.receive_messages(1, max_wait_time=5)
                receiver.dead_letter_message(received, reason="refused")


@pytest.mark.spark
@pytest.mark.slow
def test_the_dead_letters_of_a_queue_are_all_looked_at_and_stay(broker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    known: dict[str | bytes, Any] = {PROPERTY_ID: "o-1", PROPERTY_CORRELATION: "t7"}
    fed: dict[str | bytes, Any] = {PROPERTY_ID: "long", "other": 1}
    dead_letter(
        broker.connection,
        "looked-at",
        *(ServiceBusMessage(b"{}", message_id=f"t{number}") for number in range(5)),
        ServiceBusMessage(b"\xff", message_id="m", application_properties=known),
        ServiceBusMessage(b"{}", message_id="digest", application_properties=fed),
        ServiceBusMessage(b"{}", message_id="x", correlation_id="t8"),
    )
    monkeypatch.setattr(looking, "PAGE_COUNT", 3)
    access = Access(broker.connection)
    wanted = {"t0", "t1", "t2", "t3", "t4", "t7", "long", "t8"}
    assert peeked(access, "looked-at") == wanted == peeked(access, "looked-at")
    with pytest.raises(Refused, match="queue:looked-at has more than 7 dead letters; resubmit or discard"):
        peeked(access, "looked-at", count_max=7)
    assert peeked(access, "looked-at", count_max=8) == wanted
    with pytest.raises(OutcomeUnknown, match="queue:nowhere: its dead letters cannot be looked at: Messaging"):
        peeked(access, "nowhere")
    with (
        ServiceBusClient.from_connection_string(broker.connection) as client,
        client.get_queue_receiver("looked-at", sub_queue=ServiceBusSubQueue.DEAD_LETTER, keep_alive=0) as receiver,
    ):
        messages = receiver.receive_messages(20, max_wait_time=3)
        assert {message.delivery_count for message in messages} == {0} and len(messages) == 8


class Played:
    """A namespace whose dead letters are numbered, and whose first answers are errors or, None, a page each."""

    def __init__(self, count: int, *errors: Exception | None) -> None:
        self.count, self.errors, self.opened, self.closed = count, iter(errors), 0, 0

    def client(self) -> Any:
        self.opened += 1
        return SimpleNamespace(get_queue_receiver=self._receiver, close=self.close)

    def _receiver(self, queue: str, *, sub_queue: ServiceBusSubQueue, keep_alive: int) -> Any:
        assert sub_queue is ServiceBusSubQueue.DEAD_LETTER
        return self

    def peek_messages(self, count: int, *, sequence_number: int, timeout: float) -> list[Any]:
        error = next(self.errors, None)
        if error is not None:
            raise error
        numbers = range(sequence_number, min(sequence_number + count, self.count + 1))
        return [
            SimpleNamespace(sequence_number=n, application_properties=None, correlation_id=None, message_id=f"t{n}")
            for n in numbers
        ]

    def close(self) -> None:
        self.closed += 1


def clock(step_s: float) -> Iterator[float]:
    now_s = 0.0
    while True:
        yield now_s
        now_s += step_s


def look(played: Any, step_s: float = 0.0, **given: Any) -> set[str]:
    times_s = clock(step_s)
    return peeked(played, "q", clock_s=lambda: next(times_s), sleep=lambda _: None, **given)


def test_an_outage_is_sat_out_and_no_dead_letter_is_missed() -> None:
    played = Played(450, ServiceBusConnectionError(message="gone"), OSError("reset"))
    assert look(played) == {f"t{n}" for n in range(1, 451)}
    assert (played.opened, played.closed) == (3, 6)  # a link and its client


def test_outages_with_a_page_between_them_are_sat_out_one_by_one() -> None:
    gone = ServiceBusConnectionError(message="gone")
    played = Played(600, *[gone, gone, None] * 3)
    assert len(look(played, step_s=25)) == 600


def test_messages_wait_that_are_neither_deferred_nor_scheduled() -> None:
    states, closed = [SimpleNamespace(state=state) for state in ServiceBusMessageState], list[str]()
    queue = SimpleNamespace(peek_messages=lambda *_, **__: states, close=lambda: closed.append("receiver"))
    client = SimpleNamespace(get_queue_receiver=lambda *_, **__: queue, close=lambda: closed.append("client"))
    access: Any = SimpleNamespace(client=lambda: client)
    assert looking.waiting_in(access, "q", Patience(1.0, lambda: 0.0, lambda _: None, lambda: 0.0)) == 1
    assert closed == ["receiver", "client"]


def test_an_outage_that_lasts_a_missing_right_and_an_endless_queue_are_told_with_a_cure() -> None:
    with pytest.raises(OutcomeUnknown, match=r"queue:q: its dead letters cannot be looked at: no success for .* s"):
        look(Played(1, *[ServiceBusConnectionError(message="gone")] * 50), step_s=10)
    refused = Played(1, ServiceBusAuthorizationError(message="no"))
    with pytest.raises(OutcomeUnknown, match="give whoever signs in the role"):
        look(refused)
    assert refused.closed == 2
    with pytest.raises(OutcomeUnknown, match="Messaging"):
        look(Played(1, MessagingEntityNotFoundError(message="no such queue")))
    with pytest.raises(OutcomeUnknown, match="dead letters in 900 s and no end; run it again"):
        look(Played(1_000_000), step_s=100)
    with pytest.raises(Refused, match="more than 199 dead letters"):
        look(Played(200), count_max=199)
    assert len(look(Played(200), count_max=200)) == 200
