"""Run the tests that must find a fault with that fault planted in the package's source; a line of JSON for each.

    python -m tests.simulation.run_planted MODULE [NAME ...]

MODULE has the faults as its `TABLE`.  A fault is planted while its module is imported; no file changes.  Each has a
process of its own, forked from one that has imported what takes long and nothing that a fault is planted in.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from io import StringIO
from typing import Any, NamedTuple

import pytest

from tests.simulation.planting import Mutant, Table
from tests.simulation.run_mutant import ROOT, Planter, module_of

PROCESS_COUNT = 2
RUN_S_MAX = 60
UNMEASURED = {"seconds": RUN_S_MAX, "cpu_s": 0.0}
ANSWER_BYTES_MAX = select.PIPE_BUF
"""What a pipe takes in one piece; what is told of failures is cut to fit."""

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


def run(mutant: Mutant, folder: str) -> dict[str, Any]:
    """Plant a fault and run its tests, up to the first that fails."""
    sys.meta_path.insert(0, Planter(mutant))
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


def cpu_s() -> float:
    """The CPU seconds of this process and of those that it waited for."""
    return sum(os.times()[:4])


def main(module: str, names: Sequence[str]) -> None:
    """Run all faults of a table, or those that are named."""
    table: Table = importlib.import_module(module).TABLE
    for name in table.heavy:
        importlib.import_module(name)
    late = {name for mutant in table.mutants if (name := module_of(mutant)) in sys.modules}
    assert not late, f"too late to plant anything in {late}"
    os.chdir(ROOT)
    gc.collect()
    gc.freeze()  # no process of a fault goes through what is there for all of them, nor copies it by that
    waiting = [mutant for mutant in table.mutants if not names or mutant.name in names]
    running: dict[int, Run] = {}
    repeated: set[str] = set()
    while waiting or running:
        while waiting and len(running) < PROCESS_COUNT:
            begun = begin(waiting.pop(0), table.folder)
            running[begun.answer] = begun
        next_end_s = min(begun.ends_s for begun in running.values())
        answered, _, _ = select.select(list(running), [], [], max(0.0, next_end_s - time.monotonic()))
        for answer in answered or [a for a, begun in running.items() if begun.ends_s <= time.monotonic()]:
            begun = running.pop(answer)
            found = begun.result(answer in answered)
            is_cut = any(LIMIT in text for text in found["broken"])  # the limit struck outside of the test's own steps
            if is_cut and begun.mutant.name not in repeated:
                repeated.add(begun.mutant.name)
                waiting.append(begun.mutant)
                continue
            print(json.dumps({"name": begun.mutant.name, **found}), flush=True)


class Run(NamedTuple):
    """A process that runs the tests of one fault."""

    mutant: Mutant
    process: int
    answer: int
    """The pipe that its answer can be read from."""

    ends_s: float

    def result(self, answered: bool) -> dict[str, Any]:
        """What it answered, in one write.  One that swallows even what ends a test in time has failed that test.

        It is killed with all that it began, which may hold its pipe open.
        """
        text = os.read(self.answer, ANSWER_BYTES_MAX) if answered else b""
        os.close(self.answer)
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        if not answered:
            return {"passed": 0, "failed": [f"no end in {RUN_S_MAX} s"], "broken": [], **UNMEASURED}
        if not text:
            return {"passed": 0, "failed": [], "broken": ["no answer"], **UNMEASURED}
        told: dict[str, Any] = json.loads(text)
        return told


def begin(mutant: Mutant, folder: str) -> Run:
    """Begin a process, and a group of processes, for one fault."""
    reading, writing = os.pipe()
    process = os.fork()
    if process:
        os.close(writing)
        with suppress(OSError):  # by now the process may have done it, or ended
            os.setpgid(process, process)
        return Run(mutant, process, reading, time.monotonic() + RUN_S_MAX)
    os.setpgid(0, 0)
    os.close(reading)
    text = json.dumps(run(mutant, folder), ensure_ascii=False).encode()
    os.write(writing, text)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
