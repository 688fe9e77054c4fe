"""Which lines of a subject each of its tests reaches and how long a test takes, measured once for a tree.

A subject is a folder of the product with the tests that are its own: those in the folder of its name in tests/unit/,
and what `OTHERS` names.  A file belongs to the innermost subject that it lies in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from operator import itemgetter
from pathlib import Path

import msgspec
import pytest
from coverage import Coverage

from tests.simulation.drawn_faults import digest_of
from tests.simulation.forked import Answer, each
from tests.simulation.importing import OWN, ROOT

OTHERS = {
    "outbox": ("tests/unit/handlers", "tests/unit/runtime", "tests/unit/telemetry", "tests/unit/web"),
    "outbox/azure": ("tests/wire/on_azure", "tests/functions"),
    "outbox/emulator": ("tests/wire/servicebus", "tests/wire/cosmos", "tests/wire/blobs"),
    "outbox/emulator/amqp": ("tests/unit/amqp",),
    "outbox/engine": ("tests/unit/engine_log", "tests/unit/ops/test_discards.py", "tests/unit/ops/test_queue_pause.py"),
    "outbox/registration": (
        "tests/unit/handlers",
        "tests/unit/runtime/test_registration.py",
        "tests/unit/runtime/test_key_types.py",
    ),
    "outbox/runtime": (
        "tests/unit/stores",
        "tests/unit/steps",
        "tests/unit/telemetry",
        "tests/unit/ops/test_discards.py",
    ),
    "function_app": ("tests/functions",),
    "spark_jobs": ("tests/spark",),
}
"""The tests of a subject, folders or files, beside those in the folder of its name."""
LEFT_OUT = ("slow", "soak", "spark", "java", "planted", "azure")
"""The marks of tests that take too long to run for each fault."""
SESSION = "spark"
"""The fixture of those that do so even where no mark says it."""
TEST_S_MAX = 2.5
"""How long a test may take, when measured, to be run for a fault; with one it may take `LIMIT_S`."""
LIMIT_S = 5
OPTIONS = ("-q", f"--timeout={LIMIT_S}", "-p", "no:cacheprovider", "--tb=native", "--capture=sys")
MEASURED_S_MAX = 900.0
MEASURED = ROOT / "build" / "reached"


class Reached(msgspec.Struct):
    """What the tests of a subject reach.

    Lines of one function are mostly reached by the same tests: such a group is kept once.
    """

    seconds: dict[str, float] = {}
    """What each test takes that passes, and in time; the fastest first."""
    failed: list[str] = []
    groups: list[list[int]] = []
    """Tests that reach the same lines, by their places in `seconds`."""
    lines: dict[str, dict[int, int]] = {}
    """The group that reaches a line, by file."""
    imported: dict[str, list[int]] = {}
    """The lines that run before any test does."""

    def tests_of(self, file: str, line: int) -> list[str]:
        """The tests that reach a line, the fastest first; of one that runs at the import, those of all its file."""
        lines = self.lines.get(file, {})
        if line in self.imported.get(file, ()):
            groups = set(lines.values())
        else:
            groups = {lines[line]} if line in lines else set()
        names = list(self.seconds)
        return [names[at] for at in sorted({at for group in groups for at in self.groups[group]})]


def reaching(
    seconds: Mapping[str, float], lines: Mapping[str, Mapping[int, Iterable[str]]], failed: Iterable[str] = ()
) -> Reached:
    """What tests reach that take so long, as it is kept; by file and line, and a line of no test ran at the import."""
    found = Reached(seconds=dict(sorted(seconds.items(), key=itemgetter(1))), failed=list(failed))
    places = {test: at for at, test in enumerate(found.seconds)}
    known: dict[tuple[int, ...], int] = {}
    for file, tests_by_line in lines.items():
        passed = found.lines[file] = {}
        for line, tests in tests_by_line.items():
            if "" in tests:
                found.imported.setdefault(file, []).append(line)
            group = tuple(sorted(places[test] for test in set(tests) if test in places))
            passed[line] = known.setdefault(group, len(known))
    found.groups = [list(group) for group in known]
    return found


@cache
def subjects() -> dict[str, tuple[str, ...]]:
    """The subjects and the folders of their tests."""
    units = {f"outbox/{path.name}": f"tests/unit/{path.name}" for path in (ROOT / "tests/unit").iterdir()}
    names = sorted({*OTHERS, *(name for name in units if (ROOT / name).is_dir())})
    return {name: (*(unit for unit in [units.get(name)] if unit), *OTHERS.get(name, ())) for name in names}


def subject_of(file: str) -> str:
    """The innermost subject that a file lies in."""
    return max((one for one in subjects() if file.startswith(f"{one}/")), key=len)


def files_of(subject: str) -> list[str]:
    """The files of a subject; what is a template of others' files is none."""
    files = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / subject).rglob("*.py")))
    return [file for file in files if subject_of(file) == subject and "/template/" not in file]


def reached(subject: str) -> Reached:
    """What a subject's tests reach: as it is known for this tree, or measured in a process of its own."""
    sources = (path for package in (*OWN[:3], "tests") for path in (ROOT / package).rglob("*.py"))
    digest = digest_of(path.read_bytes() for path in sorted(sources)).hex()
    kept = MEASURED / f"{subject.replace('/', '.')}-{digest}.json"
    if not kept.exists():
        MEASURED.mkdir(parents=True, exist_ok=True)
        for old in MEASURED.glob(f"{subject.replace('/', '.')}-*.json"):
            old.unlink()
        answers = dict(each([subject], lambda one: measure(one, kept), within_s=MEASURED_S_MAX))
        if not answers[subject]:
            raise RuntimeError(f"{subject}: its tests did not end in {MEASURED_S_MAX:g} s, or ended this process")
    return msgspec.json.decode(kept.read_bytes(), type=Reached)


def measure(subject: str, kept: Path) -> Answer:
    """Run a subject's tests, and write down what they reach."""
    coverage = Coverage(data_file=None, config_file=False, include=[str(ROOT / file) for file in files_of(subject)])
    seen = Measuring(coverage.switch_context)
    coverage.start()
    with redirect_stdout(StringIO()) as told:
        code = pytest.main([*arguments(subject), f"--timeout={MEASURED_S_MAX}"], [seen])
    coverage.stop()
    if code not in (0, 1):
        print(told.getvalue()[-2_000:], file=sys.stderr)
        return {}
    lines = {
        Path(path).relative_to(ROOT).as_posix(): coverage.get_data().contexts_by_lineno(path)
        for path in coverage.get_data().measured_files()
    }
    found = reaching(seen.seconds, lines, seen.failed)
    part = kept.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(found))
    part.replace(kept)
    return {"tests": len(seen.seconds)}


def arguments(subject: str) -> list[str]:
    """What pytest is told to collect a subject's tests."""
    return [*OPTIONS, "-m", " and ".join(f"not {mark}" for mark in LEFT_OUT), *subjects()[subject]]


class Measuring:
    """A plugin of pytest: says whose lines come next, and keeps what each test took."""

    def __init__(self, switch: Callable[[str], object]) -> None:
        self._switch = switch
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave those out that need a Spark session."""
        items[:] = [item for item in items if SESSION not in getattr(item, "fixturenames", ())]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run one test as its own context, which is written as long as it takes."""
        self._switch(item.nodeid)
        started_s = time.perf_counter()
        try:
            return (yield)
        finally:
            self.seconds[item.nodeid] = time.perf_counter() - started_s
            if item.nodeid in self.failed or self.seconds[item.nodeid] > TEST_S_MAX:
                del self.seconds[item.nodeid]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test that does not pass as the tree is: it finds nothing."""
        if not report.passed and report.nodeid not in self.failed:
            self.failed.append(report.nodeid)
