"""Every planted fault is found, by a short way: a rule that could be taken out unseen would be no rule.

Each runs in a process of its own, because the fault is planted while the package is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.simulation.mutants import MUTANTS, STEP_COUNT_MAX
from tests.simulation.planting import Mutant
from tests.simulation.rule_mutants import RULE_MUTANTS
from tests.simulation.run_mutant import ROOT, explored, planted
from tests.simulation.settling_mutants import SETTLING_MUTANTS

pytestmark = pytest.mark.slow

LEAST_COUNT = 25
RUN_S_MAX = 60.0

Found = dict[str, Any]


def found_in(mutant: Mutant) -> Found:
    command = [sys.executable, "-m", "tests.simulation.run_mutant", mutant.name]
    environ = dict(os.environ)  # a copy: pytest writes to the process's own while other threads start processes
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[Found]]]:
    """All of them, begun at once on as many cores as there are."""
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {mutant.name: pool.submit(found_in, mutant) for mutant in MUTANTS}
    pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(RUN_S_MAX * 3)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found_by_a_short_way(mutant: Mutant, runs: dict[str, Future[Found]]) -> None:
    found = runs[mutant.name].result()
    assert found["anomalies"], f"{mutant.name} is not found: {found['text']}"
    first = found["anomalies"][0]
    assert first["promise"] in mutant.promises and first["steps"] <= STEP_COUNT_MAX, found["text"]


@pytest.mark.parametrize("mutant", (*SETTLING_MUTANTS, *RULE_MUTANTS), ids=lambda mutant: mutant.name)
def test_without_the_fault_its_exploration_finds_nothing(mutant: Mutant) -> None:
    found = explored(mutant)
    assert not found["anomalies"] and "exhausted" in found["text"].splitlines(), found["text"]


def test_every_protocol_and_the_engine_have_faults_planted() -> None:
    assert len(MUTANTS) >= LEAST_COUNT and len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    scopes = {"engine", "partition", "item", "log", "sink", "journal", "store", "bus"}
    assert {mutant.scope for mutant in MUTANTS} == scopes


def test_a_fault_that_fits_nowhere_is_reported() -> None:
    with pytest.raises(ValueError, match="update the mutant"):
        planted("nothing of the kind", MUTANTS[0])
