"""What a handler may do: send, publish, schedule, reply, write blobs, call; all of it with its commit or never."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from outbox import App, BlobRef, Context, Reject, Retries, UnknownDestination
from outbox.context import OUTPUT_COUNT_MAX
from outbox.testing import START_S, Harness
from outbox.verify.faults import Faults


@dataclass
class Job:
    key: str
    text: str = ""
    n: int = 0


@dataclass
class Made:
    ref: BlobRef


@dataclass
class Note:
    text: str = ""
    n: int = 0


@dataclass(frozen=True)
class Fixed:
    n: int = 0


def running(act: Callable[[Job, Context], Any], **options: Any) -> App:
    """An application whose stateless handler of `q` does as told, with a few destinations."""
    app = App("effects", **options)
    app.queue("out")
    app.topic("news")

    @app.handler("q", key="key")
    async def handle(job: Job, ctx: Context) -> None:
        result = act(job, ctx)
        if result is not None:
            await result

    return app


async def ran(world: Harness, job: Job | None = None, **options: Any) -> None:
    await world.send("q", job or Job("a"), id="1", **options)
    await world.wait_idle()


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


async def test_a_handler_that_raises_sends_nothing() -> None:
    def act(job: Job, ctx: Context) -> None:
        ctx.send("out", job)
        ctx.publish("news", job)
        ctx.write_blob("b", b"x")
        raise Reject("no")

    async with Harness(running(act)) as world:
        await ran(world)
        assert world.sent("out") == [] and world.sent("news") == []


async def test_what_cannot_be_encoded_fails_the_handling_and_sends_nothing() -> None:
    def act(job: Job, ctx: Context) -> None:
        ctx.send("out", job)
        ctx.send("out", Job("x", "lone \ud800"))

    async with Harness(running(act, retry=Retries(limit=1))) as world:
        await ran(world)
        assert world.sent("out") == [] and [letter.reason for letter in world.dead_letters("q")] == ["failed"]


async def test_too_many_outputs_fail_the_handling() -> None:
    def act(job: Job, ctx: Context) -> None:
        for n in range(OUTPUT_COUNT_MAX + 1):
            ctx.send("out", Job("x", n=n))

    async with Harness(running(act)) as world:
        await ran(world)
        assert world.sent("out") == [] and [letter.reason for letter in world.dead_letters("q")] == ["failed"]


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
        (letter,) = world.dead_letters("news/Subscriptions/audit")
        assert letter.message == Job("a")
        await world.resubmit("news/Subscriptions/audit", "1")
        await world.wait_idle()
        assert len(world.dead_letters("news/Subscriptions/audit")) == 1


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
        (letter,) = world.dead_letters("q")
        assert letter.reason == "failed" and "UnknownDestination" in letter.description


async def test_a_reply_goes_where_the_message_asked_for() -> None:
    async with Harness(running(lambda job, ctx: ctx.reply(Job("answer")))) as world:
        await ran(world, reply_to="out")
        assert world.sent("out") == [Job("answer")]
        assert world.sent_records("out")[0].properties["correlation-id"] == "1"


# Large bodies and blobs


async def test_a_large_body_comes_back_unseen_inbound_outbound_and_dead() -> None:
    large, seen = "x" * 300_000, []
    app = running(lambda job, ctx: ctx.send("next", Job("b", job.text + "y")))

    @app.handler("next", key="key")
    def next_(job: Job, note: Note) -> None:
        seen.append(job)
        raise Reject("seen")

    async with Harness(app) as world:
        await ran(world, Job("a", large))
        await world.restart()
        assert seen == world.sent("next") == [Job("b", large + "y")]
        (letter,) = world.dead_letters("next")
        assert letter.message == Job("b", large + "y") and len(letter.body) > 300_000
        assert "outbox-claim" in world.sent_records("next")[0].properties


async def test_the_same_large_message_again_has_no_further_effect() -> None:
    async with Harness(running(lambda job, ctx: ctx.send("out", Job("b")))) as world:
        for _ in range(2):
            await ran(world, Job("a", "x" * 300_000))
        await world.send("q", Job("a", "y" * 300_000), id="1")
        await world.wait_idle()
        assert world.sent("out") == [Job("b")]
        assert [letter.reason for letter in world.dead_letters("q")] == ["payload-differs"]


@pytest.mark.parametrize("claim", ["claims/x", "../../etc/passwd", f"claims/{'0' * 64}/{'1' * 64}"])
async def test_a_claim_that_is_not_ours_is_not_read(claim: str) -> None:
    async with Harness(running(lambda job, ctx: ctx.send("out", job))) as world:
        await world.send_raw("q", b"", properties={"outbox-id": "1", "outbox-type": "Job", "outbox-claim": claim})
        await world.wait_idle()
        assert [letter.reason for letter in world.dead_letters("q")] == ["undecodable"]


async def test_a_written_blob_can_be_read_by_its_reference_whatever_fails() -> None:
    refs: list[BlobRef] = []

    def act(job: Job, ctx: Context) -> None:
        data = bytearray(b"report")
        refs.append(ctx.write_blob("re/port.txt", data))  # type: ignore[arg-type]  # any bytes will do
        data[:] = b"change"
        ctx.send("out", Made(refs[-1]))

    for n in range(1, 6):
        async with Harness(running(act), faults=Faults(lost=(n,), crashes=((n + 1, "before"),))) as world:
            await ran(world)
            (made,) = world.sent("out")
            assert isinstance(made, Made) and made.ref.size_bytes == 6
            assert await world.blob(made.ref) == b"report"
    assert len(set(refs)) == 1
    async with Harness(running(act)) as world:
        with pytest.raises(LookupError, match="committed"):
            await world.blob(refs[0])


async def test_a_commit_over_the_limit_is_dead_lettered_as_oversize() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def grow(job: Job, note: Note) -> None:
        note.text = "x" * job.n

    async with Harness(app) as world:
        await world.send("q", Job("a", n=40 << 20), id="1")
        await world.send("q", Job("b", n=5), id="2")
        await world.wait_idle()
        (letter,) = world.dead_letters("q")
        assert (letter.id, letter.reason) == ("1", "oversize")
        assert await world.state(Note, "a") is None
        assert await world.state(Note, "b") == Note("x" * 5)


# Fixed by the commit


async def test_chance_is_the_same_for_every_attempt_and_differs_between_messages_and_draws() -> None:
    drawn: list[tuple[float, float, UUID]] = []

    def act(job: Job, ctx: Context) -> None:
        drawn.append((ctx.random(), ctx.random(), ctx.uuid()))
        if len(drawn) == 1:
            raise OSError("again")

    async with Harness(running(act, retry=Retries(delays_s=()))) as world:
        await ran(world)
        await world.send("q", Job("a"), id="2")
        await world.wait_idle()
    first, again, other = drawn
    assert first == again and len({*first, *other}) == 6
    assert all(0 <= number < 1 for number in first[:2]) and first[2].version == 4


async def test_a_call_is_given_the_idempotency_key_the_same_on_every_attempt() -> None:
    keys: list[str] = []
    key = ""

    async def act(job: Job, ctx: Context) -> None:
        nonlocal key
        key = ctx.idempotency_key
        assert await ctx.call(lambda key: keys.append(key) or 7) == 7  # type: ignore[func-returns-value]  # None on purpose
        assert await ctx.call(lambda: 8) == 8
        assert await ctx.call(lambda n=job.n: n) == 0
        await ctx.call(later, idempotent=True)
        if len(keys) == 2:
            raise OSError("again")

    async def later(key: str) -> None:
        keys.append(key)

    async with Harness(running(act, retry=Retries(delays_s=()))) as world:
        await ran(world)
    assert keys[0] == key and keys[1] != key and keys[2:] == keys[:2]


async def test_an_applied_message_calls_nothing_again() -> None:
    calls: list[str] = []

    async def act(job: Job, ctx: Context) -> None:
        await ctx.call(calls.append)

    async with Harness(running(act), faults=Faults(duplicates=(1, 2), lost=(3,))) as world:
        await ran(world)
        await ran(world)
    assert len(calls) == 1


# State


async def test_save_and_delete_win_over_changes_in_place_and_the_last_of_them_counts() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def handle(job: Job, note: Note, ctx: Context) -> None:
        note.text = "in place"
        if "s" in job.text:
            ctx.save(Note("saved"))
        if "d" in job.text:
            ctx.delete()
        if job.text.endswith("s"):
            ctx.save(Note("last"))

    async with Harness(app) as world:
        for text, left in [("", Note("in place")), ("s", Note("last")), ("sd", None), ("ds", Note("last"))]:
            await world.send("q", Job("a", text))
            await world.wait_idle()
            assert await world.state(Note, "a") == left


async def test_a_frozen_state_is_changed_by_saving_another() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def handle(job: Job, fixed: Fixed, ctx: Context) -> None:
        ctx.save(Fixed(fixed.n + 1))

    async with Harness(app) as world:
        for _ in range(3):
            await world.send("q", Job("a"))
        await world.wait_idle()
        assert await world.state(Fixed, "a") == Fixed(3)


async def test_a_deleted_state_starts_anew_and_a_slow_duplicate_does_not_bring_it_back() -> None:
    app = App("a")

    @app.handler("q", key="key")
    def handle(job: Job, note: Note, ctx: Context) -> None:
        note.n += 1
        if job.text == "delete":
            ctx.delete()

    async with Harness(app) as world:
        await world.send("q", Job("a"), id="1")
        await world.send("q", Job("a", "delete"), id="2")
        await world.advance(days=3)
        assert await world.state(Note, "a") in (None, Note(n=1))
        await world.send("q", Job("a", "delete"), id="3")
        await world.wait_idle()
        assert await world.state(Note, "a") is None
        await world.restart()
        for id in ("1", "2", "3"):
            await world.send("q", Job("a", "" if id == "1" else "delete"), id=id, created=START_S)
        await world.wait_idle()
        assert await world.state(Note, "a") is None
        await world.send("q", Job("a"), id="4")
        await world.wait_idle()
        assert await world.state(Note, "a") == Note(n=1)


@pytest.mark.parametrize("what", ["save", "delete", "wrong type"])
async def test_saving_what_is_not_the_state_fails_the_handling(what: str) -> None:
    app = running(lambda job, ctx: ctx.delete() if what == "delete" else ctx.save(Note()), retry=Retries(limit=1))

    @app.handler("with", key="key")
    def handle(job: Job, fixed: Fixed, ctx: Context) -> None:
        ctx.save(Note())

    queue = "with" if what == "wrong type" else "q"
    async with Harness(app) as world:
        await world.send(queue, Job("a"))
        await world.wait_idle()
        (letter,) = world.dead_letters(queue)
        assert "TypeError" in letter.description
