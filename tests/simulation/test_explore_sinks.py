"""Sinks: every interleaving of processes that run one sink, a producer and one kind of fault, over real SQL."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulation.explored import clean
from tests.simulation.sunk import SinkScope
from tests.simulation.test_explore_streams import FAULTS, IDS

SCOPES: dict[str, dict[str, Any]] = {
    "begun": {},
    "at the beginning": {"began": False, "appended": ()},
    "rests while another goes on and trims": {"given": (1,), "appended": (), "trims": True},
    "rests at the beginning": {"given": (1,), "appended": (), "trims": True, "began": False},
    "one by one": {"given": ((1, 2), (3, 4, 5)), "appended": (), "batch_max": 1},
    "within a cell": {"given": ((1, 2), (3, 4, 5)), "appended": (), "batch_max": 2},
    "over cells": {"given": ((1, 2), (3, 4, 5)), "appended": (), "batch_max": 4},
}


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize("name", SCOPES)
def test_each_entry_takes_effect_once(name: str, kind: str, faults: dict[str, int]) -> None:
    if name.startswith("rests"):
        faults = dict.fromkeys(faults, 1)
    clean(SinkScope(kind, **SCOPES[name]).explored(**faults))


@pytest.mark.parametrize("faults", [{"lost": 1, "crash": 1}, {"delay": 1, "lost": 1}], ids=["lost", "late"])
def test_a_commit_without_an_answer_is_decided_by_the_cursor_also_beside_another_fault(faults: dict[str, int]) -> None:
    clean(SinkScope(given=(1, 2), appended=()).explored(**faults))


@pytest.mark.parametrize("kind", ["database", "documents"])
@pytest.mark.parametrize(
    "faults", [{"lost": 2}, {"lost": 1, "delay": 1}, {"lost": 1, "jump": 1}], ids=["twice", "late", "time"]
)
def test_two_faults_of_one_call_leave_each_entry_its_one_effect(kind: str, faults: dict[str, int]) -> None:
    clean(SinkScope(kind, given=((1, 2),), appended=(), sinks=2).explored(**faults))


def test_a_batch_is_one_transaction() -> None:
    clean(SinkScope(given=(1, 2, 3), appended=(), batch_max=2).explored(crash=1))
