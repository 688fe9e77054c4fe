"""Sending and receiving with the real SDK: what goes in comes out, once, in order, unchanged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from azure.servicebus import ServiceBusMessage, ServiceBusReceiveMode
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError, MessagingEntityNotFoundError, ServiceBusError

from outbox.engine.entities import QueueSettings, TopicSettings
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
    read = got.raw_amqp_message.body
    assert read == (
        {b"a": [1, b"x", None]} if isinstance(value, dict) else value.encode() if value == "text" else value
    )


def test_a_list_and_a_batch_arrive_in_order(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    batch = sender.create_message_batch()
    for index in range(3):
        batch.add_message(ServiceBusMessage(f"b{index}"))
    sender.send_messages(batch)
    sender.send_messages([ServiceBusMessage(f"l{index}") for index in range(100)])
    one = sender.create_message_batch()
    one.add_message(ServiceBusMessage("one"))
    sender.send_messages(one)
    got = [str(message) for message in receive_and_complete(receiver, 104)]
    assert got == ["b0", "b1", "b2", *(f"l{index}" for index in range(100)), "one"]


def test_iteration_ends_when_nothing_comes(bus: Any, sdk: Any) -> None:
    queue = f"iterated-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    bus.send(queue, "1", "2")
    found = []
    with sdk.receiver(queue, shared=False, max_wait_time=0.3) as receiver:
        for message in receiver:
            found.append(str(message))
            receiver.complete_message(message)
    assert (found, bus.bodies(queue)) == (["1", "2"], [])


def test_a_message_larger_than_a_frame_goes_both_ways(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    body = bytes(range(256)) * 1_200
    sender.send_messages(ServiceBusMessage(body, message_id="large"))
    [got] = receive_and_complete(receiver, 1)
    assert b"".join(got.body) == body


def test_a_message_over_the_limit_is_refused_and_the_sender_lives_on(plain: tuple[Any, Any]) -> None:
    sender, receiver = plain
    with pytest.raises(MessageSizeExceededError):
        sender.send_messages(ServiceBusMessage(b"x" * 600_000))
    sender.send_messages(ServiceBusMessage(b"small"))
    assert str(receive_and_complete(receiver, 1)[0]) == "small"


def test_receive_and_delete_leaves_nothing(bus: Any, sdk: Any) -> None:
    bus.declare(QueueSettings("deleted"))
    sdk.sender("deleted").send_messages([ServiceBusMessage(str(index)) for index in range(20)])
    mode = ServiceBusReceiveMode.RECEIVE_AND_DELETE
    receiver = sdk.receiver("deleted", receive_mode=mode, prefetch_count=50)
    assert [str(message) for message in receive(receiver, 20)] == [str(index) for index in range(20)]
    assert bus.bodies("deleted") == []


def test_four_receivers_share_a_queue_without_a_double(bus: Any, sdk: Any) -> None:
    queue = f"shared-{sdk.mode}"
    bus.declare(QueueSettings(queue))
    bus.send(queue, *(str(index) for index in range(40)))
    receivers = [sdk.receiver(queue, shared=False, prefetch_count=4).__enter__() for _ in range(4)]
    found: list[str] = []
    rounds = 0
    while len(found) < 40 and (rounds := rounds + 1) < 20:
        for receiver in receivers:
            for message in receiver.receive_messages(5, max_wait_time=0.3):
                receiver.complete_message(message)
                found.append(str(message))
    for receiver in receivers:
        receiver.__exit__(None, None, None)
    assert sorted(found, key=int) == [str(index) for index in range(40)]


def test_a_topic_gives_every_subscription_its_own_copy(bus: Any, sdk: Any) -> None:
    topic = f"events-{sdk.mode}"
    bus.declare(TopicSettings(topic, subscriptions=("audit", "mail")))
    with sdk.sender(topic=topic, shared=False) as sender:
        sender.send_messages([ServiceBusMessage("a"), ServiceBusMessage("b")])
    for name in ("audit", "mail"):
        with sdk.client.get_subscription_receiver(topic, name, keep_alive=0, prefetch_count=1) as receiver:
            assert [str(message) for message in receive_and_complete(receiver, 2)] == ["a", "b"]


def test_an_entity_that_does_not_exist_is_named(sdk: Any) -> None:
    with pytest.raises(MessagingEntityNotFoundError, match="nowhere"):
        sdk.sender("nowhere", shared=False).__enter__()
    with pytest.raises(MessagingEntityNotFoundError, match="nowhere/Subscriptions/x"):
        sdk.client.get_subscription_receiver("nowhere", "x", keep_alive=0).__enter__()


def test_nothing_can_be_sent_to_a_dead_letter_queue(bus: Any, sdk: Any) -> None:
    bus.declare(QueueSettings("guarded"))
    with pytest.raises(ServiceBusError):
        sdk.sender("guarded/$DeadLetterQueue", shared=False).__enter__()


def test_duplicate_detection_drops_a_repeated_message_id(bus: Any, sdk: Any) -> None:
    queue = f"unique-{sdk.mode}"
    bus.declare(QueueSettings(queue, duplicate_window_s=600))
    with sdk.sender(queue, shared=False) as sender:
        sender.send_messages(ServiceBusMessage("first", message_id="same"))
        sender.send_messages(ServiceBusMessage("second", message_id="same"))
        sender.send_messages(
            [ServiceBusMessage("third", message_id="same"), ServiceBusMessage("other", message_id="o")]
        )
    assert bus.bodies(queue) == [b"first", b"other"]


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
