"""Dead letters that are resubmitted with another body, every interleaving of small scopes.

An edit takes the place of the refusal that it names, once; what it replaced never runs again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from outbox import App, Context, Reject
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from outbox.verify.promises.view import Invariant, View

pytestmark = pytest.mark.slow

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale")
SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])


@dataclass
class Draw:
    id: str
    drawer: str
    amount: int


@dataclass
class Put:
    drawer: str
    amount: int


@dataclass
class Drawer:
    amount: int = 0


@dataclass
class Drawn:
    id: str
    left: int


def drawers(policy: Literal["continue", "stop_key"] = "continue") -> App:
    """What is too much for a drawer may be less in an edit."""
    app = App("drawers", retention=timedelta(hours=1), margin=timedelta(minutes=20))
    app.queue("draws", "per_key" if policy == "stop_key" else "unordered")
    app.queue("drawn")

    @app.handler("draws", key="drawer", on_dead_letter=policy)
    def draw(message: Draw, drawer: Drawer, ctx: Context) -> None:
        if drawer.amount < message.amount:
            raise Reject("too little")
        drawer.amount -= message.amount
        ctx.send("drawn", Drawn(message.id, drawer.amount))

    @app.handler("puts", key="drawer")
    def put(message: Put, drawer: Drawer) -> None:
        drawer.amount += message.amount

    return app


LARGE, SMALL = ("draws", Draw("d1", "a", 5), "d1"), ("draws", Draw("d2", "a", 1), "d2")
PUT = ("puts", Put("a", 5), "p1")
LESS, LEAST, MORE = ("d1", Draw("d1", "a", 2)), ("d1", Draw("d1", "a", 1)), ("d1", Draw("d1", "a", 7))
ELSEWHERE = ("d1", Draw("d1", "b", 0))
"""An edit with another key, which no door with the application's code would send."""


def explored(scope: str, *messages: Any, app: App | None = None, **options: Any) -> Report:
    known: dict[str, Any] = {"workers": 1, "resubmissions": 1, "given": [("a", Drawer(3))], "edits": [LESS]}
    known |= {"allow": frozenset({"dead-letter"}), "sweepers": int(scope != "engine")}
    report = search(Scenario(app or drawers(), messages, scope=scope, **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


def broken(scope: str, *messages: Any, invariant: Invariant, **options: Any) -> bool:
    """Whether there is a world in which an invariant does not hold."""
    known: dict[str, Any] = {"given": [("a", Drawer(3))], "allow": frozenset({"dead-letter"}), "resubmissions": 1}
    app = options.pop("app", None) or drawers()
    report = search(Scenario(app, messages, scope=scope, workers=1, invariant=invariant, **(known | options)))
    return [anomaly.promise for anomaly in report.anomalies] == ["Invariant"]


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
