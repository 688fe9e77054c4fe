"""Topics, sessions in order and stopped, one id with two payloads: what explorations of one queue do not reach."""

from __future__ import annotations

from typing import Any

import pytest

from outbox import App, Context, Reject
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Limits, Report, search
from tests.simulation.shop import SCOPES, Customer, Order, shop

pytestmark = pytest.mark.slow

FAULTS: tuple[dict[str, int], ...] = ({}, {"crash": 1}, {"lost": 1}, {"error": 1})


def order(id: str, price: int) -> tuple[str, Order, str]:
    return "orders", Order(id, "ann", price), id


def spends(order: Order, customer: Customer, ctx: Context) -> None:
    customer.spent += order.price
    ctx.send("parcels", order)


def announcing() -> App:
    app = App("announcing")
    app.topic("placed")
    app.queue("parcels")

    @app.handler("orders", key="customer")
    def take(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price
        ctx.publish("placed", order)

    @app.handler("placed", subscription="bills", key="customer")
    def bill(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += 1
        ctx.send("parcels", order)

    return app


def in_order(on_dead_letter: Any) -> App:
    app = App("in order")
    app.queue("orders", "per_key")
    app.queue("parcels")

    @app.handler("orders", key="customer", on_dead_letter=on_dead_letter)
    def take(order: Order, customer: Customer, ctx: Context) -> None:
        if order.price < 0:
            raise Reject("not below nothing")
        customer.spent = 2 * customer.spent + order.price
        ctx.send("parcels", Order(order.id, order.customer, customer.spent))

    return app


def explored(app: App, messages: Any, scope: str, faults: dict[str, int], **options: Any) -> Report:
    scenario = Scenario(app, messages, scope=scope, budgets=Budgets(**faults), **options)
    report = search(scenario, limits=Limits(cpu_s=60), hashing="64")
    assert report.exhausted and not report.anomalies, report.text
    return report


@pytest.mark.parametrize("faults", FAULTS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_what_a_topic_hands_to_a_subscription_is_handled_once(scope: str, faults: dict[str, int]) -> None:
    workers = 1 if scope == "item" else 2
    explored(announcing(), [order("o1", 5)], scope, faults, workers=workers)


@pytest.mark.parametrize("faults", FAULTS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_an_id_with_two_payloads_stands_for_the_first_that_commits(scope: str, faults: dict[str, int]) -> None:
    messages = [order("o1", 5), ("orders", Order("o1", "ann", 7), "o1")]
    report = explored(shop(spends), messages, scope, faults, allow=frozenset({"dead-letter"}))
    assert len(report.outcomes) == 2  # either of them, and the other is a dead letter


@pytest.mark.parametrize("faults", [*FAULTS, {"expire": 1}], ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_session_is_handled_in_its_order(scope: str, faults: dict[str, int]) -> None:
    report = explored(in_order("continue"), [order("o1", 5), order("o2", 3)], scope, faults, patience_ms=30_000)
    assert len(report.outcomes) == 1


@pytest.mark.parametrize("faults", FAULTS, ids=str)
@pytest.mark.parametrize("scope", SCOPES)
def test_a_session_is_blocked_behind_what_was_refused(scope: str, faults: dict[str, int]) -> None:
    messages = [order("o1", 5), order("o2", -1), order("o3", 3)]
    allow = frozenset({"dead-letter"})
    report = explored(in_order("stop_key"), messages, scope, faults, allow=allow)
    assert len(report.outcomes) == 1
