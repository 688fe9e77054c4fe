"""Chance, calls to the outside, and saving or deleting the state: the same on every attempt."""

from __future__ import annotations

from uuid import UUID

import pytest

from outbox import App, Context, Retries
from outbox.testing import START_S, Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver
from tests.unit.runtime.jobs import Fixed, Job, Note, ran, running

# Fixed by the commit


async def test_chance_is_the_same_for_every_attempt_and_differs_between_messages_and_draws() -> None:
    drawn: list[tuple[float, float, UUID]] = []

    def act(job: Job, ctx: Context) -> None:
        drawn.append((ctx.random(), ctx.random(), ctx.uuid()))
        if len(drawn) == 1:
            raise OSError("again")

    async with Harness(running(act, retry=Retries(delays_s=()))) as world:
        await ran(world)
        await deliver(world, "q", Job("a"), id="2")
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


@pytest.mark.parametrize("limit_s", [None, 60.0])
async def test_a_timeout_of_what_is_called_is_told_as_its_own(limit_s: float | None) -> None:
    def slow() -> None:
        raise TimeoutError("the bank did not answer")

    async def act(job: Job, ctx: Context) -> None:
        await ctx.call(slow, time_limit_s=limit_s)

    async with Harness(running(act, retry=Retries(limit=1))) as world:
        await ran(world)
        (dead_letter,) = world.dead_letters("q")
    assert dead_letter.description == "TimeoutError: the bank did not answer"


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
            await deliver(world, "q", Job("a", text))
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
        await deliver(world, "q", Job("a", "delete"), id="3")
        assert await world.state(Note, "a") is None
        await world.restart()
        for id in ("1", "2", "3"):
            await world.send("q", Job("a", "" if id == "1" else "delete"), id=id, created=START_S)
        await world.wait_idle()
        assert await world.state(Note, "a") is None
        await deliver(world, "q", Job("a"), id="4")
        assert await world.state(Note, "a") == Note(n=1)


@pytest.mark.parametrize("what", ["save", "delete", "wrong type"])
async def test_saving_what_is_not_the_state_fails_the_handling(what: str) -> None:
    app = running(lambda job, ctx: ctx.delete() if what == "delete" else ctx.save(Note()), retry=Retries(limit=1))

    @app.handler("with", key="key")
    def handle(job: Job, fixed: Fixed, ctx: Context) -> None:
        ctx.save(Note())

    queue = "with" if what == "wrong type" else "q"
    async with Harness(app) as world:
        await deliver(world, queue, Job("a"))
        (dead_letter,) = world.dead_letters(queue)
        assert "TypeError" in dead_letter.description
