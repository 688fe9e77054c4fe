"""How long a chain of messages may be: a fast cycle is cut, what pauses or is resubmitted begins anew."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from outbox import App, Context, Retry
from outbox.errors import NotRegistrable
from outbox.message import PROPERTY_HOPS
from outbox.testing import Harness
from tests.unit.messages import Count, deliver, deliver_raw, resubmit
from tests.unit.runtime.plant import DAY_S, Plant, only

HOUR_S = 3_600.0


@dataclass
class Link:
    key: str
    left: int = 0


def chain(*, hops_max: int = 64, **pause: Any) -> App:
    """Sends itself on while there is something left; `pause` is when."""
    app = App("chain", hops_max=hops_max)

    @app.handler("links", key="key")
    def go_on(link: Link, count: Count, ctx: Context) -> None:
        count.n += 1
        if link.left:
            ctx.send("links", Link(link.key, link.left - 1), **pause)

    @app.http("POST", "/links", key="key")
    async def begin(link: Link, count: Count, ctx: Context) -> None:
        go_on(link, count, ctx)

    return app


async def test_a_nightly_clock_goes_on_for_ever() -> None:
    async with Harness(chain(after_s=DAY_S)) as world:
        await world.send("links", Link("a", 199), id="start")
        await world.advance(days=200)
        assert await world.state(Count, "a") == Count(200) and world.dead_letters("links") == []


async def test_a_chain_is_as_long_as_the_setting_says_and_no_longer() -> None:
    for left, is_cut, count in ((3, False, 4), (4, True, 3)):
        async with Harness(chain(hops_max=3)) as world:
            await deliver(world, "links", Link("a", left), id="start")
            dead_letters = world.dead_letters("links")
            assert [dead_letter.reason for dead_letter in dead_letters] == ["cycle"] * is_cut
            assert await world.state(Count, "a") == Count(count)


async def test_the_dead_letter_of_a_cycle_says_how_long_it_was_the_limit_and_the_cure() -> None:
    async with Harness(chain(hops_max=3)) as world:
        await deliver(world, "links", Link("a", 9), id="start")
        dead_letter = await only(world, "links")
        assert dead_letter.reason == "cycle" and dead_letter.delivery_count == 1  # it is not tried again
        for said in ("has passed 3 handlers", "App(hops_max=3)", "end the cycle", "after_s=1", "raise hops_max"):
            assert said in dead_letter.description


@pytest.mark.parametrize(("after_s", "is_cut"), [(0, True), (0.999, True), (1.0, False)])
@pytest.mark.parametrize("how", ["after_s", "at"])
async def test_a_pause_of_a_second_begins_a_chain_anew_one_of_a_millisecond_less_does_not(
    after_s: float, is_cut: bool, how: Literal["after_s", "at"]
) -> None:
    app = App("pausing", hops_max=2)

    @app.handler("links", key="key")
    def go_on(link: Link, count: Count, ctx: Context) -> None:
        count.n += 1
        if link.left:
            pause: Any = {"after_s": after_s} if how == "after_s" else {"at": ctx.now() + after_s}
            ctx.send("links", Link(link.key, link.left - 1), **pause)

    async with Harness(app) as world:
        await world.send("links", Link("a", 5), id="start")
        await world.advance(seconds=10)
        assert await world.state(Count, "a") == (Count(2) if is_cut else Count(6))
        assert [dead_letter.reason for dead_letter in world.dead_letters("links")] == ["cycle"] * is_cut


async def test_behind_a_pause_a_fast_cycle_is_cut_all_the_same() -> None:
    app = App("mixed", hops_max=2)

    @app.handler("links", key="key")
    def go_on(link: Link, count: Count, ctx: Context) -> None:
        count.n += 1
        ctx.send("links", link, after_s=HOUR_S if count.n == 2 else None)

    async with Harness(app) as world:
        await world.send("links", Link("a"), id="start")
        await world.advance(hours=2)
        assert await world.state(Count, "a") == Count(4)  # two, a pause, two more; the next is cut
        assert (await only(world, "links")).reason == "cycle"
        assert [record.properties.get(PROPERTY_HOPS, 0) for record in world.sent_records("links")] == [1, 0, 1, 2]


async def test_a_resubmission_begins_a_chain_anew() -> None:
    async with Harness(chain(hops_max=3)) as world:
        await deliver(world, "links", Link("a", 9), id="start")
        assert await world.state(Count, "a") == Count(3)
        for expected in (6, 10):
            await resubmit(world, "links", (await only(world, "links")).id)
            assert await world.state(Count, "a") == Count(expected)
            if expected == 6:
                assert (await only(world, "links")).reason == "cycle"
        assert world.dead_letters("links") == []


async def test_a_retry_does_not_begin_a_chain_anew() -> None:
    app, tried = App("retrying", hops_max=2), set[str]()

    @app.handler("links", key="key")
    def go_on(link: Link, count: Count, ctx: Context) -> None:
        count.n += 1
        if link.left == 1 and ctx.message_id not in tried:
            tried.add(ctx.message_id)
            raise Retry("not yet", after_s=60)
        ctx.send("links", Link(link.key, link.left - 1))

    async with Harness(app) as world:
        await world.send("links", Link("a", 2), id="start")
        await world.advance(minutes=5)
        assert len(tried) == 1 and await world.state(Count, "a") == Count(2)
        assert (await only(world, "links")).reason == "cycle"


async def test_a_failure_does_not_begin_a_chain_anew() -> None:
    app, tried = App("failing", hops_max=2), set[str]()

    @app.handler("links", key="key")
    def go_on(link: Link, count: Count, ctx: Context) -> None:
        count.n += 1
        if ctx.message_id not in tried:
            tried.add(ctx.message_id)
            raise ValueError("once")
        ctx.send("links", Link(link.key, link.left - 1))

    async with Harness(app) as world:
        await world.send("links", Link("a", 2), id="start")
        await world.advance(minutes=5)
        assert await world.state(Count, "a") == Count(2) and (await only(world, "links")).reason == "cycle"


async def test_what_a_request_sends_is_a_chain_as_well() -> None:
    async with Harness(chain(hops_max=3)) as world:
        assert (await world.request("POST", "/links", json=Link("a", 3), key="k")).status < 300
        assert (await world.request("POST", "/links", json=Link("b", 4), key="l")).status < 300
        await world.wait_idle()
        assert await world.state(Count, "a") == Count(4) and await world.state(Count, "b") == Count(3)
        assert (await only(world, "links")).reason == "cycle"
    async with Harness(chain(hops_max=1, after_s=1)) as world:
        await world.request("POST", "/links", json=Link("a", 9), key="k")
        await world.advance(minutes=1)
        assert await world.state(Count, "a") == Count(10) and world.dead_letters("links") == []


async def test_a_hop_count_of_a_foreign_sender_cannot_be_below_none() -> None:
    async with Harness(chain(hops_max=3)) as world:
        await deliver_raw(world, "links", b'{"key":"a","left":9}', properties={"outbox-id": "1", PROPERTY_HOPS: -9})
        assert await world.state(Count, "a") == Count(3)


async def test_too_many_outputs_have_words_of_their_own() -> None:
    plant = Plant()

    def flood(task: Any, ctx: Context) -> None:
        for _ in range(10_000):  # one is there already
            ctx.send("out", task)

    plant.act = flood
    async with Harness(plant.app) as world:
        await deliver_raw(world, "q", b'{"key":"a"}', properties={"outbox-id": "1"})
        dead_letter = await only(world)
        assert dead_letter.reason == "failed" and "cycle" not in dead_letter.description
        assert "10,000 outputs" in dead_letter.description and "send fewer" in dead_letter.description
        assert world.sent("out") == []


@pytest.mark.parametrize("hops_max", [0, -1, 1.5, True, "64", None])
def test_a_limit_that_is_none_is_refused(hops_max: Any) -> None:
    with pytest.raises(NotRegistrable, match=r"hops_max=.*give how many handlers a chain may pass"):
        App("a", hops_max=hops_max)
