"""Every fault planted in time limits and handlers' threads is found by the test that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT, planted
from tests.unit.run_blocking_mutants import BLOCKING_MUTANTS

WITHIN_S = 90.0


def run(name: str) -> dict[str, Any]:
    """What becomes of the tests with one fault planted, or without any."""
    command = [sys.executable, "-m", "tests.unit.run_blocking_mutants", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S * 2)
@pytest.mark.parametrize("mutant", BLOCKING_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found(mutant: Mutant) -> None:
    found = run(mutant.name)
    assert found["failed"] and not found["broken"], found


@pytest.mark.slow
@pytest.mark.timeout(WITHIN_S * 2)
def test_without_a_fault_nothing_fails() -> None:
    found = run("")
    assert found["passed"] and not found["failed"] + found["broken"], found


def test_every_fault_fits_where_it_is_planted() -> None:
    for mutant in BLOCKING_MUTANTS:
        assert planted((ROOT / mutant.file).read_text(), mutant)
