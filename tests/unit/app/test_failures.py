"""What a failure means: retries, refusals, dead letters, the age fence, and what an operator does with them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from outbox import App, Context, DeadLetter, Reject, Retries, Retry
from outbox.errors import Refused
from outbox.testing import Harness

DAY_S = 86_400


@dataclass
class Task:
    key: str | None
    what: str = ""


@dataclass
class Count:
    n: int = 0


class Plant:
    """An application whose handler does as `act` says, and what it was seen to do."""

    def __init__(self, **options: Any) -> None:
        self.act: Any = lambda task, ctx: None
        self.runs: list[tuple[float, int]] = []
        self.app = App("plant", **options)
        self.app.queue("out")

        @self.app.handler("q", key="key")
        async def handle(task: Task, count: Count, ctx: Context) -> None:
            self.runs.append((ctx.now(), ctx.delivery_count))
            count.n += 1
            ctx.send("out", task)
            if (result := self.act(task, ctx)) is not None:
                await result


def raising(error: BaseException | type[BaseException]) -> Any:
    def act(task: Task, ctx: Context) -> None:
        raise error

    return act


async def only(world: Harness, queue: str = "q") -> DeadLetter:
    (letter,) = world.dead_letters(queue)
    return letter


# Retries


async def test_failures_are_repeated_after_the_delays_and_then_dead_lettered_with_the_last_line() -> None:
    plant = Plant(retry=Retries(limit=4, delays_s=(1.0, 10.0)))
    plant.act = raising(ValueError("no such thing"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        start = world.now()
        await world.advance(hours=1)
        assert [round(at - start, 3) for at, _ in plant.runs] == [0, 1, 11, 21]
        assert [count for _, count in plant.runs] == [1, 2, 3, 4]
        letter = await only(world)
        assert (letter.reason, letter.description) == ("failed", "ValueError: no such thing")
        assert letter.delivery_count == 4
        assert await world.state(Count, "a") is None and world.sent("out") == []


@pytest.mark.parametrize("delay_s", [0.001, 0.057, 0.123, 1.001, 59.999])
async def test_a_delay_of_any_number_of_milliseconds_ends(delay_s: float) -> None:
    plant = Plant(retry=Retries(limit=2, delays_s=(delay_s,)))
    plant.act = raising(ValueError("x"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.advance(minutes=2)
        assert len(plant.runs) == 2


async def test_no_delays_mean_another_delivery_at_once() -> None:
    plant = Plant(retry=Retries(limit=3, delays_s=()))
    plant.act = raising(ValueError("x"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.wait_idle()
        assert len(plant.runs) == 3 and len(world.dead_letters("q")) == 1


async def test_failures_are_still_counted_after_a_restart() -> None:
    plant = Plant(retry=Retries(limit=3, delays_s=(10.0,)))
    plant.act = raising(ValueError("x"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.wait_idle()
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


async def test_retry_ends_with_retention() -> None:
    plant = Plant(retention=timedelta(hours=2))
    plant.act = raising(Retry("never", after_s=600))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.advance(hours=3)
        assert (await only(world)).reason == "too-old"
        assert len(plant.runs) == 12


@pytest.mark.parametrize("after_s", [-1, float("nan"), float("inf"), 1e300])
def test_a_retry_that_never_comes_is_refused(after_s: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        Retry("x", after_s=after_s)
    with pytest.raises(ValueError, match="seconds"):
        Retries(delays_s=(after_s,))


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least once"):
        Retries(limit=0)


# Refusals


async def test_a_rejected_message_leaves_nothing_but_its_dead_letter() -> None:
    plant = Plant()
    plant.act = raising(Reject("too expensive"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a", "w"), id="1", created=world.now() - 5)
        await world.wait_idle()
        letter = await only(world)
        assert letter == DeadLetter(
            "1", "q", "too expensive", letter.description, Task("a", "w"), letter.body, 1, world.now() - 5
        )
        assert letter.body == b'{"key":"a","what":"w"}'
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
            "ValueError: 401 for Authorization: Bearer ***",
        ),
    ],
)
async def test_what_a_dead_letter_says_is_bounded_storable_and_without_secrets(
    error: BaseException, reason: str, description: str
) -> None:
    plant = Plant(retry=Retries(limit=1))
    plant.act = raising(error)
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"))
        await world.wait_idle()
        letter = await only(world)
        assert (letter.reason, letter.description) == (reason, description)


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


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"{bad", "undecodable"),
        (b"", "undecodable"),
        (b"\xff\xfe", "undecodable"),
        (b'{"key":5}', "undecodable"),
        (b"[" * 100_000, "undecodable"),
        (b'{"what":"x"}', "undecodable"),
        (b'{"key":null}', "missing-key"),
        (b'{"key":""}', "missing-key"),
    ],
)
async def test_a_body_that_cannot_be_handled_never_reaches_the_handler(body: bytes, reason: str) -> None:
    plant = Plant()
    async with Harness(plant.app) as world:
        await world.send_raw("q", body, properties={"outbox-id": "1", "outbox-type": "Task"})
        await world.wait_idle()
        letter = await only(world)
        assert (letter.reason, letter.body, plant.runs) == (reason, body, [])


@pytest.mark.parametrize(
    "value", [None, "", 1.5, True, b"x", ["x"], 1 << 20_000, "\ud800"], ids=lambda v: type(v).__name__
)
async def test_a_key_that_is_none_empty_or_of_another_type_is_missing(value: Any) -> None:
    app = App("a")

    @app.handler("q", key=lambda task: value)
    def handle(task: Task, count: Count) -> None: ...

    async with Harness(app) as world:
        await world.send("q", Task("x"))
        await world.wait_idle()
        assert (await only(world)).reason == "missing-key"


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), RecursionError()])
async def test_a_key_function_that_raises_leaves_a_missing_key(error: Exception) -> None:
    app = App("a")

    def key(task: Task) -> str:
        raise error

    @app.handler("q", key=key)
    def handle(task: Task, count: Count) -> None: ...

    async with Harness(app) as world:
        await world.send("q", Task("x"))
        await world.wait_idle()
        letter = await only(world)
        assert letter.reason == "missing-key" and type(error).__name__ in letter.description


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "soon", 10**30, -(10**30), None, "1e9"])
@pytest.mark.parametrize("name", ["outbox-created", "outbox-hops", "outbox-attempt"])
async def test_nonsense_in_a_numeric_property_stops_nobody(name: str, value: Any) -> None:
    plant = Plant()
    async with Harness(plant.app) as world:
        await world.send_raw("q", b'{"key":"a"}', properties={"outbox-id": "1", name: value})
        await world.wait_idle()
        assert await world.state(Count, "a") == Count(1)


# The age fence


async def test_a_message_as_old_as_retention_is_never_run() -> None:
    plant = Plant(retention=timedelta(days=2))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", created=world.now() - 2 * DAY_S)
        await world.send("q", Task("b"), id="2", created=datetime.fromtimestamp(world.now() - 2 * DAY_S + 1, UTC))
        await world.wait_idle()
        letter = await only(world)
        assert (letter.id, letter.reason) == ("1", "too-old")
        assert len(plant.runs) == 1


async def test_a_duplicate_of_an_applied_message_is_completed_at_any_age_that_its_record_lives() -> None:
    plant = Plant(retention=timedelta(days=2), margin=timedelta(hours=1))
    async with Harness(plant.app) as world:
        created = world.now()
        await world.send("q", Task("a"), id="1", created=created)
        await world.wait_idle()
        await world.advance(days=2, minutes=59)
        await world.send("q", Task("a"), id="1", created=created)
        await world.wait_idle()
        assert world.dead_letters("q") == [] and len(plant.runs) == 1
        await world.advance(minutes=2)
        await world.send("q", Task("a"), id="1", created=created)
        await world.wait_idle()
        assert (await only(world)).reason == "too-old" and len(plant.runs) == 1


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_records_live_on_over_a_restart_and_are_gone_after_retention_and_margin() -> None:
    plant = Plant(retention=timedelta(days=2), margin=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        await world.advance(days=1)
        await world.restart()
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        assert len(plant.runs) == 1
        await world.advance(days=1, hours=2)
        await world.restart()
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        assert len(plant.runs) == 2


async def test_without_a_creation_time_the_time_of_arrival_counts() -> None:
    plant = Plant(retention=timedelta(hours=1))
    plant.act = raising(Retry(after_s=1_800))
    async with Harness(plant.app) as world:
        await world.send_raw("q", b'{"key":"a"}', properties={"outbox-id": "1"})
        await world.advance(hours=2)
        assert len(plant.runs) == 2 and (await only(world)).reason == "too-old"


async def test_a_creation_time_that_lies_ahead_is_refused() -> None:
    plant = Plant(clock_skew=timedelta(minutes=5))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", created=world.now() + 299)
        await world.send("q", Task("b"), id="2", created=world.now() + 301)
        await world.wait_idle()
        letter = await only(world)
        assert (letter.id, letter.reason) == ("2", "from-the-future") and "clock" in letter.description


async def test_a_scheduled_message_is_as_old_as_its_due_time() -> None:
    plant = Plant(retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", after_s=5 * DAY_S)
        await world.advance(days=6)
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("q") == []


# Dead letters


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_a_refused_message_sent_again_is_dead_lettered_again_with_its_first_reason() -> None:
    plant = Plant()
    plant.act = raising(Reject("first"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        plant.act = raising(Reject("second"))
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        assert [letter.reason for letter in world.dead_letters("q")] == ["first", "first"]
        assert len(plant.runs) == 1


@pytest.mark.engine_only("a store protocol may run a handler again and throw its result away")
async def test_a_resubmitted_message_runs_again_under_its_identity() -> None:
    plant = Plant()
    plant.act = raising(Reject("not today"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        await world.resubmit("q", "1")
        await world.wait_idle()
        assert (await only(world)).reason == "not today" and len(plant.runs) == 2
        plant.act = raising(Reject("still not"))
        await world.resubmit("q", "1")
        await world.wait_idle()
        assert (await only(world)).reason == "still not"
        plant.act = lambda task, ctx: None
        await world.resubmit("q", "1")
        await world.wait_idle()
        assert world.dead_letters("q") == [] and await world.state(Count, "a") == Count(1)
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("q") == []


async def test_a_message_that_was_too_old_is_not_resubmitted_and_the_text_says_what_to_do() -> None:
    plant = Plant(retention=timedelta(hours=1))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1", created=world.now() - 7_200)
        await world.wait_idle()
        with pytest.raises(Refused, match="q/1 was too old to be run"):
            await world.resubmit("q", "1")
        await world.wait_idle()
        assert len(plant.runs) == 0 and (await only(world)).reason == "too-old"


async def test_what_a_handler_calls_too_old_may_be_resubmitted() -> None:
    plant = Plant()
    plant.act = raising(Reject("too-old"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        plant.act = lambda task, ctx: None
        await world.resubmit("q", "1")
        await world.wait_idle()
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
        await world.send("first", Task("a"), id="1")
        await world.wait_idle()
        letter = await only(world, "second")
        broken[0] = False
        await world.resubmit("second", letter.id)
        await world.restart()
        await world.wait_idle()
        assert await world.state(Count, "a") == Count(1) and world.dead_letters("second") == []


async def test_a_discarded_dead_letter_is_gone_and_what_is_not_there_cannot_be() -> None:
    plant = Plant()
    plant.act = raising(Reject("x"))
    async with Harness(plant.app) as world:
        await world.send("q", Task("a"), id="1")
        await world.wait_idle()
        await world.discard("q", "1")
        assert world.dead_letters("q") == []
        for change in (world.discard, world.resubmit):
            with pytest.raises(LookupError, match="list them"):
                await change("q", "1")


async def test_dead_letters_survive_a_restart_oldest_first() -> None:
    plant = Plant()
    plant.act = raising(Reject("x"))
    async with Harness(plant.app) as world:
        for id in ("1", "2", "3"):
            await world.send("q", Task("a"), id=id)
            await world.wait_idle()
        await world.restart()
        assert [letter.id for letter in world.dead_letters("q")] == ["1", "2", "3"]
