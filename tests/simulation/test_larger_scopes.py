"""The list of larger scopes names what there is, and leaves each test something for every run."""

from __future__ import annotations

import subprocess
import sys

from tests.simulation.importing import ROOT
from tests.simulation.larger_scopes import LARGER


def collected(which: str) -> set[str]:
    files = [f"test_{file}.py" for file in LARGER]
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", which, "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=ROOT / "tests/simulation", capture_output=True, text=True, timeout=120)
    return {line.removeprefix("tests/simulation/") for line in done.stdout.splitlines() if "::" in line}


def test_every_larger_scope_is_there_and_smaller_ones_of_its_test_are_part_of_every_run() -> None:
    tests = {
        f"test_{file}.py::test_{name}": ids.split("; ") for file, each in LARGER.items() for name, ids in each.items()
    }
    assert {f"{test}[{scope}]" for test, scopes in tests.items() for scope in scopes} <= collected("soak")
    assert set(tests) <= {test.partition("[")[0] for test in collected("not soak")}
