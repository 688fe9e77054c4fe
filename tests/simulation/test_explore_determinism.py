"""A handler that decides by anything but its message, its state and ctx is told, with what it asks."""

from __future__ import annotations

import random
import time
import uuid
from datetime import UTC, date, datetime
from time import time as clock

import pytest

from outbox import Context
from outbox.verify.findings.nondeterminism import AHEADS
from tests.simulation.shop import Body, Customer, Order, explored, one, passes

counted: list[str] = []


def counts(order: Order, customer: Customer, ctx: Context) -> None:
    counted.append(order.id)
    customer.spent = len(counted)


def remembers(order: Order, customer: Customer, ctx: Context) -> None:
    if order.id not in counted:
        counted.append(order.id)
        customer.spent += order.price


UNSTEADY: dict[str, tuple[Body, str]] = {
    "clock": (lambda order, customer, ctx: setattr(customer, "note", str(time.time())), "time.time (use ctx.now())"),
    "datetime": (
        lambda order, customer, ctx: setattr(customer, "note", datetime.now(UTC).isoformat()),
        "datetime.now (use ctx.now())",
    ),
    "random": (lambda order, customer, ctx: setattr(customer, "spent", random.randrange(10**9)), "use ctx.random()"),
    "uuid4": (
        lambda order, customer, ctx: ctx.send("parcels", Order(str(uuid.uuid4()), "ann", 5)),
        "uuid.uuid4 (use ctx.uuid())",
    ),
    "count": (counts, "remembers something outside its state, such as a variable of its module"),
    "seen": (remembers, "remembers something outside its state, such as a variable of its module"),
}


@pytest.mark.parametrize("name", UNSTEADY)
def test_a_handler_whose_second_run_differs(name: str) -> None:
    counted.clear()
    body, hint = UNSTEADY[name]
    text = one(explored(body), "Deterministic")
    assert "a handler that is not deterministic: take, handling o1, was run twice, with the same message" in text
    assert hint in text and "ctx.now()" in text and "keep in the state what it has to remember" in text


def today() -> date:
    return date.today()  # noqa: DTZ011  # the very thing that is to be told


HOURS: dict[str, tuple[Body, str]] = {
    "today": (lambda order, customer, ctx: setattr(customer, "note", f"{today()}"), "date.today"),
    "year": (lambda order, customer, ctx: setattr(customer, "spent", datetime.now(UTC).year), "datetime.now"),
    "hour": (lambda order, customer, ctx: setattr(customer, "spent", int(time.time()) // 3600), "time.time"),
    "from import": (lambda order, customer, ctx: setattr(customer, "spent", int(clock()) // 3600), "time.time"),
}


@pytest.mark.parametrize("name", HOURS)
def test_a_handler_whose_run_would_differ_on_another_day(name: str) -> None:
    body, clock_name = HOURS[name]
    text = one(explored(body), "Deterministic")
    assert "was run twice, and another time on another day" in text and f"{clock_name} (use ctx.now())" in text
    assert abs((today() - datetime.now(UTC).date()).days) <= 1, "the clock is as it was"


def test_at_every_minute_of_the_day_another_day_has_the_other_half() -> None:
    def is_morning(minute: int) -> bool:
        return minute // 60 % 24 < 12

    ahead = [round(each.total_seconds()) // 60 for each in AHEADS]
    assert all(any(is_morning(m) != is_morning(m + each) for each in ahead) for m in range(24 * 60))


def test_a_handler_that_measures_and_computes_with_dates() -> None:
    def measures(order: Order, customer: Customer, ctx: Context) -> None:
        began = time.perf_counter(), datetime.now(UTC)
        assert isinstance(began[1], datetime) and datetime(2026, 1, 1, tzinfo=UTC) < began[1]
        customer.note = datetime.fromtimestamp(ctx.now(), UTC).isoformat()

    passes(explored(measures))


def test_what_differs_is_shown() -> None:
    counted.clear()
    text = one(explored(counts), "Deterministic")
    assert 'first Customer:ann became {"spent":1,' in text and 'then {"spent":2,' in text


def test_a_handler_that_asks_ctx_for_time_and_chance() -> None:
    def draws(order: Order, customer: Customer, ctx: Context) -> None:
        customer.note = f"{ctx.now()} {ctx.random()} {ctx.uuid()}"
        ctx.send("parcels", Order(str(ctx.uuid()), "ann", 5))

    passes(explored(draws))


def test_a_result_that_depends_on_how_often_a_message_came() -> None:
    def repeats(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent = ctx.delivery_count

    report = explored(repeats, duplicates=0)
    (found,) = report.anomalies
    assert found.title == "a handler that is not deterministic" and "*** CRASH ***" in report.text, report.text
