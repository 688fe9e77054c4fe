"""An application that writes down what reaches it: orders of accounts, each of which makes an entry of a book."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from outbox import App, Context, Reject, Retries


@dataclass
class Order:
    account: str
    amount: int


@dataclass
class Entry:
    book: str
    text: str


@dataclass
class Account:
    total: int = 0
    count: int = 0


@dataclass
class Book:
    entries: list[str] = field(default_factory=list)


def ledger_app(ordering: Any = "unordered") -> App:
    app = App("ledger", retry=Retries(limit=3, delays_s=(0.05,)))
    app.queue("orders", ordering)
    app.queue("entries")

    @app.handler("orders", key="account")
    async def book(order: Order, account: Account, ctx: Context) -> None:
        if order.amount < 0:
            raise Reject("a negative amount")
        account.total += order.amount
        account.count += 1
        ctx.send("entries", Entry(f"book-{order.amount % 4}", f"{order.account} {order.amount} {account.total}"))

    @app.handler("entries", key="book")
    async def enter(entry: Entry, book: Book, ctx: Context) -> None:
        book.entries.append(f"{ctx.message_id} {entry.text}")

    return app


async def books(reader: Any) -> list[str]:
    """Everything that was written down."""
    found = [await reader.state(Book, f"book-{n}") for n in range(4)]
    return [entry for book in found if book is not None for entry in book.entries]
