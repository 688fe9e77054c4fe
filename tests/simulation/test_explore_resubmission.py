"""Dead letters that are resubmitted, every interleaving of small scopes: they run again, once for each attempt."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.promises.view import View
from tests.simulation.drawers import FAULTS, LARGE, PUT, SCOPES, SMALL, broken, drawers, explored

pytestmark = pytest.mark.slow


def none_takes_effect(world: View) -> bool:
    """What is not so where resubmissions are of any use."""
    return not any(inbox in world._ledger.applied for inbox, *_ in world._ledger.edits)


def nothing_else_does_then(world: View) -> bool:
    """What is not so where a key goes on behind them."""
    return none_takes_effect(world) or len(world._ledger.applied) < 3


@SCOPES
def test_what_was_refused_takes_effect_when_it_may(scope: str) -> None:
    explored(scope, LARGE, PUT, sweepers=0)
    assert broken(scope, LARGE, PUT, invariant=none_takes_effect)
    assert not broken(scope, LARGE, PUT, invariant=none_takes_effect, resubmissions=0)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_resubmission_keeps_every_promise_under_any_single_fault(scope: str, fault: FaultKind) -> None:
    messages = [LARGE] if scope == "item" else [LARGE, PUT]
    copies = 1 if scope == "item" and fault in ("delay", "error", "lost") else 2
    explored(scope, *messages, copies=[copies], budgets=Budgets.any_of(1, fault))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_resubmission_in_item_scope_sends_arrives_under_any_single_fault(fault: FaultKind) -> None:
    explored("item", LARGE, PUT, copies=[1, 1], budgets=Budgets.any_of(1, fault))
    assert broken("item", LARGE, PUT, invariant=none_takes_effect)


@SCOPES
def test_it_may_be_resubmitted_again_and_copies_of_it_may_come(scope: str) -> None:
    explored(scope, LARGE, PUT, copies=[2, 1], resubmissions=2, sweepers=0, workers=1 if scope == "item" else 2)


@SCOPES
@pytest.mark.parametrize("fault", ["crash", "lost", "error"])
def test_nothing_goes_ahead_of_what_its_key_is_blocked_by(scope: str, fault: FaultKind) -> None:
    options: dict[str, Any] = {"batch": 3, "sweepers": 0, "budgets": Budgets.any_of(1, fault)}
    explored(scope, LARGE, SMALL, app=drawers("stop_key"), **options)


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_a_key_goes_on_behind_what_was_resubmitted_and_applied(scope: str) -> None:
    app, messages = drawers("stop_key"), (LARGE, SMALL, PUT)
    explored(scope, *messages, app=app, batch=3, sweepers=0)
    assert broken(scope, *messages, app=app, invariant=nothing_else_does_then, batch=3)
