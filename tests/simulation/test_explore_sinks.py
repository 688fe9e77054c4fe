"""Sinks: every interleaving of processes that run one sink, a producer and one kind of fault, over real SQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.explored import clean
from tests.simulation.sunk import SinkScope

FAULTS: tuple[dict[str, int], ...] = (
    {},
    {"crash": 2},
    {"lost": 1},
    {"delay": 1},
    {"stale": 1},
    {"error": 1},
    {"jump": 1},
)
IDS = ["calm", *(kind for faults in FAULTS for kind in faults)]


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize("options", [{}, {"began": False, "appended": ()}], ids=["begun", "at the beginning"])
def test_each_entry_takes_effect_once(kind: str, options: dict[str, Any], faults: dict[str, int]) -> None:
    clean(SinkScope(kind, **options).explored(**faults))


@pytest.mark.parametrize("faults", [{"lost": 1, "crash": 1}, {"delay": 1, "lost": 1}], ids=["lost", "late"])
def test_a_commit_without_an_answer_is_decided_by_the_cursor_also_beside_another_fault(faults: dict[str, int]) -> None:
    clean(SinkScope(given=(1, 2), appended=()).explored(**faults))


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize("began", [True, False], ids=["begun", "at the beginning"])
def test_a_sink_that_rests_while_another_goes_on_and_trims_goes_on_from_there(
    kind: str, began: bool, faults: dict[str, int]
) -> None:
    faults = {fault: min(count, 1) for fault, count in faults.items()}
    clean(SinkScope(kind, given=(1,), appended=(), began=began, trims=True).explored(**faults))


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize("batch_max", [1, 2, 4], ids=["one by one", "within a cell", "over cells"])
def test_each_entry_of_a_cell_takes_effect_once_wherever_the_cursor_is_in_it(
    kind: str, batch_max: int, faults: dict[str, int]
) -> None:
    clean(SinkScope(kind, given=((1, 2), (3, 4, 5)), appended=(), batch_max=batch_max).explored(**faults))


@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize(
    "faults", [{"lost": 2}, {"lost": 1, "delay": 1}, {"lost": 1, "jump": 1}], ids=["twice", "late", "time"]
)
def test_two_faults_of_one_call_leave_each_entry_its_one_effect(kind: str, faults: dict[str, int]) -> None:
    clean(SinkScope(kind, given=((1, 2),), appended=(), sinks=2).explored(**faults))


def test_a_batch_is_one_transaction() -> None:
    clean(SinkScope(given=(1, 2, 3), appended=(), batch_max=2).explored(crash=1))
