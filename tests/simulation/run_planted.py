"""Run the tests that must find a fault with that fault planted in the package's source; a line of JSON for each.

    python -m tests.simulation.run_planted MODULE [NAME ...]

MODULE has the faults as its `TABLE`.  A fault is planted while its module is imported; no file changes.  Each has a
process of its own, forked from one that has imported what takes long and nothing that a fault is planted in.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest

from tests.simulation.planting import Mutant, Table
from tests.simulation.run_mutant import ROOT, Planter, module_of

PROCESS_COUNT = 2
RUN_S_MAX = 40
TEST_S_MAX = 8
"""How long a test may take that waits in vain because of a fault; without one it takes less than a second or two."""


class Seen:
    """What became of the tests, as pytest tells it."""

    def __init__(self) -> None:
        self.passed_count = 0
        self.failed: list[str] = []
        self.broken: list[str] = []
        """What failed outside of a test's own steps."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note one step of one test."""
        if report.failed:
            name = report.nodeid.rpartition("::")[2]
            (self.failed if report.when == "call" else self.broken).append(f"{name}: {report.longreprtext[-300:]}")
        self.passed_count += report.passed and report.when == "call"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not even be imported."""
        if report.failed:
            self.broken.append(report.longreprtext[-2_000:])


def run(mutant: Mutant, folder: str) -> dict[str, Any]:
    """Plant a fault and run its tests, up to the first that fails."""
    sys.meta_path.insert(0, Planter(mutant))
    seen, told = Seen(), StringIO()
    tests = [folder + test for test in mutant.promises]
    started_s = time.perf_counter()
    with redirect_stdout(told):
        code = pytest.main(["-q", f"--timeout={TEST_S_MAX}", "-p", "no:cacheprovider", "-x", *tests], [seen])
    if code not in (0, 1):
        seen.broken.append(told.getvalue()[-1_000:])
    seconds = round(time.perf_counter() - started_s, 2)
    return {"passed": seen.passed_count, "failed": seen.failed, "broken": seen.broken, "seconds": seconds}


def main(module: str, names: Sequence[str]) -> None:
    """Run all faults of a table, or those that are named."""
    table: Table = importlib.import_module(module).TABLE
    for name in table.heavy:
        importlib.import_module(name)
    late = {name for mutant in table.mutants if (name := module_of(mutant)) in sys.modules}
    assert not late, f"too late to plant anything in {late}"
    os.chdir(ROOT)
    waiting = [mutant for mutant in table.mutants if not names or mutant.name in names]
    running: dict[int, tuple[Mutant, int]] = {}
    while waiting or running:
        while waiting and len(running) < PROCESS_COUNT:
            mutant = waiting.pop(0)
            process, answer = begun(mutant, table.folder)
            running[process] = mutant, answer
        process, _ = os.wait()
        mutant, answer = running.pop(process)
        with os.fdopen(answer) as lines:
            text = lines.read() or json.dumps({"passed": 0, "failed": [], "broken": [f"no answer in {RUN_S_MAX} s"]})
        print(json.dumps({"name": mutant.name, **json.loads(text)}), flush=True)


def begun(mutant: Mutant, folder: str) -> tuple[int, int]:
    """A process that runs one fault, and what its answer can be read from: it fits the pipe."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        return process, reading
    signal.alarm(RUN_S_MAX)
    with os.fdopen(writing, "w") as answer:
        answer.write(json.dumps(run(mutant, folder)))
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
