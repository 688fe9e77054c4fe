"""A purse that is paid into and out of over HTTP, for tests of entries."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from outbox import App, Context, Reject
from outbox.http import Response


@dataclass
class Pay:
    purse: str
    amount: int
    note: str = ""


@dataclass
class Ask:
    purse: str
    amount: int = 0


@dataclass
class Purse:
    balance: int = 0
    count: int = 0


@dataclass
class Total:
    n: int = 0


@dataclass
class Receipt:
    purse: str
    balance: int
    number: str = ""


@dataclass
class Paid:
    purse: str
    amount: int


def _opened() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass
class Book:
    """What handlers did that no commit takes back."""

    runs: list[str] = field(default_factory=list)
    failing: int = 0
    gate: asyncio.Event = field(default_factory=_opened)

    async def let_go(self) -> None:
        """Open the gate once what was asked for has come to it."""
        await asyncio.sleep(0.01)
        self.gate.set()


def paying(book: Book | None = None, **options: Any) -> App:
    """The application; `book` counts its runs, and may let some fail or wait."""
    app, seen = App("purse", **options.pop("app", {})), book or Book()
    app.queue("paid")

    @app.http("POST", "/payments", key="purse", **options)
    async def pay(message: Pay, purse: Purse, ctx: Context) -> Receipt:
        seen.runs.append(message.purse)
        await seen.gate.wait()
        if seen.failing:
            seen.failing -= 1
            raise OSError("the drawer is stuck, api_key=hunter2")
        if purse.balance + message.amount < 0:
            raise Reject("not enough in it")
        purse.balance += message.amount
        purse.count += 1
        ctx.send("paid", Paid(message.purse, message.amount))
        return Receipt(message.purse, purse.balance, str(ctx.uuid()))

    @app.http("GET", "/purses/{purse}", key="purse")
    def look(ask: Ask, purse: Purse) -> Receipt | None:
        return Receipt(ask.purse, purse.balance) if purse.count else None

    @app.http("PUT", "/purses/{purse}/notes/{amount}", key="purse")
    def note(message: Pay, purse: Purse) -> Response:
        purse.count += message.amount
        return Response(201, {"Location": f"/purses/{message.purse}"}, {"note": message.note})

    @app.http("POST", "/echoes")
    def echo(message: Ask) -> Ask:
        seen.runs.append("echo")
        return message

    return app
