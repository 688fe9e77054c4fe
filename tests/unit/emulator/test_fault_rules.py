"""Fault rules: what they match, how often they fire, what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outbox.emulator.faults import RULE_COUNT_MAX, FaultRule, Faults, drawn, rules_from_json


def fired(faults: Faults, count: int, operation: str = "read", **names: str) -> list[int]:
    """At which of so many requests a fault happened."""
    return [number for number in range(count) if faults.ask(operation, **names) is not None]


def test_a_rule_fires_once_after_those_that_it_lets_pass() -> None:
    faults = Faults([FaultRule(kind="reset", after=2)])
    assert fired(faults, 6) == [2]
    assert [(one.matched_count, one.fired_count) for one in faults.installed()] == [(6, 1)]


def test_a_rule_fires_as_often_as_it_says_or_always() -> None:
    assert fired(Faults([FaultRule(kind="reset", count=2)]), 5) == [0, 1]
    assert fired(Faults([FaultRule(kind="reset", count=None)]), 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("fields", "names", "matches"),
    [
        ({"operation": "item.read"}, {}, True),
        ({"operation": "item.*"}, {}, True),
        ({"operation": "item"}, {}, False),
        ({"where": "db/orders"}, {"where": "db/orders"}, True),
        ({"where": "db/orders"}, {"where": "db/orders-2"}, False),
        ({"where": "db/*"}, {"where": "db/orders-2"}, True),
        ({"key": "o7"}, {"key": '["eu"]/o7'}, True),
        ({"key": "o8"}, {"key": '["eu"]/o7'}, False),
        ({"client": "w1"}, {"client": "azsdk-python-cosmos w1"}, True),
        ({"client": "w2"}, {}, False),
    ],
)
def test_a_rule_matches_by_name_place_key_and_client(
    fields: dict[str, Any], names: dict[str, Any], matches: bool
) -> None:
    faults = Faults([FaultRule(kind="reset", **fields)])
    assert (faults.ask("item.read", **names) is not None) == matches


def test_chance_is_the_same_for_the_same_seed() -> None:
    def draws(seed: int) -> list[int]:
        return fired(Faults([FaultRule(kind="reset", probability=0.3, seed=seed, count=None)]), 200)

    assert draws(1) == draws(1) != draws(2)
    assert 30 < len(draws(1)) < 90


def test_a_kind_that_cannot_be_done_here_is_not_counted() -> None:
    faults = Faults([FaultRule(kind="duplicate"), FaultRule(kind="throttled", retry_after_s=1)])
    rule = faults.ask("item.read", kinds=("throttled", "reset"))
    assert rule is not None and rule.kind == "throttled"
    assert [one.matched_count for one in faults.installed()] == [0, 1]
    assert faults.fired == {"throttled": 1}
    assert faults.has("duplicate") and not faults.has("throttled")


def test_drawn_rules_are_the_same_for_the_same_seed_and_fire_once_each() -> None:
    kinds: list[Any] = ["throttled", "status", "delay"]
    rules = drawn(7, kinds, operation="item.*", within=10, status=503, delay_s=0.1)
    assert rules == drawn(7, kinds, operation="item.*", within=10, status=503, delay_s=0.1)
    assert [rule.status for rule in rules] == [0, 503, 0]
    assert len(fired(Faults(rules), 20, "item.read")) == 3


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "explosion"}, "kind"),
        ({"kind": "reset", "count": 0}, "count"),
        ({"kind": "reset", "after": -1}, "after"),
        ({"kind": "reset", "probability": 0}, "probability"),
        ({"kind": "reset", "probability": float("nan")}, "probability"),
        ({"kind": "delay"}, "delay_s"),
        ({"kind": "delay", "delay_s": 1e9}, "delay_s"),
        ({"kind": "status"}, "status"),
        ({"kind": "status", "status": 200}, "status"),
        ({"kind": "reset", "status": 503}, "status"),
        ({"kind": "reset", "batch_index": 1}, "batch_index"),
        ({"kind": "throttled", "batch_index": 1, "operation": "query"}, "batch_index=1 needs"),
        ({"kind": "reset", "key": "x" * 2_000}, "key"),
        ({"kind": "reset", "keys": "x"}, "keys"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_by_the_field(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        rules_from_json(msgspec.json.encode([fields]))


@pytest.mark.parametrize("data", [b"", b"[", b"3", b'{"kind":3}', b"\xff", b"[" * 5_000, b" " * 300_000])
def test_what_is_no_rule_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="fault rule"):
        rules_from_json(data)


def test_rules_go_through_json_unchanged() -> None:
    rule = FaultRule(kind="status", status=449, operation="batch", batch_index=1, count=None)
    assert rules_from_json(msgspec.json.encode(rule)) == [rule]
    assert msgspec.json.decode(Faults([rule]).as_json())["rules"][0]["rule"]["status"] == 449


def test_rules_have_a_limit() -> None:
    faults = Faults([FaultRule(kind="reset")] * RULE_COUNT_MAX)
    with pytest.raises(ValueError, match="remove"):
        faults.install(FaultRule(kind="reset"))
