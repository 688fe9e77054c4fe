"""What became of a table of planted faults, for the test file that has one test for each.

That the tests pass without a fault is seen where they stand: they are part of every run.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.simulation.importing import ROOT
from tests.simulation.planting import Mutant

ALL_WITHIN_S = 900.0

Found = dict[str, Any]


def outcomes(module: str, request: pytest.FixtureRequest) -> dict[str, Found]:
    """What the tests of each fault of `module.TABLE` that this run plants said with it planted, by the fault's name."""
    names = [item.callspec.params["mutant"].name for item in planted_in(request)]
    command = [sys.executable, "-m", "tests.simulation.run_planted", module, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=ALL_WITHIN_S)
    assert done.returncode == 0, done.stderr[-2_000:]
    return {line["name"]: line for line in map(json.loads, done.stdout.splitlines())}


def planted_in(request: pytest.FixtureRequest) -> list[Any]:
    """The tests of one fault each that this run has of the file that asks."""
    return [
        item
        for item in request.session.items
        if item.path == request.path and item.get_closest_marker("planted") is not None
    ]


def check_found(mutant: Mutant, found: dict[str, Found]) -> None:
    """A fault failed a test that is named for it, and broke nothing else."""
    run = found[mutant.name]
    assert not run["broken"], run["broken"]
    assert run["failed"], f"{mutant.promises} pass with this fault planted: {mutant.name}"
