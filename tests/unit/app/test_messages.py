"""Which message it is, which type, which handler: identity, lineage, types, fan-out."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.context import HOP_COUNT_MAX
from outbox.engine import records
from outbox.errors import NotRegistrable
from outbox.message import Message
from outbox.testing import Harness, SentRecord
from outbox.verify.faults import Faults


@dataclass
class Order:
    id: str
    amount: int = 1


@dataclass
class Payment:
    id: str
    amount: int = 1


@dataclass
class Saga:
    seen: list[str] = field(default_factory=list)


@dataclass
class Count:
    n: int = 0


def counting(**queue: Any) -> App:
    """One queue whose handler counts by key and echoes to `out`."""
    app = App("counting")
    app.queue("out")
    app.queue("q", **queue)

    @app.handler("q", key="id")
    def count(order: Order, count: Count, ctx: Context) -> None:
        count.n += order.amount
        ctx.send("out", order)

    return app


async def test_several_handlers_share_one_state() -> None:
    app = App("shop")

    @app.handler("orders", key="id")
    def ordered(order: Order, saga: Saga) -> None:
        saga.seen.append("ordered")

    @app.handler("payments", key="id")
    def paid(payment: Payment, saga: Saga) -> None:
        saga.seen.append("paid")

    async with Harness(app) as world:
        await world.send("orders", Order("o1"), id="1")
        await world.wait_idle()
        await world.send("payments", Payment("o1"), id="1")
        await world.wait_idle()
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
            await world.send("q", Order("o1"), id="1")
            await world.wait_idle()
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
        await world.send("q", Payment("p1"))
        await world.wait_idle()
        await world.send_raw("q", b'{"id":"x"}', properties={"outbox-id": "untyped"})
        await world.wait_idle()
        assert sorted(seen, key=lambda m: m.id) == [Order("o1"), Payment("p1")]
        (letter,) = world.dead_letters("q")
        assert letter.reason == "unknown-type" and "Order, Payment" in letter.description


async def test_a_queue_with_one_type_needs_no_type_property() -> None:
    async with Harness(counting()) as world:
        await world.send_raw("q", b'{"id":"x","amount":4}', properties={"outbox-id": "1"})
        await world.wait_idle()
        assert await world.state(Count, "x") == Count(4)


async def test_a_type_has_the_name_that_it_was_given_on_the_wire() -> None:
    app = App("a")
    app.queue("out")
    app.message("order.v1")(Order)

    @app.handler("q")
    def handle(order: Order, ctx: Context) -> None:
        ctx.send("out", order)

    async with Harness(app) as world:
        await world.send("q", Order("o1"))
        await world.wait_idle()
        (sent,) = world.sent_records("out")
        assert sent.properties["outbox-type"] == "order.v1"
        await world.send_raw("q", b'{"id":"x"}', properties={"outbox-id": "1", "outbox-type": "Order"})
        await world.wait_idle()
        assert [letter.reason for letter in world.dead_letters("q")] == ["unknown-type"]


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
        await world.send("q", Order("o"), id="1")
        await world.wait_idle()
        assert (await world.state(Count, "o"), await world.state(Count, "o-other")) == (Count(1), Count(10))
        assert world.dead_letters("q") == []


async def test_one_of_several_handlers_refuses_and_the_dead_letter_names_it() -> None:
    async with Harness(fan_out(refuse=True)) as world:
        await world.send("q", Order("o"), id="1")
        await world.wait_idle()
        assert (await world.state(Count, "o"), await world.state(Count, "o-other")) == (Count(1), None)
        (letter,) = world.dead_letters("q")
        assert letter.reason == "not by me" and "two" in letter.description
        await world.resubmit("q", "1")
        await world.wait_idle()
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
        await world.send("q", Order("o"), id="1")
        await world.wait_idle()
        assert await world.state(Count, "o") == Count(1)
        await world.advance(minutes=1)
        assert await world.state(Count, "o") == Count(11)
        assert tries == [1, 2, 3]


# Identity


async def test_the_identity_is_the_property_of_its_own_before_the_brokers_id() -> None:
    async with Harness(counting()) as world:
        body = b'{"id":"x"}'
        for broker_id in ("b1", "b2"):
            await world.send_raw("q", body, properties={"outbox-id": "1", "message-id": broker_id})
        for _ in range(2):
            await world.send_raw("q", body, properties={"message-id": "2"})
        await world.wait_idle()
        assert await world.state(Count, "x") == Count(2)


async def test_a_message_without_an_identity_is_dead_lettered_with_the_cure() -> None:
    async with Harness(counting()) as world:
        await world.send_raw("q", b'{"id":"x"}')
        await world.wait_idle()
        (letter,) = world.dead_letters("q")
        assert (letter.id, letter.reason) == ("", "no-identity") and 'identity="sequence-number"' in letter.description
        assert await world.state(Count, "x") is None


async def test_a_source_may_take_the_sequence_number_as_identity() -> None:
    async with Harness(counting(identity="sequence-number"), faults=Faults(crashes=((3, "after"),))) as world:
        for _ in range(2):
            await world.send_raw("q", b'{"id":"x"}')
        await world.wait_idle()
        assert await world.state(Count, "x") == Count(2)
        assert world.dead_letters("q") == []


@pytest.mark.parametrize("id", ["", 7, b"x"])
async def test_an_identity_that_is_not_a_text_is_refused_at_once(id: Any) -> None:
    async with Harness(counting()) as world:
        with pytest.raises(ValueError, match="leave it out"):
            await world.send("q", Order("x"), id=id)


async def test_identity_is_scoped_to_the_key() -> None:
    async with Harness(counting()) as world:
        for key in ("x", "y", "x"):
            await world.send("q", Order(key), id="1")
        await world.wait_idle()
        assert (await world.state(Count, "x"), await world.state(Count, "y")) == (Count(1), Count(1))


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_handlers_of_one_name_on_two_sources_do_not_swallow_each_others_messages() -> None:
    app, seen = App("a"), []

    def register(queue: str) -> None:
        @app.handler(queue, key="id")
        def handle(order: Order) -> None:
            seen.append(queue)

    register("first")
    register("second")
    async with Harness(app) as world:
        for queue in ("first", "second", "first"):
            await world.send(queue, Order("o"), id="1")
        await world.wait_idle()
    assert sorted(seen) == ["first", "second"]


@pytest.mark.parametrize(("first", "second"), [(("a-b", "c"), ("a", "b-c")), (("a:1", "b"), ("a", "1:b"))])
async def test_neither_keys_nor_ids_run_together(first: tuple[str, str], second: tuple[str, str]) -> None:
    async with Harness(counting()) as world:
        for key, id in (first, second):
            await world.send("q", Order(key), id=id)
        await world.wait_idle()
        assert len(world.sent("out")) == 2


async def test_the_same_id_with_another_payload_is_dead_lettered_and_changes_nothing() -> None:
    async with Harness(counting()) as world:
        await world.send("q", Order("x", 1), id="1")
        await world.send("q", Order("x", 2), id="1")
        await world.wait_idle()
        assert await world.state(Count, "x") in (Count(1), Count(2))
        (letter,) = world.dead_letters("q")
        assert letter.reason == "payload-differs" and letter.id == "1" and "new id" in letter.description
        assert len(world.sent("out")) == 1


# Lineage


async def test_outputs_have_the_same_ids_on_every_attempt_and_machine() -> None:
    async def ids(seed: int, faults: Faults) -> list[str]:
        async with Harness(counting(), seed=seed, faults=faults) as world:
            await world.send("q", Order("x"), id="1")
            await world.send("q", Order("y"), id="2")
            await world.wait_idle()
            return sorted(record.id for record in world.sent_records("out"))

    plain = await ids(0, Faults())
    assert len(set(plain)) == 2
    assert plain == await ids(9, Faults(crashes=((3, "before"),), lost=(5,)))


async def test_trace_correlation_and_causation_are_carried_through() -> None:
    app = App("a")
    app.queue("out")

    @app.handler("first")
    def first(order: Order, ctx: Context) -> None:
        ctx.send("second", order)

    @app.handler("second")
    def second(order: Order, ctx: Context) -> None:
        assert ctx.causation_id
        assert ctx.traceparent == ("00-ab-cd-01" if order.id == "o" else "")
        ctx.send("out", order)

    async with Harness(app) as world:
        await world.send("first", Order("o"), id="1", traceparent="00-ab-cd-01")
        await world.send("first", Order("p"), id="2", correlation_id="talk")
        await world.wait_idle()
        middle, end = world.sent_records("second")[0], world.sent_records("out")
        assert middle.properties["causation-id"] == "1"
        last = by_id(end, Order("o"))
        assert last.properties["causation-id"] == middle.id
        assert last.properties["correlation-id"] == "1"
        assert last.properties["traceparent"] == "00-ab-cd-01"
        assert last.properties["outbox-hops"] == 2
        assert last.properties["outbox-created"] == round(world.now() * 1_000)
        assert by_id(end, Order("p")).properties["correlation-id"] == "talk"


def by_id(records: list[SentRecord], message: Any) -> SentRecord:
    return next(record for record in records if record.message == message)


async def test_a_message_that_goes_in_a_circle_ends_as_a_dead_letter() -> None:
    app, runs = App("a"), []

    @app.handler("q")
    def again(order: Order, ctx: Context) -> None:
        runs.append(1)
        ctx.send("q", order)

    async with Harness(app) as world:
        await world.send("q", Order("o"))
        await world.wait_idle()
        (letter,) = world.dead_letters("q")
        assert letter.reason == "failed" and "cycle" in letter.description
        assert len(runs) == HOP_COUNT_MAX + 1


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
        await world.send("q", Quick("x", 5))
        await world.wait_idle()
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
            await world.send("q", Invoice(id="x", netAmount=5), id=id)
            await world.wait_idle()
        await world.send_raw("q", json.dumps({"id": "x", "netAmount": -5}).encode(), properties={"outbox-id": "3"})
        await world.wait_idle()
        found = await world.state(Sum, "x")
        assert found is not None and found.total == 10
        assert world.sent("out") == [Invoice(id="x", netAmount=5)] * 2
        assert [letter.reason for letter in world.dead_letters("q")] == ["undecodable"]


def test_what_is_no_message_type_cannot_be_sent() -> None:
    with pytest.raises(NotRegistrable, match="make it one"):
        App("a").encode({"id": "x"})


async def test_an_identity_that_is_no_text_is_refused_and_stops_nobody() -> None:
    app = App("surrogates")

    @app.handler("q")
    def handle(message: Plain) -> None:
        pass

    async with Engine.in_memory() as engine, Worker(app, engine) as worker:
        message = Message(body=b'{"n": 1}', outbox_id="\ud800", type="Plain")
        engine.state.apply(records.Sent(engine.now_ms(), "q", 0, [message]), 1)  # past `send`, which refuses it
        engine.wake()
        await worker.wait_idle(timeout_s=10)
        (letter,) = await worker.dead_letters("q")
        assert letter.reason == "no-identity"


@dataclass
class Plain:
    n: int
