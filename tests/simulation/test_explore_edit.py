"""Dead letters that are resubmitted with another body, every interleaving of small scopes.

An edit takes the place of the refusal that it names, once; what it replaced never runs again.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.promises.view import View
from tests.simulation.drawers import FAULTS, LARGE, PUT, SCOPES, SMALL, Draw, broken, drawers
from tests.simulation.drawers import explored as resubmitted

pytestmark = pytest.mark.slow

LESS, LEAST, MORE = ("d1", Draw("d1", "a", 2)), ("d1", Draw("d1", "a", 1)), ("d1", Draw("d1", "a", 7))
ELSEWHERE = ("d1", Draw("d1", "b", 0))
"""An edit with another key, which no door with the application's code would send."""
explored = partial(resubmitted, edits=[LESS])


def none_takes_effect(world: View) -> bool:
    """What is not so where edits are of any use."""
    return not any(inbox in world._ledger.applied for inbox, _ in world._ledger.replaced)


def none_is_replaced_twice(world: View) -> bool:
    """What is not so where an edit may be edited."""
    replaced = [inbox for inbox, _ in world._ledger.replaced]
    return not any(inbox in world._ledger.applied and replaced.count(inbox) > 1 for inbox in replaced)


@SCOPES
def test_what_was_refused_takes_effect_as_it_was_edited(scope: str) -> None:
    explored(scope, LARGE, sweepers=0)
    assert broken(scope, LARGE, invariant=none_takes_effect, edits=[LESS])
    assert not broken(scope, LARGE, invariant=none_takes_effect)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_an_edit_keeps_every_promise_under_any_single_fault(scope: str, fault: FaultKind) -> None:
    explored(scope, LARGE, copies=[2], budgets=Budgets.any_of(1, fault))


def test_a_sweeper_that_wakes_up_when_a_refusal_is_forgotten_records_it_no_more() -> None:
    explored("item", LARGE, budgets=Budgets(crash=1, jump=1))


@SCOPES
def test_copies_of_what_was_edited_follow_the_edit(scope: str) -> None:
    explored(scope, LARGE, copies=[3], sweepers=0)


@SCOPES
def test_an_edit_may_be_edited_and_what_it_replaces_may_be_resubmitted(scope: str) -> None:
    options: dict[str, Any] = {"edits": [LESS, MORE], "resubmissions": 2, "sweepers": 0}
    explored(scope, LARGE, copies=[2], **options)
    assert broken(scope, LARGE, invariant=none_is_replaced_twice, edits=[LESS, MORE], resubmissions=2)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_an_edit_of_an_edit_keeps_every_promise_under_any_single_fault(scope: str, fault: FaultKind) -> None:
    options: dict[str, Any] = {"edits": [LESS, MORE], "resubmissions": 2, "budgets": Budgets.any_of(1, fault)}
    explored(scope, LARGE, copies=[1 if scope == "item" else 2], **options)


@SCOPES
def test_of_two_edits_one_takes_effect(scope: str) -> None:
    options: dict[str, Any] = {"edits": [LESS, LEAST], "resubmissions": 2, "sweepers": 0, "copies": [2]}
    explored(scope, LARGE, workers=1 if scope == "item" else 2, **options)


@SCOPES
def test_an_edit_of_what_is_applied_meanwhile_does_not_take_effect(scope: str) -> None:
    explored(scope, LARGE, PUT, copies=[2, 1], resubmissions=2, sweepers=0)


@SCOPES
def test_an_edit_under_another_key_takes_no_effect(scope: str) -> None:
    explored(scope, LARGE, copies=[2], edits=[ELSEWHERE], resubmissions=2, sweepers=0)


@SCOPES
def test_an_edit_whose_refusal_is_forgotten_takes_no_effect(scope: str) -> None:
    explored(scope, LARGE, copies=[2], sweepers=0, budgets=Budgets(jump=1))


@SCOPES
@pytest.mark.parametrize("fault", ["crash", "lost", "error"])
def test_nothing_goes_ahead_of_an_edited_head(scope: str, fault: FaultKind) -> None:
    """Over a store and a bus the edit is refused again: behind an applied one others are rescheduled without end."""
    options: dict[str, Any] = {"batch": 2, "sweepers": 0, "budgets": Budgets.any_of(1, fault)}
    edits = [LESS, MORE] if scope == "engine" else [MORE]
    explored(scope, LARGE, SMALL, app=drawers("stop_key"), edits=edits, **options)


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("fault", ["crash", "lost", "error"])
def test_an_edited_head_takes_effect_once(scope: str, fault: FaultKind) -> None:
    explored(scope, LARGE, app=drawers("stop_key"), sweepers=0, budgets=Budgets.any_of(1, fault))


def nothing_else_does_then(world: View) -> bool:
    """What is not so where a key goes on behind them."""
    return none_takes_effect(world) or len(world._ledger.applied) < 2


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_a_key_goes_on_behind_an_edited_head(scope: str) -> None:
    app, messages = drawers("stop_key"), (LARGE, SMALL)
    explored(scope, *messages, app=app, batch=2, sweepers=0)
    assert broken(scope, *messages, app=app, invariant=nothing_else_does_then, batch=2, edits=[LESS])
