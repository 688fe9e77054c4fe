"""Sessions with the real SDK: one receiver at a time, in order, with state, and told when the lock is lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from azure.servicebus import NEXT_AVAILABLE_SESSION, ServiceBusMessage
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
)

from outbox.engine.entities import QueueSettings


@pytest.fixture
def queue(bus: Any, sdk: Any) -> Iterator[str]:
    """A queue with sessions for all tests of a mode; each test takes sessions of its own."""
    name = f"sessions-{sdk.mode}"
    bus.declare(QueueSettings(name, ordering="per_key"))
    yield name
    assert bus.bodies(name) == []


def send(sdk: Any, queue: str, session_id: str, *bodies: str) -> None:
    sdk.sender(queue).send_messages([ServiceBusMessage(body, session_id=session_id) for body in bodies])


def accept(sdk: Any, queue: str, session_id: Any, **options: Any) -> Any:
    return sdk.receiver(queue, shared=False, session_id=session_id, **options)


def complete(receiver: Any, count: int) -> list[str]:
    found: list[str] = []
    while len(found) < count:
        messages = receiver.receive_messages(count - len(found), max_wait_time=5)
        assert messages
        for message in messages:
            receiver.complete_message(message)
            found.append(str(message))
    return found


def test_waiting_for_a_session_ends_in_time(sdk: Any, queue: str) -> None:
    started_s = time.monotonic()
    with pytest.raises(OperationTimeoutError):
        accept(sdk, queue, NEXT_AVAILABLE_SESSION, max_wait_time=1).__enter__()
    assert time.monotonic() - started_s < 4


def test_settling_within_a_session(bus: Any, sdk: Any, queue: str) -> None:
    send(sdk, queue, "mixed", "abandoned", "dead", "deferred")
    with accept(sdk, queue, "mixed", prefetch_count=0) as receiver:
        first = receiver.receive_messages(1, max_wait_time=5)[0]
        receiver.abandon_message(first)
        again, dead, deferred = (receiver.receive_messages(1, max_wait_time=5)[0] for _ in range(3))
        assert (str(again), again.delivery_count) == ("abandoned", 1)
        receiver.complete_message(again)
        receiver.dead_letter_message(dead, reason="r")
        receiver.defer_message(deferred)
        [back] = receiver.receive_deferred_messages([deferred.sequence_number])
        receiver.complete_message(back)
    with sdk.receiver(queue, shared=False, sub_queue="deadletter") as receiver:
        [message] = receiver.receive_messages(1, max_wait_time=5)
        assert (str(message), message.session_id, message.dead_letter_reason) == ("dead", "mixed", "r")
        receiver.complete_message(message)


def test_a_session_that_is_held_gets_back_what_it_abandons_and_what_comes(sdk: Any, queue: str) -> None:
    """With credit left on the link there is no request that would make the server look again."""
    send(sdk, queue, "held", "m")
    with accept(sdk, queue, "held", prefetch_count=20) as receiver:
        receiver.abandon_message(receiver.receive_messages(1, max_wait_time=5)[0])
        again = receiver.receive_messages(1, max_wait_time=5)[0]
        assert again.delivery_count == 1
        receiver.complete_message(again)
        send(sdk, queue, "held", "later")
        assert complete(receiver, 1) == ["later"]


def test_closing_a_session_gives_its_messages_back(sdk: Any, queue: str) -> None:
    send(sdk, queue, "returned", "m")
    with accept(sdk, queue, "returned") as receiver:
        assert receiver.receive_messages(1, max_wait_time=5)
    with accept(sdk, queue, "returned") as receiver:
        assert complete(receiver, 1) == ["m"]


def test_a_queue_with_sessions_takes_no_message_without_one(sdk: Any, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="session id"):
        sdk.sender(queue).send_messages(ServiceBusMessage("m"))


def test_a_queue_with_sessions_and_one_without_are_received_from_accordingly(sdk: Any, bus: Any, queue: str) -> None:
    with pytest.raises(ServiceBusError, match="requires sessions"):
        sdk.receiver(queue, shared=False).__enter__()
    bus.declare(QueueSettings("sessionless"))
    with pytest.raises(ServiceBusError, match="no sessions"):
        accept(sdk, "sessionless", "s").__enter__()
