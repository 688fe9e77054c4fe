"""The application of tests in which a handler does something wrong: orders of a customer, handled as told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outbox import App, Context
from outbox.verify import Report, explore

SCOPES = ("engine", "partition", "item")


@dataclass
class Order:
    id: str
    customer: str
    price: int


@dataclass
class Customer:
    spent: int = 0
    orders: list[str] = field(default_factory=list)
    note: str = ""


@dataclass
class Prices:
    by_order: dict[str, int] = field(default_factory=dict)
    kinds: set[int] = field(default_factory=set)


O1 = ("orders", Order("o1", "ann", 5), "o1")
O2 = ("orders", Order("o2", "ann", 7), "o2")
Body = Callable[[Order, Customer, Context], Any]


def shop(body: Body, ordering: Any = "unordered") -> App:
    app = App("shop")
    app.queue("parcels")
    app.queue("orders", ordering)

    @app.handler("orders", key="customer")
    async def take(order: Order, customer: Customer, ctx: Context) -> None:
        done = body(order, customer, ctx)
        if done is not None:
            await done

    return app


def explored(body: Body, *messages: Any, ordering: Any = "unordered", **options: Any) -> Report:
    return explore(shop(body, ordering), list(messages) or [O1], **({"workers": 1} | options))


def one(report: Report, promise: str) -> str:
    """The words of the only finding."""
    assert not report.exhausted
    assert [found.promise for found in report.anomalies] == [promise], report.text
    return " ".join(report.text.split())


def passes(report: Report) -> None:
    assert report.exhausted and not report.anomalies, report.text
