"""The entities file: the official emulator's own example is understood, everything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from outbox.emulator.bus.entities_file import parse_entities, read_entities
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.state.rules import Rule, RuleSettings
from outbox.errors import NotRegistrable

QUEUE: dict[str, Any] = {
    "Name": "queue.1",
    "Properties": {
        "DeadLetteringOnMessageExpiration": False,
        "DefaultMessageTimeToLive": "PT1H",
        "DuplicateDetectionHistoryTimeWindow": "PT20S",
        "ForwardDeadLetteredMessagesTo": "",
        "ForwardTo": "",
        "LockDuration": "PT1M",
        "MaxDeliveryCount": 3,
        "RequiresDuplicateDetection": False,
        "RequiresSession": False,
    },
}


def file_of(*queues: object, topics: object = ()) -> str:
    return json.dumps({"UserConfig": {"Namespaces": [{"Name": "sbemulatorns", "Queues": queues, "Topics": topics}]}})


def with_property(name: str, value: object) -> str:
    return file_of({**QUEUE, "Properties": {**QUEUE["Properties"], name: value}})


def test_a_part_of_a_path_may_begin_with_a_sign_as_the_service_has_it() -> None:
    assert [entity.name for entity in parse_entities(file_of({"Name": "txt/.-_123"}))] == ["txt/.-_123"]


def test_a_queue_of_the_official_example_is_read() -> None:
    [queue] = parse_entities(file_of(QUEUE))
    assert queue == QueueSettings(
        "queue.1", lock_s=60, max_delivery_count=3, time_to_live_s=3600, dead_letter_on_expiry=False
    )


@pytest.mark.parametrize(
    "name", ["UserMetadata", "Status", "EnablePartitioning", "EnableBatchedOperations", "MaxSizeInMegabytes"]
)
def test_a_property_without_effect_is_passed_over(name: str) -> None:
    assert parse_entities(with_property(name, 1)) == parse_entities(file_of(QUEUE))


@pytest.mark.parametrize(
    ("name", "value", "field", "expected"),
    [
        ("RequiresSession", True, "ordering", "per_key"),
        ("RequiresDuplicateDetection", True, "duplicate_window_s", 20.0),
        ("DefaultMessageTimeToLive", "P10675199DT2H48M5.4775807S", "time_to_live_s", 0.0),
        ("DefaultMessageTimeToLive", "P1DT1M0.5S", "time_to_live_s", 86_460.5),
        ("DefaultMessageTimeToLive", "PT1S", "time_to_live_s", 1.0),
        ("LockDuration", "PT5M", "lock_s", 300.0),
        ("DeadLetteringOnMessageExpiration", True, "dead_letter_on_expiry", True),
    ],
)
def test_a_property_has_its_effect(name: str, value: object, field: str, expected: object) -> None:
    [queue] = parse_entities(with_property(name, value))
    assert getattr(queue, field) == expected


def test_defaults_are_those_of_the_service() -> None:
    [queue] = parse_entities(file_of({"Name": "q"}))
    assert queue == QueueSettings("q", lock_s=60, max_delivery_count=10, dead_letter_on_expiry=False)


async def test_a_topic_and_its_subscriptions_can_be_declared(engine: Engine) -> None:
    subscription = {"Name": "s", "Properties": {"RequiresSession": True, "MaxDeliveryCount": 4}}
    own = {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": True}
    topic = {"Name": "t", "Properties": own, "Subscriptions": [subscription]}
    entities = parse_entities(file_of(topics=[topic]))
    for settings in entities:
        engine.declare(settings)
    queue = engine.topology.queues["t/Subscriptions/s"]
    assert (queue.ordering, queue.max_delivery_count) == ("per_key", 4)
    assert (queue.time_to_live_s, queue.duplicate_window_s) == (3600, 600)  # the topic's, which has none of its own
    assert engine.topology.topics["t"] == TopicSettings("t", ("s",))


def rule(**properties: object) -> str:
    rules = [{"Name": "r", "Properties": properties}]
    return file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "audit", "Rules": rules}]}])


@pytest.mark.parametrize(
    "text",
    [
        rule(FilterType="Sql", SqlFilter={"SqlExpression": "sys.MessageId = '1'"}),
        rule(FilterType="Sql", SqlFilter={"SqlExpression": "1=1"}, Action={"SqlExpression": "SET x = 1"}),
        rule(FilterType="Sql"),
        rule(FilterType="Correlation"),
        rule(FilterType="Correlation", CorrelationFilter={}),
        rule(CorrelationFilter={"Subject": "x"}),
        rule(CorrelationFilter={"Label": 5}),
        rule(CorrelationFilter={"Properties": {"p": []}}),
        rule(CorrelationFilter={"Properties": 5}),
        rule(FilterTyp="Correlation"),
        rule(SqlFilter=5),
        rule(SqlFilter={"SqlExpression": 5}),
    ],
)
def test_a_filter_that_cannot_be_had_is_refused_by_name(text: str) -> None:
    with pytest.raises(NotRegistrable, match=r"rule 'r'.*'audit'|rule 'r' of t/Subscriptions/audit"):
        parse_entities(text)


def test_the_refusal_of_a_filter_in_sql_names_the_cure() -> None:
    with pytest.raises(NotRegistrable, match="use a CorrelationFilter"):
        parse_entities(rule(SqlFilter={"SqlExpression": "colour = 'red'"}))


@pytest.mark.parametrize(
    ("properties", "kind"),
    [
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1 = 1"}}, "true"),
        ({"FilterType": "Sql", "SqlFilter": {"SqlExpression": "1=0"}}, "false"),
        ({"FilterType": "True"}, "true"),
        ({"FilterType": "False"}, "false"),
        ({}, "true"),
    ],
    ids=str,
)
def test_a_rule_that_takes_everything_or_nothing_is_one(properties: dict[str, object], kind: Any) -> None:
    assert parse_entities(rule(**properties))[-1] == RuleSettings("t/Subscriptions/audit", (Rule("r", kind),))


async def test_the_rules_of_the_official_example_can_be_declared(engine: Engine) -> None:
    system = {"ContentType": "application/text", "CorrelationId": "id1", "Label": "subject1", "MessageId": "msgid1",
              "ReplyTo": "someQueue", "ReplyToSessionId": "sessionId", "SessionId": "session1", "To": "t"}  # fmt: skip
    rules = [
        {"Name": "app", "Properties": {"FilterType": "Correlation", "CorrelationFilter": system}},
        {"Name": "user", "Properties": {"CorrelationFilter": {"Properties": {"prop3": "value3"}}}},
    ]
    subscriptions = [{"Name": "s", "Rules": rules}, {"Name": "all", "Rules": []}]
    for settings in parse_entities(file_of(topics=[{"Name": "t", "Subscriptions": subscriptions}])):
        engine.declare(settings)
    app, user = engine.topology.rules("t/Subscriptions/s").values()
    assert user.properties == {"prop3": "value3"}
    assert (len(app.system), app.system["label"], app.system["to"]) == (8, "subject1", "t")
    assert list(engine.topology.rules("t/Subscriptions/all")) == ["$Default"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the file must be a JSON object"),
        ('{"UserConfig": 5}', "UserConfig"),
        (file_of(5), r"Queues\[0\]"),
        (file_of({"Name": "$x"}), "only letters, digits"),
        (file_of({"Name": "x" * 261}), "260"),
        (file_of({"Name": "a//"}), "only letters, digits"),
        (file_of({"Name": "a b"}), "only letters, digits"),
        (file_of({"Name": "-a"}), "begin and end with a letter"),
        (file_of({"Name": "a."}), "begin and end with a letter"),
        (file_of({"Name": "a/../b"}), "addressed"),
        (file_of({"Name": "/a"}), "begin and end with a letter"),
        (file_of(topics=[{"Name": "_t"}]), "begin and end with a letter"),
        (file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "s-"}]}]), "begin and end with a letter"),
        (
            file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [{"Name": ".r"}]}]}]),
            "begin and end with",
        ),
        (file_of({"Name": ""}), "1 to 260"),
        (file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "s" * 51}]}]), "1 to 50"),
        (file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "a/b"}]}]), "only letters, digits"),
        (file_of(topics=[{"Name": "t", "Subscriptions": [{"Name": "s", "Rules": [{"Name": "r" * 51}]}]}]), "1 to 50"),
        (file_of({"Name": "t/subscriptions/x"}), "addressed"),
        (file_of(QUEUE, QUEUE), "twice"),
        (file_of(*({"Name": str(n)} for n in range(1_001))), "1000"),
        (with_property("LockDuration", "PT6M"), "'queue.1': LockDuration"),
        (with_property("LockDuration", "PT4.9S"), "'queue.1': LockDuration"),
        (with_property("DuplicateDetectionHistoryTimeWindow", "PT19S"), "DuplicateDetectionHistoryTimeWindow"),
        (with_property("DuplicateDetectionHistoryTimeWindow", "P7DT1S"), "DuplicateDetectionHistoryTimeWindow"),
        (with_property("DefaultMessageTimeToLive", "PT0S"), "DefaultMessageTimeToLive"),
        (with_property("DefaultMessageTimeToLive", "PT0.999S"), "DefaultMessageTimeToLive must be 1 s at least"),
        (with_property("MaxDeliveryCount", 2_001), "MaxDeliveryCount"),
        (with_property("LockDuration", "1 minute"), "ISO 8601"),
        (with_property("LockDuration", "PT"), "ISO 8601"),
        (with_property("LockDuration", "PT0S"), "LockDuration"),
        (with_property("MaxDeliveryCount", 0), "MaxDeliveryCount"),
        (with_property("MaxDeliveryCount", True), "MaxDeliveryCount"),
        (with_property("RequiresSession", "yes"), "RequiresSession"),
        (with_property("ForwardTo", "other"), "ForwardTo is not supported"),
        (with_property("RequireSession", True), "'RequireSession' is not known"),
    ],
)
def test_what_is_wrong_is_named(text: str, said: str) -> None:
    with pytest.raises(NotRegistrable, match=said):
        parse_entities(text)


def one(**members: object) -> dict[str, object]:
    return {"Name": "x", **members}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"UserConfg": {}}', "the file: member 'UserConfg'"),
        ('{"UserConfig": {"Namespace": []}}', "UserConfig of the file: member 'Namespace'"),
        ('{"UserConfig": {"Namespaces": [{"Name": "n", "Queue": []}]}}', r"Namespaces\[0\] of .*: member 'Queue'"),
        (file_of(one(properties={"RequiresSession": True})), "'x': member 'properties'"),
        (file_of(one(RequiresSession=True)), "'x': member 'RequiresSession'"),
        (file_of(topics=[one(Subscription=[one()])]), "'x': member 'Subscription'"),
        (file_of(topics=[one(Subscriptions=[one(Rule=[one()])])]), "'x' of topic 'x': member 'Rule'"),
        (
            file_of(topics=[one(Subscriptions=[one(Rules=[one(Filter={})])])]),
            "rule 'x': .*'x' of topic 'x': member 'Filter'",
        ),
    ],
)
def test_a_member_that_is_not_known_is_named_with_its_entity(text: str, said: str) -> None:
    with pytest.raises(NotRegistrable, match=f"{said} is not known; check its spelling"):
        parse_entities(text)


def test_a_file_is_read_with_limits(tmp_path: Path) -> None:
    good, large = tmp_path / "entities.json", tmp_path / "large.json"
    good.write_text("\ufeff" + file_of(QUEUE))
    large.write_text(" " * (1 << 20) + "{}")
    assert [item.name for item in read_entities(good)] == ["queue.1"]
    with pytest.raises(NotRegistrable, match="split"):
        read_entities(large)
    with pytest.raises(NotRegistrable, match=r"missing\.json"):
        read_entities(tmp_path / "missing.json")
