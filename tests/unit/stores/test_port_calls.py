"""The store protocols by what they ask of a store and a bus: how many requests, what lies where, who finishes what."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Literal

import pytest

from outbox import App, Engine, Retries, Worker, stored
from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.message import Scalar
from outbox.ports import Backend, Create, DocumentKey, StoreCapabilities
from outbox.runtime.commit.state_cache import CachedState, StateCache
from outbox.stored import Record, StateItem, state_key
from outbox.testing import START_S, VirtualClock
from tests.unit.messages import deliver, deliver_raw
from tests.unit.stores.store_site import Add, Site, Sum, adding, found, handled, site, slow_first_blob

Scope = Literal["engine", "partition", "item"]


async def test_a_cold_message_costs_a_read_and_a_batch_and_a_mark(at: Site) -> None:
    await handled(at, adding(), Add("a"))
    at.store.calls.pop("note")
    assert at.store.calls == {"read": 3, "commit": 1, "mark": 1}  # two reads are the registry's


async def test_messages_of_one_key_that_come_together_share_a_commit_and_a_mark(at: Site) -> None:
    worker = await handled(at, adding(), *[Add("a", n) for n in range(40)])
    assert await worker.state(Sum, "a") == Sum(sum(range(40)))
    assert at.store.calls["commit"] == 1 and at.store.calls["mark"] == 1
    assert at.engine.broker.queue("told").counts()["active"] == 40


async def test_a_warm_key_is_not_read_again(at: Site) -> None:
    worker = Worker(adding(), at)
    async with worker:
        for number in range(5):
            await deliver(worker, "adds", Add("a"), id=f"m{number}")
    assert at.store.calls["read"] == 3 and at.store.calls["commit"] == 5


async def test_more_messages_than_a_batch_holds_are_several_batches(at: Site) -> None:
    at.store.capabilities = StoreCapabilities("partition", 5, 2 << 20, True, True)
    worker = await handled(at, adding(), *[Add("a") for _ in range(13)])
    assert await worker.state(Sum, "a") == Sum(13)
    assert at.store.calls["commit"] == 4  # four records and the state in each


async def test_a_message_that_comes_twice_in_one_batch_acts_once(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", 5), Add("a", 2), again=True)
        assert await worker.state(Sum, "a") == Sum(7)
        assert at.engine.broker.queue("told").counts()["active"] == 2


@pytest.mark.parametrize(("scope", "is_kept"), [("partition", False), ("item", True)])
async def test_a_deleted_state_leaves_a_tombstone_that_partition_scope_lets_expire(scope: str, is_kept: bool) -> None:
    async with site(scope) as at:
        app = adding(retention=timedelta(hours=1), margin=timedelta(hours=1))
        worker = await handled(at, app, Add("a", text="delete"))
        assert await worker.state(Sum, "a") is None
        assert stored.decode(await found(at, state_key("Sum:a")), StateItem).is_tombstone
        at.clock.seconds += 3 * 3_600
        at.engine.tick()
        assert (await at.document("Sum:a", "state") is not None) == is_kept


async def test_a_foreign_document_delays_its_messages_and_stops_no_other(scope: str) -> None:
    async with site(scope) as at:
        await EngineStore(at.engine.core, at.engine.documents).write(
            [Create(state_key("Sum:a"), b'{"version": "none"}')]
        )
        worker = await handled(at, adding(), Add("a"), Add("b"))
        assert await worker.state(Sum, "b") == Sum(1)
        counts = at.engine.broker.queue("adds").counts()
        assert counts["active"] + counts["scheduled"] == 1 and await worker.dead_letters("adds") == []


async def test_a_marked_record_has_lost_its_outputs_and_keeps_its_verdict(at: Site) -> None:
    await handled(at, adding(), Add("a"))
    (id,) = [id for id in await at.documents("Sum:a") if id.startswith("inbox:")]
    record = stored.decode(await found(at, DocumentKey("Sum:a", id)), Record)
    assert not record.pending and record.outputs == () and record.fingerprint and record.reason == ""


async def test_two_workers_at_once_add_up(scope: str = "partition") -> None:
    async with site(scope) as at:
        app = adding(retry=Retries(limit=3))
        async with Worker(app, at, concurrency=3) as one, Worker(app, at, concurrency=3) as two:
            for number in range(60):
                await one.send("adds", Add(f"k{number % 3}"), id=f"m{number}")
                await two.send("adds", Add(f"k{number % 3}"), id=f"m{number}")
            await one.wait_idle()
            await two.wait_idle()
            assert [await one.state(Sum, f"k{n}") for n in range(3)] == [Sum(20), Sum(20), Sum(20)]
        assert len({task.message.identity for task in at.engine.broker.queue("told").tasks.values()}) == 60


async def test_another_payload_does_not_pass_as_a_resubmission(scope: str) -> None:
    async with site(scope) as at:
        worker = await handled(at, adding(), Add("a", text="reject"))
        properties: dict[str, Scalar] = {"outbox-id": "m0", "outbox-type": "Add", "outbox-attempt": 1}
        async with worker:
            pass
        async with Worker(adding(), at) as again:
            await deliver_raw(again, "adds", b'{"key":"a","n":7,"text":""}', properties=properties)
            assert await again.state(Sum, "a") is None
            assert {dead_letter.reason for dead_letter in await again.dead_letters("adds")} == {"no", "payload-differs"}


async def test_an_attempt_past_its_deadline_writes_nothing_and_another_is_made(scope: str) -> None:
    async with site(scope) as at:
        app, runs = App("slow"), list[int]()

        @app.handler("adds", key="key")
        def add(message: Add, total: Sum) -> None:
            runs.append(len(at.store.calls))
            if len(runs) == 1:
                at.clock.seconds += 3_000  # over half of the margin
            total.n += 1

        async with Worker(app, at) as worker:
            await deliver(worker, "adds", Add("a"), id="m1")
            assert await worker.state(Sum, "a") == Sum(1) and len(runs) == 2
        assert at.store.calls["commit"] + at.store.calls["swap"] == 1


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
async def test_a_handler_that_waits_past_its_deadline_writes_nothing_and_runs_again(scope: Scope) -> None:
    app, clock, runs = App("slow"), VirtualClock(START_S), list[str]()

    @app.handler("adds", key="key")
    async def add(message: Add, total: Sum) -> None:
        runs.append(message.key)
        await asyncio.sleep(0)
        if len(runs) == 1:
            clock.seconds += 3_000  # over half of the margin; the loop's own time does not leap
        await asyncio.sleep(0)
        total.n = len(runs)

    async with Engine.in_memory(clock=clock) as engine, Worker(app, backend_of(engine, scope)) as worker:
        await worker.send("adds", Add("a"), id="m1")
        async with asyncio.timeout(10):
            while (found := await worker.state(Sum, "a")) is None:
                clock.seconds += 1
                engine.tick()
                await asyncio.sleep(0.01)
        assert found == Sum(2) and await worker.dead_letters("adds") == []


def backend_of(engine: Engine, scope: Scope) -> Backend:
    """An engine as a backend of this scope."""
    return engine if scope == "engine" else NarrowEngine(engine, scope)


async def test_an_attempt_whose_blob_takes_past_its_deadline_writes_nothing(scope: str) -> None:
    async with site(scope) as at:
        written = slow_first_blob(at)
        await handled(at, adding(), Add("a", text="shout"))
        assert len(set(written)) == 2, "another attempt was made, as a transaction of its own"
        assert at.store.calls["commit"] + at.store.calls["swap"] == 1
        assert len(at.engine.broker.queue("told").tasks) == 20


def test_a_cache_takes_nothing_older_than_it_has() -> None:
    cache = StateCache(count_max=2)
    newer, older = CachedState(StateItem(version=3), "c"), CachedState(StateItem(version=2), "b")
    cache.remember("a", newer)
    cache.remember("a", older)
    assert cache.find("a") == newer
    cache.remember("x", older)
    cache.remember("y", older)
    assert cache.find("a") is None and cache.find("y") == older
