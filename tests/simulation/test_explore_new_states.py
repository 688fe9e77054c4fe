"""Workers that take a state to be new and do not read it, every interleaving: right or wrong, nothing breaks."""

from __future__ import annotations

from typing import Any

import pytest

from outbox import App, Context, Retries
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import (
    GIVEN,
    REFUSED,
    T1,
    T2,
    Account,
    Deposit,
    Transfer,
    asked,
    bank,
    clean,
    conserved,
    counter,
    desk,
    expecting_new,
)
from tests.simulation.mutant_apps import scenario

pytestmark = pytest.mark.slow

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")


def needing() -> App:
    """A desk that fails, and does not try again, where there is nothing to take from."""
    app = App("desk", retry=Retries(limit=1))
    app.queue("deposits")

    @app.handler("transfers", key="source")
    async def withdraw(transfer: Transfer, account: Account, ctx: Context) -> None:
        if account.balance < transfer.amount:
            raise ValueError("there is not enough")
        account.balance -= transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, transfer.amount))

    return app


def explored(**options: Any) -> Report:
    known: dict[str, Any] = {"app": desk(), "given": GIVEN, "messages": [T1, T2], "scope": "partition"}
    return search(Scenario(**(known | {"make": expecting_new, "invariant": conserved} | options)))


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_there", [True, False])
def test_two_workers_and_a_duplicate_under_any_single_fault(fault: FaultKind, is_there: bool) -> None:
    world: dict[str, Any] = {} if is_there else {"given": (), "invariant": None}
    clean(explored(copies=[2, 1], budgets=Budgets.any_of(1, fault), **world))


@pytest.mark.parametrize("options", [{"warm": True}, {"batch": 2}, {"tells_current": True}, {"ledger": True}], ids=str)
def test_however_they_are_run(options: dict[str, Any]) -> None:
    clean(explored(budgets=Budgets(crash=1), **options))


def test_over_two_handlings() -> None:
    clean(explored(app=bank(), messages=[T1], copies=2, budgets=Budgets(crash=1)))


def test_a_refusal_stands_on_the_state_that_is_there() -> None:
    clean(explored(app=bank(), messages=[REFUSED], copies=2, budgets=Budgets(lost=1), allow=frozenset({"dead-letter"})))


@pytest.mark.parametrize("fault", ["crash", "lost", "stale"])
def test_a_handler_that_needs_the_state_does_not_fail_for_want_of_it(fault: FaultKind) -> None:
    clean(explored(app=needing(), messages=[T1], copies=2, budgets=Budgets.any_of(1, fault)))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire"])
def test_a_call_is_made_on_what_was_read(fault: FaultKind) -> None:
    clean(search(scenario("partition", "calling", amounts=(-3, 5), workers=2, faults={fault: 1}, make=expecting_new)))


@pytest.mark.parametrize(
    "faults", [{"crash": 1, "lost": 1}, {"lost": 1, "stale": 1}, {"delay": 1, "stale": 1}], ids=str
)
def test_under_two_faults(faults: dict[str, int]) -> None:
    clean(explored(copies=[2, 1], budgets=Budgets(**faults)))


@pytest.mark.parametrize("fault", ["crash", "expire", "stale"])
def test_a_request_that_is_asked_twice_beside_a_message(fault: FaultKind) -> None:
    requests = {"requests": [asked("k1", 5)], "asked_times": 2, "fronts": 2}
    clean(
        explored(app=counter(), messages=[T1], workers=1, invariant=None, budgets=Budgets.any_of(1, fault), **requests)
    )
