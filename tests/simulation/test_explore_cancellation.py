"""Scheduled messages that are cancelled, every interleaving of small scopes.

A message takes effect or is cancelled, never both, whichever comes first, and however often either comes.
"""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.search import Report, search
from outbox.verify.promises.view import View
from tests.simulation.mutant_apps import Timer, scenario

pytestmark = pytest.mark.slow

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")
SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])


def explored(scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"given": None, "amounts": (5, 3), "sweepers": int(scope != "engine")}
    report = search(scenario(scope, "timing", **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


def broken(scope: str, invariant: Any) -> bool:
    """Whether there is a world in which an invariant does not hold."""
    report = search(scenario(scope, "timing", given=None, amounts=(5, 3), invariant=invariant))
    return [anomaly.promise for anomaly in report.anomalies] == ["Invariant"]


def none_rings(world: View) -> bool:
    timer = world.state(Timer, "a")
    return timer is None or timer.rung == 0


def is_not_cancelled(world: View) -> bool:
    """What is so unless a message is on record as cancelled, which its queue may still hold."""
    timer = world.state(Timer, "a")
    bells = [inbox for inbox in world._ledger.applied if inbox in world._book.cancellable]
    return not bells or timer is None or timer.rung > 0


@SCOPES
def test_some_are_cancelled_and_others_take_effect(scope: str) -> None:
    assert broken(scope, none_rings)
    assert broken(scope, is_not_cancelled)
    assert explored(scope)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_cancelling_keeps_every_promise_under_any_single_fault(scope: str, fault: FaultKind) -> None:
    explored(scope, faults={fault: 1})


@SCOPES
def test_two_workers_cancel_what_comes_twice(scope: str) -> None:
    explored(scope, workers=2, copies=[1, 2])
