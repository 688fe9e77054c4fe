"""Rules of subscriptions: which messages a subscription takes, whoever sends them, and after a restart too."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, TopicSettings, dead_letter_path
from outbox.engine.log import records, snapshot
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.engine.state.rules import CONDITION_COUNT_MAX, RULE_COUNT_MAX, RULE_NAME_LENGTH_MAX, TEXT_LENGTH_MAX, Rule
from outbox.errors import LockLost, NotRegistrable, Refused, UnknownDestination
from outbox.message import Message
from outbox.ports import Output
from outbox.testing import START_S, VirtualClock

NEWS = "news/Subscriptions/"
RED = Rule("red", "correlation", properties={"colour": "red"})
LABELLED = Rule("labelled", "correlation", system={"label": "x", "message_id": "m"})


def news(*names: str) -> Engine:
    engine = Engine.in_memory(clock=VirtualClock(START_S))
    engine.declare(TopicSettings("news", names))
    return engine


def message(text: str, **fields: Any) -> Message:
    return Message(body=text.encode(), **fields)


def bodies(engine: Engine, path: str) -> list[bytes]:
    return [task.message.body for task in engine.broker.peek(path, 0, 99)]


def test_a_subscription_takes_what_one_of_its_rules_takes_and_once() -> None:
    engine = news("all", "some", "none", "nothing")
    engine.topology.set_rules(NEWS + "some", [RED, Rule("also", "correlation", properties={"size": 1})])
    engine.topology.set_rules(NEWS + "none", [Rule("never", "false")])
    engine.topology.set_rules(NEWS + "nothing", [])
    engine.broker.send(
        "news",
        [
            message("a", properties={"colour": "red", "size": 1}),
            message("b", properties={"colour": "blue"}),
            message("c"),
        ],
    )
    assert bodies(engine, NEWS + "all") == [b"a", b"b", b"c"]
    assert bodies(engine, NEWS + "some") == [b"a"]
    assert bodies(engine, NEWS + "none") == bodies(engine, NEWS + "nothing") == []


@pytest.mark.parametrize(
    ("wanted", "value", "takes"),
    [("1", 1, False), (1, "1", False), (1, True, False), (True, True, True), (1, 1.0, True), ("Red", "red", False)],
)
def test_a_property_must_be_equal_in_kind_as_well(wanted: Any, value: Any, takes: bool) -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", [Rule("r", "correlation", properties={"p": wanted})])
    engine.broker.send("news", [message("m", properties={"p": value})])
    assert bool(bodies(engine, NEWS + "s")) is takes


def test_every_condition_of_a_filter_must_hold() -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", [LABELLED])
    facts = [{"label": "x", "message_id": "m"}, {"label": "x"}, {}]
    engine.broker.send("news", [message("both"), message("one"), message("none")], facts=facts)
    assert bodies(engine, NEWS + "s") == [b"both"]


@pytest.mark.parametrize("others", [["all"], []], ids=["beside another", "alone"])
def test_what_a_handler_publishes_is_sorted_by_the_same_rules(others: list[str]) -> None:
    engine = news("s", *others)
    engine.topology.set_rules(
        NEWS + "s", [Rule("r", "correlation", system={"correlation_id": "c"}, properties={"outbox-type": "T"})]
    )
    outputs = [
        Output("news", 0, message("yes", type="T", correlation_id="c")),
        Output("news", 0, message("no", type="U", correlation_id="c")),
    ]
    engine.core.do(records.Committed(1, 1, {}, {}, outputs, {}, {}, [], []))
    assert bodies(engine, NEWS + "s") == [b"yes"]
    for name in others:
        assert bodies(engine, NEWS + name) == [b"yes", b"no"]


def test_the_numbers_of_scheduled_copies_cancel_all_of_them() -> None:
    engine = news("s", "all")
    engine.topology.set_rules(NEWS + "s", [RED])
    due_ms = engine.now_ms() + 9_000
    first, second = engine.broker.send(
        "news", [message("a", properties={"colour": "red"}), message("b")], due_ms=due_ms
    )
    assert engine.broker.cancel("news", [first]) == 1
    assert (bodies(engine, NEWS + "s"), bodies(engine, NEWS + "all")) == ([], [b"b"])
    assert engine.broker.cancel("news", [second]) == 1
    assert bodies(engine, NEWS + "all") == []


def test_a_message_has_the_number_of_its_first_copy() -> None:
    engine = news("s", "all")
    engine.topology.set_rules(NEWS + "s", [RED])
    red = {"colour": "red"}
    assert engine.broker.send("news", [message("a", properties=red), message("b"), message("c", properties=red)]) == [
        1, 4, 2,
    ]  # fmt: skip
    assert [bodies(engine, NEWS + name) for name in ("s", "all")] == [[b"a", b"c"], [b"a", b"b", b"c"]]


def test_a_message_without_a_receiver_has_no_number() -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", [RED])
    assert engine.broker.send("news", [message("b"), message("a", properties={"colour": "red"})]) == [0, 1]


@pytest.mark.parametrize(
    "rule",
    [
        Rule("r", "correlation"),
        Rule("r", "true", properties={"a": 1}),
        Rule("", "true"),
        Rule("r" * 51, "true"),
        Rule("r", "sql"),  # type: ignore[arg-type]  # no kind
        Rule("r", "correlation", system={"colour": "red"}),
        Rule("r", "correlation", properties={"p": "x" * 2_000}),
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_one_is_refused_and_changes_nothing(rule: Rule) -> None:
    engine = news("s")
    with pytest.raises(NotRegistrable):
        engine.topology.set_rules(NEWS + "s", [rule])
    assert list(engine.topology.rules(NEWS + "s")) == ["$Default"]


PLENTY = {str(number): 1 for number in range(CONDITION_COUNT_MAX)}


@pytest.mark.parametrize(
    ("rules", "beyond"),
    [
        ([Rule("r" * RULE_NAME_LENGTH_MAX)], [Rule("r" * (RULE_NAME_LENGTH_MAX + 1))]),
        (
            [Rule("r", "correlation", properties=dict(PLENTY))],
            [Rule("r", "correlation", {"label": "x"}, properties=dict(PLENTY))],
        ),
        (
            [Rule("r", "correlation", {"label": "x" * TEXT_LENGTH_MAX})],
            [Rule("r", "correlation", {"label": "x" * (TEXT_LENGTH_MAX + 1)})],
        ),
        (
            [Rule("r", "correlation", properties={"x" * TEXT_LENGTH_MAX: 1})],
            [Rule("r", "correlation", properties={"x" * (TEXT_LENGTH_MAX + 1): 1})],
        ),
        (
            [Rule(str(number)) for number in range(RULE_COUNT_MAX)],
            [Rule(str(number)) for number in range(RULE_COUNT_MAX + 1)],
        ),
        ([Rule("r"), Rule("s")], [Rule("r"), Rule("r", "false")]),
        ([Rule("a.b")], [Rule("a/b")]),
    ],
    ids=["name", "conditions", "text", "property", "count", "names", "slash"],
)
def test_rules_may_be_as_large_as_their_limits_and_no_larger(rules: list[Rule], beyond: list[Rule]) -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", rules)
    with pytest.raises(NotRegistrable):
        engine.topology.set_rules(NEWS + "s", beyond)
    assert list(engine.topology.rules(NEWS + "s").values()) == rules


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("correlation_id", {"correlation_id": "x"}),
        ("message_id", {"message_id": "x", "outbox_id": "y"}),
        ("message_id", {"outbox_id": "x"}),
        ("reply_to", {"reply_to": "x"}),
        ("session_id", {"session_id": "x"}),
    ],
)
def test_a_filter_sees_each_system_property_of_a_message_that_a_handler_sends(
    name: str, fields: dict[str, str]
) -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", [Rule("r", "correlation", {name: "x"})])
    engine.broker.send("news", [message("other", **dict.fromkeys(fields, "z")), message("it", **fields)])
    assert bodies(engine, NEWS + "s") == [b"it"]


def test_rules_belong_to_subscriptions_only() -> None:
    engine = news("s")
    engine.declare(QueueSettings("q"))
    for path in ("q", "news", NEWS + "other", f"{NEWS}s/$DeadLetterQueue"):
        with pytest.raises(UnknownDestination):
            engine.topology.set_rules(path, [RED])


def test_rules_and_what_they_sorted_survive_a_crash_and_a_snapshot() -> None:
    disk, clock = MemoryDisk("rules"), VirtualClock(START_S)
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    engine.declare(TopicSettings("news", ("s", "all")))
    engine.topology.set_rules(NEWS + "s", [RED])
    engine.broker.send("news", [message("a", properties={"colour": "red"}), message("b")])
    engine.core.flush()
    for _ in range(2):  # from the log's records, then from the snapshot that opening wrote
        disk = disk.crash(Crash.POWER, random.Random(1))
        engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
        assert (bodies(engine, NEWS + "s"), bodies(engine, NEWS + "all")) == ([b"a"], [b"a", b"b"])
        assert list(engine.topology.rules(NEWS + "s")) == ["red"]
        engine.core.flush()
    engine.broker.send("news", [message("c")])
    assert bodies(engine, NEWS + "s") == [b"a"]


# Deleting


def test_a_deleted_queue_is_gone_with_its_messages_and_its_name_is_free() -> None:
    engine = news("s", "t")
    engine.declare(QueueSettings("q"))
    for path in ("q", "news"):
        engine.broker.send(path, [message("old")])
    [held] = engine.broker.claim("q", 1)
    for path in ("q", NEWS + "s"):
        engine.topology.delete(path)
        with pytest.raises(UnknownDestination):
            engine.broker.queue(path)
    with pytest.raises(LockLost):
        engine.broker.renew(held.token)
    assert engine.topology.topics["news"].subscriptions == ("t",)
    engine.declare(QueueSettings("q", ordering="per_key"))
    assert bodies(engine, "q") == []
    engine.topology.delete("news")
    assert list(engine.topology.queues) == ["q"] and engine.state.body_bytes == 0
    with pytest.raises(LockLost):
        engine.broker.renew(held.token)


def test_a_queue_with_a_handler_in_this_process_cannot_be_deleted_under_it() -> None:
    engine = news("s")
    engine.broker.take(engine.broker.queue(NEWS + "s"), 1)
    for path in ("news", NEWS + "s"):
        with pytest.raises(Refused, match="handler"):
            engine.topology.delete(path)


@pytest.mark.parametrize("path", ["q", dead_letter_path("q")])
async def test_a_receiver_of_a_deleted_queue_gets_an_error(engine: Engine, path: str) -> None:
    engine.declare(QueueSettings("q"))

    def delete() -> None:
        engine.topology.delete("q")

    asyncio.get_running_loop().call_later(0.05, delete)
    with pytest.raises(UnknownDestination):
        await engine.broker.wait_any([path], 5)


def test_numbers_are_used_again_and_a_replay_gives_the_same_queues() -> None:
    disk, clock, chance = MemoryDisk("slots"), VirtualClock(START_S), random.Random(5)
    engine = Engine.open(disk, clock=clock, log_id=b"0" * 16)
    for step in range(120):
        name = f"q{chance.randrange(6)}"
        if name in engine.topology.queues and chance.random() < 0.5:
            engine.topology.delete(name)
        else:
            engine.declare(QueueSettings(name))
            engine.broker.send(name, [message(str(step))])
        if step % 40 == 20:
            engine.compact()
    assert len(engine.state.queues) <= 12
    engine.core.flush()
    again = Engine.open(disk.crash(Crash.POWER, random.Random(1)), clock=clock, log_id=b"0" * 16)
    copy, _ = snapshot.decode(snapshot.encode(engine.state, 0))
    assert {path: bodies(again, path) for path in again.topology.queues} == {
        path: bodies(engine, path) for path in engine.topology.queues
    }
    assert [queue.path for queue in again.state.queues] == [queue.path for queue in engine.state.queues]
    assert snapshot.encode(copy, 0) == snapshot.encode(engine.state, 0)


def test_a_subscription_that_is_declared_again_takes_everything() -> None:
    engine = news("s")
    engine.topology.set_rules(NEWS + "s", [RED])
    engine.topology.delete(NEWS + "s")
    engine.declare(TopicSettings("news", ("s",)))
    engine.broker.send("news", [message("m")])
    assert bodies(engine, NEWS + "s") == [b"m"] and list(engine.rules(NEWS + "s")) == ["$Default"]
