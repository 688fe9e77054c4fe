"""Orders and payments that a handler counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outbox import App, Context
from tests.unit.messages import Count


@dataclass
class Order:
    id: str
    amount: int = 1


@dataclass
class Payment:
    id: str
    amount: int = 1


@dataclass
class Saga:
    seen: list[str] = field(default_factory=list)


def counting(**queue: Any) -> App:
    """One queue whose handler counts by key and echoes to `out`."""
    app = App("counting")
    app.queue("out")
    app.queue("q", **queue)

    @app.handler("q", key="id")
    def count(order: Order, count: Count, ctx: Context) -> None:
        count.n += order.amount
        ctx.send("out", order)

    return app
