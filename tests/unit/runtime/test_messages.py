"""Which message it is, which type, which handler: identity, lineage, types, fan-out."""

from __future__ import annotations

import json

import msgspec
import pytest

from outbox import App, Context, Reject, Retries
from outbox.errors import NotRegistrable
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import Count, deliver, deliver_raw, resubmit
from tests.unit.runtime.orders import Order, Payment, Saga, counting


async def test_several_handlers_share_one_state() -> None:
    app = App("shop")

    @app.handler("orders", key="id")
    def ordered(order: Order, saga: Saga) -> None:
        saga.seen.append("ordered")

    @app.handler("payments", key="id")
    def paid(payment: Payment, saga: Saga) -> None:
        saga.seen.append("paid")

    async with Harness(app) as world:
        await deliver(world, "orders", Order("o1"), id="1")
        await deliver(world, "payments", Payment("o1"), id="1")
        assert await world.state(Saga, "o1") == Saga(["ordered", "paid"])


async def test_a_stateless_handler_acts_once_on_duplicates() -> None:
    app = App("a")
    app.queue("out")

    @app.handler("q")
    def forward(order: Order, ctx: Context) -> None:
        assert ctx.key is None
        ctx.send("out", order)

    async with Harness(app) as world:
        for _ in range(3):
            await deliver(world, "q", Order("o1"), id="1")
        assert world.sent("out") == [Order("o1")]


@pytest.mark.parametrize("as_union", [True, False])
async def test_one_queue_carries_several_types(as_union: bool) -> None:
    app, seen = App("a"), []
    if as_union:

        @app.handler("q")
        def both(message: Order | Payment) -> None:
            seen.append(message)
    else:

        @app.handler("q")
        def first(order: Order) -> None:
            seen.append(order)

        @app.handler("q")
        def second(payment: Payment) -> None:
            seen.append(payment)

    async with Harness(app) as world:
        await world.send("q", Order("o1"))
        await deliver(world, "q", Payment("p1"))
        await deliver_raw(world, "q", b'{"id":"x"}', properties={"outbox-id": "untyped"})
        assert sorted(seen, key=lambda m: m.id) == [Order("o1"), Payment("p1")]
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "unknown-type" and "Order, Payment" in dead_letter.description


async def test_a_queue_with_one_type_needs_no_type_property() -> None:
    async with Harness(counting()) as world:
        await deliver_raw(world, "q", b'{"id":"x","amount":4}', properties={"outbox-id": "1"})
        assert await world.state(Count, "x") == Count(4)


async def test_a_type_has_the_name_that_it_was_given_on_the_wire() -> None:
    app = App("a")
    app.queue("out")
    app.message("order.v1")(Order)

    @app.handler("q")
    def handle(order: Order, ctx: Context) -> None:
        ctx.send("out", order)

    async with Harness(app) as world:
        await deliver(world, "q", Order("o1"))
        (sent,) = world.sent_records("out")
        assert sent.properties["outbox-type"] == "order.v1"
        await deliver_raw(world, "q", b'{"id":"x"}', properties={"outbox-id": "1", "outbox-type": "Order"})
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["unknown-type"]


def fan_out(refuse: bool) -> App:
    app = App("a")

    @app.handler("q", key="id")
    def one(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("q", key=lambda order: f"{order.id}-other")
    def two(order: Order, count: Count) -> None:
        count.n += 10
        if refuse:
            raise Reject("not by me")

    return app


async def test_every_handler_of_a_message_acts_on_it_once() -> None:
    async with Harness(fan_out(refuse=False), faults=Faults(duplicates=(1,))) as world:
        await deliver(world, "q", Order("o"), id="1")
        assert (await world.state(Count, "o"), await world.state(Count, "o-other")) == (Count(1), Count(10))
        assert world.dead_letters("q") == []


async def test_one_of_several_handlers_refuses_and_the_dead_letter_names_it() -> None:
    async with Harness(fan_out(refuse=True)) as world:
        await deliver(world, "q", Order("o"), id="1")
        assert (await world.state(Count, "o"), await world.state(Count, "o-other")) == (Count(1), None)
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "not by me" and "two" in dead_letter.description
        await resubmit(world, "q", "1")
        assert await world.state(Count, "o") == Count(1)
        assert len(world.dead_letters("q")) == 1


async def test_several_handlers_of_one_message_share_a_state_and_a_retry() -> None:
    app, tries = App("a", retry=Retries(limit=3, delays_s=(1.0,))), []

    @app.handler("q", key="id")
    def steady(order: Order, count: Count) -> None:
        count.n += 1

    @app.handler("q", key="id")
    def flaky(order: Order, count: Count, ctx: Context) -> None:
        count.n += 10
        tries.append(ctx.delivery_count)
        if len(tries) < 3:
            raise OSError("flaky")

    async with Harness(app) as world:
        await deliver(world, "q", Order("o"), id="1")
        assert await world.state(Count, "o") == Count(1)
        await world.advance(minutes=1)
        assert await world.state(Count, "o") == Count(11)
        assert tries == [1, 2, 3]


async def test_a_message_that_one_handler_refuses_is_redelivered_for_the_other() -> None:
    app, tries = App("a", retry=Retries(limit=3, delays_s=(1.0,))), []

    @app.handler("q", key="id")
    def strict(order: Order, count: Count) -> None:
        raise Reject("not by me")

    @app.handler("q", key="id")
    def flaky(order: Order, count: Count) -> None:
        tries.append(order.id)
        if len(tries) < 3:
            raise OSError("flaky")
        count.n += 10

    async with Harness(app) as world:
        await deliver(world, "q", Order("o"), id="1")
        assert world.dead_letters("q") == [] and len(tries) == 1
        await world.advance(minutes=1)
        assert await world.state(Count, "o") == Count(10)
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "not by me" and "strict" in dead_letter.description


async def test_a_message_that_goes_in_a_circle_ends_as_a_dead_letter() -> None:
    app, runs = App("a"), []

    @app.handler("q")
    def again(order: Order, ctx: Context) -> None:
        runs.append(1)
        ctx.send("q", order)

    async with Harness(app) as world:
        await deliver(world, "q", Order("o"))
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "cycle"
        assert "64 handlers" in dead_letter.description and "hops_max" in dead_letter.description
        assert len(runs) == 65


# Types of messages


class Quick(msgspec.Struct, frozen=True):
    id: str
    when: int = 0


async def test_msgspec_structs_are_messages_and_states() -> None:
    class Total(msgspec.Struct):
        n: int = 0

    app = App("a")

    @app.handler("q", key="id")
    def handle(quick: Quick, total: Total) -> None:
        total.n += quick.when

    async with Harness(app) as world:
        await deliver(world, "q", Quick("x", 5))
        assert await world.state(Total, "x") == Total(5)


async def test_pydantic_models_are_messages_and_states_under_their_aliases() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Invoice(pydantic.BaseModel):  # type: ignore[name-defined,misc]  # pydantic is optional
        id: str
        net_amount: int = pydantic.Field(alias="netAmount", gt=0)

    class Sum(pydantic.BaseModel):  # type: ignore[name-defined,misc]  # pydantic is optional
        total: int = pydantic.Field(default=0, alias="Total")

    app = App("a")
    app.queue("out")

    @app.handler("q", key="id")
    def handle(invoice: Invoice, sum: Sum, ctx: Context) -> None:
        sum.total += invoice.net_amount
        ctx.send("out", invoice)

    async with Harness(app) as world:
        for id in ("1", "2"):
            await deliver(world, "q", Invoice(id="x", netAmount=5), id=id)
        await deliver_raw(world, "q", json.dumps({"id": "x", "netAmount": -5}).encode(), properties={"outbox-id": "3"})
        found = await world.state(Sum, "x")
        assert found is not None and found.total == 10
        assert world.sent("out") == [Invoice(id="x", netAmount=5)] * 2
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["undecodable"]


def test_what_is_no_message_type_cannot_be_sent() -> None:
    with pytest.raises(NotRegistrable, match="make it one"):
        App("a").encode({"id": "x"})
