"""Dead letters that are discarded, restored and resubmitted side by side over a store: none is lost, none is two."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.search import Report
from tests.simulation import discarding
from tests.simulation.discarding import Host, discards, restores, resubmits

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "stale")
STORED: dict[str, bool] = {}
KEPT, ON_BUS = {"kept": True}, {"on_bus": True}
PLACES = pytest.mark.parametrize("place", [STORED, KEPT, ON_BUS], ids=["stored", "kept as well", "on the bus"])
LETTER, ASIDE = (1, 0, 0, 0), (0, 1, 0, 0)
"""Where it may end: as a stored dead letter, or as discarded."""


def explored(*programs: Program, **options: Any) -> Report:
    report = discarding.explored(*programs, **options)
    assert report.exhausted and not report.anomalies, report.text
    return report


@PLACES
def test_a_discard_and_a_restore_side_by_side_leave_it_somewhere(place: dict[str, bool]) -> None:
    ends = explored(discards(), restores(), **place).outcomes
    both = {(1, 1, 0, 0)} if place == KEPT else set()
    assert ends == {LETTER, ASIDE, *both}


@PLACES
def test_they_do_under_any_single_fault_as_often_as_they_come(place: dict[str, bool]) -> None:
    explored(discards(2), restores(2), budgets=Budgets.any_of(1, *FAULTS), **place)


@pytest.mark.slow
@PLACES
def test_they_do_under_any_two_faults(place: dict[str, bool]) -> None:
    explored(discards(), restores(), budgets=Budgets.any_of(2, *FAULTS), **place)


@PLACES
@pytest.mark.parametrize("third", [discards, restores, resubmits])
def test_a_third_operator_beside_them_does_not_lose_it(third: Any, place: dict[str, bool]) -> None:
    explored(discards(), restores(), third(), **place)


@pytest.mark.slow
@PLACES
@pytest.mark.parametrize("third", [discards, restores, resubmits])
def test_nor_under_any_single_fault(third: Any, place: dict[str, bool]) -> None:
    explored(discards(), restores(), third(), budgets=Budgets.any_of(1, *FAULTS), **place)


@pytest.mark.parametrize("place", [STORED, KEPT], ids=["stored", "kept as well"])
def test_a_host_that_stores_it_once_more_meanwhile_makes_no_second_one(place: dict[str, bool]) -> None:
    explored(discards(), restores(), Host(), budgets=Budgets.any_of(1, *FAULTS), **place)
