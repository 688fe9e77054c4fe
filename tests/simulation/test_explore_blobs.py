"""Bodies and outputs that lie in blobs, every interleaving of small scopes: none is missing, none is forgotten.

A document of the store is so small here that outputs overflow, or a message so small that bodies become claim checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Context
from outbox.runtime.commit import overflow
from outbox.stored import Record
from outbox.verify import explore
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, T1, T2, Account, Deposit, Receipt, Transfer, conserved
from tests.simulation.shop import one, passes

pytestmark = pytest.mark.slow

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")
STORES = pytest.mark.parametrize("scope", ["partition", "item"])
SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])
ITEM_BYTES_MAX, LETTER_LENGTH = 1_300, 1_200
CLAIM_CHECK_BYTES = 20


@dataclass
class Letter:
    transfer: str
    text: str


def letters() -> App:
    """Whoever transfers gets a letter; by queue with an account or without one, and over HTTP."""
    app = App("letters")
    app.queue("letters")

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance -= transfer.amount
        ctx.send("letters", Letter(transfer.id, LETTER_LENGTH * "x"))

    @app.handler("notices")
    def notify(transfer: Transfer, ctx: Context) -> None:
        ctx.send("letters", Letter(transfer.id, LETTER_LENGTH * "x"))

    @app.http("POST", "/transfers", key="source")
    async def ask(transfer: Transfer, account: Account, ctx: Context) -> Receipt:
        await withdraw(transfer, account, ctx)
        return Receipt(transfer.id, account.balance)

    return app


@pytest.fixture
def spilled(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes sure that something has overflowed in a test."""
    names: list[str] = []

    def seen(record: Record) -> tuple[Record, str, bytes]:
        found = spill_of(record)
        names.append(found[1])
        return found

    spill_of = overflow.spilled
    monkeypatch.setattr(overflow, "spilled", seen)
    yield
    assert names, "nothing was too large for its record"


def explored(scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"app": letters(), "messages": [T1], "given": GIVEN, "workers": 1, "sweepers": 1}
    report = search(Scenario(scope=scope, item_bytes_max=ITEM_BYTES_MAX, **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


@pytest.mark.usefixtures("spilled")
@STORES
@pytest.mark.parametrize("fault", FAULTS)
def test_outputs_that_overflow_leave_once_and_nothing_of_them_stays(scope: str, fault: FaultKind) -> None:
    explored(scope, copies=2, budgets=Budgets.any_of(1, fault))


@pytest.mark.usefixtures("spilled")
@STORES
@pytest.mark.parametrize("faults", [Budgets(crash=1, jump=1), Budgets(stale=1, jump=1)], ids=["crash", "stale"])
def test_what_is_as_old_as_a_blob_may_get_is_looked_at_once_more(scope: str, faults: Budgets) -> None:
    explored(scope, budgets=faults)


@pytest.mark.usefixtures("spilled")
@STORES
@pytest.mark.parametrize("fault", ["crash", "lost", "stale"])
def test_outputs_of_a_stateless_handler_overflow_as_well(scope: str, fault: FaultKind) -> None:
    explored(scope, messages=[("notices", T1[1], "n1")], copies=2, budgets=Budgets.any_of(1, fault))


@pytest.mark.usefixtures("spilled")
@STORES
@pytest.mark.parametrize("fault", ["crash", "lost", "stale"])
def test_outputs_of_a_request_overflow_as_well(scope: str, fault: FaultKind) -> None:
    asked = [ClientRequest("POST /transfers", "k1", T1[1])]
    explored(scope, messages=(), requests=asked, asked_times=2, workers=0, budgets=Budgets.any_of(1, fault))


@pytest.mark.soak
@pytest.mark.usefixtures("spilled")
@pytest.mark.parametrize("fault", ["crash", "stale"])
def test_overflow_lies_with_the_infrastructure(fault: FaultKind) -> None:
    explored("item", apart=True, copies=2, budgets=Budgets.any_of(1, fault))


@pytest.mark.soak
@pytest.mark.usefixtures("spilled")
def test_two_workers_and_their_overflow() -> None:
    explored("partition", messages=[T1, T2], workers=2)
    explored("partition", messages=[T1, T2], batch=2, budgets=Budgets(crash=1))


def claiming() -> App:
    """The bank, whose messages between accounts are too large for its bus."""
    app = App("claiming", claim_check_bytes=CLAIM_CHECK_BYTES)

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

    @app.handler("deposits", key=lambda deposit: deposit.account)
    def deposit(deposit: Deposit, account: Account) -> None:
        account.balance += deposit.amount

    return app


@SCOPES
@pytest.mark.parametrize("fault", FAULTS[:-1])
def test_what_a_claim_check_stands_for_arrives_once(scope: str, fault: FaultKind) -> None:
    options = {"app": claiming(), "invariant": conserved, "sweepers": int(scope == "partition")}
    copies = 1 if scope == "item" else 2
    explored(scope, copies=copies, budgets=Budgets.any_of(1, fault), **options)


@SCOPES
def test_an_application_whose_messages_are_too_large_for_its_bus_is_explored(scope: str) -> None:
    sent = [("transfers", T1[1], "t1"), ("transfers", T2[1], "t2")]
    options: dict[str, Any] = {"given": GIVEN, "scope": scope, "seconds": 30}
    passes(explore(claiming(), sent[: 1 if scope == "item" else 2], invariant=conserved, **options))
    report = explore(claiming(), sent[:1], invariant=lambda world: not world.in_flight(Deposit), **options)
    assert "the invariant is broken" in one(report, "Invariant")
