"""Each mistake that a handler can make is told in words, and its mended form passes."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from outbox import App, Context, Reject, Retry
from outbox.verify import explore
from tests.simulation.shop import O1, O2, SCOPES, Customer, Order, Prices, explored, one, passes

pytestmark = pytest.mark.slow

# A side effect that happens twice


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_that_a_crash_repeats(scope: str) -> None:
    async def charges(order: Order, customer: Customer, ctx: Context) -> None:
        await ctx.call(lambda key: key)

    text = one(explored(charges, scope=scope), "OneCall")
    assert "a side effect happens twice: o1 (take) makes a call of ctx.call twice" in text
    assert "*** CRASH ***" in text and "Cure: A call is at least once" in text and "idempotent=True" in text


@pytest.mark.parametrize("scope", SCOPES)
def test_a_call_to_a_side_that_knows_its_key(scope: str) -> None:
    async def charges(order: Order, customer: Customer, ctx: Context) -> None:
        await ctx.call(lambda key: key, idempotent=True)

    passes(explored(charges, scope=scope, workers=1))


# The order


def spends(order: Order, customer: Customer, ctx: Context) -> None:
    customer.spent += order.price
    if customer.spent > 10:
        customer.note = f"rich since {order.id}"


def test_an_order_that_shows() -> None:
    report = explored(spends, O1, O2, ("orders", Order("o3", "bob", 1), "o3"))
    text = one(report, "Order")
    assert "the order of messages shows: Customer:ann is" in text and "depending on what is handled first" in text
    assert "one order: 1 complete o1" in text and "another: 1 complete o2" in text and "o3" not in text
    assert 'app.queue(name, "per_key")' in text and 'allow={"order"}' in text


def test_an_order_that_is_kept_cannot_show() -> None:
    passes(explored(spends, O1, O2, ordering="per_key"))


def test_an_order_that_may_show() -> None:
    passes(explored(spends, O1, O2, allow={"order"}))


def test_an_order_that_shows_in_what_is_sent_and_nowhere_else() -> None:
    def sends(order: Order, customer: Customer, ctx: Context) -> None:
        if not customer.spent:
            ctx.send("parcels", order)
        customer.spent = 1

    assert "in parcels is Order" in one(explored(sends, O1, O2), "Order")


def test_no_order_shows_where_keys_differ_or_sums_are_formed() -> None:
    def adds(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price
        ctx.send("parcels", order)

    passes(explored(adds, O1, O2, ("orders", Order("o3", "bob", 1), "o3"), crashes=0))
    passes(explored(spends, O1, ("orders", Order("o2", "bob", 7), "o2"), crashes=0))


def test_no_order_shows_in_sets_and_dictionaries_that_are_equal() -> None:
    app = App("shop")

    @app.handler("orders", key="customer")
    def take(order: Order, prices: Prices) -> None:
        prices.by_order[order.id] = order.price
        prices.kinds.add(order.price)

    passes(explore(app, [O1, O2], workers=1, crashes=0))


# Effects outside ctx


@pytest.mark.parametrize("scope", SCOPES)
def test_a_file_that_is_written_beside_the_commit(scope: str, tmp_path: Path) -> None:
    log = tmp_path / "orders.log"

    def writes(order: Order, customer: Customer, ctx: Context) -> None:
        with log.open("a") as file:
            file.write(order.id)

    text = one(explored(writes, scope=scope), "StaysInside")
    assert f"an effect outside ctx: take, handling o1, opens the file '{log}', not through ctx" in text
    assert "Cure: What a handler opens by itself happens again with every attempt" in text

    def keeps(order: Order, customer: Customer, ctx: Context) -> None:
        ctx.write_blob("orders.log", order.id.encode())

    passes(explored(keeps, scope=scope))


def test_a_socket_that_a_handler_opens() -> None:
    def asks(order: Order, customer: Customer, ctx: Context) -> None:
        with socket.socket() as line:
            line.settimeout(0.1)
            line.connect_ex(("127.0.0.1", 9))

    assert "opens a connection" in one(explored(asks), "StaysInside")


def test_a_connection_that_a_handler_awaits() -> None:
    async def asks(order: Order, customer: Customer, ctx: Context) -> None:
        await asyncio.open_connection("127.0.0.1", 9)

    assert "starts a thread, a connection or a process" in one(explored(asks), "StaysInside")


def test_a_process_that_a_handler_starts() -> None:
    def starts(order: Order, customer: Customer, ctx: Context) -> None:
        subprocess.run(["true"], check=True)

    assert "starts a process, 'true'" in one(explored(starts), "StaysInside")


def test_what_is_handed_to_ctx_call_may_reach_outside(tmp_path: Path) -> None:
    async def charges(order: Order, customer: Customer, ctx: Context) -> None:
        await ctx.call(lambda key: (tmp_path / key).touch(), idempotent=True)

    passes(explored(charges))


def test_a_module_that_a_handler_imports_is_no_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prices_of_today.py").write_text("PRICE = 5\n")
    monkeypatch.syspath_prepend(tmp_path)

    def imports(order: Order, customer: Customer, ctx: Context) -> None:
        import prices_of_today  # type: ignore[import-not-found]  # made above

        customer.spent += prices_of_today.PRICE

    passes(explored(imports, crashes=0))


def test_what_is_opened_outside_of_explorations_is_no_finding(tmp_path: Path) -> None:
    passes(explored(lambda order, customer, ctx: None))
    (tmp_path / "file").write_text("after the hook was installed")


# Dead letters, and messages that never end


def test_a_dead_letter_with_its_reason() -> None:
    def refuses(order: Order, customer: Customer, ctx: Context) -> None:
        raise Reject("too dear")

    text = one(explored(refuses), "NoDeadLetter")
    assert "a dead letter: o1 is dead-lettered: too dear" in text and 'allow={"dead-letter"}' in text
    passes(explored(refuses, allow={"dead-letter"}))


def test_a_dead_letter_of_a_failure_says_what_was_raised() -> None:
    def fails(order: Order, customer: Customer, ctx: Context) -> None:
        raise ValueError("no such price")

    assert "o1 is dead-lettered: failed; take raises 'no such price'" in one(explored(fails), "NoDeadLetter")


@pytest.mark.parametrize("after_s", [0, 30])
def test_a_message_that_is_released_for_ever(after_s: float) -> None:
    def waits(order: Order, customer: Customer, ctx: Context) -> None:
        raise Retry("the warehouse is closed", after_s=after_s)

    text = one(explored(waits), "Ends")
    assert "a message that never ends: take, handling o1, was rescheduled 50 times" in text
    assert "the warehouse is closed" in text and "raise Reject when enough is enough" in text


def test_a_retry_is_not_counted_as_a_delivery() -> None:
    def waits(order: Order, customer: Customer, ctx: Context) -> None:
        if ctx.delivery_count > 3:
            raise Reject("tried often enough")
        raise Retry("the warehouse is closed", after_s=100)

    assert "was rescheduled 50 times" in one(explored(waits, allow={"dead-letter"}), "Ends")


def test_a_message_that_is_released_until_another_has_come() -> None:
    def waits(order: Order, customer: Customer, ctx: Context) -> None:
        if order.id == "o1" and not customer.spent:
            raise Retry("o2 comes first", after_s=0)
        customer.spent += order.price

    passes(explored(waits, O1, O2, crashes=0))
    assert "o2 comes first" in one(explored(waits, O1), "Ends")


def test_a_message_that_waits_for_a_time_ends() -> None:
    opens = datetime(2026, 1, 2, tzinfo=UTC).timestamp()

    def waits(order: Order, customer: Customer, ctx: Context) -> None:
        if ctx.now() < opens:
            raise Retry("not today", after_s=opens - ctx.now())
        customer.spent += order.price

    passes(explored(waits))


def test_a_circle_of_messages() -> None:
    def forwards(order: Order, customer: Customer, ctx: Context) -> None:
        ctx.send("orders", order)

    text = one(explored(forwards), "Ends")
    assert "messages that cause each other, where it is cut: they go in a circle" in text

    def counts_down(order: Order, customer: Customer, ctx: Context) -> None:
        if order.price:
            ctx.send("orders", Order(order.id, order.customer, order.price - 1))

    passes(explored(counts_down))


def test_a_handler_that_spins() -> None:
    async def spins(order: Order, customer: Customer, ctx: Context) -> None:
        while True:  # noqa: ASYNC110  # the very thing that is to be told
            await asyncio.sleep(0)

    assert "loops without end" in one(explored(spins), "Ends")


def test_a_message_that_waits_in_vain_after_a_crash_alone() -> None:
    """What no handling shows by itself: found by exploring, not before."""

    def gives_up(order: Order, customer: Customer, ctx: Context) -> None:
        if ctx.delivery_count > 1:
            raise Retry("it was here before", after_s=after_s)

    after_s = 0
    text = one(explored(gives_up), "Progress")
    assert "a message that never ends" in text and "*** CRASH ***" in text
    after_s = 86_400
    text = one(explored(gives_up), "Ends")
    assert "o1 is rescheduled for all its retention of 7 days, 0:00:00, and quarantined" in text
    assert "*** CRASH ***" in text


def test_an_invariant_that_raises_does_not_hold() -> None:
    def adds(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price

    text = one(explored(adds, invariant=lambda world: world.state(Customer, "ann").spent >= 0), "Invariant")
    assert "it raises AttributeError: 'NoneType' object has no attribute 'spent' at no states" in text


# What must hold at the end


def closing(limit: int) -> App:
    """Orders open a customer's account, a second handling closes it; above the limit that one forgets to."""
    app = App("shop")

    @app.handler("orders", key="customer")
    def take(order: Order, customer: Customer, ctx: Context) -> None:
        customer.note = "open"
        ctx.send("closings", order)

    @app.handler("closings", key="customer")
    def close(order: Order, customer: Customer) -> None:
        if order.price < limit:
            customer.note = "closed"

    return app


def all_closed(world: Any) -> bool:
    assert not world.in_flight(Order), "something is under way"
    return all(customer.note == "closed" for customer in world.states(Customer))


@pytest.mark.parametrize("scope", SCOPES)
def test_what_must_hold_at_the_end_is_asked_where_nothing_is_under_way(scope: str) -> None:
    options: dict[str, Any] = {"scope": scope, "workers": 1, "duplicates": 1, "crashes": 1}
    passes(explore(closing(10), [O1], at_end=all_closed, **options))
    assert "the invariant is broken" in one(explore(closing(10), [O1], invariant=all_closed, **options), "Invariant")
    report = explore(closing(5), [O1], at_end=all_closed, **options)
    text = one(report, "AtEnd")
    assert 'what must hold at the end does not: at_end does not hold at Customer:ann {"spent":0' in text
    assert '"note":"open"' in text and "CRASH" not in text and report.anomalies[0].trace == b""


def test_a_function_of_the_end_that_raises_does_not_hold() -> None:
    def none_is_spent(world: Any) -> bool:
        return bool(world.state(Customer, "bob").spent == 0)

    report = explore(closing(10), [O1], workers=1, at_end=none_is_spent)
    assert "at_end does not hold: it raises AttributeError" in one(report, "AtEnd")


# The same in all scopes


@pytest.mark.parametrize("scope", SCOPES)
def test_an_invariant_is_judged_in_every_scope(scope: str) -> None:
    def adds(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price
        ctx.send("parcels", order)

    options: dict[str, Any] = {"scope": scope, "duplicates": 1, "crashes": 1}

    def none_is_sent(world: Any) -> bool:
        return not world.states(Customer)

    def balanced(world: Any) -> bool:
        state = world.state(Customer, "ann")
        return state is None or (state.spent == 5 and world.in_flight(Order) == [Order("o1", "ann", 5)])

    passes(explored(adds, invariant=balanced, **options))
    assert "the invariant is broken" in one(explored(adds, invariant=none_is_sent, **options), "Invariant")


@pytest.mark.parametrize("duplicates", [0, 1])
@pytest.mark.parametrize("scope", SCOPES)
def test_a_blocked_key_is_an_end_and_no_finding(scope: str, duplicates: int) -> None:
    def refuses(order: Order, customer: Customer, ctx: Context) -> None:
        if order.id == "o1":
            raise Reject("no")
        customer.orders = [*customer.orders, order.id]

    def stopping(policy: Any) -> App:
        app = App("shop")
        app.queue("orders", "per_key")
        app.handler("orders", key="customer", on_dead_letter=policy)(refuses)
        return app

    options: dict[str, Any] = {"scope": scope, "duplicates": duplicates, "workers": 1, "allow": {"dead-letter"}}
    passes(explore(stopping("stop_key"), [O1, O2], invariant=lambda world: not world.states(Customer), **options))
    goes_on = explore(stopping("continue"), [O1, O2], invariant=lambda world: not world.states(Customer), **options)
    assert "the invariant is broken" in one(goes_on, "Invariant")


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
@pytest.mark.parametrize("faults", [{}, {"crashes": 1, "duplicates": 1}], ids=["calm", "crash"])
def test_an_application_that_schedules_itself_is_explored_to_a_horizon_that_is_named(
    scope: str, faults: dict[str, int]
) -> None:
    def ticks(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price
        ctx.schedule("orders", Order(order.id, order.customer, order.price), after_s=86_400)

    report = explored(ticks, scope=scope, **({"crashes": 0, "duplicates": 0} | faults))
    passes(report)
    assert "take schedules itself without an end: followed over 3 pauses" in report.text


def test_what_goes_wrong_behind_a_pause_is_found() -> None:
    def ticks(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += order.price
        if customer.spent >= 15:
            raise ValueError("the third is too much")
        ctx.schedule("orders", Order(order.id, order.customer, order.price), after_s=86_400)

    assert "the third is too much" in one(explored(ticks), "NoDeadLetter")


def test_a_schedule_with_an_end_is_explored_to_it() -> None:
    def counts_down(order: Order, customer: Customer, ctx: Context) -> None:
        customer.spent += 1
        if order.price:
            ctx.schedule("orders", Order(order.id, order.customer, order.price - 1), after_s=86_400)

    report = explored(counts_down, ("orders", Order("o1", "ann", 12), "o1"), crashes=0, duplicates=0)
    passes(report)
    assert "without an end" not in report.text
