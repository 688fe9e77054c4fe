"""Run the tests that must find a fault with that fault planted in the package's source; a line of JSON for each.

    python -m tests.simulation.run_planted MODULE [NAME ...]

MODULE has the faults as its `TABLE`.  No file changes.  Each fault has a process of its own, forked from one in which
pytest has collected all tests: functions get the bodies that the fault gives them (swapping.py).  A fault that lies
outside of them, or that no test finds so, is planted while its module is imported (importing.py), and pytest begins
anew.
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

    def answer(self, started_s: float, used_s: float) -> Answer:
        """All of it, with what it took since these readings of the clocks."""
        used = {"seconds": round(time.perf_counter() - started_s, 2), "cpu_s": round(cpu_s() - used_s, 2)}
        return {"passed": self.passed_count, "failed": self.failed[:1], "broken": self.broken[:1], **used}


class InPlaceOfTests:
    """A plugin of pytest: where the tests that were collected would run, each fault is planted.

    Faults that were not found so are `left`.
    """

    def __init__(self, mutants: Sequence[Mutant], folder: str) -> None:
        self._mutants = mutants
        self._folder = folder
        self.left: list[Mutant] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run no test in this process."""
        for mutant in self._mutants:
            importlib.import_module(module_of(mutant))
        work = partial(self._swapped, session, functions_below(str(ROOT)))
        for mutant, found in outcomes(self._mutants, work):
            if found["broken"] or not found["failed"]:
                self.left.append(mutant)
            else:
                tell(mutant, found)
        return True

    def _swapped(self, session: pytest.Session, functions: Functions, mutant: Mutant) -> Answer:
        """Plant a fault in functions and run its tests; nothing if it lies outside of them."""
        text = (ROOT / mutant.file).read_text()
        if not exchanged(functions, str(ROOT / mutant.file), text, planted(text, mutant)):
            return NOT_PLANTED
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what programs print that a test begins is no line of ours
        seen, started_s, used_s = Seen(), time.perf_counter(), cpu_s()
        session.config.pluginmanager.register(seen)
        items = named(session.items, [self._folder + test for test in mutant.promises])
        for item, next_item in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if seen.failed or seen.broken:
                break
        return seen.answer(started_s, used_s)


def named(items: Sequence[pytest.Item], names: Iterable[str]) -> list[pytest.Item]:
    """The tests that a command line with these names would run, in its order."""
    found = {
        item: None
        for name in names
        for item in items
        if item.nodeid == name or item.nodeid.startswith((f"{name}[", f"{name}::"))
    }
    return list(found)


def anew(folder: str, known: Collection[str], mutant: Mutant) -> Answer:
    """Plant a fault in a package that is imported with it, and run its tests, up to the first that fails."""
    plant(mutant, known)
    seen, told, started_s, used_s = Seen(), StringIO(), time.perf_counter(), cpu_s()
    with redirect_stdout(told):
        code = pytest.main([*OPTIONS, *(folder + test for test in mutant.promises)], [seen])
    if code not in (0, 1):
        seen.broken.append(told.getvalue()[-600:])
    return seen.answer(started_s, used_s)


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
    files = sorted({table.folder + test.partition("::")[0] for mutant in mutants for test in mutant.promises})
    planter = InPlaceOfTests(mutants, table.folder)
    with redirect_stdout(StringIO()) as told:
        code = pytest.main([*OPTIONS, "--capture=sys", *files], [planter])
    assert code == 0, told.getvalue()[-2_000:]
    for mutant, found in outcomes(planter.left, partial(anew, table.folder, known)):
        tell(mutant, found)


def tell(mutant: Mutant, found: Answer) -> None:
    """Print what became of a fault, past what pytest keeps of a test's output."""
    print(json.dumps({"name": mutant.name, **found}), file=sys.__stdout__, flush=True)


def outcomes(mutants: Sequence[Mutant], work: Callable[[Mutant], Answer]) -> Iterator[tuple[Mutant, Answer]]:
    """What became of each, in a process of its own."""
    for mutant, answer in each(mutants, work, within_s=RUN_S_MAX, is_cut=is_cut):
        yield mutant, NO_END if answer is None else answer or DIED


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
