"""The administration client, real and in both shapes: entities and rules made, read, listed, changed and deleted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError, ResourceExistsError, ResourceNotFoundError
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import (
    CorrelationRuleFilter,
    FalseRuleFilter,
    SqlRuleAction,
    SqlRuleFilter,
    TrueRuleFilter,
)

from outbox.engine.entities import QueueSettings
from outbox.engine.log import records
from outbox.errors import NotRegistrable
from tests.wire.conftest import Bus, Sdk
from tests.wire.servicebus.administration import Admin

# Queues


def test_a_queue_is_created_with_what_was_asked_and_works(bus: Bus, admin: Admin, sdk: Sdk, name: str) -> None:
    made = admin.create_queue(
        name,
        lock_duration=timedelta(seconds=30),
        max_delivery_count=3,
        default_message_time_to_live=timedelta(hours=1),
        dead_lettering_on_message_expiration=True,
        requires_duplicate_detection=True,
        duplicate_detection_history_time_window=timedelta(minutes=1),
        user_metadata="<é&>",
        max_size_in_megabytes=2048,
    )
    found = admin.get_queue(name)
    for queue in (made, found):
        assert (queue.name, queue.lock_duration, queue.max_delivery_count) == (name, timedelta(seconds=30), 3)
        assert queue.default_message_time_to_live == timedelta(hours=1)
        assert queue.duplicate_detection_history_time_window == timedelta(minutes=1)
        assert (queue.user_metadata, queue.max_size_in_megabytes, queue.status) == ("<é&>", 2048, "Active")
        assert queue.dead_lettering_on_message_expiration and queue.requires_duplicate_detection
        assert not queue.requires_session
    assert bus.call(lambda engine: engine.topology.queues[name]) == QueueSettings(
        name, lock_s=30, max_delivery_count=3, time_to_live_s=3600, duplicate_window_s=60
    )
    with sdk.sender(name, shared=False) as sender:
        sender.send_messages([ServiceBusMessage("m", message_id="same"), ServiceBusMessage("m", message_id="same")])
    assert bus.bodies(name) == [b"m"]


def test_a_queue_has_the_services_defaults(bus: Bus, admin: Admin, name: str) -> None:
    queue = admin.create_queue(name)
    assert (queue.lock_duration, queue.max_delivery_count) == (timedelta(minutes=1), 10)
    assert queue.default_message_time_to_live > timedelta(days=3650)
    assert bus.call(lambda engine: engine.topology.queues[name]) == QueueSettings(
        name, max_delivery_count=10, dead_letter_on_expiry=False
    )


def test_what_is_there_is_not_created_again_and_what_is_not_there_is_not_found(admin: Admin, name: str) -> None:
    admin.create_queue(name)
    with pytest.raises(ResourceExistsError):
        admin.create_queue(name)
    for missing in (admin.get_queue, admin.get_topic, admin.delete_queue, admin.get_queue_runtime_properties):
        with pytest.raises(ResourceNotFoundError):
            missing(name + "-not")
    with pytest.raises(ResourceNotFoundError):
        admin.get_subscription(name + "-not", "s")


def test_a_queue_is_updated_and_keeps_what_was_not_said(bus: Bus, admin: Admin, name: str) -> None:
    queue = admin.create_queue(name, max_delivery_count=3, user_metadata="kept")
    queue.lock_duration = timedelta(seconds=10)
    admin.update_queue(queue, max_delivery_count=7)
    found = admin.get_queue(name)
    assert (found.lock_duration, found.max_delivery_count, found.user_metadata) == (timedelta(seconds=10), 7, "kept")
    assert bus.call(lambda engine: engine.topology.queues[name].lock_s) == 10


def test_an_update_of_what_is_not_there_or_cannot_change_is_refused(admin: Admin, name: str) -> None:
    queue = admin.create_queue(name)
    queue.requires_session = True
    with pytest.raises(HttpResponseError, match="cannot become"):
        admin.update_queue(queue)
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.update_queue(queue)


@pytest.mark.parametrize("detects", [False, True])
def test_duplicate_detection_of_what_is_there_cannot_be_changed(admin: Admin, name: str, detects: bool) -> None:
    queue = admin.create_queue(f"{name}-q", requires_duplicate_detection=detects)
    topic = admin.create_topic(f"{name}-t", requires_duplicate_detection=detects)
    admin.update_queue(queue, lock_duration=timedelta(seconds=20))
    admin.update_topic(topic, user_metadata="x")
    said = f"RequiresDuplicateDetection is {str(detects).lower()} and cannot be changed"
    with pytest.raises(HttpResponseError, match=said):
        admin.update_queue(queue, requires_duplicate_detection=not detects)
    with pytest.raises(HttpResponseError, match=said):
        admin.update_topic(topic, requires_duplicate_detection=not detects)
    assert admin.get_queue(queue.name).requires_duplicate_detection is detects


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"forward_to": "other"}, "ForwardTo is not supported"),
        ({"auto_delete_on_idle": timedelta(minutes=10)}, "AutoDeleteOnIdle is not supported"),
        ({"lock_duration": timedelta(minutes=6)}, "LockDuration"),
        ({"max_delivery_count": 0}, "MaxDeliveryCount"),
        ({"default_message_time_to_live": "P1Y"}, "DefaultMessageTimeToLive"),
        ({"default_message_time_to_live": timedelta(milliseconds=999)}, "DefaultMessageTimeToLive"),
        ({"user_metadata": "x" * 1_025}, "UserMetadata"),
    ],
    ids=str,
)
def test_what_would_behave_otherwise_is_refused_by_name(
    bus: Bus, admin: Admin, name: str, asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(HttpResponseError, match=said):
        admin.create_queue(name, **asked)
    assert not bus.call(lambda engine: name in engine.topology.queues)


def test_a_queue_of_an_app_or_a_file_is_described_from_its_settings(bus: Bus, admin: Admin, name: str) -> None:
    bus.declare(QueueSettings(name, ordering="per_key", lock_s=90.5, time_to_live_s=86_400, duplicate_window_s=20))
    queue = admin.get_queue(name)
    assert queue.requires_session and queue.requires_duplicate_detection
    assert queue.duplicate_detection_history_time_window == timedelta(seconds=20)
    assert queue.lock_duration == timedelta(seconds=90.5)
    assert queue.default_message_time_to_live == timedelta(days=1)
    assert queue.max_delivery_count == 100


def test_a_deleted_queue_is_gone_with_its_messages(bus: Bus, admin: Admin, name: str) -> None:
    admin.create_queue(name, user_metadata="old")
    bus.send(name, "m")
    admin.delete_queue(name)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)
    assert admin.create_queue(name).user_metadata is None
    assert bus.bodies(name) == []


def test_names_with_slashes_and_marks_are_names(bus: Bus, admin: Admin, name: str) -> None:
    for odd in (f"{name}/a/b", f"{name}.x_y-z"):
        admin.create_queue(odd)
        assert admin.get_queue(odd).name == odd
        assert odd in [queue.name for queue in admin.list_queues()]
        assert odd in bus.call(lambda engine: list(engine.topology.queues))
        admin.delete_queue(odd)


def test_names_that_the_service_does_not_take_are_refused(bus: Bus, admin: Admin, name: str) -> None:
    marks = (f"{name} b", f"{name}é", f"{name}&<>%2F", f"{name}//b", "x" * 261)
    for odd in (*marks, f"-{name}", f"{name}_", f"/{name}"):
        with pytest.raises(HttpResponseError, match="name"):
            admin.create_queue(odd)
        with pytest.raises(HttpResponseError, match="name"):
            admin.create_topic(odd)
    admin.create_topic(name)
    for odd in ("a b", "a/b", "x" * 51, ".a", "a-"):
        with pytest.raises(HttpResponseError, match="name"):
            admin.create_subscription(name, odd)
    admin.create_subscription(name, "s")
    for odd in ("a b", "x" * 51, "_a", "a."):
        with pytest.raises(HttpResponseError, match="name"):
            admin.create_rule(name, "s", odd)
    assert not [path for path in bus.call(lambda engine: list(engine.topology.queues)) if " " in path]
    admin.delete_topic(name)


def test_lists_come_in_pages_and_whole(admin: Admin, name: str) -> None:
    names = [f"{name}-{number}" for number in range(5)]
    for each in names:
        admin.create_queue(each)
    assert [queue.name for queue in admin.list_queues(max_page_size=2) if queue.name.startswith(name)] == names
    assert [queue.name for queue in admin.list_queues_runtime_properties() if queue.name.startswith(name)] == names


# Topics, subscriptions, rules


def test_topics_and_subscriptions_are_made_and_used(bus: Bus, admin: Admin, sdk: Sdk, name: str) -> None:
    admin.create_topic(name, default_message_time_to_live=timedelta(minutes=10), user_metadata="t")
    made = admin.create_subscription(name, "s", lock_duration=timedelta(seconds=20), max_delivery_count=4)
    assert (made.name, made.lock_duration, made.max_delivery_count) == ("s", timedelta(seconds=20), 4)
    admin.create_subscription(name, "keyed", requires_session=True, default_message_time_to_live=timedelta(minutes=5))
    assert bus.call(lambda engine: engine.topology.queues[f"{name}/Subscriptions/s"].time_to_live_s) == 600
    keyed = bus.call(lambda engine: engine.topology.queues[f"{name}/Subscriptions/keyed"])
    assert (keyed.ordering, keyed.time_to_live_s) == ("per_key", 300)
    assert [item.name for item in admin.list_subscriptions(name)] == ["keyed", "s"]
    assert name in [item.name for item in admin.list_topics()]
    with sdk.sender(topic=name, shared=False) as sender:
        sender.send_messages(ServiceBusMessage("m", session_id="k"))
    found = admin.get_subscription_runtime_properties(name, "s")
    assert (found.active_message_count, found.total_message_count) == (1, 1)
    assert admin.get_topic_runtime_properties(name).subscription_count == 2


def test_what_a_topic_says_holds_for_its_subscriptions_when_it_changes(bus: Bus, admin: Admin, name: str) -> None:
    topic = admin.create_topic(name, default_message_time_to_live=timedelta(minutes=1))
    admin.create_subscription(name, "s", default_message_time_to_live=timedelta(minutes=30))
    topic.default_message_time_to_live = timedelta(hours=2)
    admin.update_topic(topic)
    assert admin.get_topic(name).default_message_time_to_live == timedelta(hours=2)
    assert admin.get_subscription(name, "s").default_message_time_to_live == timedelta(minutes=30)
    assert bus.call(lambda engine: engine.topology.queues[f"{name}/Subscriptions/s"].time_to_live_s) == 1_800


def test_names_are_matched_without_regard_to_case(bus: Bus, admin: Admin, sdk: Sdk, name: str) -> None:
    """Source: entity names are case-insensitive (Service Bus, naming rules of Azure resources)."""
    admin.create_queue(name, max_delivery_count=3)
    admin.create_topic(f"{name}-t", user_metadata="t")
    admin.create_subscription(f"{name}-t", "audit", max_delivery_count=4)
    shout = name.upper()
    for again in (shout, f"{shout}-T"):
        with pytest.raises(HttpResponseError):
            admin.create_queue(again)
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(f"{shout}-T", "AUDIT")
    assert (admin.get_queue(shout).max_delivery_count, admin.get_topic(f"{shout}-T").user_metadata) == (3, "t")
    assert admin.get_subscription(f"{shout}-T", "Audit").max_delivery_count == 4
    with sdk.sender(shout, shared=False) as sender, sdk.receiver(shout, shared=False, max_wait_time=5) as receiver:
        sender.send_messages(ServiceBusMessage("m"))
        (message,) = receiver.receive_messages()
        receiver.dead_letter_message(message, reason="r")
    assert admin.get_queue_runtime_properties(name).dead_letter_message_count == 1
    with sdk.sender(topic=f"{shout}-T", shared=False) as sender:
        sender.send_messages(ServiceBusMessage("m"))
    assert admin.get_subscription_runtime_properties(f"{name}-t", "audit").active_message_count == 1
    admin.delete_queue(shout)
    with pytest.raises(ResourceNotFoundError):
        admin.get_queue(name)


def test_entities_of_an_older_folder_that_differ_in_case_are_both_reached(bus: Bus, admin: Admin, name: str) -> None:
    with pytest.raises(NotRegistrable, match="in case only"):
        bus.call(lambda engine: engine.declare(QueueSettings(name), QueueSettings(name.upper())))
    both = [QueueSettings(name, max_delivery_count=3), QueueSettings(name.upper(), max_delivery_count=4)]
    bus.call(lambda engine: engine.core.do(records.Declared(both, [])))
    assert [admin.get_queue(each).max_delivery_count for each in (name, name.upper())] == [3, 4]
    bus.call(lambda engine: engine.declare(*both))  # as it stands


def test_subscriptions_and_topics_are_updated_and_deleted(bus: Bus, admin: Admin, name: str) -> None:
    admin.create_topic(name)
    subscription = admin.create_subscription(name, "s")
    subscription.max_delivery_count = 2
    admin.update_subscription(name, subscription)
    assert bus.call(lambda engine: engine.topology.queues[f"{name}/Subscriptions/s"].max_delivery_count) == 2
    with pytest.raises(ResourceExistsError):
        admin.create_subscription(name, "s")
    admin.delete_subscription(name, "s")
    assert admin.list_subscriptions(name) == []
    admin.create_subscription(name, "t")
    admin.delete_topic(name)
    assert not bus.call(lambda engine: [path for path in engine.topology.queues if path.startswith(name)])


def test_rules_are_made_listed_changed_and_deleted(bus: Bus, admin: Admin, name: str) -> None:
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    assert [rule.name for rule in admin.list_rules(name, "s")] == ["$Default"]
    properties: dict[str, Any] = {"text": "<é>", "n": 5, "big": 2**40, "f": 1.5, "flag": True}
    filter = CorrelationRuleFilter(label="l", correlation_id="c", properties=dict(properties))
    made = admin.create_rule(name, "s", "r", filter=filter)
    found = admin.get_rule(name, "s", "r")
    for rule in (made, found):
        assert isinstance(rule.filter, CorrelationRuleFilter)
        assert (rule.filter.label, rule.filter.correlation_id, rule.filter.to) == ("l", "c", None)
        assert rule.filter.properties == properties
    stored = bus.call(lambda engine: engine.topology.rules(f"{name}/Subscriptions/s")["r"])
    assert (stored.system, stored.properties) == ({"correlation_id": "c", "label": "l"}, properties)
    found.filter = FalseRuleFilter()
    admin.update_rule(name, "s", found)
    assert isinstance(admin.get_rule(name, "s", "r").filter, FalseRuleFilter)
    admin.delete_rule(name, "s", "$Default")
    assert [rule.name for rule in admin.list_rules(name, "s")] == ["r"]
    with pytest.raises(ResourceExistsError):
        admin.create_rule(name, "s", "r", filter=TrueRuleFilter())
    for missing in (admin.get_rule, admin.delete_rule):
        with pytest.raises(ResourceNotFoundError):
            missing(name, "s", "other")


def test_filters_in_sql_and_actions_are_refused_with_the_cure(admin: Admin, name: str) -> None:
    admin.create_topic(name)
    admin.create_subscription(name, "s")
    with pytest.raises(HttpResponseError, match="use a CorrelationFilter"):
        admin.create_rule(name, "s", "r", filter=SqlRuleFilter("colour = 'red'"))
    with pytest.raises(HttpResponseError, match="has an action"):
        admin.create_rule(name, "s", "r", filter=TrueRuleFilter(), action=SqlRuleAction("SET x = 1"))
    with pytest.raises(HttpResponseError, match="1 to 64 conditions"):
        admin.create_rule(name, "s", "r", filter=CorrelationRuleFilter())
    admin.create_rule(name, "s", "all", filter=SqlRuleFilter("1=1"))
