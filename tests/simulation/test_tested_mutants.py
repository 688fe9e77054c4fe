"""Every fault that no exploration shows is found by each test that names it.

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

from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT
from tests.simulation.tested_mutants import TESTED_MUTANTS

RUN_S_MAX = 120.0

Found = dict[str, Any]


def found_in(mutant: Mutant) -> Found:
    command = [sys.executable, "-m", "tests.simulation.run_tested_mutant", mutant.name]
    environ = dict(os.environ)  # a copy: pytest writes to the process's own while other threads start processes
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=RUN_S_MAX)
    assert done.returncode == 0, done.stderr[-2_000:]
    found: Found = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[str, Future[Found]]]:
    """All of them, begun at once on as many cores as there are."""
    pool = ThreadPoolExecutor(os.cpu_count())
    yield {mutant.name: pool.submit(found_in, mutant) for mutant in TESTED_MUTANTS}
    pool.shutdown(cancel_futures=True)


@pytest.mark.timeout(RUN_S_MAX * 3)
@pytest.mark.parametrize("mutant", TESTED_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_found_by_the_tests_that_name_it(mutant: Mutant, runs: dict[str, Future[Found]]) -> None:
    found = runs[mutant.name].result()
    assert not found["broken"], found["broken"]
    assert not found["passed"], f"with this fault planted these pass: {found['passed']}"


def test_no_two_faults_have_one_name() -> None:
    assert len({mutant.name for mutant in TESTED_MUTANTS}) == len(TESTED_MUTANTS)
