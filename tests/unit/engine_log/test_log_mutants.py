"""Every fault planted in the engine and its log is found by the test that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT
from tests.unit.engine_log.log_mutants import LOG_MUTANTS

ALL_WITHIN_S = 300.0

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Found]]:
    """What became of all of them, by name."""
    command = [sys.executable, "-m", "tests.unit.engine_log.run_log_mutants"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALL_WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    yield {line["name"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(ALL_WITHIN_S)
def test_without_a_fault_nothing_fails(found: dict[str, Found]) -> None:
    nothing = found["no fault"]
    assert nothing["passed"] >= len({test for one in LOG_MUTANTS for test in one.promises}), nothing
    assert not nothing["failed"] and not nothing["broken"], nothing


@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", LOG_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_the_log_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    run = found[mutant.name]
    assert not run["broken"], run["broken"]
    assert run["failed"], f"{mutant.promises} pass with this fault planted: {mutant.name}"


def test_no_fault_has_the_name_of_another() -> None:
    assert len({mutant.name for mutant in LOG_MUTANTS}) == len(LOG_MUTANTS)
