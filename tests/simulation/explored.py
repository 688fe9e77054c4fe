"""The application that explorations run: money that moves between accounts in two handlings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from outbox import App, Context, Reject
from outbox.runtime.commit.state_cache import NewStates
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.scopes import store_protocol
from outbox.runtime.store_scope import StoreParts
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.search import Report
from outbox.verify.promises.view import View


@dataclass
class Transfer:
    id: str
    source: str
    target: str
    amount: int


@dataclass
class Deposit:
    transfer: str
    account: str
    amount: int


@dataclass
class Account:
    balance: int = 0


def bank() -> App:
    app = App("bank")
    app.queue("refused")

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        if transfer.amount <= 0:
            raise Reject("amount must be positive")
        if account.balance < transfer.amount:
            ctx.send("refused", transfer)
            return
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

    @app.handler("deposits", key=lambda deposit: deposit.account)
    def deposit(deposit: Deposit, account: Account) -> None:
        account.balance += deposit.amount

    return app


def desk() -> App:
    """One handling that emits to a queue which nobody reads: what is proven of a stage holds for a chain of them."""
    app = App("desk")
    app.queue("deposits")

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

    return app


@dataclass
class Question:
    account: str


@dataclass
class Receipt:
    transfer: str
    balance: int


def counter() -> App:
    """The desk over HTTP, with an answer, and a bell that nobody's account has to do with."""
    app = App("counter")
    app.queue("deposits")

    @app.http("POST", "/transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> Receipt:
        if transfer.amount <= 0:
            raise Reject("amount must be positive")
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))
        return Receipt(transfer.id, account.balance)

    @app.http("GET", "/accounts/{account}", key="account")
    def look(question: Question, account: Account, ctx: Context) -> Receipt:
        return Receipt(question.account, account.balance)

    @app.http("POST", "/bell")
    def ring(deposit: Deposit, ctx: Context) -> None:
        ctx.send("deposits", deposit)

    @app.handler("transfers", key="source")
    def correct(transfer: Transfer, account: Account) -> None:
        account.balance += transfer.amount

    return app


def asked(key: str, amount: int, source: str = "alice") -> ClientRequest:
    """A request to the counter."""
    return ClientRequest("POST /transfers", key, Transfer("t", source, "bob", amount))


GIVEN = (("alice", Account(10)), ("bob", Account(10)))
T1 = ("transfers", Transfer("t1", "alice", "bob", 5), "t1")
T2 = ("transfers", Transfer("t2", "alice", "bob", 3), "t2")
REFUSED = ("transfers", Transfer("t3", "alice", "bob", -1), "t3")


def expecting_new(parts: StoreParts) -> PartitionScope:
    """The protocol of a worker that begins by taking every state to be new."""
    made = store_protocol(parts)
    assert isinstance(made, PartitionScope)
    made.states.new_states = NewStates(enough=1, first=1)
    return made


def clean(report: Report) -> Report:
    """A report of a scope that has nothing wrong in it."""
    assert report.exhausted and report.finals and not report.anomalies, report.text
    return report


def conserved(world: View) -> bool:
    """Whether balances and deposits on their way add up to what was there."""
    return sum(a.balance for a in world.states(Account)) + sum(d.amount for d in world.in_flight(Deposit)) == 20


Sends = tuple[tuple[str, Any, str], ...]
