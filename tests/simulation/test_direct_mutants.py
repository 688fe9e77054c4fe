"""Every fault planted where no exploration reaches is found by the test that names it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.direct_mutants import DIRECT_MUTANTS
from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT

ALL_WITHIN_S = 600.0
LEAST_COUNT = 50

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Found]]:
    """What became of all of them, by name."""
    command = [sys.executable, "-m", "tests.simulation.run_planted", "tests.simulation.direct_mutants"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALL_WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    yield {line["name"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(ALL_WITHIN_S)
def test_without_a_fault_nothing_fails(found: dict[str, Found]) -> None:
    nothing = found["no fault"]
    assert nothing["passed"] >= len({test for mutant in DIRECT_MUTANTS for test in mutant.promises}), nothing
    assert not nothing["failed"] and not nothing["broken"], nothing


@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", DIRECT_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_planted_where_no_exploration_reaches_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    run = found[mutant.name]
    assert not run["broken"], run["broken"]
    assert run["failed"], f"{mutant.promises} pass with this fault planted: {mutant.name}"


def test_every_edge_has_faults_planted() -> None:
    assert len({mutant.name for mutant in DIRECT_MUTANTS}) == len(DIRECT_MUTANTS) >= LEAST_COUNT
    assert {mutant.scope for mutant in DIRECT_MUTANTS} == {"trigger", "letters", "settlement"}
