"""The static checks fail as one where any of them does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import check


@pytest.mark.parametrize(("failed", "status"), [([], 0), (["ruff check"], 1)])
def test_the_checks_end_with_the_status_of_all(monkeypatch: pytest.MonkeyPatch, failed: list[str], status: int) -> None:
    monkeypatch.setattr(check, "failing", lambda commands: failed)
    assert check.main() == status


@pytest.mark.parametrize("status", [0, 1, 2])
def test_a_check_passes_with_status_0_alone(tmp_path: Path, status: int) -> None:
    program = tmp_path / "program.py"
    program.write_text(f"raise SystemExit({status})")
    assert check.passes("it", [str(program)]) is (status == 0)
    assert check.failing({"first": [str(program)], "second": [str(program)]}) == ["first", "second"] * (status > 0)
