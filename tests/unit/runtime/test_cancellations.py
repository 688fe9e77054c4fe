"""Cancelling what was scheduled: it takes effect or it is cancelled, never both, in each scope."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from outbox import App, Context, Reject
from outbox.cancellation import (
    CANCELLATION_TYPE,
    PROPERTY_CANCELS,
    Ticket,
    cancelled_by,
    cancelling_properties,
    read_ticket,
    ticket_text,
)
from outbox.errors import PoisonMessage
from outbox.message import Message, schema_properties
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver, deliver_raw, resubmit

HOUR_S, DAY_S = 3_600, 86_400


@dataclass
class Order:
    id: str
    does: str
    after_s: float = HOUR_S
    note: str = ""


@dataclass
class Timeout:
    order: str
    note: str = ""


@dataclass
class Basket:
    ticket: str = ""
    log: list[str] = field(default_factory=list)


@dataclass
class Watch:
    fired: int = 0


class Orders:
    """An order schedules its timeout, pays, which cancels that, or looks what came of it."""

    def __init__(self, ordering: Any = "unordered", retention: timedelta = timedelta(days=1)) -> None:
        self.app = app = App("orders", retention=retention, claim_check_bytes=2_000)
        self.run: list[str] = []
        self.refuses = False
        app.queue("timeouts", ordering)

        @app.handler("orders", key="id")
        def take(order: Order, basket: Basket, ctx: Context) -> None:
            basket.log.append(order.does)
            if order.does == "start":
                basket.ticket = ctx.schedule("timeouts", Timeout(order.id, order.note), after_s=order.after_s)
            if order.does == "both":
                ctx.cancel(ctx.schedule("timeouts", Timeout(order.id), after_s=order.after_s))
            if order.does in ("pay", "pay twice"):
                ctx.cancel(basket.ticket)
            if order.does == "pay twice":
                ctx.cancel(basket.ticket)

        @app.handler("timeouts", key="order")
        def time_out(timeout: Timeout, watch: Watch) -> None:
            self.run.append(timeout.order)
            if self.refuses:
                raise Reject("not now")
            watch.fired += 1


@pytest.fixture
async def orders() -> AsyncIterator[Orders]:
    yield Orders()


async def fired(world: Harness, order: str = "o") -> int:
    watch = await world.state(Watch, order)
    return 0 if watch is None else watch.fired


async def test_what_is_cancelled_before_it_is_due_has_no_effect(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await world.send("orders", Order("o", "start"), id="1")
        await world.send("orders", Order("other", "start"), id="2")
        await world.send("orders", Order("o", "pay"), id="3")
        await world.advance(hours=2)
        assert (await fired(world), await fired(world, "other")) == (0, 1)
        assert world.dead_letters("timeouts") == []


async def test_of_cancellations_that_commit_together_each_lasts_until_its_message_is_due(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        for days in (10, 8, 6, 4, 2):
            await deliver(world, "orders", Order(f"o{days}", "start", days * DAY_S), id=f"{days}")
        for days in (10, 8, 6, 4, 2):
            await world.send("orders", Order(f"o{days}", "pay"), id=f"pay {days}")
        await world.advance(days=11)
        assert [await fired(world, f"o{days}") for days in (10, 8, 6, 4, 2)] == [0] * 5


async def test_a_test_sees_what_was_scheduled_and_apart_what_was_cancelled(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await world.send("orders", Order("o", "start"), id="1")
        await deliver(world, "orders", Order("o", "pay"), id="2")
        assert world.sent("timeouts") == [Timeout("o")]
        scheduled, cancellation = world.sent_records("timeouts")
        assert (scheduled.message, cancellation.message) == (Timeout("o"), Timeout("o"))
        assert cancellation.properties[PROPERTY_CANCELS] == scheduled.id != cancellation.id
        assert (scheduled.due is None, cancellation.due) == (False, None)


async def test_what_is_due_before_it_is_cancelled_takes_effect_once(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await world.send("orders", Order("o", "start"), id="1")
        await world.advance(hours=2)
        await world.send("orders", Order("o", "pay"), id="2")
        await world.advance(days=3)
        assert await fired(world) == 1
        assert world.dead_letters("timeouts") == []


@pytest.mark.parametrize(
    ("does", "note", "ordering", "duplicates"),
    [
        (["both"], "", "unordered", ()),
        (["start", "pay twice"], "", "unordered", ()),
        (["start", "pay"], "n" * 5_000, "unordered", ()),
        (["start", "pay"], "", "per_key", ()),
        (["start", "pay"], "", "unordered", (1, 2, 3, 4)),
    ],
    ids=["at once", "twice", "large", "in an ordered queue", "a cancellation that comes twice"],
)
async def test_what_is_cancelled_in_any_way_has_no_effect(
    does: list[str], note: str, ordering: str, duplicates: tuple[int, ...]
) -> None:
    async with Harness(Orders(ordering).app, faults=Faults(duplicates=duplicates)) as world:
        for number, what in enumerate(does):
            await world.send("orders", Order("o", what, note=note), id=f"{number}")
        await world.advance(hours=2)
        assert await fired(world) == 0
        assert world.dead_letters("timeouts") == []


@pytest.mark.parametrize("due_days", [0.5, 3, 40])
async def test_it_is_remembered_until_the_message_was_due(orders: Orders, due_days: float) -> None:
    async with Harness(orders.app) as world:
        await world.send("orders", Order("o", "start", due_days * DAY_S), id="1")
        await world.send("orders", Order("o", "pay"), id="2")
        for _ in range(50):  # in steps, so that sweeps and expiries take place
            await world.advance(days=1)
        assert await fired(world) == 0
        assert world.dead_letters("timeouts") == []


async def test_a_cancellation_of_a_refused_message_leaves_its_dead_letter_alone(orders: Orders) -> None:
    orders.refuses = True
    async with Harness(orders.app) as world:
        await world.send("orders", Order("o", "start"), id="1")
        await world.advance(hours=2)
        await deliver(world, "orders", Order("o", "pay"), id="2")
        (letter,) = world.dead_letters("timeouts")
        assert letter.reason == "not now"
        orders.refuses = False
        await resubmit(world, "timeouts", letter.id)
        assert await fired(world) == 1


async def test_a_cancellation_runs_no_handler_and_keeps_the_state(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await world.given(Watch, "o", Watch(7))
        await world.send("orders", Order("o", "start"), id="1")
        await deliver(world, "orders", Order("o", "pay"), id="2")
        assert (orders.run, await fired(world)) == ([], 7)


@pytest.mark.parametrize(
    ("ticket", "said"),
    [
        ("", "no ticket"),
        ("o1", "no ticket"),
        ("o1!", "no ticket"),
        ("o1!####", "no ticket"),
        ("o1!" + "é", "no ticket"),
        (None, "NoneType: it is no ticket"),
    ],
)
async def test_what_is_no_ticket_is_refused_and_says_the_cure(ticket: Any, said: str) -> None:
    app = App("t")

    @app.handler("orders", key="id")
    def take(order: Order, basket: Basket, ctx: Context) -> None:
        ctx.cancel(ticket)

    async with Harness(app) as world:
        await world.send("orders", Order("o", "pay"), id="1")
        await world.advance(days=1)
        (letter,) = world.dead_letters("orders")
        assert said in letter.description
        assert "ctx.schedule" in letter.description


@pytest.mark.parametrize("room", [1, 2])
async def test_a_cancellation_is_an_output_like_others(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.context.OUTPUT_COUNT_MAX", room)
    app, trace = App("t"), f"00-{'ab' * 16}-{'cd' * 8}-01"

    @app.handler("orders", key="id")
    def take(order: Order, basket: Basket, ctx: Context) -> None:
        ctx.trace = trace
        ctx.cancel(ctx.schedule("timeouts", Timeout("o"), after_s=HOUR_S))

    @app.handler("timeouts")
    def late(timeout: Timeout) -> None: ...

    async with Harness(app) as world:
        await world.send("orders", Order("o", "pay"), id="1")
        await world.advance(minutes=10)
        sent = world.sent_records("timeouts")
        assert [record.properties["traceparent"] for record in sent] == [trace] * (2 if room == 2 else 0)
        assert ["1 outputs, the limit" in letter.description for letter in world.dead_letters("orders")] == [True] * (
            2 - room
        )


def test_a_ticket_under_the_identity_of_another_message_is_none() -> None:
    text = ticket_text("timeouts", Message(body=b"{}", outbox_id="1"), 5)
    assert read_ticket(text).id == "1"
    with pytest.raises(ValueError, match="no ticket"):
        read_ticket("2" + text[1:])


@pytest.mark.parametrize(("due_ms", "read_ms"), [(5_000, 5_000), (0, 1), (-5, 1), ((1 << 53) - 1, (1 << 53) - 1)])
@pytest.mark.parametrize("schema", [1, 3])
def test_a_cancellation_is_read_as_the_message_that_it_cancels(due_ms: int, read_ms: int, schema: int) -> None:
    properties = cancelling_properties(Ticket("m1", "timeouts", "Timeout", b"{}", "", schema, due_ms))
    sent = Message(body=b"{}", outbox_id="c1", type=CANCELLATION_TYPE, created_ms=7, properties=properties)
    found, found_ms = cancelled_by(sent)
    assert (found.identity, found.type, found.schema, found.created_ms) == ("m1", "Timeout", schema, 7)
    assert found.properties == schema_properties(schema) and found_ms == read_ms


def test_a_cancellation_of_a_time_that_no_record_holds_is_refused() -> None:
    properties = cancelling_properties(Ticket("m1", "timeouts", "Timeout", b"{}", "", 1, 1 << 53))
    with pytest.raises(PoisonMessage, match="needs the properties"):
        cancelled_by(Message(body=b"{}", type=CANCELLATION_TYPE, properties=properties))


async def test_a_ticket_of_a_queue_that_is_not_declared_any_more_says_so(orders: Orders) -> None:
    app = App("t")
    tickets: list[str] = []

    @orders.app.handler("starts", key="id")
    def start(order: Order, basket: Basket, ctx: Context) -> None:
        tickets.append(ctx.schedule("timeouts", Timeout(order.id), after_s=1))

    @app.handler("orders", key="id")
    def take(order: Order, basket: Basket, ctx: Context) -> None:
        ctx.cancel(tickets[0])

    async with Harness(orders.app) as world:
        await deliver(world, "starts", Order("o", "start"), id="1")
    async with Harness(app) as world:
        await world.send("orders", Order("o", "pay"), id="1")
        await world.advance(days=1)
        (letter,) = world.dead_letters("orders")
        assert "'timeouts' was never declared" in letter.description


async def test_a_cancellation_without_its_properties_is_a_dead_letter(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await deliver_raw(world, "timeouts", b"{}", properties={"outbox-id": "c1", "outbox-type": CANCELLATION_TYPE})
        (letter,) = world.dead_letters("timeouts")
        assert letter.reason == "undecodable"
        assert "outbox-cancels" in letter.description


async def test_a_ticket_names_its_message(orders: Orders) -> None:
    async with Harness(orders.app) as world:
        await deliver(world, "orders", Order("o", "start"), id="1")
        basket = await world.state(Basket, "o")
        assert basket is not None
        ticket = read_ticket(basket.ticket)
        assert isinstance(ticket, Ticket)
        assert basket.ticket.startswith(f"{ticket.id}!")
        assert (ticket.destination, ticket.type) == ("timeouts", "Timeout")
