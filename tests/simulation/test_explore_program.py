"""`make explore` tells what it visited, and what broke."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation import explore


def test_a_cell_reports_its_worlds_its_time_and_its_memory() -> None:
    cell: explore.Cell = {"scope": "partition", "messages": 1, "copies": [2], "faults": {"crash": 1}, "given": False}
    found = cell | explore.one(cell, cpu_s=30)
    assert found["exhausted"] and found["anomalies"] == [] and found["states"] > 50 and found["peak_mb"] > 10
    assert "1 messages, 2 copies, crash, new state" in explore.line(found)


def test_a_cell_that_is_cut_short_says_so() -> None:
    cell: explore.Cell = {"scope": "item", "messages": 2, "copies": [2, 1], "faults": {"crash": 1}, "given": True}
    cell |= {"staged": True}
    found = cell | explore.one(cell, cpu_s=0.2)
    assert not found["exhausted"] and "not exhausted: the limit" in explore.line(found)


def test_every_protocol_meets_every_fault_with_a_new_state_where_that_makes_other_worlds() -> None:
    cells = list(explore.single_faults())
    assert len(cells) == 7 + 7 + 7 + len(explore.NEW_DIFFERS)
    assert {cell["scope"] for cell in explore.larger()} == {*explore.SCOPES, "log"}


def test_logs_meet_every_fault_and_what_is_too_large_is_left_to_the_large_ones() -> None:
    cells = [
        (cell["logs"], kind) for large in (False, True) for cell in explore.logs(large=large) for kind in cell["faults"]
    ]
    assert len(cells) == len(set(cells)) == 1 + sum(len(explore.kinds_of(what)) for what in explore.LOGS)
    assert {kind for _, kind in cells} == {*explore.LOG_FAULTS, "expire", "jump"}
    assert {(cell["logs"], *cell["faults"]) for cell in explore.logs(large=True)} == explore.TOO_LARGE


@pytest.mark.parametrize("cell", list(explore.logs())[:1], ids=explore.told)
def test_a_cell_of_logs_is_explored_and_told(cell: explore.Cell) -> None:
    found = explore.one(cell, 60.0)
    assert found["exhausted"] and not found["anomalies"]
    assert explore.line(cell | found).startswith("log: 2 producers, 2 replicas, crash")


def test_drawn_runs_of_the_larger_world_break_no_promise() -> None:
    for report in explore.drawn(runs=2, seed=3):
        assert not report.anomalies and report.finals == 2, report.text


@pytest.mark.parametrize("scope", explore.SCOPES)
def test_the_program_prints_and_publishes_nothing_for_one_scope(
    scope: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = {"scope": scope, "messages": 1, "copies": [1], "faults": {}, "given": True}
    monkeypatch.setattr(explore, "single_faults", lambda: iter([cell]))
    monkeypatch.setattr(explore, "staged", lambda: iter([]))
    monkeypatch.setattr(explore, "requests", lambda: iter([]))
    monkeypatch.setattr(explore, "ledgers", lambda: iter([]))
    assert explore.main(["--only", scope, "--output", str(tmp_path)]) == 0
    assert "exhausted" in capsys.readouterr().out and list(tmp_path.iterdir()) == []
