"""Program 5: `explore` on a user's own application, and what it says of handlers that are wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from function_app import bank as sample
from outbox import App, Context
from outbox.verify import explore
from tests.simulation.explored import Account, Deposit, Transfer, bank

pytestmark = pytest.mark.slow

app = bank()


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
    assert report.states > 5_000


def test_a_broken_invariant_is_reported_with_the_shortest_way() -> None:
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


@dataclass
class Deposited:
    account: str
    total: int


@dataclass
class Seen:
    most: int = 0


counting = App("counting")


@counting.handler("deposits", key="account")
def count(deposit: Deposit, account: Account, ctx: Context) -> None:
    account.balance += deposit.amount
    ctx.send("sums", Deposited(deposit.account, account.balance))


@counting.handler("sums", key="account")
def see(sums: Deposited, seen: Seen) -> None:
    seen.most = max(seen.most, sums.total)


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
def test_what_is_sent_under_one_identity_may_depend_on_the_order(scope: str) -> None:
    def the_newest_sum_is_known(world: Any) -> bool:
        account, seen = world.state(Account, "ann"), world.state(Seen, "ann")
        known = [sums.total for sums in world.in_flight(Deposited)] + [seen.most if seen else 0]
        return bool(max(known) == (account.balance if account else 0))

    sent = [("deposits", Deposit("", "ann", amount), f"d{amount}") for amount in (1, 2)]
    report = explore(counting, sent, scope=scope, workers=1, invariant=the_newest_sum_is_known)
    assert report.exhausted, report.text


def test_the_sample_bank_keeps_its_money_while_an_account_is_closed() -> None:
    def kept(world: Any) -> bool:
        on_its_way = [*world.in_flight(sample.Deposit), *world.in_flight(sample.Refund)]
        held = sum(account.balance for account in world.states(sample.Account))
        return bool(held + sum(each.amount for each in on_its_way) == 20)

    sent = [
        ("transfers", sample.Transfer("t1", "alice", "bob", 5), "t1"),
        ("accounts", sample.CloseAccount("bob"), "c1"),
    ]
    given = [("alice", sample.Account(10, True)), ("bob", sample.Account(10, True))]
    report = explore(sample.app, sent, given=given, invariant=kept, allow={"order"})
    assert report.exhausted, report.text
