"""Plant faults that a machine draws, and list those that no test of their subject finds.

    python -m tests.simulation.mutate PATH ... [--all | --count 40] [--seed 0]

A path is a file or a folder of the product.  Faults are drawn from the lines that the tests of their subject reach
(mutating.py, reached.py); each is planted in a process of its own, as those of the tables are, and the tests that
reach its line run, the fastest first, up to the first that fails.  No file changes.  What has no end is found.

Survivors that a person has judged stand in judged.txt, a line each: file, function, operator, text of the line, why.
A line with a file alone says that all of its survivors are judged: from then on another one is a finding.
"""

from __future__ import annotations

import argparse
import importlib
import os
import resource
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from io import StringIO

import pytest

from tests.simulation.drawn_faults import tree_digest
from tests.simulation.forked import Answer, each
from tests.simulation.importing import ROOT, module_of, plant
from tests.simulation.mutating import Edit, edits
from tests.simulation.planting import Mutant
from tests.simulation.reached import OPTIONS, Reached, arguments, files_of, reached, subjects
from tests.simulation.swapping import Functions, exchanged, functions_below

UNPLANTED: Answer = {"planted": False}
PARTS = frozenset(sys.modules)
"""The modules of this program, which stay while a package is imported anew with a fault."""
JUDGED = ROOT / "tests/simulation/judged.txt"
COUNT = 40
RUN_S_MAX = 90.0
TESTS_S_MAX = 60.0
"""For how long the tests of one fault run, as measured without it: where none fails it takes that long."""
MEMORY_BYTES_MAX = 4 << 30
"""A fault may make a loop endless that fills memory."""


@dataclass(frozen=True)
class Fault:
    """A fault with the tests that reach it, and the form in which it is planted."""

    edit: Edit
    tests: tuple[str, ...]
    mutant: Mutant
    at_import: bool
    """Whether it is run before any test is: then the module is imported with it."""


@dataclass(frozen=True)
class Outcome:
    """What found a fault; nothing for a survivor."""

    edit: Edit
    found_by: str
    seconds: float

    def __str__(self) -> str:
        new = " ".join(self.edit.new.decode().split())
        return f"{self.edit.key} | -> {new or 'nothing'} (line {self.edit.line})"


def faults_of(file: str, found: Reached) -> list[Fault]:
    """The faults of a file on lines that tests reach."""
    text, faults = (ROOT / file).read_text(), []
    imported = set(found.imported.get(file, ()))
    for edit in edits(file, text):
        if tests := tuple(within(found, found.tests_of(file, edit.line))):
            mutant = Mutant(str(edit.key), "", tests, file, ((text, edit.applied(text)),))
            faults.append(Fault(edit, tests, mutant, edit.line in imported))
    return faults


def within(found: Reached, tests: Sequence[str]) -> list[str]:
    """As many of the tests, which come the fastest first, as end in time.

    They are those of the files that take least: a file of many tests leaves room for what others say of the same line.
    """
    total_s: defaultdict[str, float] = defaultdict(float)
    for test in tests:
        total_s[_file_of(test)] += found.seconds[test]
    chosen, spent_s = set(), 0.0
    for test in sorted(tests, key=lambda one: total_s[_file_of(one)]):
        spent_s += found.seconds[test]
        if spent_s > TESTS_S_MAX:
            break
        chosen.add(test)
    return [test for test in tests if test in chosen]


def _file_of(test: str) -> str:
    return test.partition("::")[0]


def drawn(faults: Sequence[Fault], count: int | None, seed: int) -> list[Fault]:
    """So many of the faults; a tree and a seed draw the same ones."""
    key = tree_digest() + seed.to_bytes(8)
    order = sorted(faults, key=lambda one: blake2b(one.mutant.name.encode(), key=key, digest_size=8).digest())
    return sorted(order[:count], key=lambda one: (one.edit.key.file, one.edit.start))


def outcomes(subject: str, faults: Sequence[Fault]) -> list[Outcome]:
    """What became of each fault."""
    planter = InPlaceOfTests(faults)
    with redirect_stdout(StringIO()) as told:
        code = pytest.main(arguments(subject), [planter])
    if code != 0:
        raise RuntimeError(f"{subject}: its tests cannot be collected: {told.getvalue()[-2_000:]}")
    left, found = planter.left, planter.found
    return found + [outcome(one, answer) for one, answer in each(left, anew, within_s=RUN_S_MAX)]


def outcome(fault: Fault, answer: Answer | None) -> Outcome:
    """What an answer says; a process that has no end, or dies, has shown that something is wrong.

    Raises:
        RuntimeError: the fault was not planted, so nothing is known of it.
    """
    if answer == UNPLANTED:
        raise RuntimeError(f"{fault.edit} could not be planted: its module is imported already")
    if not answer:
        return Outcome(fault.edit, "no end" if answer is None else "died", RUN_S_MAX if answer is None else 0.0)
    return Outcome(fault.edit, answer["by"], answer["seconds"])


class Seen:
    """Runs tests up to the first that fails."""

    def __init__(self) -> None:
        self.by = ""
        self._started_s = time.perf_counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a step of a test that fails."""
        if report.failed:
            self.by = self.by or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note what could not even be imported."""
        if report.failed:
            self.by = self.by or report.nodeid

    def run(self, items: Sequence[pytest.Item]) -> None:
        """Run them in this order."""
        for item, next_item in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=next_item)
            if self.by:
                return

    def answer(self) -> Answer:
        """Which test failed, and how long that took."""
        return {"by": self.by[:1_000], "seconds": round(time.perf_counter() - self._started_s, 3)}


class InPlaceOfTests:
    """A plugin of pytest: where the tests that were collected would run, each fault is planted in functions.

    Those that lie outside of functions, or run at the import, are `left`.
    """

    def __init__(self, faults: Sequence[Fault]) -> None:
        self._faults = [fault for fault in faults if not fault.at_import]
        self._finders: dict[tuple[str, str], dict[str, None]] = {}
        self.left = [fault for fault in faults if fault.at_import]
        self.found: list[Outcome] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run no test in this process."""
        for fault in self._faults:
            importlib.import_module(module_of(fault.mutant))
        items = {item.nodeid: item for item in session.items}
        work = partial(self._swapped, session.config, items, functions_below(str(ROOT)))
        for fault, answer in each(self._faults, work, within_s=RUN_S_MAX):
            if answer == UNPLANTED:
                self.left.append(fault)
                continue
            self.found.append(outcome(fault, answer))
            if answer and answer["by"]:
                self._finders.setdefault(_place(fault), {})[answer["by"]] = None
        return True

    def _swapped(
        self, config: pytest.Config, items: dict[str, pytest.Item], functions: Functions, fault: Fault
    ) -> Answer:
        """Plant a fault in functions and run its tests, first those that found others in the same function."""
        ((text, changed_text),) = fault.mutant.edits
        if not exchanged(functions, str(ROOT / fault.mutant.file), text, changed_text):
            return UNPLANTED
        finders = [test for test in self._finders.get(_place(fault), ()) if test in fault.tests]
        seen = Seen()
        config.pluginmanager.register(seen)
        with harmless():
            seen.run([items[test] for test in dict.fromkeys([*finders, *fault.tests]) if test in items])
        return seen.answer()


def _place(fault: Fault) -> tuple[str, str]:
    return fault.edit.key.file, fault.edit.key.function


def anew(fault: Fault) -> Answer:
    """Plant a fault in a package that is imported with it, and run its tests."""
    try:
        plant(fault.mutant, PARTS)
    except AssertionError:
        return UNPLANTED
    seen = Seen()
    files = sorted({_file_of(test) for test in fault.tests})
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()), harmless():
        code = pytest.main(
            [*OPTIONS, "-x", f"--rootdir={ROOT}", *(str(ROOT / file) for file in files)], [seen, Chosen(fault.tests)]
        )
    if code not in (0, 1):
        seen.by = seen.by or "its import"  # of a conftest, say, which no report tells of
    return seen.answer()


class Chosen:
    """A plugin of pytest: of what is collected these tests run, in this order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = tests

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave the others out."""
        found = {item.nodeid: item for item in items}
        items[:] = [found[test] for test in self._tests if test in found]


@contextmanager
def harmless() -> Iterator[None]:
    """Away from the tree, which a fault might take for a folder of its own; with a bound of memory, and silent."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, chdir(folder):
        yield


def judged() -> tuple[set[str], set[str]]:
    """The survivors that a person has judged, and the files of which all are."""
    lines = [line for line in JUDGED.read_text().splitlines() if line and not line.startswith("#")]
    return {line.rpartition(" | ")[0] for line in lines if " | " in line}, {line for line in lines if " | " not in line}


def survivors(found: Sequence[Outcome]) -> list[Outcome]:
    """Those that no test finds and no person has judged."""
    known, _ = judged()
    return [one for one in found if not one.found_by and str(one.edit.key) not in known]


def findings(found: Sequence[Outcome]) -> list[str]:
    """Survivors in files of which all are judged."""
    _, whole = judged()
    return [f"survives: {one}" for one in survivors(found) if one.edit.key.file in whole]


def piece(seed: int) -> tuple[int, list[str]]:
    """Plant some faults in the subject that a seed names: how many, and what is found."""
    names = list(subjects())
    subject = names[seed % len(names)]
    known = reached(subject)
    faults = [fault for file in files_of(subject) for fault in faults_of(file, known)]
    chosen = drawn(faults, COUNT, seed // len(names))
    return len(chosen), findings(outcomes(subject, chosen))


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; 1 if one survives that no person has judged."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutate", description=__doc__)
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("--all", action="store_true", help="every fault, not those of a draw")
    parser.add_argument("--count", type=int, default=COUNT, help="how many are drawn from each subject")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    os.chdir(ROOT)
    found: list[Outcome] = []
    files_by_subject = chosen_files(options.paths)
    measured_s = dict[str, float]()
    for subject in files_by_subject:  # all before a fault is planted, which imports the modules of others here
        started_s = time.monotonic()
        for test in reached(subject).failed:
            print(f"left out, does not pass without a fault: {test}", file=sys.stderr)
        measured_s[subject] = time.monotonic() - started_s
    for subject, files in files_by_subject.items():
        started_s, known = time.monotonic(), reached(subject)
        faults = [fault for file in files for fault in faults_of(file, known)]
        chosen = drawn(faults, None if options.all else options.count, options.seed)
        ended = outcomes(subject, chosen)
        found += ended
        took_s = time.monotonic() - started_s
        alive_count = sum(not one.found_by for one in ended)
        print(
            f"{subject}: {len(faults):,} faults where {len(known.seconds):,} tests reach, {len(ended)} planted, "
            f"{alive_count} survive; {took_s:.0f} s, {took_s / max(1, len(ended)):.2f} s each, "
            f"after {measured_s[subject]:.0f} s in which the tests were measured"
        )
    alive = survivors(found)
    print(*alive, sep="\n", end="\n" if alive else "")
    return 1 if alive else 0


def chosen_files(paths: Sequence[str]) -> dict[str, list[str]]:
    """The files at or below these paths, by subject."""
    wanted = [os.path.relpath(path, ROOT) for path in paths]
    chosen = {
        subject: [
            file for file in files_of(subject) if any(file == path or file.startswith(f"{path}/") for path in wanted)
        ]
        for subject in subjects()
    }
    return {subject: files for subject, files in chosen.items() if files}


if __name__ == "__main__":
    sys.exit(main())
