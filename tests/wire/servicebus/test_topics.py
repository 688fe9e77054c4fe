"""Topics with rules: what the real SDK sends reaches the subscriptions whose filters take it, and no other."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.exceptions import ServiceBusError

from outbox.engine.entities import TopicSettings
from outbox.engine.state.rules import Rule, RuleSettings

SYSTEM = {
    "correlation_id": "c", "message_id": "m", "to": "t", "reply_to": "r", "label": "s", "session_id": "x",
    "reply_to_session_id": "rs", "content_type": "text/plain",
}  # fmt: skip
SENT: dict[str, Any] = {("subject" if name == "label" else name): value for name, value in SYSTEM.items()}


def declare(bus: Any, sdk: Any, **rules: Rule) -> str:
    """A topic with a subscription for each rule, and one with all."""
    topic = f"sorted-{uuid4().hex[:8]}-{sdk.mode}"
    bus.declare(TopicSettings(topic, (*rules, "all")))
    bus.declare(*(RuleSettings(f"{topic}/Subscriptions/{name}", (rule,)) for name, rule in rules.items()))
    return topic


def held(bus: Any, topic: str, *subscriptions: str) -> list[list[bytes]]:
    return [bus.bodies(f"{topic}/Subscriptions/{name}") for name in subscriptions]


def test_every_system_property_can_be_filtered_by(bus: Any, sdk: Any) -> None:
    rules = {name.replace("_", "-"): Rule(name, "correlation", {name: value}) for name, value in SYSTEM.items()}
    topic = declare(bus, sdk, **rules)
    with sdk.sender(topic=topic, shared=False) as sender:
        sender.send_messages([ServiceBusMessage("all", **SENT), ServiceBusMessage("none")])
        for name, value in SENT.items():
            sender.send_messages(ServiceBusMessage(f"no {name}", **{**SENT, name: value + "!"}))
    for number, name in enumerate(rules):
        [found] = held(bus, topic, name)
        assert found == [b"all", *(f"no {other}".encode() for at, other in enumerate(SENT) if at != number)]
    assert len(held(bus, topic, "all")[0]) == 2 + len(SENT)


def test_own_properties_are_compared_with_their_type_and_all_of_them(bus: Any, sdk: Any) -> None:
    red, one = Rule("r", "correlation", {}, {"colour": "red", "n": 1}), Rule("r", "correlation", {}, {"flag": True})
    topic = declare(bus, sdk, red=red, one=one, none=Rule("r", "false"))
    given: list[dict[Any, Any]] = [{"colour": "red", "n": 1}, {"colour": "red", "n": "1"}, {"flag": True}, {"flag": 1}]
    with sdk.sender(topic=topic, shared=False) as sender:
        sender.send_messages(
            [ServiceBusMessage(str(at), application_properties=fields) for at, fields in enumerate(given)]
        )
    assert held(bus, topic, "red", "one", "none") == [[b"0"], [b"2"], []]


def test_a_filtered_copy_is_received_byte_for_byte(bus: Any, sdk: Any) -> None:
    topic = declare(bus, sdk, one=Rule("r", "correlation", {"label": "s"}))
    sent = ServiceBusMessage(b"body", application_properties={"k": 1}, **SENT)
    with sdk.sender(topic=topic, shared=False) as sender:
        sender.send_messages(sent)
    with sdk.client.get_subscription_receiver(topic, "one", keep_alive=0, prefetch_count=1) as receiver:
        [got] = receiver.receive_messages(1, max_wait_time=5)
        assert {name: getattr(got, name) for name in SENT} == SENT
        assert (b"".join(got.body), got.application_properties) == (b"body", {b"k": 1})
        receiver.complete_message(got)


def test_messages_scheduled_on_a_topic_can_be_cancelled_for_every_subscription(bus: Any, sdk: Any) -> None:
    topic = declare(bus, sdk, one=Rule("r", "correlation", {"label": "s"}))
    due = datetime.now(UTC) + timedelta(minutes=5)
    with sdk.sender(topic=topic, shared=False) as sender:
        numbers = sender.schedule_messages([ServiceBusMessage("a", subject="s"), ServiceBusMessage("b")], due)
        assert held(bus, topic, "one", "all") == [[b"a"], [b"a", b"b"]]
        sender.cancel_scheduled_messages(numbers[0])
        assert held(bus, topic, "one", "all") == [[], [b"b"]]
        with pytest.raises(ServiceBusError):
            sender.cancel_scheduled_messages(numbers[0])


def test_a_queue_that_is_deleted_lets_its_receivers_go(bus: Any, sdk: Any) -> None:
    topic = declare(bus, sdk)
    path = f"{topic}/Subscriptions/all"
    with sdk.client.get_subscription_receiver(topic, "all", keep_alive=0, prefetch_count=1) as receiver:
        assert receiver.receive_messages(1, max_wait_time=0.2) == []
        bus.call(lambda engine: engine.topology.delete(path))
        with pytest.raises(ServiceBusError):
            receiver.receive_messages(1, max_wait_time=2)
