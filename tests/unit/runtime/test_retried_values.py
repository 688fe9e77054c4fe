"""A handler may change the message it is given: an attempt that is made again sees it as it was sent."""

from __future__ import annotations

import asyncio

from outbox import App, Context, Retries
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import Step, Steps


async def test_every_attempt_sees_the_message_as_it_was_sent() -> None:
    app = App("again")
    app.queue("out")

    @app.handler("one", key="key")
    @app.handler("both", key="key", name="first")
    def one(message: Step, steps: Steps, ctx: Context) -> None:
        message.n += 1
        steps.ns.append(message.n)
        ctx.send("out", message)

    @app.handler("waits", key="key")
    @app.handler("both", key="key", name="second")
    async def waits(message: Step, steps: Steps, ctx: Context) -> None:
        message.n += 1
        await asyncio.sleep(0)
        steps.ns.append(message.n)
        ctx.send("out", message)

    for seed in range(40):
        faults = Faults.drawn(seed=seed, lost=1, refused=3)
        async with Harness(app, seed=seed, faults=faults) as world:
            for queue in ("one", "waits", "both"):
                await world.send(queue, Step(queue, 1), id=queue)
            await world.wait_idle()
            found = [await world.state(Steps, key) for key in ("one", "waits", "both")]
            assert found == [Steps([2]), Steps([2]), Steps([2, 2])], f"seed {seed}: {world.fault_log}"
            assert [step.n for step in world.sent("out")] == [2, 2, 2, 2]


async def test_a_handling_that_is_begun_again_sees_its_message_as_it_was_sent() -> None:
    app = App("again")

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps) -> None:
        message.n += 1
        if steps.ns:  # the first of a batch does not wait, so what follows it has seen an uncommitted state
            await asyncio.sleep(0)
        steps.ns.append(message.n)

    for seed in range(20):
        async with Harness(app, seed=seed) as world:
            for n in range(8):
                await world.send("steps", Step("a", n), id=str(n))
            await world.wait_idle()
            found = await world.state(Steps, "a")
            assert found is not None and sorted(found.ns) == list(range(1, 9)), f"seed {seed}"


async def test_a_request_that_is_tried_again_has_its_message_as_it_was_sent() -> None:
    app, found = App("asked"), list[int]()

    @app.http("POST", "/steps/{key}", key="key", retries=Retries(limit=3, delays_s=(0.0,)))
    def step(message: Step, steps: Steps) -> int:
        found.append(message.n)
        message.n += 1
        if len(found) < 3:
            raise ValueError("not yet")
        return message.n

    async with Harness(app) as world:
        answer = await world.request("POST", "/steps/a", json={"n": 1}, key="k")
        assert (answer.status, answer.body, found) == (200, b"2", [1, 1, 1])
