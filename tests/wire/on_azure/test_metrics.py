"""What the Azure adapters ask for and what waits in Service Bus is published, through the real SDKs on emulators."""

from __future__ import annotations

from asyncio import gather
from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Client, Context, Engine, Worker, azure
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.servicebus import ServiceBusServer
from outbox.engine.entities import Settlement
from outbox.message import Message
from outbox.metrics import METRICS
from outbox.ports import Output
from outbox.runtime.counts import Counts
from outbox.runtime.delivery.settlement import FailedPushes
from outbox.runtime.shell import Recovery

BY_NAME = {metric.name: metric for metric in METRICS}


@dataclass
class Order:
    article: str


@dataclass
class Stock:
    pieces: int = 100


def shop() -> App:
    app = App("shop")
    app.queue("returns", "per_key")

    @app.handler("orders", key="article")
    def take(order: Order, stock: Stock, ctx: Context) -> None:
        stock.pieces -= 1
        ctx.send("reminders", order, after_s=3_600)

    @app.handler("returns", key="article")
    def give_back(order: Order, stock: Stock) -> None:
        stock.pieces += 1

    @app.handler("reminders")
    def remind(order: Order) -> None: ...

    return app


def read(counts: Counts, name: str) -> dict[tuple[str, ...], float]:
    return {tuple(labels.values()): value for labels, value in BY_NAME[name].read(counts)}


async def test_how_long_messages_wait_is_looked_for_with_each_sweep() -> None:
    async with Engine.in_memory() as engine, ServiceBusServer(engine) as servicebus:
        options: dict[str, Any] = {"servicebus": servicebus.connection_string, "create": True}
        async with azure.connect(cosmos="https://nowhere.invalid", database="shop", **options) as backend:
            operations = backend.operations
            await operations._entities.declare({"orders": "unordered", "returns": "per_key", "reminders": ""}, {})
            client = Client(shop(), backend)
            for queue in ("orders", "returns"):  # one without sessions, one with
                await client.send(queue, Order("nails"), id=f"{queue}-1")
            later = Output("reminders", operations.now_ms() + 3_600_000, Message(body=b"{}", outbox_id="r1"))
            await operations.send([later, Output("reminders", 0, Message(body=b"{}", outbox_id="r2"))])
            for claim in engine.broker.claim("reminders", 1):
                engine.broker.settle(claim.token, Settlement.DEFER)
            held, end = await operations.peek("reminders", after=0, count=9, session="", is_wanted=lambda _: True)
            assert {(one.status, one.due_ms) for one in held} == {
                ("scheduled", later.due_ms),
                ("deferred", 0),
            } and end == 0
            counts, protocol = Counts(), Any
            recovery = Recovery(
                *(protocol, (), FailedPushes()),  # type: ignore[arg-type]  # no store is swept
                now_ms=lambda: operations.now_ms() + 90_000,
                counts=counts,
                operations=operations,
                queues=("orders", "returns", "reminders"),
            )
            _, since_ms = await gather(recovery._look(), operations.waiting_since_ms("reminders"))
            await operations.send([Output("reminders", 0, Message(body=b"{}", outbox_id=f"n{n}")) for n in range(20)])
            for claim in engine.broker.claim("reminders", 19):
                engine.broker.settle(claim.token, Settlement.DEFER)
            assert await operations.waiting_since_ms("reminders"), "behind a first page of others"
    waited = read(counts, "outbox.queue.oldest")
    assert 90 <= waited[("orders",)] < 180 and 90 <= waited[("returns",)] < 180
    assert waited[("reminders",)] == 0 and since_ms is None  # what is deferred or not due yet does not wait


async def test_requests_and_what_they_cost_are_published() -> None:
    async with (
        Engine.in_memory() as engine,
        CosmosEmulator(engine, port=0) as cosmos,
        ServiceBusServer(engine) as servicebus,
    ):
        options: dict[str, Any] = {"servicebus": servicebus.connection_string, "create": True}
        async with azure.connect(cosmos=cosmos.connection.connection_string, database="shop", **options) as backend:
            async with Worker(shop(), backend) as worker:
                backend.usage.reset()
                await worker.send("orders", Order("nails"), id="o1")
                await worker.wait_idle(timeout_s=20)
            used = backend.usage
            asked = read(worker.counts, "outbox.requests")
            assert asked == {(kind,): found.count for kind, found in used.by_kind.items()}
            assert asked[("batch",)] == 1 and asked[("send",)] == 2
            units = read(worker.counts, "outbox.request_units")
            assert sum(units.values()) == pytest.approx(used.charge_ru) and units[("batch",)] > 5
            used.note("batch", failed=True, reason="throttled")
            assert read(worker.counts, "outbox.requests.failed")[("batch", "throttled")] == 1
