"""What a worker holds over a store and a bus: `concurrency` at work, and some that wait behind others of their key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from outbox import App, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.state.tasks import LOCKED
from outbox.runtime.store_scope import StoreScope
from tests.unit.messages import Seen
from tests.unit.waiting import until


@dataclass
class Order:
    key: str
    n: int = 0


class Site:
    """A worker whose handlers of key `slow` wait until they are let go."""

    def __init__(self, engine: Engine, worker: Worker) -> None:
        self.engine = engine
        self.worker = worker

    @property
    def held_count(self) -> int:
        return sum(task.status == LOCKED for task in self.engine.broker.queue("orders").tasks.values())

    @property
    def waiting_count(self) -> int:
        scope = self.worker._scope
        assert isinstance(scope, StoreScope)
        return scope.waiting["orders"]


@asynccontextmanager
async def site(concurrency: int, handled: list[Order], go: asyncio.Event) -> AsyncIterator[Site]:
    app, busy, busiest = App("orders"), 0, 0

    @app.handler("orders", key="key")
    async def take(order: Order, seen: Seen) -> None:
        nonlocal busy, busiest
        busy += 1
        busiest = max(busy, busiest)
        if order.key == "slow":
            await go.wait()
        seen.count += 1
        handled.append(order)
        busy -= 1

    async with Engine.in_memory() as engine:
        worker = Worker(app, NarrowEngine(engine, "partition"), concurrency=concurrency)
        async with worker:
            yield Site(engine, worker)
            go.set()
            await worker.wait_idle(timeout_s=10)
    assert 0 < busiest <= concurrency


async def test_a_slow_key_does_not_keep_others_from_their_turn() -> None:
    handled, go = list[Order](), asyncio.Event()
    async with site(2, handled, go) as at:
        await at.worker.send("orders", Order("slow"))
        await until(lambda: at.held_count == 1)
        for n in (1, 2):
            await at.worker.send("orders", Order("slow", n))
        await until(lambda: at.waiting_count == 2)
        await at.worker.send("orders", Order("quick"))
        await until(lambda: handled == [Order("quick")])
    assert handled == [Order("quick"), *(Order("slow", n) for n in range(3))]


async def test_no_more_wait_than_may_be_at_work() -> None:
    handled, go = list[Order](), asyncio.Event()
    async with site(3, handled, go) as at:
        await at.worker.send("orders", Order("slow"))
        await until(lambda: at.held_count == 1)
        for n in range(1, 20):
            await at.worker.send("orders", Order("slow", n))
        await until(lambda: at.held_count == 6)
        await asyncio.sleep(0.1)
        assert (at.held_count, at.waiting_count) == (6, 5)
    assert [order.n for order in handled] == list(range(20))
    assert at.waiting_count == 0


async def test_one_at_a_time_means_that_nothing_waits() -> None:
    handled, go = list[Order](), asyncio.Event()
    async with site(1, handled, go) as at:
        for n in range(5):
            await at.worker.send("orders", Order("slow", n))
        await until(lambda: at.held_count == 1)
        await asyncio.sleep(0.1)
        assert (at.held_count, at.waiting_count) == (1, 0)
    assert len(handled) == 5
