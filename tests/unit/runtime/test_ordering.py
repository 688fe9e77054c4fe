"""Order on `per_key` queues: kept under retries, refusals, faults and restarts; stopped where the handler says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Literal

import pytest

from outbox import App, Context, Reject, Retries, Retry
from outbox.lineage import as_key
from outbox.runtime.failures.redacting import redacted
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import Step, deliver


@dataclass
class Trail:
    steps: list[int] = field(default_factory=list)


def ordered(
    on_dead_letter: Literal["continue", "stop_key"] = "continue", *, suspend: bool = False, limit: int = 3
) -> App:
    app = App("ordered", retry=Retries(limit=limit, delays_s=(10.0,)))
    app.queue("q", "per_key")
    failed: dict[str, int] = {}

    @app.handler("q", key="key", on_dead_letter=on_dead_letter)
    async def follow(step: Step, trail: Trail, ctx: Context) -> None:
        trail.steps.append(step.n)
        if suspend:
            await asyncio.sleep(0)
        if step.what == "reject":
            raise Reject("no")
        if step.what == "fail":
            raise ValueError("always")
        if step.what == "fail once" and ctx.delivery_count == 1:
            raise ValueError("once")
        if step.what == "retry once" and failed.setdefault(ctx.message_id, 0) == 0:
            failed[ctx.message_id] = 1
            raise Retry("later", after_s=30)

    return app


async def feed(world: Harness, *steps: Step) -> None:
    for step in steps:
        await world.send("q", step, id=f"{step.key}{step.n}")


async def test_in_order_failures_are_repeated_after_the_delays() -> None:
    app, runs = App("ordered", retry=Retries(limit=3, delays_s=(10.0, 60.0))), list[float]()
    app.queue("q", "per_key")

    @app.handler("q", key="key")
    def follow(step: Step, trail: Trail, ctx: Context) -> None:
        runs.append(ctx.now())
        raise ValueError("always")

    async with Harness(app) as world:
        start = world.now()
        await feed(world, Step("a", 1))
        await world.advance(minutes=10)
        assert [round(at - start) for at in runs] == [0, 10, 70] and len(world.dead_letters("q")) == 1


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("what", ["fail once", "retry once"])
async def test_nothing_overtakes_a_message_that_is_tried_again(what: str, suspend: bool) -> None:
    async with Harness(ordered(suspend=suspend)) as world:
        await feed(world, *(Step("a", n, what if n in (1, 4) else "") for n in range(6)))
        await feed(world, Step("b", 0))
        await world.wait_idle()
        assert await world.state(Trail, "a") == Trail([0])
        assert await world.state(Trail, "b") == Trail([0])
        await world.restart()
        await world.advance(minutes=2)
        assert await world.state(Trail, "a") == Trail([0, 1, 2, 3, 4, 5])


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("what", ["reject", "fail"])
async def test_a_dead_letter_does_not_block_its_key_unless_asked(what: str, suspend: bool) -> None:
    async with Harness(ordered(suspend=suspend)) as world:
        await feed(world, *(Step("a", n, what if n == 1 else "") for n in range(4)))
        await world.advance(minutes=2)
        assert await world.state(Trail, "a") == Trail([0, 2, 3])
        assert [dead_letter.id for dead_letter in world.dead_letters("q")] == ["a1"]


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize("what", ["reject", "fail"])
async def test_a_dead_letter_stops_its_key_until_it_is_resubmitted_or_discarded(what: str, suspend: bool) -> None:
    async with Harness(ordered("stop_key", suspend=suspend)) as world:
        for key in ("a", "b"):
            await feed(world, *(Step(key, n, what if n == 1 else "") for n in range(4)))
        await feed(world, *(Step("c", n) for n in range(3)))
        await world.advance(minutes=2)
        await world.restart()
        await world.advance(minutes=2)
        assert [await world.state(Trail, key) for key in "abc"] == [Trail([0]), Trail([0]), Trail([0, 1, 2])]
        await world.discard("q", "a1")
        await world.resubmit("q", "b1")
        await world.advance(minutes=2)
        assert await world.state(Trail, "a") == Trail([0, 2, 3])
        assert await world.state(Trail, "b") == Trail([0])
        assert [dead_letter.id for dead_letter in world.dead_letters("q")] == ["b1"]


@pytest.mark.parametrize("body", [b"{bad", b'{"key":"","n":1}'])
async def test_a_message_that_cannot_be_handled_stops_its_key_too(body: bytes) -> None:
    async with Harness(ordered("stop_key")) as world:
        await feed(world, Step("a", 0))
        await world.send_raw("q", body, properties={"outbox-id": "bad", "session-id": "a"})
        await feed(world, Step("a", 2))
        await world.wait_idle()
        assert await world.state(Trail, "a") == Trail([0])
        await world.discard("q", "bad")
        await world.advance(seconds=5)
        assert await world.state(Trail, "a") == Trail([0, 2])


async def test_a_state_that_is_given_is_of_the_type_that_it_is_given_as() -> None:
    async with Harness(ordered()) as world:
        with pytest.raises(TypeError, match="the state is a Step, not a Trail"):
            await world.given(Trail, "a", Step("a", 1))


def test_no_error_of_the_library_looks_like_a_secret() -> None:
    for value in (None, 1.5, True):
        with pytest.raises(ValueError) as caught:
            as_key(value)
        assert redacted(f"the request names no key; {caught.value}") == f"the request names no key; {caught.value}"


@pytest.mark.parametrize("suspend", [False, True])
async def test_order_is_kept_under_drawn_faults(suspend: bool) -> None:
    for seed in range(40):
        faults = Faults.drawn(seed=seed, crashes=2, lost=2, refused=1, duplicates=2)
        async with Harness(ordered(suspend=suspend), faults=faults, seed=seed) as world:
            await feed(world, *(Step("a", n, "fail once" if n == 3 else "") for n in range(8)))
            await world.advance(minutes=2)
            assert await world.state(Trail, "a") == Trail(list(range(8))), f"seed {seed}: {world.fault_log}"
            assert world.faults_fired


@dataclass
class Slow:
    key: str
    n: int


@dataclass
class Shared:
    key: str
    n: int


@dataclass
class Seen:
    steps: list[int] = field(default_factory=list)


async def test_plain_waiting_and_shared_messages_of_one_key_keep_their_order_under_drawn_faults() -> None:
    app = App("mixed", retry=Retries(limit=3, delays_s=(5.0,)))
    app.queue("q", "per_key")

    @app.handler("q", key="key")
    def quick(step: Step, trail: Trail, ctx: Context) -> None:
        trail.steps.append(step.n)
        if step.what and ctx.delivery_count == 1:
            raise ValueError("once")

    @app.handler("q", key="key")
    async def slow(slow: Slow, trail: Trail) -> None:
        for _ in range(slow.n % 3 + 1):
            await asyncio.sleep(0)
        trail.steps.append(slow.n)

    @app.handler("q", key="key")
    async def one(shared: Shared, trail: Trail) -> None:
        trail.steps.append(shared.n)

    @app.handler("q", key="key")
    async def two(shared: Shared, seen: Seen) -> None:
        seen.steps.append(shared.n)

    kinds = [Step, Slow, Shared, Step, Step, Slow, Slow, Shared, Shared, Step]
    for seed in range(60):
        faults = Faults.drawn(seed=seed, crashes=seed % 3, lost=2, refused=2, duplicates=2)
        async with Harness(app, faults=faults, seed=seed) as world:
            for key in ("a", "b"):
                for n, kind in enumerate(kinds):
                    await world.send(
                        "q", Step(key, n, "x") if n == seed % 10 and kind is Step else kind(key, n), id=f"{key}{n}"
                    )
            await world.advance(minutes=2)
            for key in ("a", "b"):
                assert await world.state(Trail, key) == Trail(list(range(10))), f"seed {seed}: {world.fault_log}"
                assert await world.state(Seen, key) == Seen([2, 7, 8]), f"seed {seed}: {world.fault_log}"


async def test_large_bodies_keep_their_place() -> None:
    app = App("a", claim_check_bytes=1_000)
    app.queue("q", "per_key")

    @app.handler("q", key="key")
    def follow(step: Step, trail: Trail) -> None:
        trail.steps.append(step.n)

    for n in range(1, 12):
        async with Harness(app, faults=Faults(lost=(n,), refused=tuple(range(n + 1, n + 20)))) as world:
            await feed(world, *(Step("a", n, "x" * 2_000 if n % 2 else "") for n in range(6)))
            await world.advance(minutes=2)
            assert await world.state(Trail, "a") == Trail([0, 1, 2, 3, 4, 5])


async def test_outputs_to_an_ordered_queue_go_under_their_readers_key_else_the_senders() -> None:
    app = App("a")
    app.queue("read", "per_key")
    app.queue("unread", "per_key")

    @app.handler("read", key=lambda step: f"reader-{step.key}")
    def read(step: Step, trail: Trail) -> None:
        trail.steps.append(step.n)

    @app.handler("q", key="key")
    def write(step: Step, trail: Trail, ctx: Context) -> None:
        for n in range(4):
            ctx.send("read", Step(step.key, n))
        ctx.send("unread", step)

    async with Harness(app) as world:
        await deliver(world, "q", Step("a", 0))
        assert await world.state(Trail, "reader-a") == Trail([0, 1, 2, 3])
        await world.send("unread", Step("x", 1), key="x")
        with pytest.raises(ValueError, match="give its key too"):
            await world.send("unread", Step("x", 1))


async def test_a_message_to_an_ordered_queue_needs_its_key_when_it_is_sent() -> None:
    async with Harness(ordered()) as world:
        with pytest.raises(ValueError, match="key"):
            await world.send("q", Step("", 1))
