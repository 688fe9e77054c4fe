"""What the administration of the bus reads and writes, to its exact limits: documents, durations, addresses, rules."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from outbox.emulator.amqp.errors import LinkFault
from outbox.emulator.bus import administration, atom
from outbox.emulator.bus.addresses import (
    ADDRESS_LENGTH_MAX,
    Kind,
    Node,
    can_receive,
    can_send,
    declared_path,
    needs_session,
    parse_address,
)
from outbox.emulator.bus.administration import Administration, Target, Wrong, read_rule, read_target, write_rule
from outbox.emulator.bus.descriptions import (
    FOREVER,
    NAMESPACE,
    USER_METADATA_LENGTH_MAX,
    Description,
    duration,
    keep,
    known,
)
from outbox.emulator.faults import DELAY_MAX_S, TEXT_LENGTH_MAX, FaultRule, Faults
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings, subscription_path
from outbox.engine.state.rules import Rule
from outbox.errors import NotRegistrable
from outbox.message import Message


@pytest.fixture
def engine() -> Iterator[Engine]:
    found = Engine.in_memory()
    path = subscription_path("Events", "keyed")
    found.declare(QueueSettings("Plain"), QueueSettings(path, ordering="per_key"), TopicSettings("Events", ("keyed",)))
    yield found
    found.close()


@pytest.mark.parametrize(
    ("value_s", "text"),
    [
        (0, "PT0S"), (0.25, "PT0.25S"), (59, "PT59S"), (60, "PT1M"), (61.5, "PT1M1.5S"), (3_600, "PT1H"),
        (86_399, "PT23H59M59S"), (86_400, "P1D"), (86_401, "P1DT1S"), (7 * 86_400 + 3_660, "P7DT1H1M"), (1e15, FOREVER),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_the_service_does(value_s: float, text: str) -> None:
    assert duration(value_s) == text


def test_a_document_has_exact_limits() -> None:
    assert atom.parse(b"<a>" * 16 + b"</a>" * 16) and atom.parse(b"<a>" + b"<b/>" * 4_999 + b"</a>")
    assert atom.parse(b"<a>" + b"x" * (256 * 1_024 - 7) + b"</a>").text
    for data in (
        b"<a>" * 17 + b"</a>" * 17,
        b"<a>" + b"<b/>" * 5_000 + b"</a>",
        b"<a>" + b"x" * (256 * 1_024 - 6) + b"</a>",
        b"<!DOCTYPE a><a/>",
        b"<a>",
        b"",
    ):
        with pytest.raises(ValueError, match=r"levels|send less|document type|no XML"):
            atom.parse(data)
    assert atom.leaves([("a", True), ("b", False), ("c", None), ("d", 0), ("e", "<\x00")]) == (
        "<a>true</a><b>false</b><d>0</d><e>&lt;\ufffd</e>"
    )
    assert atom.moment(1_700_000_000_123) == "2023-11-14T22:13:20.123000Z"


# Addresses


@pytest.mark.parametrize(
    ("address", "node"),
    [
        ("$CBS", Node(Kind.CLAIMS, "")),
        ("q/$Management", Node(Kind.MANAGEMENT, "q")),
        ("sb://host/a/b", Node(Kind.ENTITY, "a/b")),
        ("t/subscriptions/s/$deadletterqueue", Node(Kind.ENTITY, "t/Subscriptions/s/$DeadLetterQueue")),
        ("x" * ADDRESS_LENGTH_MAX, Node(Kind.ENTITY, "x" * ADDRESS_LENGTH_MAX)),
        ("x" * (ADDRESS_LENGTH_MAX + 1), None),
        ("", None),
        (None, None),
        (1, None),
    ],
)
def test_an_address_names_a_side_of_an_entity(address: object, node: Node | None) -> None:
    if node is not None:
        assert parse_address(address) == node
        return
    with pytest.raises(LinkFault):
        parse_address(address)


def test_an_entity_is_found_in_any_case_and_in_its_own_first(engine: Engine) -> None:
    assert declared_path(engine, "plain/$DeadLetterQueue") == "Plain/$DeadLetterQueue"
    assert declared_path(engine, "EVENTS") == "Events" and declared_path(engine, "None") == "None"
    both: Any = SimpleNamespace(topology=SimpleNamespace(queues={"Plain": 1, "plain": 1}, topics={"Events": 1}))
    assert [declared_path(both, name) for name in ("plain", "Plain", "Events")] == ["plain", "Plain", "Events"]
    inner = subscription_path("Events", "keyed")
    rows = {"Plain": (True, True, False), "Events": (True, False, True), inner: (False, True, True)}
    for path, row in rows.items():
        assert (can_send(engine, path), can_receive(engine, path), needs_session(engine, path)) == row
    assert can_receive(engine, "Plain/$DeadLetterQueue") and not can_send(engine, "Plain/$DeadLetterQueue")
    assert not needs_session(engine, f"{inner}/$DeadLetterQueue")
    assert not can_send(engine, "None") and not can_receive(engine, "None") and not needs_session(engine, "None")


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("/q", Target("q")),
        ("/a/b", Target("a/b")),
        ("/a%2Fb", Target("a/b")),
        ("//q", Target("/q")),
        ("/q/", Target("q/")),
        ("/t/subscriptions/", Target("t", "")),
        ("/t/subscriptions/s/rules/", Target("t", "s", "")),
        ("/subscriptions", Target("subscriptions")),
        ("/Subscriptions/subscriptions/s", Target("Subscriptions", "s")),
        ("/t/subscriptions", Target("t", "")),
        ("/t/Subscriptions/s", Target("t", "s")),
        ("/t/Subscriptions/s/rules", Target("t", "s", "")),
        ("/t/Subscriptions/s/Rules/a%2Fb", Target("t", "s", "a/b")),
        ("/t/Subscriptions/s/Rules/r/more", None),
        ("/t/Subscriptions/s/other", None),
    ],
)
def test_a_request_names_an_entity_a_subscription_or_a_rule(path: str, target: Target | None) -> None:
    if target is not None:
        assert read_target(path) == target
        return
    with pytest.raises(Wrong):
        read_target(path)


# Lists


@pytest.mark.parametrize(
    ("query", "first", "count", "more"),
    [
        ("", 0, 100, "$skip=100&amp;$top=100"),
        ("$skip=100", 100, 2, ""),
        ("$skip=0&$top=102", 0, 102, ""),
        ("$skip=0&$top=101", 0, 101, "$skip=101&amp;$top=101"),
        ("$skip=1&$top=2", 1, 2, "$skip=3&amp;$top=2"),
        ("$top=0", 0, 0, ""),
        ("$skip=102", 102, 0, ""),
        ("$top=999999999", 0, 102, ""),
    ],
)
def test_entities_are_listed_page_by_page(engine: Engine, query: str, first: int, count: int, more: str) -> None:
    engine.declare(*(QueueSettings(f"q{n:03}") for n in range(101)))
    names = ["Plain", *(f"q{n:03}" for n in range(101))]  # and no subscription
    found = Administration(engine).answer("GET", "/$Resources/queues", query, b"", update=False)
    assert isinstance(found.body, bytes)
    entries = [entry.child("title") for entry in atom.parse(found.body).children if entry.name == "entry"]
    assert [title.text for title in entries if title is not None] == names[first : first + count]
    text = found.body.decode()
    assert (f"{more}&quot;" in text or f'{more}"' in text) if more else 'rel="next"' not in text


@pytest.mark.parametrize(
    ("method", "path", "query", "status"),
    [
        ("GET", "/$Resources/queues", "$top=x", 400),
        ("GET", "/$Resources/queues", "$skip=-1", 400),
        ("GET", "/$Resources/queues", "$skip=1000000000", 400),
        ("DELETE", "/$Resources/topics", "", 405),
        ("POST", "/Plain", "", 405),
        ("GET", "/none", "", 404),
        ("DELETE", "/none", "", 404),
        ("GET", "/none/Subscriptions", "", 404),
        ("GET", "/Events/Subscriptions/none", "", 404),
        ("DELETE", "/Events/Subscriptions/none", "", 404),
        ("GET", "/Events/Subscriptions/keyed/Rules/none", "", 404),
        ("DELETE", "/Events/Subscriptions/keyed/Rules/none", "", 404),
        ("GET", "/events/subscriptions/KEYED/rules", "", 200),
        ("DELETE", "/events/subscriptions/KEYED", "", 200),
        ("DELETE", "/plain", "", 200),
    ],
)
def test_a_request_is_answered_with_its_status(engine: Engine, method: str, path: str, query: str, status: int) -> None:
    assert Administration(engine).answer(method, path, query, b"", update=False).status == status


def test_a_page_has_as_many_entities_as_the_service_gives_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "PAGE_COUNT_MAX", 2)
    engine.declare(*(QueueSettings(f"q{n}") for n in range(3)))
    found = Administration(engine).answer("GET", "/$Resources/queues", "$top=9", b"", update=False)
    assert isinstance(found.body, bytes) and found.body.count(b"<entry") == 2 and b"$skip=2" in found.body


def test_what_is_made_is_told_from_what_is_changed_and_what_is_deleted_is_forgotten(engine: Engine) -> None:
    def put(path: str, kind: str, inner: str = "", *, update: bool = False) -> int:
        body = f"<entry><content><{kind}>{inner}</{kind}></content></entry>".encode()
        return Administration(engine).answer("PUT", path, "", body, update=update).status

    queue, other, rules = "QueueDescription", "/Events/Subscriptions/other", "/Events/Subscriptions/other/Rules"
    mine = "<Status>ReceiveDisabled</Status><DefaultRuleDescription><Name>mine</Name></DefaultRuleDescription>"
    keep(engine, "Plain", Description(kind=queue, given={}, created_ms=1_000, updated_ms=2_000))
    keep(engine, "Events", Description(kind="TopicDescription", given={}))
    assert [put("/new", queue), put("/new", queue), put("/new", queue, update=True)] == [201, 409, 200]
    assert put("/Plain", queue, "<Status>ReceiveDisabled</Status>", update=True) == 200
    assert put(other, "SubscriptionDescription", mine) == 201
    assert [put(f"{rules}/r", "RuleDescription", update=update) for update in (False, True)] == [201, 200]
    path = subscription_path("Events", "other")
    assert [*engine.topology.rules(path)] == ["mine", "r"]
    assert engine.broker.queue("Plain").is_paused and engine.broker.queue(path).is_paused
    changed = known(engine, "Plain", queue)
    assert changed.created_ms == 1_000 and changed.updated_ms > 2_000
    for length, status in ((USER_METADATA_LENGTH_MAX, 201), (USER_METADATA_LENGTH_MAX + 1, 400)):
        assert put(f"/q{length}", queue, f"<UserMetadata>{'x' * length}</UserMetadata>") == status
    assert put("/forwards", queue, "<ForwardDeadLetteredMessagesTo>Plain</ForwardDeadLetteredMessagesTo>") == 400
    for gone in ("Plain", "Events"):
        assert Administration(engine).answer("DELETE", f"/{gone}", "", b"", update=False).status == 200
    assert [engine.documents.read(NAMESPACE, one) for one in ("Plain", "Events", path)] == [None] * 3
    assert Wrong(503, "busy", retry_after_s=1.5).answer().headers["Retry-After"] == "1.5"


# Fault rules


@pytest.mark.parametrize(
    ("fields", "is_taken"),
    [
        ({"kind": "status", "status": 400}, True), ({"kind": "status", "status": 599}, True),
        ({"kind": "status", "status": 399}, False), ({"kind": "status", "status": 600}, False),
        ({"kind": "status", "status": 400, "substatus": 99_999}, True),
        ({"kind": "status", "status": 400, "substatus": 100_000}, False),
        ({"kind": "status", "status": 400, "code": "Some1"}, True),
        ({"kind": "status", "status": 400, "code": "so me"}, False), ({"kind": "reset", "code": "Some"}, False),
        ({"kind": "status", "status": 400, "batch_index": 0, "operation": "batch"}, True),
        ({"kind": "status", "status": 400, "batch_index": 0}, False),
        ({"kind": "pause"}, False), ({"kind": "pause", "delay_s": DELAY_MAX_S}, True),
        ({"kind": "delay", "delay_s": DELAY_MAX_S + 1}, False), ({"kind": "delay", "delay_s": True}, False),
        ({"kind": "reset", "retry_after_s": -1}, False), ({"kind": "reset", "count": True}, False),
        ({"kind": "reset", "count": 1 << 53}, True), ({"kind": "reset", "count": (1 << 53) + 1}, False),
        ({"kind": "stale-read", "behind_count": 0}, False), ({"kind": "stale-read", "behind_count": 1}, True),
        ({"kind": "reset", "probability": 1}, True), ({"kind": "reset", "probability": 1.01}, False),
        ({"kind": "reset", "key": "x" * TEXT_LENGTH_MAX}, True),
        ({"kind": "reset", "key": "x" * (TEXT_LENGTH_MAX + 1)}, False),
    ],
)  # fmt: skip
def test_a_fault_rule_has_exact_limits(fields: dict[str, Any], is_taken: bool) -> None:
    if is_taken:
        assert FaultRule(**fields)
        return
    with pytest.raises(ValueError, match=r"give|needs|belongs|letters"):
        FaultRule(**fields)


def test_the_second_of_two_rules_does_not_see_what_the_first_took() -> None:
    faults = Faults([FaultRule(kind="reset", count=1), FaultRule(kind="reset", after=1, count=None)])
    assert [faults.ask("x") is not None for _ in range(4)] == [True, False, True, True]
    assert [one.matched_count for one in faults.installed()] == [4, 3]
    assert faults.control("DELETE", "id=1", b"")[0] == 200 and [one.id for one in faults.installed()] == [2]
    for query in ("id=", "id=x", "ix=2", "id=" + "9" * 16):
        with pytest.raises(ValueError, match="say"):
            faults.control("DELETE", query, b"")
    with pytest.raises(LookupError):
        faults.control("DELETE", "id=1", b"")
    assert faults.install(FaultRule(kind="reset")) == 3
    assert faults.control("DELETE", "", b"")[0] == 200 and not faults and faults.fired == {"reset": 3}


# Rules and counts


def rule_of(inner: str) -> Rule:
    data = f'<RuleDescription xmlns:i="{atom.INSTANCE}">{inner}</RuleDescription>'
    return read_rule("r", atom.parse(data.encode()), "t/s")


def valued(kind: str, text: str) -> str:
    value = f'<Value i:type="d:{kind}" xmlns:d="{atom.SCHEMA}">{text}</Value>'
    pair = f"<KeyValueOfstringanyType><Key>k</Key>{value}</KeyValueOfstringanyType>"
    return f'<Filter i:type="CorrelationFilter"><Label>l</Label><To/><Properties>{pair}</Properties></Filter>'


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("string", "", ""), ("string", "1", "1"), ("int", "-5", -5), ("short", "5", 5), ("long", str(1 << 40), 1 << 40),
        ("long", "9" * 19, int("9" * 19)), ("double", "1.5", 1.5), ("boolean", "true", True),
        ("boolean", "false", False), ("int", "x", None), ("int", "9" * 20, None),
        ("double", "x", None), ("boolean", "True", None),
        ("dateTime", "now", None),
    ],
)  # fmt: skip
def test_a_property_of_a_filter_has_the_type_that_is_said(kind: str, text: str, value: object) -> None:
    if value is None:
        with pytest.raises(NotRegistrable, match="must be text"):
            rule_of(valued(kind, text))
        return
    rule = rule_of(valued(kind, text))
    assert rule.system == {"label": "l"} and rule.properties == {"k": value}
    assert type(rule.properties["k"]) is type(value)
    again = read_rule("r", atom.parse(write_rule(rule, 0).encode()), "t/s")
    assert again == rule and type(again.properties["k"]) is type(value)


@pytest.mark.parametrize(
    ("number", "kind"), [(2_147_483_647, "int"), (2_147_483_648, "long"), (-2_147_483_648, "long")]
)
def test_a_number_is_written_as_long_where_it_is(number: int, kind: str) -> None:
    assert f'"d6p1:{kind}"' in write_rule(Rule("r", "correlation", {}, {"k": number}), 0)


@pytest.mark.parametrize(
    ("inner", "kind"),
    [
        ("", "true"), ('<Filter i:type="TrueFilter"/>', "true"), ('<Filter i:type="FalseFilter"/>', "false"),
        ('<Filter i:type="a:SqlFilter"><SqlExpression>1 = 1</SqlExpression></Filter>', "true"),
        ('<Filter i:type="SqlFilter"><SqlExpression>1=0</SqlExpression></Filter>', "false"),
        ('<Filter i:type="SqlFilter"><SqlExpression>true</SqlExpression></Filter>', "true"),
        ('<Filter i:type="SqlFilter"><SqlExpression>a=1</SqlExpression></Filter>', None),
        ('<Filter i:type="SqlFilter"/>', None), ('<Action i:type="EmptyRuleAction"/>', "true"),
        ('<Action i:type="SqlRuleAction"/>', None),
        ('<Filter i:type="CorrelationFilter"><Properties><P><Key>k</Key></P></Properties></Filter>', None),
    ],
)  # fmt: skip
def test_a_filter_is_one_that_can_be_had(inner: str, kind: str | None) -> None:
    if kind is None:
        with pytest.raises(NotRegistrable):
            rule_of(inner)
        return
    assert rule_of(inner).kind == kind


def test_an_entity_shows_what_it_holds_by_state(engine: Engine) -> None:
    inner = subscription_path("Events", "keyed")
    later_ms = engine.now_ms() + 60_000
    engine.broker.send("Plain", [Message(body=b"123"), Message(body=b"45"), Message(body=b"6")])
    engine.broker.send("Plain", [Message(body=b"7")], due_ms=later_ms)
    engine.broker.send("Events", [Message(body=b"8", session_id="s")], due_ms=later_ms)
    engine.broker.send("Events", [Message(body=body, session_id="s") for body in (b"9", b"a")])
    for path in ("Plain", inner):
        [claim] = engine.broker.claim(path, 1)
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER)

    def shown(path: str, *names: str) -> list[str]:
        answer = Administration(engine).answer("GET", path, "", b"", update=False)
        assert isinstance(answer.body, bytes)
        body = answer.body.decode()
        return [(re.findall(f"{name}>([^<]*)<", body) or ["none"])[0] for name in names]

    names = ("SizeInBytes", "<MessageCount", "ActiveMessageCount", "DeadLetterMessageCount", "ScheduledMessageCount")
    times = Description(kind="QueueDescription", given={}, created_ms=1_000, updated_ms=2_000)
    keep(engine, "Plain", times)
    told = ["1970-01-01T00:00:01.000000Z", "1970-01-01T00:00:02.000000Z"]
    assert shown("/Plain", "CreatedAt", "UpdatedAt", "published", "<updated") == told * 2
    assert shown("/Plain", *names, "SubscriptionCount") == ["4", "4", "2", "1", "1", "none"]
    assert shown("/Events", *names, "SubscriptionCount") == ["2", "none", "0", "0", "1", "1"]
    assert shown(f"/{inner}", *names, "SubscriptionCount") == ["none", "3", "1", "1", "1", "none"]
    defaults = ("FilteringMessagesBeforePublishing", "SupportOrdering", "<Status")
    assert shown("/Events", *defaults) == ["false", "true", "Active"]
    engine.declare(QueueSettings("expiring", time_to_live_s=9, dead_letter_on_expiry=True))
    engine.topology.pause("expiring", paused=True)
    told = ["true", "PT9S", "ReceiveDisabled"]
    assert shown("/expiring", "DeadLetteringOnMessageExpiration", "DefaultMessageTimeToLive", "<Status") == told
