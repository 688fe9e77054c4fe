"""Every planted fault is found, by a short way: a rule that could be taken out unseen would be no rule.

Each runs in a process of its own, because nothing that a fault has been planted in may be used again.
"""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.simulation.discard_mutants import DISCARD_MUTANTS
from tests.simulation.importing import ROOT, planted
from tests.simulation.mutants import MUTANTS, STEP_COUNT_MAX
from tests.simulation.planted import ALL_WITHIN_S, Found, planted_in
from tests.simulation.planting import Mutant
from tests.simulation.rule_mutants import RULE_MUTANTS
from tests.simulation.run_mutant import explored
from tests.simulation.settling_mutants import SETTLING_MUTANTS

pytestmark = pytest.mark.slow

LEAST_COUNT = 25


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    """What is found with each that this run plants, by name."""
    names = [item.callspec.params["mutant"].name for item in planted_in(request)]
    command = [sys.executable, "-m", "tests.simulation.run_mutant", "--each", *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALL_WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


@pytest.mark.planted
@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found_by_a_short_way(mutant: Mutant, found: dict[str, Found]) -> None:
    run = found[mutant.name]
    assert run["anomalies"], f"{mutant.name} is not found: {run['text']}"
    first = run["anomalies"][0]
    assert first["promise"] in mutant.promises and first["steps"] <= STEP_COUNT_MAX, run["text"]


@pytest.mark.parametrize("mutant", (*SETTLING_MUTANTS, *RULE_MUTANTS, *DISCARD_MUTANTS), ids=lambda mutant: mutant.name)
def test_without_the_fault_its_exploration_finds_nothing(mutant: Mutant) -> None:
    found = explored(mutant)
    assert not found["anomalies"] and "exhausted" in found["text"].splitlines(), found["text"]


def test_every_protocol_and_the_engine_have_faults_planted() -> None:
    assert len(MUTANTS) >= LEAST_COUNT and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    scopes = {"engine", "partition", "item", "log", "pipeline", "sink", "letters", "journal", "store", "bus"}
    assert {mutant.scope for mutant in MUTANTS} == scopes


def test_a_fault_that_fits_nowhere_is_reported() -> None:
    with pytest.raises(ValueError, match="update the mutant"):
        planted("nothing of the kind", MUTANTS[0])
