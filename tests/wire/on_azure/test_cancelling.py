"""Cancelling what was scheduled, over the wire of both services: one timeout runs, the cancelled one never does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Context, Worker
from tests.wire.on_azure.ground import place, settled

DUE_S = 2.0


@dataclass
class Order:
    id: str
    is_paid: bool = False


@dataclass
class Timeout:
    order: str


@dataclass
class Basket:
    ticket: str = ""


@dataclass
class Watch:
    fired: int = 0


def orders_app() -> App:
    app = App("orders")

    @app.handler("orders", key="id")
    def take(order: Order, basket: Basket, ctx: Context) -> None:
        if order.is_paid:
            ctx.cancel(basket.ticket)
        else:
            basket.ticket = ctx.schedule("timeouts", Timeout(order.id), after_s=DUE_S)

    @app.handler("timeouts", key="order")
    def time_out(timeout: Timeout, watch: Watch) -> None:
        watch.fired += 1

    return app


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_what_is_cancelled_never_runs_and_what_is_not_runs_once(scope: Any) -> None:
    async with place() as world, world.connect(scope=scope) as backend, Worker(orders_app(), backend) as worker:
        for order in (Order("paid"), Order("late"), Order("paid", is_paid=True)):
            await worker.send("orders", order, id=f"{order.id}-{order.is_paid}")
            await worker.wait_idle(timeout_s=20)
        await settled(world, "orders", "timeouts", timeout_s=20.0)
        paid, late = await worker.state(Watch, "paid"), await worker.state(Watch, "late")
        assert (paid.fired if paid else 0, late.fired if late else 0) == (0, 1)
        assert await worker.dead_letters("timeouts") == []
