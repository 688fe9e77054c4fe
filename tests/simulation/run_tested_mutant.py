"""Run the tests that must find a fault with that fault planted in the package's source; one line of JSON for each test.

    python -m tests.simulation.run_tested_mutant NAME

The fault is planted while its module is imported; no file changes.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from tests.simulation.planting import Mutant
from tests.simulation.run_mutant import ROOT, Planter
from tests.simulation.tested_mutants import TESTED_MUTANTS


class Seen:
    """What became of the tests, as pytest says it."""

    def __init__(self) -> None:
        self.failed: dict[str, str] = {}
        """Names of tests without their parameters, and the end of a failure's text."""
        self.broken: list[str] = []
        """What failed outside of a test's own steps."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one step of one test."""
        name = report.nodeid.rpartition("::")[2].partition("[")[0]
        if report.failed and report.when == "call":
            self.failed[name] = report.longreprtext[-300:]
        elif report.failed:
            self.broken.append(f"{name}: {report.longreprtext[-1_000:]}")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not even be imported."""
        if report.failed:
            self.broken.append(report.longreprtext[-2_000:])


def run(mutant: Mutant) -> dict[str, Any]:
    """Plant a fault and run its tests; those that passed all the same."""
    sys.meta_path.insert(0, Planter(mutant))
    seen, told = Seen(), StringIO()
    os.chdir(ROOT)
    with redirect_stdout(told):
        code = pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=40", *mutant.promises], [seen])
    if code not in (0, 1):
        seen.broken.append(told.getvalue()[-1_000:])
    passed = [test for test in mutant.promises if test.rpartition("::")[2] not in seen.failed]
    return {"passed": passed, "failed": seen.failed, "broken": seen.broken}


if __name__ == "__main__":
    print(json.dumps(run(next(mutant for mutant in TESTED_MUTANTS if mutant.name == sys.argv[1]))))
