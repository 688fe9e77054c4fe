"""Settling, locks and $management with the real SDK."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.servicebus import AutoLockRenewer, ServiceBusMessage
from azure.servicebus.aio import AutoLockRenewer as AsyncAutoLockRenewer
from azure.servicebus.exceptions import (
    MessageNotFoundError,
)

from outbox.engine.entities import QueueSettings


def one(receiver: Any, max_wait_s: float = 5) -> Any:
    messages = receiver.receive_messages(1, max_wait_time=max_wait_s)
    assert messages, "a message was expected"
    return messages[0]


def wait_until(condition: Callable[[], bool], timeout_s: float = 5) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "the condition did not come true"
        time.sleep(0.02)


def test_a_dead_letter_carries_its_reason(bus: Any, sdk: Any, plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    life = timedelta(minutes=5)
    sender.send_messages(ServiceBusMessage("bad", message_id="b", application_properties={"k": "v"}, time_to_live=life))
    receiver.dead_letter_message(one(receiver), reason="broken", error_description="it is é")
    dead = sdk.receiver(f"plain-{sdk.mode}", sub_queue="deadletter")
    message = one(dead)
    assert (message.dead_letter_reason, message.dead_letter_error_description) == ("broken", "it is é")
    assert (str(message), message.message_id, message.application_properties[b"k"]) == ("bad", "b", b"v")
    assert message.time_to_live == life
    dead.complete_message(message)
    assert bus.bodies(f"plain-{sdk.mode}/$DeadLetterQueue") == []


def test_a_deferred_message_is_received_by_its_number_and_only_so(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    sender.send_messages([ServiceBusMessage("later"), ServiceBusMessage("now")])
    first = one(receiver)
    number = first.sequence_number
    receiver.defer_message(first)
    receiver.complete_message(one(receiver))
    [deferred] = receiver.receive_deferred_messages(number)
    assert (str(deferred), deferred.state.name) == ("later", "DEFERRED")
    [locked] = receiver.peek_messages(1, sequence_number=number)
    assert (locked.sequence_number, locked.state.name) == (number, "DEFERRED")
    receiver.complete_message(deferred)
    with pytest.raises(MessageNotFoundError):
        receiver.receive_deferred_messages(number)


@pytest.mark.parametrize("how", ["abandon_message", "dead_letter_message", "defer_message"])
def test_a_deferred_message_is_settled_over_management(bus: Any, sdk: Any, plain: tuple[Any, Any], how: str) -> None:
    sender, receiver = plain
    sender.send_messages(ServiceBusMessage(how))
    message = one(receiver)
    number = message.sequence_number
    receiver.defer_message(message)
    [deferred] = receiver.receive_deferred_messages([number])
    getattr(receiver, how)(deferred)
    if how == "dead_letter_message":
        dead = sdk.receiver(f"plain-{sdk.mode}", sub_queue="deadletter")
        dead.complete_message(one(dead))
    else:
        assert [message.state.name for message in receiver.peek_messages(1, sequence_number=number)] == ["DEFERRED"]
        receiver.complete_message(receiver.receive_deferred_messages([number])[0])


def test_a_lock_that_is_renewed_automatically_is_kept(bus: Any, sdk: Any) -> None:
    queue = f"renewed-{sdk.mode}"
    bus.declare(QueueSettings(queue, lock_s=5))
    bus.send(queue, "m")
    with sdk.receiver(queue, shared=False) as receiver:
        message = one(receiver)
        first_until = message.locked_until_utc
        if sdk.mode == "sync":
            with AutoLockRenewer() as renewer:
                renewer.register(receiver, message, max_lock_renewal_duration=10)
                wait_until(lambda: bool(message.locked_until_utc > first_until), timeout_s=8)
        else:
            thread = sdk._thread
            renewer = thread.run(AsyncAutoLockRenewer)
            thread.run(lambda: renewer.register(receiver._target, message, max_lock_renewal_duration=10))
            wait_until(lambda: bool(message.locked_until_utc > first_until), timeout_s=8)
            thread.run(renewer.close)
        receiver.complete_message(message)


def test_closing_gives_prefetched_messages_back_uncounted(bus: Any, sdk: Any) -> None:
    queue = f"prefetched-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    bus.send(queue, *(str(index) for index in range(10)))
    with sdk.receiver(queue, shared=False, prefetch_count=10) as receiver:
        receiver.complete_message(one(receiver))
    wait_until(lambda: all(t.state == "active" for t in bus.call(lambda engine: engine.broker.peek(queue, 0, 10))))
    tasks = bus.call(lambda engine: engine.broker.peek(queue, 0, 10))
    assert [(task.message.body, task.delivery_count) for task in tasks] == [(str(n).encode(), 0) for n in range(1, 10)]


def test_peeking_shows_every_state_and_locks_nothing(bus: Any, sdk: Any) -> None:
    queue = f"peeked-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    due = datetime.now(UTC) + timedelta(hours=1)
    with sdk.sender(queue, shared=False) as sender, sdk.receiver(queue, shared=False) as receiver:
        sender.send_messages(ServiceBusMessage("deferred"))
        receiver.defer_message(one(receiver))
        sender.send_messages(ServiceBusMessage("scheduled", scheduled_enqueue_time_utc=due))
        sender.send_messages([ServiceBusMessage(f"active{index}") for index in range(3)])
        seen = receiver.peek_messages(10, sequence_number=1)
        assert [(str(m), m.state.name) for m in seen] == [
            ("deferred", "DEFERRED"), ("scheduled", "SCHEDULED"), ("active0", "ACTIVE"), ("active1", "ACTIVE"),
            ("active2", "ACTIVE"),
        ]  # fmt: skip
        assert abs(seen[1].scheduled_enqueue_time_utc - due) < timedelta(seconds=1)
        assert [str(m) for m in receiver.peek_messages(2, sequence_number=seen[2].sequence_number)] == [
            "active0",
            "active1",
        ]
        assert receiver.peek_messages(2, sequence_number=10_000) == []


def test_a_queues_time_to_live_bounds_what_a_receiver_sees(bus: Any, sdk: Any) -> None:
    queue = f"shortlived-{sdk.mode}"
    bus.declare(QueueSettings(queue, time_to_live_s=60))
    with sdk.sender(queue, shared=False) as sender:
        sender.send_messages([ServiceBusMessage("own", time_to_live=timedelta(days=1)), ServiceBusMessage("none")])
    receiver = sdk.receiver(queue)
    for _ in range(2):
        message = one(receiver)
        assert message.time_to_live == timedelta(seconds=60)
        assert message.expires_at_utc == message.enqueued_time_utc + timedelta(seconds=60)
        receiver.complete_message(message)
