"""The findings of an exploration with one worker: for each mistake of a handler its promise, its text and its cure."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from outbox import Context, Reject, Retry
from outbox.verify.findings.report import LINES_SHOWN, shortened
from tests.simulation.shop import O1, O2, Customer, Order, explored

drawn = random.Random()


def goes_round(order: Order, customer: Customer, ctx: Context) -> None:
    ctx.send("orders", order)


def waits(order: Order, customer: Customer, ctx: Context) -> None:
    raise Retry("not yet")


def breaks(order: Order, customer: Customer, ctx: Context) -> None:
    raise RuntimeError("it broke")


async def starts_a_thread(order: Order, customer: Customer, ctx: Context) -> None:
    await asyncio.to_thread(len, order.id)


def opens_a_file(order: Order, customer: Customer, ctx: Context) -> None:
    with open("/dev/null") as file:  # noqa: PTH123  # as a handler does that should not
        file.read()


def draws_a_state(order: Order, customer: Customer, ctx: Context) -> None:
    customer.spent = drawn.getrandbits(60)


def draws_an_output(order: Order, customer: Customer, ctx: Context) -> None:
    ctx.send("parcels", Order("x", "ann", drawn.getrandbits(60)))


def sends_ever_more(order: Order, customer: Customer, ctx: Context, count: list[int] = [0]) -> None:  # noqa: B006  # it remembers
    count[0] += 1
    for _ in range(count[0]):
        ctx.send("parcels", order)


def asks_for_the_year(order: Order, customer: Customer, ctx: Context) -> None:
    customer.note = time.strftime("%Y", time.gmtime(time.time()))


def spends(order: Order, customer: Customer, ctx: Context) -> None:
    customer.spent += order.price
    if customer.spent > 10:
        customer.note = f"rich since {order.id}"


def takes_one(order: Order, customer: Customer, ctx: Context) -> None:
    if customer.spent:
        raise Reject("enough")
    customer.spent = 1


def sends_the_first(order: Order, customer: Customer, ctx: Context) -> None:
    if not customer.spent:
        ctx.send("parcels", order)
    customer.spent = 1


async def calls(order: Order, customer: Customer, ctx: Context) -> None:
    await ctx.call(lambda key: key)


FOUND: dict[str, tuple[Callable[..., Any], dict[str, Any], str, tuple[str, ...]]] = {
    "a circle": (goes_round, {}, "Ends", ("where it is cut: they go in a circle",)),
    "a message that waits": (waits, {}, "Ends", ("times, with days in between: Retry, not yet",)),
    "an error": (breaks, {}, "NoDeadLetter", ("o1 is dead-lettered: failed; take raises 'it broke'",)),
    "a thread": (starts_a_thread, {}, "StaysInside", ("starts a thread, a connection or a process",)),
    "a file": (opens_a_file, {}, "StaysInside", ("opens the file '/dev/null', not through ctx",)),
    "a drawn state": (draws_a_state, {}, "Deterministic", ("run twice,", "Customer:ann became", "ctx.random()")),
    "a drawn output": (draws_an_output, {}, "Deterministic", ("first it sent Order {",)),
    "more outputs": (sends_ever_more, {}, "Deterministic", ("message(s), then", "it remembers something")),
    "another day": (asks_for_the_year, {}, "Deterministic", ("and another time on another day", "use ctx.now()")),
    "an order in a state": (spends, {}, "Order", ("Customer:ann is", "one order:", "another:")),
    "an order in refusals": (takes_one, {"allow": {"dead-letter"}}, "Order", ("o1 is", "a dead letter: enough")),
    "an order in a queue": (sends_the_first, {}, "Order", ("in parcels is Order",)),
    "a call": (calls, {"crashes": 1}, "OneCall", ("*** CRASH ***", "and its call is made once more")),
}


@pytest.mark.parametrize("what", FOUND)
def test_what_is_wrong_with_a_handler_is_found_in_words(what: str) -> None:
    body, options, promise, texts = FOUND[what]
    report = explored(body, O1, *([O2] if promise == "Order" else []), **{"crashes": 0, "duplicates": 0, **options})
    text = " ".join(report.text.split())
    assert [found.promise for found in report.anomalies] == [promise], text
    assert not report.exhausted and all(" ".join(each.split()) in text for each in texts), text
    assert "Cure: " in text


def test_what_one_message_sets_off_is_rehearsed_with_its_state_and_before_the_next() -> None:
    seen = list[tuple[str, int]]()

    def notes(order: Order, customer: Customer, ctx: Context) -> None:
        seen.append((order.id, customer.spent))
        customer.spent += 1
        if len(order.id) == 2:
            ctx.send("orders", Order(f"{order.id}b", "ann", 1))

    explored(notes, O1, O2, seconds=0.01, allow={"order"})
    assert list(dict.fromkeys(seen))[:4] == [("o1", 0), ("o1b", 1), ("o2", 2), ("o2b", 3)]


def test_of_a_long_way_both_ends_are_shown() -> None:
    lines = [f"step {number}" for number in range(3 * LINES_SHOWN + 1)]
    assert shortened("\n".join(lines[:-1])) == "\n".join(lines[:-1])
    assert shortened("\n".join(lines)).splitlines() == [*lines[:LINES_SHOWN], "      ...", *lines[-LINES_SHOWN:]]
