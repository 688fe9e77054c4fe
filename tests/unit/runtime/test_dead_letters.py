"""Dead letters: kept with their first reason, resubmitted under their identity, discarded."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox import App, Context, Reject, Retries
from outbox.deliveries import STACK_HEAD, split_stack
from outbox.errors import Refused
from outbox.testing import Harness
from tests.unit.messages import Count, deliver, resubmit
from tests.unit.runtime.plant import Plant, Task, only, raising

# Dead letters


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_a_refused_message_sent_again_is_dead_lettered_again_with_its_first_reason() -> None:
    plant = Plant(raising(Reject("first")))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        plant.act = raising(Reject("second"))
        await deliver(world, "q", Task("a"), id="1")
        assert [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["first", "first"]
        assert len(plant.runs) == 1


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_a_resubmitted_message_runs_again_under_its_identity() -> None:
    plant = Plant(raising(Reject("not today")))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        await resubmit(world, "q", "1")
        assert (await only(world)).reason == "not today" and len(plant.runs) == 2
        plant.act = raising(Reject("still not"))
        await resubmit(world, "q", "1")
        assert (await only(world)).reason == "still not"
        plant.act = lambda task, ctx: None
        await resubmit(world, "q", "1")
        assert world.dead_letters("q") == [] and await world.state(Count, "a") == Count(1)
        await deliver(world, "q", Task("a"), id="1")
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("q") == []


async def test_a_message_that_was_too_old_is_not_resubmitted_and_the_text_says_what_to_do() -> None:
    plant = Plant(retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1", created=world.now() - 7_200)
        with pytest.raises(Refused, match="q/1 was too old to run"):
            await world.resubmit("q", "1")
        await world.wait_idle()
        assert len(plant.runs) == 0 and (await only(world)).reason == "too-old"


async def test_what_a_handler_calls_too_old_may_be_resubmitted() -> None:
    plant = Plant(raising(Reject("too-old")))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        plant.act = lambda task, ctx: None
        await resubmit(world, "q", "1")
        assert await world.state(Count, "a") == Count(1)


async def test_an_internal_message_that_failed_is_resubmitted_once() -> None:
    app = App("a", retry=Retries(limit=1))
    broken = [True]

    @app.handler("first")
    def first(task: Task, ctx: Context) -> None:
        ctx.send("second", task)

    @app.handler("second", key="key")
    def second(task: Task, count: Count) -> None:
        if broken[0]:
            raise ValueError("broken")
        count.n += 1

    async with Harness(app) as world:
        await deliver(world, "first", Task("a"), id="1")
        dead_letter = await only(world, "second")
        broken[0] = False
        await world.resubmit("second", dead_letter.id)
        await world.restart()
        await world.wait_idle()
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("second") == []


async def test_a_discarded_dead_letter_is_gone_and_what_is_not_there_cannot_be() -> None:
    plant = Plant(raising(Reject("x")))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"), id="1")
        await world.discard("q", "1")
        assert world.dead_letters("q") == []
        for change in (world.discard, world.resubmit):
            with pytest.raises(LookupError, match="list them"):
                await change("q", "1")


async def test_dead_letters_survive_a_restart_oldest_first() -> None:
    plant = Plant(raising(Reject("x")))
    async with Harness(plant.app) as world:
        for id in ("1", "2", "3"):
            await deliver(world, "q", Task("a"), id=id)
        await world.restart()
        assert [dead_letter.id for dead_letter in world.dead_letters("q")] == ["1", "2", "3"]


def test_a_description_is_split_into_its_text_and_its_stack() -> None:
    assert split_stack("no stock") == ("no stock", "")
    assert split_stack(f"no stock{STACK_HEAD}  a.py") == ("no stock", "Traceback (most recent call last):\n  a.py")
