"""Sending and receiving with the real SDK: what goes in comes out, once, in order, unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessagingEntityNotFoundError

from outbox.engine.entities import QueueSettings
from outbox.message import Message

DAY = datetime.fromtimestamp(1_700_000_000, UTC)


def receive(receiver: Any, count: int, max_wait_s: float = 5) -> list[Any]:
    """Receive exactly `count` messages."""
    found: list[Any] = []
    while len(found) < count:
        batch = receiver.receive_messages(count - len(found), max_wait_time=max_wait_s)
        assert batch, f"{count} messages expected, {len(found)} came"
        found += batch
    return found


def receive_and_complete(receiver: Any, count: int) -> list[Any]:
    messages = receive(receiver, count)
    for message in messages:
        receiver.complete_message(message)
    return messages


def test_every_property_arrives_as_it_was_sent(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    plain_values: dict[str, Any] = {"n": 5, "big": 2**30, "f": 1.5, "flag": True, "id": uuid4(), "none": None}
    application: dict[Any, Any] = {"text": "é", "when": DAY, **plain_values}
    sent = ServiceBusMessage(
        b"body", application_properties=application, message_id="m", correlation_id="c", subject="s", to="t",
        content_type="text/plain", reply_to="r", reply_to_session_id="rs", session_id="x", partition_key="x",
        time_to_live=timedelta(minutes=5),
    )  # fmt: skip
    sender.send_messages(sent)
    [got] = receive_and_complete(receiver, 1)
    for name in ("message_id", "correlation_id", "subject", "to", "content_type", "reply_to", "reply_to_session_id",
                 "session_id", "partition_key", "time_to_live"):  # fmt: skip
        assert getattr(got, name) == getattr(sent, name), name
    found = {key.decode(): value for key, value in got.application_properties.items()}
    assert found == {"text": "é".encode(), "when": 1_700_000_000_000, **plain_values}
    assert b"".join(got.body) == b"body"
    assert got.expires_at_utc > datetime.now(UTC)


def test_a_message_without_an_id_gets_one_when_it_is_sent_or_scheduled(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    sender.send_messages(ServiceBusMessage(b"1"))
    sender.schedule_messages(ServiceBusMessage(b"2"), datetime.now(UTC))
    ids = {message.message_id for message in receive_and_complete(receiver, 2)}
    assert len(ids) == 2 and all(UUID(one) for one in ids)


def test_the_brokers_properties_are_there(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    before = datetime.now(UTC) - timedelta(seconds=2)
    sender.send_messages([ServiceBusMessage(b"1"), ServiceBusMessage(b"2")])
    first, second = receive(receiver, 2)
    assert second.sequence_number == first.sequence_number + 1
    assert before < first.enqueued_time_utc < first.locked_until_utc
    assert (first.delivery_count, first.state.name) == (0, "ACTIVE")
    assert first.lock_token != second.lock_token
    for message in (first, second):
        receiver.complete_message(message)


@pytest.mark.parametrize(
    "body", [b"", "ünïcode", b"x" * 300, b"\x00\x53\x75\xa0\x01x"], ids=["empty", "text", "long", "amqp"]
)
def test_a_body_arrives_as_it_was_sent(plain: tuple[Any, Any], body: bytes | str) -> None:
    sender, receiver = plain
    sender.send_messages(ServiceBusMessage(body))
    [got] = receive_and_complete(receiver, 1)
    assert list(got.body) == [body.encode() if isinstance(body, str) else body]


def test_a_body_of_several_sections_arrives_as_it_was_sent(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    sender.send_messages(AmqpAnnotatedMessage(data_body=[b"two", b"parts"]))
    sender.send_messages(AmqpAnnotatedMessage(sequence_body=[[1, 2], [3]]))
    first, second = receive_and_complete(receiver, 2)
    assert list(first.body) == [b"two", b"parts"]
    assert list(second.body) == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("value", "read"),
    [({"a": [1, "x", None]}, {b"a": [1, b"x", None]}), ("text", b"text"), (17, 17)],
    ids=["map", "string", "number"],
)
def test_a_value_body_arrives_as_it_was_sent(plain: tuple[Any, Any], value: Any, read: Any) -> None:
    sender, receiver = plain
    sender.send_messages(AmqpAnnotatedMessage(value_body=value))
    [got] = receive_and_complete(receiver, 1)
    assert got.raw_amqp_message.body == read


def test_a_message_larger_than_a_frame_goes_both_ways(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    body = bytes(range(256)) * 1_200
    sender.send_messages(ServiceBusMessage(body, message_id="large"))
    [got] = receive_and_complete(receiver, 1)
    assert b"".join(got.body) == body


def test_receive_and_delete_leaves_nothing(bus: Any, sdk: Any) -> None:
    bus.declare(QueueSettings("deleted"))
    sdk.sender("deleted").send_messages([ServiceBusMessage(str(index)) for index in range(20)])
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    receiver = sdk.receiver("deleted", receive_mode=mode, prefetch_count=50)
    assert [str(message) for message in receive(receiver, 20)] == [str(index) for index in range(20)]
    assert bus.bodies("deleted") == []


def test_an_entity_that_does_not_exist_is_named(sdk: Any) -> None:
    with pytest.raises(MessagingEntityNotFoundError, match="nowhere"):
        sdk.sender("nowhere", shared=False).__enter__()
    with pytest.raises(MessagingEntityNotFoundError, match="nowhere/Subscriptions/x"):
        sdk.client.get_subscription_receiver("nowhere", "x", keep_alive=0).__enter__()


def test_a_message_of_the_runtime_reaches_the_sdk_with_its_identity(bus: Any, plain: tuple[Any, Any], sdk: Any) -> None:
    _, receiver = plain
    message = Message(
        body=b"{}", outbox_id="o1", type="Transfer", created_ms=5, correlation_id="c", properties={"k": 1}
    )
    bus.call(lambda engine: engine.broker.send(f"plain-{sdk.mode}", [message]))
    [got] = receive_and_complete(receiver, 1)
    assert (got.message_id, got.correlation_id) == ("o1", "c")
    assert got.application_properties == {
        b"outbox-id": b"o1", b"outbox-type": b"Transfer", b"correlation-id": b"c", b"outbox-created": 5, b"k": 1
    }  # fmt: skip


def test_a_message_of_the_sdk_reaches_the_runtime_with_its_identity(bus: Any, sdk: Any) -> None:
    queue = f"fields-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    with sdk.sender(queue, shared=False) as sender:
        properties: dict[Any, Any] = {
            "outbox-id": "o1",
            "outbox-type": "Transfer",
            "outbox-created": DAY,
            "tenant": "x",
        }
        sender.send_messages(ServiceBusMessage("{}", message_id="m", session_id="s", application_properties=properties))
    [task] = bus.call(lambda engine: engine.broker.peek(queue, 0, 10))
    message = task.message
    assert (message.outbox_id, message.message_id, message.type) == ("o1", "m", "Transfer")
    assert (message.created_ms, message.session_id, message.properties) == (1_700_000_000_000, "s", {"tenant": "x"})
