"""What goes wrong at the seams of the store protocols: a copy, a stop, several handlers, a call, a foreign document."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from outbox import App, Context, Engine, Reject, Retries, Retry, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.message import Message
from outbox.ports import Create, DocumentKey, StorePorts
from outbox.runtime.commit.sweeper import sweep
from outbox.runtime.scopes import stores_of
from outbox.runtime.store_scope import StoreScope
from outbox.testing import Harness
from outbox.verify import Faults
from tests.unit.messages import Count, deliver


@dataclass
class Add:
    key: str
    n: int = 1
    text: str = ""


@dataclass
class Sum:
    n: int = 0


async def test_a_large_body_that_came_whole_is_not_lost_when_its_message_is_rescheduled() -> None:
    app, seen = App("x", claim_check_bytes=1_000), list[int]()

    @app.handler("q", key="key")
    def handle(message: Add, total: Sum) -> None:
        seen.append(1)
        if len(seen) == 1:
            raise ValueError("first time")
        total.n += 1

    async with Harness(app) as world:
        body = msgspec.json.encode(Add("k", 1, "x" * 2_000))
        world.engine.broker.send("q", [Message(body=body, outbox_id="m1", created_ms=world.engine.now_ms())])
        await world.advance(seconds=100)
        assert await world.state(Sum, "k") == Sum(1)


async def test_subscriptions_that_try_again_do_not_multiply_their_message() -> None:
    app, runs = App("t"), list[str]()
    app.topic("t")

    def register(name: str) -> None:
        @app.handler("t", subscription=name, key="key", name=name)
        def handle(message: Add, total: Sum) -> None:
            runs.append(name)
            raise Retry("down", after_s=1)

    register("s0")
    register("s1")
    async with Harness(app) as world:
        await world.publish("t", Add("k"), id="m1")
        for _ in range(8):
            await world.advance(seconds=1)
        assert len(runs) <= 20


async def test_failures_of_one_subscription_are_not_counted_for_another() -> None:
    app, tries = App("t", retry=Retries(limit=3, delays_s=(1,))), list[int]()
    app.topic("t")

    @app.handler("t", subscription="bad", key="key")
    def bad(message: Add, total: Sum) -> None:
        raise ValueError("always")

    @app.handler("t", subscription="good", key="key")
    def good(message: Add, count: Count) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("once")
        count.n += 1

    async with Harness(app) as world:
        await world.publish("t", Add("k"), id="m1")
        await world.advance(minutes=1)
        assert len(world.dead_letters("t/Subscriptions/bad")) == 1 and len(tries) == 2
        assert await world.state(Count, "k") == Count(1)


@pytest.mark.parametrize("n", range(3, 14))
@pytest.mark.parametrize("kind", ["refused", "lost", "before", "after"])
async def test_a_key_that_stops_has_its_dead_letter_whatever_happens_between(n: int, kind: str) -> None:
    app = App("one")
    app.queue("q", "per_key")

    @app.handler("q", key="key", on_dead_letter="stop_key")
    def handle(message: Add, total: Sum) -> None:
        if message.n < 0:
            raise Reject("no")
        total.n += message.n

    plans: dict[str, Faults] = {
        "refused": Faults(refused=(n,)),
        "lost": Faults(lost=(n,)),
        "before": Faults(crashes=((n, "before"),)),
        "after": Faults(crashes=((n, "after"),)),
    }
    async with Harness(app, faults=plans[kind]) as world:
        await world.send("q", Add("k", -1), id="m1")
        await world.send("q", Add("k", 5), id="m2")
        await world.advance(seconds=1_000)
        assert {dead_letter.id for dead_letter in world.dead_letters("q")} == {"m1"}
        assert await world.state(Sum, "k") is None
        await world.discard("q", "m1")
        await world.advance(seconds=1_000)
        assert await world.state(Sum, "k") == Sum(5)


@pytest.mark.parametrize("policy", ["stop_key", "continue"])
@pytest.mark.parametrize("error", [Reject("no"), ValueError("broken")])
async def test_of_two_handlers_in_order_one_refuses_and_the_other_acts(policy: Any, error: Exception) -> None:
    app = App("two", retry=Retries(limit=3, delays_s=(1,)))
    app.queue("q", "per_key")

    @app.handler("q", key="key", on_dead_letter=policy)
    def first(message: Add, total: Sum) -> None:
        raise error

    @app.handler("q", key="key", on_dead_letter=policy)
    def second(message: Add, count: Count) -> None:
        count.n += 1

    async with Harness(app) as world:
        await world.send("q", Add("k"), id="m1")
        await world.advance(minutes=2)
        assert [dead_letter.id for dead_letter in world.dead_letters("q")] == ["m1"]
        assert await world.state(Count, "k") == Count(1)


async def test_a_message_of_several_handlers_that_is_redelivered_meanwhile_stops_no_worker(
    engine: Engine, scope: str
) -> None:
    app, started, gate = App("two"), asyncio.Event(), asyncio.Event()

    @app.handler("q", key="key")
    def first(message: Add, total: Sum) -> None:
        total.n += 1

    @app.handler("q", key="key")
    async def second(message: Add, count: Count) -> None:
        started.set()
        await gate.wait()
        count.n += 1

    backend = engine if scope == "engine" else NarrowEngine(engine, "item" if scope == "item" else "partition")
    async with Worker(app, backend) as worker:
        await worker.send("q", Add("k"), id="m1")
        await started.wait()
        for sequence in list(engine.broker.queue("q").tasks):
            engine.broker.lapse_lock("q", sequence)
        engine.broker.wake()
        await asyncio.sleep(0.05)
        gate.set()
        await worker.wait_idle()
        assert (await worker.state(Sum, "k"), await worker.state(Count, "k")) == (Sum(1), Count(1))


async def test_a_call_in_a_task_of_its_own_may_learn_that_its_message_was_handled() -> None:
    app, calls = App("c"), list[int]()

    def outside() -> int:
        calls.append(1)
        return 5

    @app.handler("q", key="key")
    async def handle(message: Add, total: Sum, ctx: Context) -> None:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(ctx.call(outside))
        total.n += task.result()

    async with Harness(app) as world:
        for _ in range(2):
            await deliver(world, "q", Add("k"), id="m1")
        assert await world.state(Sum, "k") == Sum(5) and calls == [1]


async def test_a_call_whose_look_is_refused_is_no_failure_of_its_handler() -> None:
    for n in range(2, 7):
        app = App("c", retry=Retries(limit=1))

        @app.handler("q", key="key")
        async def handle(message: Add, total: Sum, ctx: Context) -> None:
            total.n += await ctx.call(lambda: 5)

        async with Harness(app, faults=Faults(refused=(n,))) as world:
            await world.send("q", Add("k"), id="m1")
            await world.advance(seconds=60)
            assert await world.state(Sum, "k") == Sum(5) and world.dead_letters("q") == []


async def test_a_sweep_goes_on_behind_a_document_that_is_not_ours(scope: str) -> None:
    if scope == "engine":
        return  # there is nothing to sweep
    app = App("s")

    @app.handler("q", key="key")
    def handle(message: Add, total: Sum) -> None:
        total.n += 1

    async with Harness(app) as world:
        assert isinstance(world._ports, StorePorts) and isinstance(world._scope, StoreScope)
        store = world._ports.store
        for body in (b'{"pending":true}', b'{"pending":true,"at_ms":"x"}'):
            await store.write([Create(DocumentKey("aaa", f"inbox:{body.hex()}"), body)])
        await world.advance(hours=1)
        swept = await sweep(world._scope.protocol, *stores_of(world._ports), now_ms=world.engine.now_ms)
        assert swept.foreign_count == 2 and swept.finished_count == 0


async def test_slow_messages_of_one_group_do_not_pay_for_each_other() -> None:
    app = App("slow", retry=Retries(limit=1))

    @app.handler("q", key="key")
    async def handle(message: Add, total: Sum) -> None:
        await asyncio.sleep(0)
        world._clock.seconds += 25  # as if it took so long; half the margin is 30 minutes, a lock a minute
        total.n += 1

    async with Harness(app, seed=3) as world:
        for number in range(8):
            await world.send("q", Add("k"), id=f"m{number}")
        await world.advance(hours=2)
        assert await world.state(Sum, "k") == Sum(8) and world.dead_letters("q") == []


async def test_what_an_upcast_says_is_cut_and_reported_without_secrets() -> None:
    from outbox.errors import PoisonMessage

    app = App("p")

    @app.handler("q", key="key")
    def handle(message: Add, total: Sum) -> None:
        raise PoisonMessage("undecodable", "password=hunter2 " + "x" * 50_000)

    async with Harness(app) as world:
        await deliver(world, "q", Add("k"), id="m1")
        (dead_letter,) = world.dead_letters("q")
        assert "hunter2" not in dead_letter.description and len(dead_letter.description) <= 1_000


async def test_what_arrives_behind_a_rescheduled_head_does_not_overtake_it() -> None:
    app, runs = App("o"), list[int]()
    started, gate = asyncio.Event(), asyncio.Event()
    app.queue("q", "per_key")

    @app.handler("q", key="key")
    async def handle(message: Add, total: Sum) -> None:
        runs.append(message.n)
        if runs == [1]:
            started.set()
            await gate.wait()
            raise Retry("not yet", after_s=1)
        total.n += message.n

    async with Harness(app) as world:
        for n in (1, 2):
            await world.send("q", Add("k", n), id=f"m{n}")
        deliveries = await world._intake.claim(["q"], count_max=2, wait_s=0)
        first = asyncio.create_task(world._scope.attempt(deliveries[:1]))
        await started.wait()
        second = asyncio.create_task(world._scope.attempt(deliveries[1:]))
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(first, second)
        await world.advance(seconds=30)
        assert runs == [1, 1, 2] and await world.state(Sum, "k") == Sum(3)


async def test_a_blob_name_that_is_no_text_fails_its_handler_and_no_other() -> None:
    app = App("b", retry=Retries(limit=1))

    @app.handler("q", key="key")
    def handle(message: Add, total: Sum, ctx: Context) -> None:
        if message.text:
            ctx.write_blob("\ud800", b"")
        total.n += 1

    async with Harness(app) as world:
        await world.send("q", Add("k", text="bad"), id="m1")
        await deliver(world, "q", Add("k"), id="m2")
        assert await world.state(Sum, "k") == Sum(1)
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["failed"]
