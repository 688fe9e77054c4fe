"""What a failure means: retries, refusals, dead letters, the age fence, and what an operator does with them."""

from __future__ import annotations

import asyncio

import pytest

from outbox import App, Context, DeadLetter, Reject, Retries, Retry
from outbox.retries import DELAY_S_MAX
from outbox.testing import Harness
from tests.unit.messages import Count, deliver
from tests.unit.runtime.plant import Plant, Task, only, raising

# Retries


async def test_failures_are_repeated_after_the_delays_and_then_dead_lettered_with_the_last_line() -> None:
    plant = Plant(raising(ValueError("no such thing")), retry=Retries(limit=4, delays_s=(1.0, 10.0)))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        start = world.now()
        await world.advance(hours=1)
        assert [round(at - start, 3) for at, _ in plant.runs] == [0, 1, 11, 21]
        assert [count for _, count in plant.runs] == [1, 2, 3, 4]
        dead_letter = await only(world)
        assert (dead_letter.reason, dead_letter.description) == ("failed", "ValueError: no such thing")
        assert dead_letter.delivery_count == 4
        assert await world.state(Count, "a") is None and world.sent("out") == []


@pytest.mark.parametrize("delay_s", [0.001, 0.057, 0.123, 1.001, 59.999])
async def test_a_delay_of_any_number_of_milliseconds_ends(delay_s: float) -> None:
    plant = Plant(raising(ValueError("x")), retry=Retries(limit=2, delays_s=(delay_s,)))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.advance(minutes=2)
        assert len(plant.runs) == 2


async def test_a_failure_of_an_ordered_message_is_one_delivery() -> None:
    app, counts = App("ordered", retry=Retries(limit=4, delays_s=(1.0,))), list[int]()
    app.queue("q", "per_key")

    @app.handler("q", key="key")
    def fail(task: Task, count: Count, ctx: Context) -> None:
        counts.append(ctx.delivery_count)
        raise ValueError("x")

    async with Harness(app) as world:
        await world.send("q", Task("a"), id="1")
        await world.advance(hours=1)
        (dead_letter,) = world.dead_letters("q")
        assert counts == [1, 2, 3, 4] and dead_letter.delivery_count == 4


async def test_no_delays_mean_another_delivery_at_once() -> None:
    plant = Plant(raising(ValueError("x")), retry=Retries(limit=3, delays_s=()))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"))
        assert len(plant.runs) == 3 and len(world.dead_letters("q")) == 1


async def test_failures_are_still_counted_after_a_restart() -> None:
    plant = Plant(raising(ValueError("x")), retry=Retries(limit=3, delays_s=(10.0,)))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"))
        await world.restart()
        await world.advance(minutes=1)
        assert [count for _, count in plant.runs] == [1, 2, 3]


async def test_a_message_that_succeeds_at_last_acts_once() -> None:
    plant = Plant(retry=Retries(limit=3, delays_s=(1.0,)))

    def act(task: Task, ctx: Context) -> None:
        if len(plant.runs) < 3:
            raise OSError("not yet")

    plant.act = act
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.advance(minutes=1)
        assert await world.state(Count, "a") == Count(1)
        assert world.sent("out") == [Task("a")] and world.dead_letters("q") == []


async def test_retry_is_not_counted_as_a_failure() -> None:
    plant = Plant(retry=Retries(limit=1))

    def act(task: Task, ctx: Context) -> None:
        if len(plant.runs) < 5:
            raise Retry("upstream is down", after_s=30)

    plant.act = act
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        start = world.now()
        await world.advance(minutes=10)
        assert [at - start for at, _ in plant.runs] == [0, 30, 60, 90, 120]
        assert {count for _, count in plant.runs} == {1}
        assert await world.state(Count, "a") == Count(1)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least once"):
        Retries(limit=0)


# Refusals


async def test_a_rejected_message_leaves_nothing_but_its_dead_letter() -> None:
    plant = Plant(raising(Reject("too expensive")))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a", "w"), id="1", created=world.now() - 5)
        dead_letter = await only(world)
        assert dead_letter == DeadLetter(
            "1", "q", "too expensive", dead_letter.description, Task("a", "w"), dead_letter.body, 1, world.now() - 5
        )
        assert dead_letter.body == b'{"key":"a","what":"w"}'
        assert await world.state(Count, "a") is None and world.sent("out") == [] and len(plant.runs) == 1


@pytest.mark.parametrize(
    ("error", "reason", "description"),
    [
        (Reject(), "rejected", "rejected by the handler"),
        (Reject("x" * 5_000), "x" * 1_000, "rejected by the handler"),
        (Reject("lone \ud800"), "lone \\ud800", "rejected by the handler"),
        (ValueError("lone \ud800"), "failed", "ValueError: lone \\ud800"),
        (KeyError("x"), "failed", "KeyError: 'x'"),
        (asyncio.CancelledError(), "failed", "asyncio.exceptions.CancelledError"),
        (StopIteration(), "failed", "RuntimeError: coroutine raised StopIteration"),
        (
            ValueError("Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey=c2VjcmV0;x"),
            "failed",
            "ValueError: Endpoint=sb://x/;SharedAccessKeyName=k;SharedAccessKey=***;x",
        ),
        (
            ValueError("401 for Authorization: Bearer abcdefgh.ijkl"),
            "failed",
            "ValueError: 401 for Authorization: ***",
        ),
    ],
)
async def test_what_a_dead_letter_says_is_bounded_storable_and_without_secrets(
    error: BaseException, reason: str, description: str
) -> None:
    plant = Plant(raising(error), retry=Retries(limit=1))
    async with Harness(plant.app) as world:
        await deliver(world, "q", Task("a"))
        dead_letter = await only(world)
        assert (dead_letter.reason, dead_letter.description) == (reason, description)


async def test_a_handler_that_cancels_what_it_waits_for_has_failed_and_the_worker_goes_on() -> None:
    plant = Plant(retry=Retries(limit=2, delays_s=(1.0,)))

    async def wait_for_cancelled() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(task.cancel)
        await task

    plant.act = lambda task, ctx: wait_for_cancelled() if task.what else None
    async with Harness(plant.app) as world:
        await world.send("q", Task("a", "cancelled"))
        await world.send("q", Task("a"))
        await world.advance(minutes=1)
        assert (await only(world)).description == "asyncio.exceptions.CancelledError"
        assert await world.state(Count, "a") == Count(1)


def test_delays_are_from_now_to_ten_years() -> None:
    for delay_s in (0.0, DELAY_S_MAX):
        assert Retry(after_s=delay_s).after_s == Retries(delays_s=(delay_s,)).delay_s(1) == delay_s
    for wrong_s in (-0.001, DELAY_S_MAX + 1, float("nan")):
        with pytest.raises(ValueError, match="give seconds"):
            Retry(after_s=wrong_s)
        with pytest.raises(ValueError, match="give seconds"):
            Retries(delays_s=(1.0, wrong_s))
