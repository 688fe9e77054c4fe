"""What a message is known by, and what it carries from the one that caused it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Context, Engine, Worker
from outbox.engine.log import records
from outbox.lineage import traceparent_of
from outbox.message import Message
from outbox.testing import Harness, SentRecord
from outbox.verify.faults import Faults
from tests.unit.messages import Count, deliver, deliver_raw
from tests.unit.runtime.orders import Order, counting

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
        await deliver_raw(world, "q", b'{"id":"x"}')
        (dead_letter,) = world.dead_letters("q")
        assert (dead_letter.id, dead_letter.reason) == (
            "",
            "no-identity",
        ) and 'identity="sequence-number"' in dead_letter.description
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


@pytest.mark.parametrize(
    ("first", "second"), [(("ab", "c"), ("a", "bc")), (("a-b", "c"), ("a", "b-c")), (("a:1", "b"), ("a", "1:b"))]
)
async def test_neither_keys_nor_ids_run_together(first: tuple[str, str], second: tuple[str, str]) -> None:
    async with Harness(counting()) as world:
        for key, id in (first, second):
            await world.send("q", Order(key), id=id)
        await world.wait_idle()
        assert len(world.sent("out")) == 2


async def test_the_same_id_with_another_payload_is_dead_lettered_and_changes_nothing() -> None:
    async with Harness(counting()) as world:
        await world.send("q", Order("x", 1), id="1")
        await deliver(world, "q", Order("x", 2), id="1")
        assert await world.state(Count, "x") in (Count(1), Count(2))
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "payload-differs" and dead_letter.id == "1" and "new id" in dead_letter.description
        assert len(world.sent("out")) == 1


# Lineage


async def test_outputs_have_the_same_ids_on_every_attempt_and_machine() -> None:
    async def ids(seed: int, faults: Faults) -> list[str]:
        async with Harness(counting(), seed=seed, faults=faults) as world:
            await world.send("q", Order("x"), id="1")
            await deliver(world, "q", Order("y"), id="2")
            return sorted(record.id for record in world.sent_records("out"))

    plain = await ids(0, Faults())
    assert len(set(plain)) == 2
    assert plain == await ids(9, Faults(crashes=((3, "before"),), lost=(5,)))


TRACE, SPAN = 32 * "a", 16 * "b"


async def test_each_hop_of_a_trace_has_a_span_of_its_own_whatever_is_tried_again() -> None:
    def app() -> App:
        made = App("a")
        made.queue("out")

        @made.handler("first")
        def first(order: Order, ctx: Context) -> None:
            ctx.send("second", order)
            ctx.send("second", Order("twin"))

        @made.handler("second")
        def second(order: Order, ctx: Context) -> None:
            ctx.send("out", order)

        return made

    async def traced(faults: Faults | None = None) -> list[str]:
        async with Harness(app(), faults=faults) as world:
            await deliver(world, "first", Order("o"), id="1", traceparent=f"00-{TRACE}-{SPAN}-01")
            sent = [*world.sent_records("second"), *world.sent_records("out")]
            return [str(one.properties["traceparent"]) for one in sent]

    plain = await traced()
    assert all(len(found) == 55 and found.startswith(f"00-{TRACE}-") and found.endswith("-01") for found in plain)
    assert plain[0] == plain[1] and len({SPAN, *(found.split("-")[2] for found in plain)}) == 4
    assert await traced(Faults(crashes=((2, "before"), (4, "after")), lost=(5,))) == plain


@pytest.mark.parametrize("odd", ["01-" + 52 * "a", f"00-{TRACE}-{SPAN}-01-more", "00-ab-cd-01"])
def test_what_is_no_trace_context_of_this_version_is_carried_on_as_it_is(odd: str) -> None:
    assert traceparent_of(odd, b"inbox key") == odd


def test_the_span_of_outputs_is_the_beginning_of_their_inbox_key() -> None:
    given = f"00-{TRACE}-{SPAN}-01"
    assert traceparent_of(given, bytes(range(32))) == f"00-{TRACE}-0001020304050607-01"
    assert traceparent_of(given, b"") == given  # of a request that only reads


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
        await deliver(world, "first", Order("p"), id="2", correlation_id="talk")
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


async def test_an_identity_that_is_no_text_is_refused_and_stops_no_other(engine: Engine) -> None:
    app = App("surrogates")

    @app.handler("q")
    def handle(message: Plain) -> None:
        pass

    async with Worker(app, engine) as worker:
        message = Message(body=b'{"n": 1}', outbox_id="\ud800", type="Plain")
        engine.state.apply(records.Sent(engine.now_ms(), "q", 0, [message]), 1)  # past `send`, which refuses it
        engine.broker.wake()
        await worker.wait_idle(timeout_s=10)
        (dead_letter,) = await worker.dead_letters("q")
        assert dead_letter.reason == "no-identity"


@dataclass
class Plain:
    n: int
