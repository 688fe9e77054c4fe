"""A sweeper that leaves young records alone, every interleaving of small scopes: what a crash leaves is finished."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from outbox import App
from outbox.runtime.commit.sweeper import GRACE_S
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, T1, desk

pytestmark = pytest.mark.slow

GRACE_MS = round(GRACE_S * 1_000)
FAULTS = [{"crash": 1}, {"crash": 1, "lost": 1}, {"crash": 1, "jump": 1}, {"delay": 1, "jump": 1}]


def explored(scope: str, faults: dict[str, int], **options: Any) -> Report:
    known: dict[str, Any] = {"workers": 1, "copies": 2, "sweepers": 1, "grace_ms": GRACE_MS}
    report = search(Scenario(desk(), [T1], GIVEN, scope=scope, budgets=Budgets(**faults), **(known | options)))
    assert report.exhausted and not report.anomalies, report.text
    return report


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_what_a_crash_leaves_is_finished_when_it_is_as_old_as_the_grace(scope: str, faults: dict[str, int]) -> None:
    explored(scope, faults)


def test_a_sweeper_meets_a_worker_that_is_slower_than_the_grace() -> None:
    patient = explored("partition", {"jump": 1}, copies=1)
    quick = explored("partition", {}, copies=1)
    assert patient.states > quick.states


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("grace_ms", [0, GRACE_MS])
def test_the_sweeper_of_another_application_in_the_container_does_no_harm(scope: str, grace_ms: int) -> None:
    neighbour = App("neighbour", retention=timedelta(minutes=15), margin=timedelta(minutes=12))
    copies = 1 if scope == "item" and not grace_ms else 2
    explored(scope, {"crash": 1, "jump": 1}, neighbour=neighbour, grace_ms=grace_ms, copies=copies)


def test_what_is_young_is_left_alone() -> None:
    whole = explored("item", {"crash": 1}, grace_ms=0, staged=True)
    assert explored("item", {"crash": 1}, staged=True).states < whole.states / 10
