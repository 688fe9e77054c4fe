"""Every fault planted in an adapter is found by the test that names it, through the real SDKs and over the wire."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT
from tests.wire.on_azure.adapter_mutants import ADAPTER_MUTANTS

ALL_WITHIN_S = 300.0
FOUND_WITHIN_S = 20.0
"""On a machine that does other things as well; alone most take less than one."""
LEAST_COUNT = 40

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found() -> Iterator[dict[str, Found]]:
    """What became of all of them, by name."""
    command = [sys.executable, "-m", "tests.simulation.run_planted", "tests.wire.on_azure.adapter_mutants"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALL_WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    yield {line["name"]: line for line in lines}


@pytest.mark.slow
@pytest.mark.timeout(ALL_WITHIN_S)
def test_without_a_fault_nothing_fails(found: dict[str, Found]) -> None:
    nothing = found["no fault"]
    assert nothing["passed"] > LEAST_COUNT and not nothing["failed"] and not nothing["broken"], nothing


@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", ADAPTER_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_an_adapter_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    run = found[mutant.name]
    assert not run["broken"], run["broken"]
    assert run["failed"], f"{mutant.promises} pass with this fault planted: {mutant.name}"
    assert run["seconds"] < FOUND_WITHIN_S


def test_both_services_have_faults_planted() -> None:
    assert len({mutant.name for mutant in ADAPTER_MUTANTS}) == len(ADAPTER_MUTANTS) >= LEAST_COUNT
    assert {mutant.scope for mutant in ADAPTER_MUTANTS} == {"cosmos", "bus"}
