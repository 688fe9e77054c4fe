"""What a handler may do: send, publish, schedule, reply, write blobs, call; all of it with its commit or never."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from outbox import App, Context, Reject, Retries, UnknownDestination
from outbox.testing import START_S, Harness
from outbox.verify.faults import Faults
from tests.unit.messages import resubmit
from tests.unit.runtime.jobs import Job, Note, ran, running

# Sending


async def test_a_message_is_encoded_when_it_is_sent() -> None:
    def act(job: Job, ctx: Context) -> None:
        ctx.send("out", job)
        job.text = "changed"
        ctx.send("out", job)

    async with Harness(running(act)) as world:
        await ran(world)
        assert world.sent("out") == [Job("a"), Job("a", "changed")]


async def test_outputs_are_in_capture_order_and_once_each_though_consumed() -> None:
    def five(job: Job, ctx: Context) -> None:
        for n in range(5):
            ctx.send("next", Job("b", n=n))

    app = running(five)

    @app.handler("next")
    def consume(job: Job) -> None: ...

    async with Harness(app, faults=Faults(lost=(3,), duplicates=(1, 2))) as world:
        await ran(world)
        assert [job.n for job in world.sent("next")] == [0, 1, 2, 3, 4]
        assert len({record.id for record in world.sent_records("next")}) == 5


async def test_the_tests_own_sends_are_not_among_the_sent() -> None:
    async with Harness(running(lambda job, ctx: None)) as world:
        await ran(world)
        assert world.sent("q") == []


async def test_what_cannot_be_encoded_fails_the_handling_and_sends_nothing() -> None:
    def act(job: Job, ctx: Context) -> None:
        ctx.send("out", job)
        ctx.send("out", Job("x", object()))  # type: ignore[arg-type]  # that is the point

    async with Harness(running(act, retry=Retries(limit=1))) as world:
        await ran(world)
        assert world.sent("out") == [] and [dead_letter.reason for dead_letter in world.dead_letters("q")] == ["failed"]


async def test_a_topic_gives_every_subscription_a_copy() -> None:
    app, seen = running(lambda job, ctx: ctx.publish("news", job)), []

    @app.handler("news", subscription="audit", key="key")
    def audit(job: Job, note: Note) -> None:
        note.n += 1

    @app.handler("news", subscription="print")
    def show(job: Job) -> None:
        seen.append(job)

    async with Harness(app, faults=Faults(duplicates=(2, 3))) as world:
        await ran(world)
        await world.publish("news", Job("b"), id="2")
        await world.wait_idle()
        assert {job.key for job in seen} == {"a", "b"}
        assert (await world.state(Note, "a"), await world.state(Note, "b")) == (Note(n=1), Note(n=1))
        assert world.sent("news") == [Job("a")]


async def test_subscriptions_with_handlers_of_one_name_both_see_the_message() -> None:
    app, seen = running(lambda job, ctx: None), []

    def register(subscription: str) -> None:
        @app.handler("news", subscription=subscription)
        def handle(job: Job) -> None:
            seen.append(subscription)

    register("one")
    register("two")
    async with Harness(app) as world:
        await world.publish("news", Job("a"), id="1")
        await world.wait_idle()
    assert sorted(seen) == ["one", "two"]


async def test_a_dead_letter_of_a_subscription_is_found_under_its_path() -> None:
    app = running(lambda job, ctx: None)

    @app.handler("news", subscription="audit")
    def audit(job: Job) -> None:
        raise Reject("unfit")

    async with Harness(app) as world:
        await world.publish("news", Job("a"), id="1")
        await world.wait_idle()
        (dead_letter,) = world.dead_letters("news/Subscriptions/audit")
        assert dead_letter.message == Job("a")
        await resubmit(world, "news/Subscriptions/audit", "1")
        assert len(world.dead_letters("news/Subscriptions/audit")) == 1


async def test_what_fails_in_one_subscription_is_tried_again_there_alone() -> None:
    app, seen = App("a", retry=Retries(limit=3, delays_s=(1.0,))), list[str]()

    @app.handler("news", subscription="audit")
    def audit(job: Job) -> None:
        seen.append("audit")
        raise ValueError("always")

    @app.handler("news", subscription="print")
    def show(job: Job) -> None:
        seen.append("print")

    async with Harness(app) as world:
        await world.publish("news", Job("a"), id="1")
        await world.advance(minutes=1)
        assert sorted(seen) == ["audit", "audit", "audit", "print"]
        (dead_letter,) = world.dead_letters("news/Subscriptions/audit")
        assert dead_letter.reason == "failed"


# Later


async def test_schedule_sends_later_by_a_delay_or_at_a_time_in_due_order() -> None:
    seen: list[tuple[str, float]] = []

    def act(job: Job, ctx: Context) -> None:
        ctx.schedule("later", Job("at"), at=datetime(2026, 1, 1, 0, 2, tzinfo=UTC))
        ctx.schedule("later", Job("naive"), at=datetime(2026, 1, 1, 0, 4))  # noqa: DTZ001  # taken as UTC, on every machine
        ctx.schedule("later", Job("seconds"), at=START_S + 180.5)
        ctx.send("later", Job("after"), after_s=60.123)
        ctx.send("later", Job("now"))

    app = running(act)

    @app.handler("later")
    def later(job: Job, ctx: Context) -> None:
        seen.append((job.key, round(ctx.now() - START_S, 3)))

    async with Harness(app) as world:
        await ran(world)
        assert [record.due for record in world.sent_records("later")][-1] is None
        assert seen == [("now", 0)]
        await world.advance(seconds=60)
        assert seen == [("now", 0)]
        await world.restart()
        await world.advance(hours=1)
        assert seen[1:] == [("after", 60.123), ("at", 120), ("seconds", 180.5), ("naive", 240)]
        assert world.now() == START_S + 3_660


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({}, TypeError),
        ({"after_s": 1, "at": START_S}, TypeError),
        ({"after_s": float("inf")}, ValueError),
        ({"after_s": float("nan")}, ValueError),
        ({"after_s": 1e300}, ValueError),
        ({"at": 1e18}, ValueError),
    ],
)
async def test_a_time_that_cannot_be_meant_fails_the_handling_not_the_worker(
    options: dict[str, Any], error: type[Exception]
) -> None:
    caught: list[Exception] = []

    def act(job: Job, ctx: Context) -> None:
        try:
            ctx.schedule("out", job, **options)
        except Exception as raised:
            caught.append(raised)

    async with Harness(running(act)) as world:
        await ran(world)
        assert [type(raised) for raised in caught] == [error] and world.sent("out") == []


async def test_a_delay_that_lies_in_the_past_is_due_at_once() -> None:
    async with Harness(running(lambda job, ctx: ctx.send("q2", job, after_s=-5))) as world:
        with pytest.raises(UnknownDestination):
            await world.send("q2", Job("a"))
    app, seen = running(lambda job, ctx: ctx.send("later", job, at=START_S - 500)), []

    @app.handler("later")
    def later(job: Job) -> None:
        seen.append(job)

    async with Harness(app) as world:
        await ran(world)
        assert seen == [Job("a")]


# Reply


@pytest.mark.parametrize(("reply_to", "cure"), [("", "set it when sending"), ("evil", r"app\.queue\('evil'\)")])
async def test_a_reply_goes_to_a_declared_name_only(reply_to: str, cure: str) -> None:
    app = running(lambda job, ctx: ctx.reply(job), retry=Retries(limit=1))
    async with Harness(app) as world:
        await ran(world, reply_to=reply_to)
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "failed" and "UnknownDestination" in dead_letter.description


async def test_a_reply_goes_where_the_message_asked_for() -> None:
    async with Harness(running(lambda job, ctx: ctx.reply(Job("answer")))) as world:
        await ran(world, reply_to="out")
        assert world.sent("out") == [Job("answer")]
        assert world.sent_records("out")[0].properties["correlation-id"] == "1"
