"""A test that asks for what cannot be there is refused: nothing found would look like nothing done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest

from outbox import App, Client, Context, Engine, UnknownDestination
from outbox.errors import EngineStopped, OutboxError, PoisonMessage, UnknownType
from outbox.message import Message
from outbox.name_checks import known_messages, shown
from outbox.ports import Commit, Output
from outbox.testing import Harness
from outbox.verify import Faults
from tests.unit.messages import Count, deliver
from tests.unit.runtime.orders import Order, Payment, Saga


@dataclass
class Unused:
    sum: int = 0


@dataclass
class Named:
    sum: int = 0


def shop() -> App:
    app = App("shop")
    app.queue("parcels")
    app.state("named")(Named)

    @app.handler("orders", key="id")
    def order(order: Order, count: Count, ctx: Context) -> None:
        ctx.send("parcels", order)

    @app.handler("news", subscription="audit")
    def audit(order: Order) -> None:
        """Nothing to do."""

    return app


ANSWERED_WITH_NOTHING: dict[str, tuple[Callable[[Harness], Any], type[Exception], str]] = {
    "what was sent to a misspelt queue": (lambda world: world.sent("parcel"), UnknownDestination, "never declared"),
    "the records of a misspelt queue": (lambda world: world.sent_records("x"), UnknownDestination, "never declared"),
    "a misspelt queue's refusals": (lambda world: world.dead_letters("order"), UnknownDestination, "never declared"),
    "a topic's refusals": (lambda world: world.dead_letters("news"), UnknownDestination, "news/Subscriptions/audit"),
    "a subscription that nobody reads": (
        lambda world: world.dead_letters("news/Subscriptions/x"), UnknownDestination, "never declared",
    ),
    "a state of nobody's": (lambda world: world.state(Unused, "a"), UnknownType, "states are Count: use one"),
    "a state that is named only": (lambda world: world.state(Named, "a"), UnknownType, "states are Count: use one"),
    "a message as a state": (lambda world: world.state(Order, "a"), UnknownType, "states are Count: use one"),
    "a state under another kind of key": (lambda world: world.state(Count, 1), TypeError, "takes a key that is a text"),
    "a state under a UUID": (lambda world: world.state(Count, UUID(int=1)), TypeError, "key that is a text"),
    "a given state of nobody's": (lambda world: world.given(Unused, "a", Unused()), UnknownType, "states are Count"),
    "a given state under another kind of key": (lambda world: world.given(Count, 1, Count()), TypeError, "a text"),
    "a given state that cannot be read": (
        lambda world: world.given(Count, "a", Count("many")),  # type: ignore[arg-type]  # what a slip looks like
        PoisonMessage, "Expected `int`, got `str`",
    ),
    "a message that nobody takes": (lambda world: world.send("orders", Payment("p")), UnknownType, "takes a Payment"),
    "a topic's that nobody takes": (lambda world: world.publish("news", Payment("p")), UnknownType, "takes a Payment"),
    "a misspelt queue": (lambda world: world.send("order", Order("o")), UnknownDestination, "never declared"),
    "no time": (lambda world: world.advance(), ValueError, "advance by 0 ms"),
    "time that runs backwards": (lambda world: world.advance(hours=-1), ValueError, "advance by -3600000 ms"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANSWERED_WITH_NOTHING)
async def test_a_harness_refuses_what_it_would_answer_with_nothing(name: str) -> None:
    ask, error, cure = ANSWERED_WITH_NOTHING[name]
    async with Harness(shop()) as world:
        for _ in range(2):  # nothing becomes known by being asked for
            with pytest.raises(error, match=cure):
                found = ask(world)
                if isinstance(found, Awaitable):
                    await found


async def test_what_may_be_asked_for_is_answered() -> None:
    async with Harness(shop()) as world:
        assert world.sent("parcels") == world.sent("news") == world.dead_letters("news/Subscriptions/audit") == []
        assert await world.state(Count, "o") is None
        await world.send("parcels", Payment("p"))  # a queue of others takes what they take
        await deliver(world, "orders", Order("o"), id="1")
        assert world.sent("parcels") == [Order("o")] and world.dead_letters("orders") == []


async def test_a_client_refuses_a_state_that_is_neither_kept_nor_named() -> None:
    client = Client(shop(), Engine.in_memory())
    await client.declare()
    assert await client.state(Count, "a") is None and await client.state(Named, "a") is None
    for _ in range(2):
        with pytest.raises(UnknownType, match=r"no state Saga.*Count, Named.*@app\.state"):
            await client.state(Saga, "a")
    with pytest.raises(TypeError, match="key 1 is an integer"):
        await client.state(Count, 1)
    with pytest.raises(OutboxError, match="typo"):
        await client.dead_letters("typo")


async def test_a_client_that_sends_before_it_has_declared_is_shown_how() -> None:
    client = Client(shop(), Engine.in_memory())
    for sending in (
        client.send("orders", Order("o")),
        client.publish("news", Order("o")),
        client.send_raw("orders", b""),
    ):
        with pytest.raises(UnknownDestination, match=r"is declared in shop.*`await client\.declare\(\)` once"):
            await sending
    await client.declare()
    assert await client.send("orders", Order("o"), id="1") == "1"


async def test_keys_of_any_kind_are_taken_where_handlers_do_not_say() -> None:
    app = App("a")

    @app.handler("q", key=lambda order: order.id)
    def count(order: Order, count: Count) -> None:
        """Nothing to do."""

    async with Harness(app) as world:
        assert await world.state(Count, 1) is None and await world.state(Count, "1") is None


def test_a_dozen_names_are_shown_and_how_many_more_there_are() -> None:
    names = [f"n{number:02}" for number in range(14)]
    assert shown([]) == "none yet" and shown(reversed(names[:12])) == ", ".join(names[:12])
    assert shown([*names, *names]) == ", ".join(names[:12]) + " and 2 more"


async def test_what_only_requests_handle_is_known_too() -> None:
    app = App("shop")

    @app.http("POST", "/orders", key="id")
    def order(order: Order, count: Count) -> None:
        count.n += 1

    async with Harness(app) as world:
        assert (await world.request("POST", "/orders?from=here", json={"id": "a"}, key="1")).status < 300
        assert await world.state(Count, "a") == Count(1)
        with pytest.raises(TypeError, match="takes a key that is a text"):
            await world.state(Count, 1)
    assert known_messages(app) == {Order}


@pytest.mark.engine_only("elsewhere a commit is seen by what it writes")
async def test_a_commit_that_was_cut_off_has_sent_what_its_markers_show_and_once(scope: str) -> None:
    app = shop()

    def cut_off(number: int, **applied: bytes) -> Commit:
        body, wire_type = app.encode(Order(f"cut off {number}"))
        told = [Output("parcels", 0, Message(body=body, type=wire_type, outbox_id=f"{number}"))]
        return Commit(0, 0, [], {}, {}, told, {bytes.fromhex(key): b"" for key in applied}, {}, {}, [], [])

    async with Harness(app) as world:
        await world.send("orders", Order("o1"), id="o1")
        await world.wait_idle()
        (known,) = world.engine.state.markers.known
        world._undecided += [cut_off(1, **{known.hex(): b""}), cut_off(2, **{"ff" * 32: b""}), cut_off(3)]
        for _ in range(2):
            await world.restart()
        assert [order.id for order in world.sent("parcels")] == ["o1", "cut off 1"]


async def test_a_harness_that_ends_cancels_what_is_at_work_and_closes_its_engine() -> None:
    app, begun, ended = shop(), asyncio.Event(), list[str]()

    @app.handler("slow", key="id")
    async def hang(order: Order, count: Count) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(order.id)

    async with Harness(app) as world:
        await world.send("slow", Order("o1"), id="o1")
        idle = asyncio.ensure_future(world.wait_idle())
        async with asyncio.timeout(10):
            await begun.wait()
    idle.cancel()
    assert ended == ["o1"]
    with pytest.raises(EngineStopped):
        await world.send("orders", Order("o2"), id="o2")


@pytest.mark.engine_only("elsewhere every message may be a copy")
async def test_a_duplicate_is_a_copy_of_what_came_from_outside_and_else_a_second_delivery(scope: str) -> None:
    app, runs = App("doubled"), list[str]()
    app.queue("parcels")

    @app.handler("news", subscription="audit", key="id")
    def audit(order: Order, count: Count, ctx: Context) -> None:
        count.n += 1
        ctx.send("parcels", order)

    @app.handler("parcels", key="id")
    def pack(order: Order, count: Count) -> None:
        runs.append(order.id)
        count.n += 10

    async with Harness(app, faults=Faults(duplicates=(1, 2, 3))) as world:
        await world.publish("news", Order("o1"), id="o1")
        await world.wait_idle()
        assert await world.state(Count, "o1") == Count(11) and len(runs) > 1
        assert world.counts.of("news/Subscriptions/audit").duplicates > 0
