"""Program 5: `explore` on a user's own application, and what it says of handlers that are wrong."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from outbox import App, Context, Reject
from outbox.verify import explore

app = App("bank")
app.queue("refused")


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


# fmt: off
def test_every_interleaving() -> None:
    report = explore(app, [("transfers", Transfer("t1", "alice", "bob", 5), "t1"), ("transfers", Transfer("t2", "bob", "alice", 3), "t2")],  # noqa: E501  # as users write it
                     given=[("alice", Account(10)), ("bob", Account(10))], workers=2, duplicates=1, crashes=1,
                     invariant=lambda world: sum(a.balance for a in world.states(Account)) + sum(d.amount for d in world.in_flight(Deposit)) == 20)  # noqa: E501  # as users write it
    assert report.exhausted and not report.anomalies, report.text
# fmt: on


SENT = [("transfers", Transfer("t1", "alice", "bob", 5), "t1")]
GIVEN = [("alice", Account(10)), ("bob", Account(10))]


@pytest.mark.parametrize(("scope", "workers"), [("partition", 2), ("item", 1)])
def test_every_interleaving_of_the_other_protocols(scope: str, workers: int) -> None:
    both = [*SENT, ("transfers", Transfer("t2", "bob", "alice", 3), "t2")]
    report = explore(app, both, given=GIVEN, workers=workers, duplicates=1, crashes=1, scope=scope)
    assert report.exhausted and not report.anomalies, report.text
    assert report.states > 10_000


def test_a_broken_invariant_is_told_with_the_shortest_way() -> None:
    report = explore(
        app, SENT, given=GIVEN, invariant=lambda world: sum(a.balance for a in world.states(Account)) == 20
    )
    assert not report.exhausted
    (found,) = report.anomalies
    assert (found.promise, found.steps) == ("Invariant", 3), report.text
    assert "the invariant is broken" in report.text and 'Account:alice {"balance":5}' in report.text
    assert "world.in_flight" in found.cure


def test_the_invariant_is_checked_before_anything_has_happened() -> None:
    report = explore(app, SENT, given=GIVEN, invariant=lambda world: world.state(Account, "alice") != Account(10))
    assert [(found.promise, found.steps) for found in report.anomalies] == [("Invariant", 0)]
