"""A handling that takes longer than its time limit has failed: nothing of it is committed, its context is sealed.

The clock that measures is the harness's, and limits of handlers that wait run out in real time, so no test here depends
on how fast the machine is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.cancellation import ticket_text
from outbox.errors import HandlingEnded, NotRegistrable
from outbox.message import Message
from outbox.runtime.commit import stepping
from outbox.testing import Harness
from tests.unit.messages import Step, Steps, deliver

Scope = Literal["engine", "partition", "item"]

SWALLOWS_S = 5.0
"""How long a handler goes on that swallows its cancellation, if it is let."""


def app_of(
    kept: list[Context],
    *,
    clock: Callable[[], Any] = lambda: None,
    begun: asyncio.Event | None = None,
    **options: Any,
) -> App:
    app = App("steps", **{"retry": Retries(limit=1), "time_limit_s": 0.02, **options})
    app.queue("out")

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps, ctx: Context) -> None:
        steps.ns.append(message.n)
        ctx.send("out", message)
        if message.what:
            kept.append(ctx)
            if begun is not None:
                begun.set()
        if message.what == "waits":
            await asyncio.Event().wait()
        if message.what == "swallows":
            is_over = False
            while not is_over:
                try:
                    await asyncio.sleep(SWALLOWS_S)
                    is_over = True
                except asyncio.CancelledError:
                    continue
        if message.what == "calls":
            await ctx.call(asyncio.Event().wait, time_limit_s=0.01)
        if message.what == "holds":
            clock().seconds += 7.0

    return app


@pytest.mark.parametrize("what", ["waits", "swallows", "calls", "holds"])
async def test_what_takes_too_long_fails_and_leaves_nothing(
    scope: Scope, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stepping, "GRACE_S", 0.01)
    kept: list[Context] = []
    app = app_of(kept, clock=lambda: world._clock, time_limit_s=5.0 if what in ("holds", "calls") else 0.02)
    async with Harness(app, scope=scope) as world:
        for n, kind in enumerate(["", what, ""]):
            await world.send("steps", Step("a", n, kind), id=str(n))
        await deliver(world, "steps", Step("b", 3), id="3")
        assert await world.state(Steps, "a") == Steps([0, 2]) and await world.state(Steps, "b") == Steps([3])
        assert {step.n for step in world.sent("out")} == {0, 2, 3}
        (dead_letter,) = world.dead_letters("steps")
        named = {"calls": "after its 0.01 s", "holds": "after 5 s, its time limit"}
        assert (dead_letter.id, dead_letter.reason) == ("1", "failed")
        assert named.get(what, "after 0.02 s, its time limit") in dead_letter.description
        if what != "calls":  # there the handler ended by itself
            with pytest.raises(HandlingEnded, match="nothing of it is committed"):
                kept[-1].send("out", Step("a", 9))


@dataclass
class Walk:
    key: str


@pytest.mark.parametrize("seed", range(6))
async def test_a_neighbour_that_may_take_longer_lends_its_time_to_no_other(scope: Scope, seed: int) -> None:
    """They may come in one batch, of which the time is taken as a whole."""
    app = App("steps", retry=Retries(limit=1))

    @app.handler("steps", key="key", time_limit_s=5.0)
    def step(message: Step, steps: Steps) -> None:
        steps.ns.append(message.n)
        world._clock.seconds += 7.0

    @app.handler("steps", key="key", time_limit_s=60.0)
    def walk(message: Walk, steps: Steps) -> None:
        steps.ns.append(9)

    async with Harness(app, scope=scope, seed=seed) as world:
        await world.send("steps", Walk("a"), id="w")
        await deliver(world, "steps", Step("b", 1), id="s")
        assert [dead_letter.id for dead_letter in world.dead_letters("steps")] == ["s"]
        assert await world.state(Steps, "a") == Steps([9]) and await world.state(Steps, "b") is None


@pytest.mark.parametrize("seed", range(6))
async def test_a_handler_that_waits_has_what_its_neighbours_left_of_the_attempt(scope: Scope, seed: int) -> None:
    """An attempt is as old as its batch: what is committed later than half a margin may meet no record any more."""
    ages: list[float] = []
    app = App("steps", margin=timedelta(seconds=2), clock_skew=timedelta(seconds=1))

    @app.handler("steps", key="key")
    def walk(message: Walk, steps: Steps) -> None:
        steps.ns.append(9)
        world._clock.seconds += 0.9

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps, ctx: Context) -> None:
        await asyncio.sleep(0)
        world._clock.seconds += 0.5
        steps.ns.append(message.n)
        ages.append(world.now() - ctx.now())

    async with Harness(app, scope=scope, seed=seed) as world:
        await world.send("steps", Walk("a"), id="w")
        await world.send("steps", Step("b", 1), id="s")
        await world.advance(minutes=10)
        assert await world.state(Steps, "a") == Steps([9]) and await world.state(Steps, "b") == Steps([1])
        assert ages[-1] <= 1.0  # that of the one that was committed


@pytest.mark.engine_only("only there a handling is begun in a batch and then run again by itself")
async def test_a_handling_that_is_begun_again_leaves_a_context_that_takes_nothing() -> None:
    kept: list[Context] = []
    app = App("steps")
    app.queue("out")

    @app.handler("steps", key="key")
    def walk(message: Walk, steps: Steps) -> None:
        steps.ns.append(9)

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps, ctx: Context) -> None:
        kept.append(ctx)
        await asyncio.sleep(0)
        steps.ns.append(message.n)
        ctx.send("out", message)

    for seed in range(6):
        kept.clear()
        async with Harness(app, seed=seed) as world:
            await world.send("steps", Walk("a"), id="w")
            await deliver(world, "steps", Step("a", 1), id="s")
            assert await world.state(Steps, "a") == Steps([9, 1]) and len(world.sent("out")) == 1
            if len(kept) > 1:
                with pytest.raises(HandlingEnded, match="cancelled to run again"):
                    kept[0].send("out", Step("a", 1))
                return
    pytest.fail("no seed made a batch of both")


USES: dict[str, Callable[[Context], Any]] = {
    "key": lambda ctx: ctx.key,
    "message_id": lambda ctx: ctx.message_id,
    "idempotency_key": lambda ctx: ctx.idempotency_key,
    "caller": lambda ctx: ctx.caller,
    "delivery_count": lambda ctx: ctx.delivery_count,
    "correlation_id": lambda ctx: ctx.correlation_id,
    "causation_id": lambda ctx: ctx.causation_id,
    "traceparent": lambda ctx: ctx.traceparent,
    "now": lambda ctx: ctx.now(),
    "random": lambda ctx: ctx.random(),
    "uuid": lambda ctx: ctx.uuid(),
    "send": lambda ctx: ctx.send("out", Step("a", 1)),
    "send after": lambda ctx: ctx.send("out", Step("a", 1), after_s=1),
    "schedule": lambda ctx: ctx.schedule("out", Step("a", 1), after_s=1),
    "cancel": lambda ctx: ctx.cancel(ticket_text("out", Message(body=b"", outbox_id="1"), 1)),
    "publish": lambda ctx: ctx.publish("news", Step("a", 1)),
    "reply": lambda ctx: ctx.reply(Step("a", 1)),
    "submit_spark_job": lambda ctx: ctx.submit_spark_job("job"),
    "write_blob": lambda ctx: ctx.write_blob("b", b""),
    "save": lambda ctx: ctx.save(Steps()),
    "delete": lambda ctx: ctx.delete(),
}


@pytest.mark.parametrize("use", USES)
async def test_a_sealed_context_refuses_every_use(use: str) -> None:
    kept: list[Context] = []
    async with Harness(app_of(kept)) as world:
        await deliver(world, "steps", Step("a", 1, "waits"))
        with pytest.raises(HandlingEnded, match=r"handler step had not ended after 0\.02 s"):
            USES[use](kept[0])
        with pytest.raises(HandlingEnded):
            await kept[0].call(list)
    known = {name for name in dir(Context) if not name.startswith("_")} - set(Context.__struct_fields__)
    assert known - {"call"} == {name.split()[0] for name in USES}


async def test_a_limit_counts_as_a_failure_and_is_tried_again() -> None:
    app, count = App("tried", retry=Retries(limit=3, delays_s=(1.0,)), time_limit_s=60.0), 0

    @app.handler("steps", key="key", time_limit_s=0.02)
    async def step(message: Step, steps: Steps) -> None:
        nonlocal count
        count += 1
        if count < 3:
            await asyncio.Event().wait()
        steps.ns.append(message.n)

    async with Harness(app) as world:
        await world.send("steps", Step("a", 1))
        await world.advance(seconds=10)
        assert count == 3 and await world.state(Steps, "a") == Steps([1])


async def test_a_request_over_its_limit_is_not_answered_with_what_it_did(scope: Scope) -> None:
    app, slow = App("asked"), [True, True]

    @app.http("POST", "/steps/{key}", key="key", time_limit_s=0.02)
    async def step(message: Step, steps: Steps) -> int:
        steps.ns.append(message.n)
        if slow and slow.pop():
            await asyncio.Event().wait()
        return len(steps.ns)

    async with Harness(app, scope=scope) as world:
        for _ in range(2):
            answer = await world.request("POST", "/steps/a", json={"n": 1}, key="k")
            assert answer.status >= 500 and await world.state(Steps, "a") is None
        answer = await world.request("POST", "/steps/a", json={"n": 1}, key="k")
        assert (answer.status, answer.body) == (200, b"1")


@pytest.mark.engine_only  # the worker is the engine's
async def test_a_handler_that_swallows_its_cancellation_does_not_hold_up_a_stop(
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stepping, "GRACE_S", 0.01)
    kept: list[Context] = []
    begun = asyncio.Event()
    async with Worker(app_of(kept, begun=begun, time_limit_s=600.0), engine, drain_s=0.01) as worker:
        await worker.send("steps", Step("a", 1, "swallows"))
        async with asyncio.timeout(20):
            await begun.wait()
    assert await worker.state(Steps, "a") is None
    with pytest.raises(HandlingEnded, match="its worker stops"):
        kept[0].send("out", Step("a", 9))


@pytest.mark.parametrize("refuses", [False, True])
async def test_cleanup_inside_the_grace_is_let_end_and_a_refusal_that_comes_too_late_is_a_failure(
    refuses: bool,
) -> None:
    app, seen = App("tidy", retry=Retries(limit=1), time_limit_s=0.02), []

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
            seen.append(message.n)
            if refuses:
                raise Reject("not like this") from None
            raise

    async with Harness(app) as world:
        await deliver(world, "steps", Step("a", 1))
        assert seen == [1] and [dead_letter.reason for dead_letter in world.dead_letters("steps")] == ["failed"]


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan"), float("inf"), 1_801.0])
def test_a_limit_that_is_none_or_outlives_the_margin_is_refused(limit_s: float) -> None:
    with pytest.raises(NotRegistrable, match="half of App"):
        App("a", time_limit_s=limit_s)
    with pytest.raises(NotRegistrable, match="step: time_limit_s"):

        @App("a").handler("steps", time_limit_s=limit_s)
        def step(message: Step) -> None: ...

    with pytest.raises(NotRegistrable, match="asked: time_limit_s"):

        @App("a").http("POST", "/a", time_limit_s=limit_s)
        def asked(message: Step) -> None: ...


def test_a_handler_has_the_limit_of_its_app_unless_it_has_its_own() -> None:
    app = App("a", margin=timedelta(minutes=10))

    @app.handler("one")
    @app.handler("two", time_limit_s=7, name="own")
    def step(message: Step) -> None: ...

    assert {handler.name: handler.time_limit_s for handler in app.handlers} == {"own": 7, "step": 120.0}
    short = App("b", margin=timedelta(seconds=20), clock_skew=timedelta(seconds=5))
    short.handler("one")(step)
    assert short.handlers[0].time_limit_s == 10.0
