"""Run the tests that must find a fault with that fault planted in the package's source; a line of JSON for each.

    python -m tests.simulation.run_planted MODULE [NAME ...]

MODULE has the faults as its `TABLE`.  No file changes.  Each fault has a process of its own, forked from one that has
imported the package and all tests: functions get the bodies that the fault gives them (swapping.py).  A fault that lies
outside of them, or that no test finds so, is planted while its module is imported (importing.py).
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from io import StringIO

import pytest

from tests.simulation.forked import Answer, each
from tests.simulation.importing import ROOT, module_of, plant, planted
from tests.simulation.planting import Mutant, Table
from tests.simulation.swapping import Functions, exchanged, functions_below

RUN_S_MAX = 60
NO_END = {"passed": 0, "failed": [f"no end in {RUN_S_MAX} s"], "broken": [], "seconds": RUN_S_MAX, "cpu_s": RUN_S_MAX}
"""What swallows even what ends a test in time has failed that test."""
DIED = {"passed": 0, "failed": [], "broken": ["no answer"], "seconds": 0.0, "cpu_s": 0.0}
NOT_PLANTED = {"passed": 0, "failed": [], "broken": [], "seconds": 0.0, "cpu_s": 0.0}

LIMIT = "from pytest-timeout"
"""In what pytest prints where a limit has struck; on a busy machine it may do so between two steps."""
TEST_S_MAX = 8
"""How long a test may take that waits in vain because of a fault; without one it takes less than a second or two."""

OPTIONS = ("-q", f"--timeout={TEST_S_MAX}", "-p", "no:cacheprovider", "-x", "--tb=native")
"""Up to the first test that fails; a traceback as Python has it does not look for its source in every module."""


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
            self.broken.append(report.longreprtext[-600:])


def swapped(folder: str, functions: Functions, mutant: Mutant) -> Answer:
    """Plant a fault in functions and run its tests; nothing if it lies outside of them."""
    text = (ROOT / mutant.file).read_text()
    if not exchanged(functions, str(ROOT / mutant.file), text, planted(text, mutant)):
        return NOT_PLANTED
    return run(folder, mutant)


def anew(folder: str, known: Collection[str], mutant: Mutant) -> Answer:
    """Plant a fault in a package that is imported with it, and run its tests."""
    plant(mutant, known)
    return run(folder, mutant)


def run(folder: str, mutant: Mutant) -> Answer:
    """Run the tests of a fault, up to the first that fails."""
    seen, told = Seen(), StringIO()
    tests = [folder + test for test in mutant.promises]
    started_s, used_s = time.perf_counter(), cpu_s()
    with redirect_stdout(told):
        code = pytest.main([*OPTIONS, *tests], [seen])
    if code not in (0, 1):
        seen.broken.append(told.getvalue()[-600:])
    seconds = round(time.perf_counter() - started_s, 2)
    used = {"seconds": seconds, "cpu_s": round(cpu_s() - used_s, 2)}
    return {"passed": seen.passed_count, "failed": seen.failed[:1], "broken": seen.broken[:1], **used}


def is_cut(found: Answer) -> bool:
    """Whether a limit struck outside of a test's own steps."""
    return any(LIMIT in text for text in found.get("broken", ()))


def cpu_s() -> float:
    """The CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def main(module: str, names: Sequence[str]) -> None:
    """Run all faults of a table, or those that are named."""
    table: Table = importlib.import_module(module).TABLE
    mutants = [mutant for mutant in table.mutants if not names or mutant.name in names]
    os.chdir(ROOT)
    known = set(sys.modules)
    functions = imported(mutants, table.folder)
    left = []
    for mutant, found in outcomes(mutants, partial(swapped, table.folder, functions)):
        if found["broken"] or not found["failed"]:
            left.append(mutant)
        else:
            print(json.dumps({"name": mutant.name, **found}), flush=True)
    for mutant, found in outcomes(left, partial(anew, table.folder, known)):
        print(json.dumps({"name": mutant.name, **found}), flush=True)


def outcomes(mutants: Sequence[Mutant], work: Callable[[Mutant], Answer]) -> Iterator[tuple[Mutant, Answer]]:
    """What became of each, in a process of its own."""
    for mutant, answer in each(mutants, work, within_s=RUN_S_MAX, is_cut=is_cut):
        yield mutant, NO_END if answer is None else answer or DIED


def imported(mutants: Iterable[Mutant], folder: str) -> Functions:
    """Import the tests of all faults, and with them the package; the functions of its files, as no fault has them."""
    files = sorted({folder + test.partition("::")[0] for mutant in mutants for test in mutant.promises})
    with redirect_stdout(StringIO()) as told:
        code = pytest.main([*OPTIONS, "--collect-only", *files])
    assert code == 0, told.getvalue()[-2_000:]
    for mutant in mutants:
        importlib.import_module(module_of(mutant))
    return functions_below(str(ROOT))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
