"""What a handler made of one state says nothing of another, and what it made of its own effect says nothing at all."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from outbox import App, Context, Reject, Retry, Worker
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Site, site
from tests.unit.waiting import until

HALF = 1_100_000


@dataclass
class Write:
    key: str
    size: int


@dataclass
class Clear:
    key: str


@dataclass
class Page:
    text: str = ""


def writing(gate: asyncio.Event, seen: list[int]) -> App:
    app = App("pages")

    @app.handler("writes", key="key")
    async def write(message: Write, page: Page) -> None:
        seen.append(len(page.text))
        if len(seen) == 2:
            await gate.wait()
        page.text += "x" * message.size

    return app


def clearing() -> App:
    app = App("pages")

    @app.handler("clears", key="key")
    def clear(message: Clear, page: Page) -> None:
        page.text = ""

    return app


async def test_what_was_too_large_over_one_state_is_run_again_over_another(scope: str) -> None:
    gate, seen = asyncio.Event(), list[int]()
    async with site(scope) as at, Worker(writing(gate, seen), at) as writer, Worker(clearing(), at) as clearer:
        await deliver(writer, "writes", Write("a", HALF), id="1")
        await writer.send("writes", Write("a", HALF), id="2")
        await until(lambda: len(seen) == 2)
        await clearer.send("clears", Clear("a"), id="c")
        await until(lambda: at.engine.broker.is_idle(["clears"]))
        gate.set()
        await writer.wait_idle()
        assert (seen, await writer.dead_letters("writes")) == ([0, HALF, 0], [])


def blobs_of(at: Site) -> list[str]:
    return [name for name in getattr(at.engine.blobs, "_blobs", {}) if name.startswith("overflow/")]


@dataclass
class Ship:
    order: str
    n: int
    pads: int = 0


@dataclass
class Shipped:
    text: str


@dataclass
class Order:
    shipped: list[int] = field(default_factory=list)


def shipping(runs: list[int], ordering: str = "unordered") -> App:
    app = App("shop")
    app.queue("out")
    app.queue("ships", "per_key" if ordering == "per_key" else "unordered")

    @app.handler("ships", key="order")
    def ship(message: Ship, order: Order, ctx: Context) -> None:
        runs.append(message.n)
        if message.n in order.shipped:
            raise Retry("is being shipped already", after_s=5)
        order.shipped.append(message.n)
        for _ in range(1 + message.pads):
            ctx.send("out", Shipped("y" * (160_000 if message.pads else 1)))

    return app


async def pushed_late(at: Site, app: App, message: Ship, *, workers: int) -> None:
    """Handle a message while its outputs cannot be sent; each worker is the only one for a while."""
    at.bus.is_mute = True
    async with Worker(app, at, drain_s=0.1) as worker:
        await worker.send("ships", message, id="s1")
    for _ in range(workers):
        async with Worker(app, at, drain_s=0.1):
            await asyncio.sleep(0.3)
    at.bus.is_mute = False
    async with Worker(app, at) as worker:
        await worker.wait_idle()


@pytest.mark.parametrize("ordering", ["unordered", "per_key"])
async def test_a_handler_that_waits_for_its_own_effect_is_done(scope: str, ordering: str) -> None:
    runs: list[int] = []
    async with site(scope) as at:
        await pushed_late(at, shipping(runs, ordering), Ship("a", 1), workers=2)
        assert at.engine.broker.queue("out").counts()["active"] == 1
        assert not at.engine.broker.queue("ships").tasks


async def test_a_worker_that_cannot_push_runs_no_message_again_and_writes_no_other_blob(scope: str) -> None:
    runs: list[int] = []
    async with site(scope) as at:
        at.bus.is_mute = True
        async with Worker(shipping(runs), at) as worker:
            await worker.send("ships", Ship("a", 1, pads=14), id="s1")
            await asyncio.sleep(2.0)
            assert (runs, len(blobs_of(at))) == ([1], 1)
            at.bus.is_mute = False
            await worker.wait_idle()
        assert at.engine.broker.queue("out").counts()["active"] == 15


@dataclass
class Item:
    key: str
    n: int


@dataclass
class Strict:
    ns: list[int] = field(default_factory=list)


@dataclass
class Lax:
    ns: list[int] = field(default_factory=list)


def both(first: str) -> App:
    app = App("both")
    app.queue("items", "per_key")

    def strict() -> None:
        @app.handler("items", key="key", on_dead_letter="stop_key")
        def keep(item: Item, state: Strict) -> None:
            state.ns.append(item.n)

    def lax() -> None:
        @app.handler("items", key="key")
        def refuse(item: Item, state: Lax) -> None:
            if item.n == 1:
                raise Reject("no")
            state.ns.append(item.n)

    for declare in (strict, lax) if first == "strict" else (lax, strict):
        declare()
    return app


@pytest.mark.parametrize("first", ["strict", "lax"])
async def test_a_key_stops_behind_a_message_that_any_of_its_handlers_stops_for(scope: str, first: str) -> None:
    async with site(scope) as at, Worker(both(first), at) as worker:
        for n in range(4):
            await worker.send("items", Item("a", n), id=f"i{n}")
        await until(lambda: len(at.engine.broker.queue("items/$DeadLetterQueue").tasks) == 1)
        for _ in range(20):
            at.clock.seconds += 5
            at.engine.tick()
            await asyncio.sleep(0.01)
        assert (await worker.state(Strict, "a"), await worker.state(Lax, "a")) == (Strict([0, 1]), Lax([0]))
        await worker.resubmit("items", "i1")
        for _ in range(20):
            at.clock.seconds += 5
            at.engine.tick()
            await asyncio.sleep(0.01)
        assert [dead_letter.id for dead_letter in await worker.dead_letters("items")] == ["i1"]
        # One handler has applied it and the other refuses it again, whichever is asked last: the key stays blocked.
        assert (await worker.state(Strict, "a"), await worker.state(Lax, "a")) == (Strict([0, 1]), Lax([0]))
