"""The application of the playground: that of the README."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.app import App
from outbox.context import Context

ARTICLE = "nails"
STOCK_AT_FIRST = 100


@dataclass
class Order:
    """An order of some pieces of an article."""

    article: str
    pieces: int


@dataclass
class Stock:
    """The state of one article."""

    pieces: int = STOCK_AT_FIRST


def shop() -> App:
    """The shop, as an application of its own for each world."""
    app = App("shop")
    app.queue("parcels")  # sent to from here, read by another application

    @app.handler("orders", key="article")
    def take(order: Order, stock: Stock, ctx: Context) -> None:
        stock.pieces -= order.pieces
        ctx.send("parcels", order)

    return app
