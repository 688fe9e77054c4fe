"""States of a type that are new every time: after some they are not looked for, and one that is there is found."""

from __future__ import annotations

import sys
from collections import Counter as Tally
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from outbox import App, Context, Retries, Worker
from outbox.guards import Breaker, Rate
from outbox.runtime.commit.state_cache import NEW_COUNT_ENOUGH, NewStates
from tests.unit.messages import deliver
from tests.unit.stores.store_site import Add, Site, Sum, adding, site

ENOUGH = NEW_COUNT_ENOUGH


@asynccontextmanager
async def used_to_new(at: Site, app: App) -> AsyncIterator[Worker]:
    """A worker that has had as many new keys in a row as it takes; what it has asked of the store is forgotten."""
    async with Worker(app, at) as worker:
        await each(worker, *(f"new-{number}" for number in range(ENOUGH)))
        at.store.calls.clear()
        yield worker


async def each(worker: Worker, *keys: str, text: str = "") -> None:
    """Send a message for each key, and have it handled before the next is sent."""
    for key in keys:
        await deliver(worker, "adds", Add(key, text=text), id=f"{key}-{worker.handled_count}")


async def made(at: Site, *keys: str) -> None:
    """States that are there, made by another worker."""
    async with Worker(adding(), at) as worker:
        await each(worker, *keys)


def needing(runs: list[int]) -> App:
    """An application whose handler fails, and is tried again much later, where it needs a state and there is none."""
    app = App("needing", retry=Retries(limit=2, delays_s=(3_600,)))

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        runs.append(total.n)
        if message.text == "needs" and not total.n:
            raise ValueError("there is nothing to add to")
        total.n += message.n

    return app


async def test_a_state_is_not_looked_for_where_all_have_been_new(at: Site) -> None:
    async with used_to_new(at, adding()) as worker:
        await each(worker, "a", "b", "c")
        assert (at.store.calls["commit"], at.store.calls["read"]) == (3, 0)
        assert [await worker.state(Sum, key) for key in ("a", "b", "c")] == [Sum(1), Sum(1), Sum(1)]


async def test_a_state_that_is_there_after_all_is_read_and_then_those_of_its_type_are(at: Site) -> None:
    await made(at, "old")
    async with used_to_new(at, adding()) as worker:
        await each(worker, "old")
        assert await worker.state(Sum, "old") == Sum(2)
        assert at.store.calls["commit"] == 2, "the first of them lost to the state"
        at.store.calls.clear()
        await each(worker, "a", "b")
        assert (at.store.calls["commit"], at.store.calls["read"]) == (2, 2)


async def test_a_handler_that_fails_on_a_state_that_was_not_read_has_not_failed(at: Site) -> None:
    runs: list[int] = []
    await made(at, "old")
    async with used_to_new(at, needing(runs)) as worker:
        runs.clear()
        await each(worker, "old", text="needs")
        assert runs == [0, 1] and await worker.state(Sum, "old") == Sum(2)
        assert await at.ports().operations.dead_letters("adds") == []


async def test_what_a_handler_raises_on_what_was_read_stands_alone(at: Site) -> None:
    app, before = App("raising"), list[BaseException | None]()

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum, ctx: Context) -> None:
        if message.text == "needs" and not total.n:
            before.append(sys.exception())
            raise ValueError("there is nothing to add to")

    async with used_to_new(at, app) as worker:
        await each(worker, "fresh", text="needs")
        assert before == [None, None]


@pytest.mark.parametrize(
    "options", [{"breaker": Breaker("b")}, {"rate": Rate(1e6, burst=100)}, {"blocking": True}], ids=str
)
async def test_a_handler_that_must_not_run_twice_has_its_state_read(at: Site, options: dict[str, Any]) -> None:
    app = App("guarded")

    @app.handler("adds", key="key", **options)
    def add(message: Add, total: Sum) -> None:
        total.n += message.n

    async with used_to_new(at, app) as worker:
        await each(worker, "a")
        assert at.store.calls["read"] == 1


async def test_a_message_that_has_failed_has_its_state_read(at: Site) -> None:
    """Whatever its handler does then counts."""
    app, runs = App("failing", retry=Retries(limit=9, delays_s=(0.05,))), Tally[str]()

    @app.handler("adds", key="key")
    def add(message: Add, total: Sum) -> None:
        runs[message.key] += 1
        if message.text:
            raise ValueError("not yet")
        total.n += message.n

    async with used_to_new(at, app) as worker:
        await each(worker, "late", text="fails")
        assert runs["late"] == 2, "once on a state that was not read"
        await each(worker, *(f"more-{number}" for number in range(ENOUGH)))
        at.clock.seconds += 1
        at.engine.tick()
        await worker.wait_idle()
        assert runs["late"] == 3


async def test_after_a_handler_that_had_to_know_states_are_read_again(at: Site) -> None:
    async with used_to_new(at, needing([])) as worker:
        await each(worker, "fresh", text="needs")
        assert await worker.state(Sum, "fresh") is None
        at.store.calls.clear()
        await each(worker, "a")
        assert at.store.calls["read"] == 1


async def test_no_call_is_made_on_a_state_that_was_not_read(at: Site) -> None:
    app, seen = App("calling"), list[int]()

    @app.handler("adds", key="key")
    async def add(message: Add, total: Sum, ctx: Context) -> None:
        if message.text == "call":
            await ctx.call(lambda: seen.append(total.n))
        total.n += message.n

    await made(at, "old")
    async with used_to_new(at, app) as worker:
        await each(worker, "old", text="call")
        assert seen == [1] and await worker.state(Sum, "old") == Sum(2)


async def test_a_message_that_may_be_on_record_has_its_state_read(at: Site) -> None:
    """It was handed out before, so its state is there, or its handler has failed."""
    async with used_to_new(at, adding()) as worker:
        at.store.lost = "commit"
        await each(worker, "a")
        assert await worker.state(Sum, "a") == Sum(1)
        assert at.store.calls["commit"] == 1, "its own record is found"


@pytest.mark.parametrize("scope", ["item"])
async def test_item_scope_looks_for_every_state(scope: str) -> None:
    async with site(scope) as at, used_to_new(at, adding()) as worker:
        await each(worker, "a")
        assert at.store.calls["read"] >= 1


def test_types_are_told_apart_and_one_that_was_not_new_begins_anew() -> None:
    states = NewStates(enough=2)
    for key in ("Order:1", "Order:2", "Account:a"):
        states.note(key, is_new=True)
    assert [states.expects(key) for key in ("Order:3", "Account:b", "Other:c")] == [True, False, False]
    assert states.content() == ("Order",)
    for _ in range(5):
        states.note("Order:4", is_new=True)
    states.note("Order:5", is_new=False)
    states.note("Order:6", is_new=True)
    assert not states.expects("Order:7")
    states.note("Order:7", is_new=True)
    assert states.expects("Order:8")
