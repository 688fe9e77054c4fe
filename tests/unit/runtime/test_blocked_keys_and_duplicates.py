"""Keys that stand still, and ids that are used twice: what may pass, what lifts a stop, what is resubmitted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from outbox import App, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.values.dead_letters import Resubmit
from outbox.testing import START_S, Harness, VirtualClock
from tests.unit.messages import deliver


@dataclass
class Step:
    key: str
    n: int
    pad: str = ""


@dataclass
class Trail:
    steps: list[int] = field(default_factory=list)


def walking(bad: set[int] | None = None) -> App:
    app = App("walking", claim_check_bytes=1_000)
    app.queue("steps", "per_key")

    @app.handler("steps", key="key", on_dead_letter="stop_key")
    def follow(step: Step, trail: Trail) -> None:
        if bad and step.n in bad:
            raise Reject("bad")
        trail.steps.append(step.n)

    return app


async def stands_still(world: Harness) -> bool:
    """Whether the key stands behind its first dead letter, and goes on when that is discarded."""
    await world.send("steps", Step("a", 1), id="s1")
    await world.advance(seconds=30)
    is_behind = await world.state(Trail, "a") is None and [
        dead_letter.id for dead_letter in world.dead_letters("steps")
    ] == ["s0"]
    await world.discard("steps", "s0")
    await world.advance(seconds=30)
    return is_behind and await world.state(Trail, "a") == Trail([1])


async def test_a_body_that_is_gone_stops_its_key() -> None:
    async with Harness(walking()) as world:
        await world.send("steps", Step("a", 0, "x" * 2_000), id="s0")
        for name in list(getattr(world.engine.blobs, "_blobs", {})):
            await world.engine.blobs.delete(name)
        assert await stands_still(world)


async def test_a_message_from_the_future_stops_its_key() -> None:
    async with Harness(walking()) as world:
        await world.send("steps", Step("a", 0), id="s0", created=world.now() + 3_600)
        assert await stands_still(world)


@pytest.mark.parametrize("kind", ["Step", "Unknown"])
async def test_a_message_that_no_handler_can_take_blocks_its_key(kind: str) -> None:
    async with Harness(walking()) as world:
        await world.send_raw("steps", b"{", properties={"outbox-id": "s0", "session-id": "a", "outbox-type": kind})
        assert await stands_still(world)


async def test_another_payload_under_the_id_does_not_lift_the_stop() -> None:
    async with Harness(walking()) as world:
        await deliver(world, "steps", Step("a", 0), id="s0")
        await world.send("steps", Step("a", 1), id="s0")  # the id used again, by mistake
        await world.send("steps", Step("a", 2), id="s2")
        await world.send("steps", Step("a", 0), id="s0")  # the sender repeats the original
        await world.advance(seconds=30)
        assert await world.state(Trail, "a") == Trail([0])
        await world.discard("steps", "s0")
        await world.advance(seconds=30)
        assert await world.state(Trail, "a") == Trail([0, 2])


@pytest.mark.parametrize("by", ["client", "operator"])
async def test_what_is_resubmitted_is_not_what_came_under_its_id_by_mistake(by: str, scope: str) -> None:
    if by == "operator" and scope != "engine":
        by = "client"  # an operator has an engine
    bad, app = {0}, App("x")

    @app.handler("q", key="key")
    def follow(step: Step, trail: Trail) -> None:
        if step.n in bad:
            raise Reject("bad")
        trail.steps.append(step.n)

    async with Harness(app) as world:
        for n in (0, 7):
            await deliver(world, "q", Step("a", n), id="s0")
        bad.clear()
        await (world.resubmit("q", "s0") if by == "client" else EngineAdmin(world.engine).ask(Resubmit("q", "s0")))
        await world.wait_idle()
        assert await world.state(Trail, "a") == Trail([0])
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["payload-differs"]


class Narrowed:
    """An engine in the scope of a test."""

    def __init__(self, engine: Engine, scope: str) -> None:
        self._engine, self._scope = engine, scope

    def ports(self) -> Any:
        if self._scope == "engine":
            return self._engine.ports()
        return NarrowEngine(self._engine, "item" if self._scope == "item" else "partition").ports()


def slow(margin_min: int, clock: VirtualClock, slow_s: int) -> App:
    app = App("slow", retention=timedelta(days=1), margin=timedelta(minutes=margin_min))

    @app.handler("q", key="key")
    async def handle(step: Step, trail: Trail) -> None:
        await asyncio.sleep(0)
        clock.seconds += slow_s
        trail.steps.append(step.n)

    return app


@pytest.mark.parametrize("took_s", [60, 900])
async def test_after_the_margin_was_raised_no_attempt_outlives_the_records_of_before(scope: str, took_s: int) -> None:
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        async with Worker(slow(10, clock, 0), Narrowed(engine, scope)) as worker:
            await deliver(worker, "q", Step("a", 1), id="m", created=START_S)
        clock.seconds += 86_400 - 30  # the copy passes the age fence, and is handled until its record is gone
        engine.tick()
        async with Worker(slow(180, clock, took_s), Narrowed(engine, scope)) as worker:
            await worker.send("q", Step("a", 1), id="m", created=START_S)
            await deliver(worker, "q", Step("b", 2), id="other")
            assert await worker.state(Trail, "a") == Trail([1])
            assert await worker.state(Trail, "b") == (Trail([2]) if took_s == 60 else None)
