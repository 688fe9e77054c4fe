"""Resubmissions, numbers for identities, calls within a batch, as an adversary went at them; in all three scopes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outbox import App, Context, Reject, Retries
from outbox.testing import Harness
from tests.unit.messages import deliver, deliver_raw, resubmit


@dataclass
class Tick:
    key: str
    n: int = 0


@dataclass
class Count:
    count: int = 0


@dataclass
class Other:
    seen: list[int] = field(default_factory=list)


BODY = b'{"key":"k"}'


def picky(bad: list[bool], **options: Any) -> App:
    app = App("picky")
    app.queue("q", **options)

    @app.handler("q", key="key")
    def take(tick: Tick, count: Count) -> None:
        if bad[0]:
            raise Reject("no")
        count.count += 1

    return app


async def test_of_two_alike_without_an_identity_each_is_resubmitted_by_itself() -> None:
    bad = [True]
    async with Harness(picky(bad, identity="sequence-number")) as world:
        for _ in range(2):
            await world.send_raw("q", BODY, properties={"outbox-type": "Tick"})
        await world.wait_idle()
        first, second = (dead_letter.id for dead_letter in world.dead_letters("q"))
        assert first.startswith("sequence-") and first != second
        bad[0] = False
        await resubmit(world, "q", first)
        assert await world.state(Count, "k") == Count(1) and [x.id for x in world.dead_letters("q")] == [second]
        await resubmit(world, "q", second)
        assert await world.state(Count, "k") == Count(2) and world.dead_letters("q") == []


async def test_a_message_without_any_identity_stays_refused_when_it_is_resubmitted() -> None:
    async with Harness(picky([False])) as world:
        await deliver_raw(world, "q", BODY, properties={"outbox-type": "Tick"})
        (dead_letter,) = world.dead_letters("q")
        assert (dead_letter.id, dead_letter.reason) == ("", "no-identity")
        await resubmit(world, "q", "")
        assert [x.reason for x in world.dead_letters("q")] == ["no-identity"]


async def test_a_resubmission_runs_whatever_copies_have_come_since_the_last() -> None:
    bad = [True]
    async with Harness(picky(bad)) as world:
        await deliver(world, "q", Tick("k"), id="m")
        await world.resubmit("q", "m")  # refused again, as attempt 1
        await world.wait_idle()
        await world.send("q", Tick("k"), id="m")  # its sender repeats it: another dead letter, of attempt 0
        await world.wait_idle()
        bad[0] = False
        await resubmit(world, "q", "m")
        assert await world.state(Count, "k") == Count(1) and world.dead_letters("q") == []


async def test_a_key_is_blocked_for_all_handlers_of_its_queue() -> None:
    app = App("mixed")
    app.queue("q", "per_key")

    @app.handler("q", key="key", on_dead_letter="stop_key")
    def stops(tick: Tick, count: Count) -> None:
        raise Reject("no")

    @dataclass
    class Look:
        key: str
        n: int

    @app.handler("q", key="key")
    def goes_on(look: Look, other: Other) -> None:
        other.seen = [*other.seen, look.n]

    async with Harness(app) as world:
        await deliver(world, "q", Tick("k"), id="t")
        for n in range(2):  # each comes alone
            await world.send("q", Look("k", n), id=f"l{n}")
            await world.advance(seconds=30)
        assert await world.state(Other, "k") is None
        await world.discard("q", "t")
        await world.advance(minutes=2)
        assert await world.state(Other, "k") == Other([0, 1])


async def test_a_call_is_made_only_on_a_state_that_is_committed() -> None:
    app, seen = App("bank"), list[tuple[int, Count | None]]()
    world: Harness

    @app.handler("moves", key="key")
    async def move(tick: Tick, count: Count, ctx: Context) -> None:
        if tick.n:
            count.count += tick.n
            return

        async def pay_out() -> None:
            seen.append((count.count, await world.state(Count, "k")))

        await ctx.call(pay_out, idempotent=True)
        count.count = 0

    async with Harness(app) as world:
        await world.send("moves", Tick("k", 10), id="in")
        await deliver(world, "moves", Tick("k", 0), id="out")
        assert seen == [(10, Count(10))] and await world.state(Count, "k") == Count(0)


async def test_a_large_body_without_an_identity_is_sent_whole() -> None:
    async with Harness(picky([False], identity="sequence-number")) as world:
        await world.send_raw("q", BODY + 300_000 * b" ", properties={"outbox-type": "Tick"})
        (task,) = world.engine.broker.queue("q").tasks.values()
        assert len(task.message.body) > 300_000 and not task.message.claim
        await world.wait_idle()
        assert await world.state(Count, "k") == Count(1)


async def test_a_delayed_copy_keeps_the_number_that_its_message_is_known_by() -> None:
    bad, runs = [True], list[str]()
    app = App("slow", retry=Retries(limit=3, delays_s=(10.0,)))
    app.queue("q", identity="sequence-number")

    @app.handler("q", key="key")
    def take(tick: Tick, count: Count, ctx: Context) -> None:
        runs.append(ctx.message_id)
        if bad.pop() if bad else False:
            raise ValueError("not yet")
        count.count += 1

    async with Harness(app) as world:
        await world.send_raw("q", BODY, properties={"outbox-type": "Tick"})
        await world.advance(minutes=1)
        assert await world.state(Count, "k") == Count(1)
        assert len(runs) == 2 and len(set(runs)) == 1 and runs[0].startswith("sequence-")
