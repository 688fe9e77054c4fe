"""Dead letters that are resubmitted, every interleaving of small scopes: they run again, once for each attempt."""

from __future__ import annotations

from dataclasses import dataclass
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
    """What cannot be drawn now may be later, when somebody has put something in."""
    app = App("drawers")
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


def explored(scope: str, *messages: Any, app: App | None = None, **options: Any) -> Report:
    known: dict[str, Any] = {"workers": 1, "resubmissions": 1, "given": [("a", Drawer(3))]}
    known |= {"allow": frozenset({"dead-letter"}), "sweepers": int(scope != "engine")}
    report = search(Scenario(app or drawers(), messages, scope=scope, **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


def none_takes_effect(world: View) -> bool:
    """What is not so where resubmissions are of any use."""
    return not any(inbox in world._ledger.applied for inbox, *_ in world._ledger.edits)


def nothing_else_does_then(world: View) -> bool:
    """What is not so where a key goes on behind them."""
    return none_takes_effect(world) or len(world._ledger.applied) < 3


def broken(scope: str, *messages: Any, app: App, invariant: Invariant, **options: Any) -> bool:
    """Whether there is a world in which an invariant does not hold."""
    known: dict[str, Any] = {"given": [("a", Drawer(3))], "allow": frozenset({"dead-letter"})}
    report = search(Scenario(app, messages, scope=scope, workers=1, invariant=invariant, **(known | options)))
    return [anomaly.promise for anomaly in report.anomalies] == ["Invariant"]


@SCOPES
def test_what_was_refused_takes_effect_when_it_may(scope: str) -> None:
    explored(scope, LARGE, PUT, sweepers=0)
    assert broken(scope, LARGE, PUT, app=drawers(), invariant=none_takes_effect, resubmissions=1)
    assert not broken(scope, LARGE, PUT, app=drawers(), invariant=none_takes_effect)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_resubmission_keeps_every_promise_under_any_single_fault(scope: str, fault: FaultKind) -> None:
    messages = [LARGE] if scope == "item" else [LARGE, PUT]
    copies = 1 if scope == "item" and fault in ("delay", "error", "lost") else 2
    explored(scope, *messages, copies=[copies], budgets=Budgets.any_of(1, fault))


@pytest.mark.parametrize("fault", FAULTS)
def test_what_a_resubmission_in_item_scope_sends_arrives_under_any_single_fault(fault: FaultKind) -> None:
    explored("item", LARGE, PUT, copies=[1, 1], budgets=Budgets.any_of(1, fault))
    assert broken("item", LARGE, PUT, app=drawers(), invariant=none_takes_effect, resubmissions=1)


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
    assert broken(scope, *messages, app=app, invariant=nothing_else_does_then, batch=3, resubmissions=1)
