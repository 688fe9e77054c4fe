"""What the explorer leaves out makes no difference: with its reductions off the same ends are reached."""

from __future__ import annotations

from typing import Any

import pytest

from outbox import App, Context
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explore import NEW_DIFFERS, SINGLE, happens
from tests.simulation.explored import GIVEN, T1, T2, Account, Deposit, Transfer

pytestmark = pytest.mark.slow


def ordered() -> App:
    """An application whose ends differ with the order of its messages, so that a lost order would show."""
    app = App("order")
    app.queue("deposits")

    @app.handler("transfers", key="source")
    async def last(transfer: Transfer, account: Account, ctx: Context) -> None:
        account.balance = 2 * account.balance + transfer.amount
        ctx.send("deposits", Deposit(transfer.id, transfer.target, account.balance))

    return app


SCOPES: list[dict[str, Any]] = [
    {"scope": "engine", "copies": [2, 1], "budgets": Budgets(crash=1)},
    {"scope": "engine", "copies": [2, 1], "budgets": Budgets(delay=1)},
    {"scope": "engine", "batch": 2, "budgets": Budgets(lost=1)},
    {"scope": "partition", "copies": [2, 1]},
    {"scope": "partition", "budgets": Budgets(crash=1)},
    {"scope": "partition", "budgets": Budgets(delay=1)},
    {"scope": "item"},
    {"scope": "item", "messages": [T1], "copies": 2, "budgets": Budgets(crash=1)},
    {"scope": "item", "workers": 1, "budgets": Budgets(lost=1)},
    {"scope": "item", "messages": [T1], "copies": 2, "budgets": Budgets(stale=1)},
]
SWEPT: dict[str, Any] = {"item_bytes_max": 400, "sweepers": 1, "workers": 1}
LONG_SCOPES: list[dict[str, Any]] = [
    {"scope": "partition", "budgets": Budgets(lost=1, error=1), "workers": 1},
    {"scope": "item", "messages": [T1], "copies": 2, "budgets": Budgets(delay=1)},
    {"scope": "item", "messages": [T1], "copies": 2, "budgets": Budgets(error=1)},
    {"scope": "item", "messages": [T1], "item_bytes_max": 400, "copies": 2, "budgets": Budgets(lost=1)},
    {"scope": "item", "messages": [T1], "budgets": Budgets(lost=1), **SWEPT},
    {"scope": "partition", "budgets": Budgets(crash=1), **SWEPT},
]
LONG = [pytest.param(options, marks=pytest.mark.soak) for options in LONG_SCOPES]


def explored(**options: Any) -> Report:
    known: dict[str, Any] = {"app": ordered(), "messages": [T1, T2], "given": GIVEN}
    report = search(Scenario(**(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


@pytest.mark.parametrize("options", [*SCOPES, *LONG], ids=str)
def test_with_and_without_reductions_the_same_ends_are_reached(options: dict[str, Any]) -> None:
    reduced = explored(**options)
    full = explored(**options, symmetric=False, ample=False, merges=False)
    assert reduced.outcomes == full.outcomes
    assert reduced.states <= full.states
    assert len(reduced.outcomes) == (2 if "messages" not in options else 1)


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
@pytest.mark.parametrize("kind", SINGLE)
def test_a_new_state_makes_as_many_worlds_as_a_known_one_unless_it_is_said(scope: str, kind: FaultKind) -> None:
    options: dict[str, Any] = {"scope": scope, "copies": 2, "messages": [T1], "budgets": Budgets.any_of(1, kind)}
    if happens(scope, kind):
        known, new = explored(**options), explored(**options, given=())
        assert (known.states == new.states) or (scope, kind) in NEW_DIFFERS


def test_symmetry_halves_what_two_workers_do() -> None:
    options: dict[str, Any] = {"scope": "partition", "copies": [2, 1], "budgets": Budgets(crash=1), "ample": False}
    assert 1.8 * explored(**options).states < explored(**options, symmetric=False).states


def test_what_is_forgotten_between_two_tries_need_not_be_distinguished() -> None:
    options: dict[str, Any] = {"scope": "item", "messages": [T1], "copies": 2, "budgets": Budgets(lost=1)}
    merged, full = explored(**options), explored(**options, merges=False)
    assert 1.3 * merged.states < full.states
    assert merged.runs < full.runs
    assert merged.outcomes == full.outcomes


def test_fewer_bits_of_a_world_find_as_many_worlds() -> None:
    scenario = Scenario(ordered(), [T1, T2], GIVEN, scope="partition", budgets=Budgets(crash=1))
    exact, short = search(scenario), search(scenario, hashing="64")
    assert (short.states, short.transitions, short.outcomes) == (exact.states, exact.transitions, exact.outcomes)
