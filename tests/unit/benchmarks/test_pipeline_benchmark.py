"""The benchmark of a pipeline: a run checks that every change is there once, and there is a line for each mode."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.bench_pipeline import MODES, id_of, measured, repeated, rows, table, work


async def test_every_mode_has_a_line_with_its_ratios() -> None:
    modes = [mode for mode in MODES if not mode.startswith("by_epoch")] + ["by_epoch 50"]
    lines = table(rows(await repeated(1, 0.1, 80.0, modes))).splitlines()
    assert len(lines) == 1 + len(modes) and lines[1].startswith("floor") and " 0.00 [" in lines[1]


async def test_a_change_that_is_missing_spoils_a_run(disk_path: Path) -> None:
    given = work(4, 100.0, 0)
    last = id_of(given.pages[-1])
    with pytest.raises(AssertionError, match="800 changes, not the 799"):
        await measured("in_order 50", replace(given, made={**given.made, last: given.made[last][1:]}), disk_path)
