"""A handler that never ends is cancelled when it may write nothing any more, and its key goes on."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from outbox import App, Retries
from outbox.testing import Harness
from tests.unit.messages import Step, Steps, deliver


async def test_a_handler_that_never_ends_fails_and_its_key_goes_on() -> None:
    app = App("steps", margin=timedelta(seconds=0.4), clock_skew=timedelta(seconds=0.1), retry=Retries(limit=1))

    @app.handler("steps", key="key")
    async def step(message: Step, steps: Steps) -> None:
        if message.n == 0:
            await asyncio.Event().wait()
        steps.ns.append(message.n)

    async with Harness(app) as world:
        await world.send("steps", Step("a", 0), id="0")
        await deliver(world, "steps", Step("a", 1), id="1")
        assert await world.state(Steps, "a") == Steps([1])
        (dead_letter,) = world.dead_letters("steps")
        assert (dead_letter.id, dead_letter.reason) == (
            "0",
            "failed",
        ) and "had not ended after 0.2 s" in dead_letter.description
