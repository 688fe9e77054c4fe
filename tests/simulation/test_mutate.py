"""Drawn faults are planted where tests reach; what survives is told, and the tree stays as it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation import mutate, reached
from tests.simulation.importing import ROOT
from tests.simulation.mutating import edits
from tests.simulation.planting import Mutant

SIZES = """LIMIT = 3


def small(x):
    if x < LIMIT:
        return True
    return False


def down(x):
    while x > 0:
        x -= 1
    return x


def unreached(x):
    return x + 1
"""
TESTS = """from outbox.example.sizes import down, small


def test_small():
    assert small(1) and not small(9)


def test_down():
    assert down(3) == 0


def test_without_a_mark(spark):
    assert down(spark) == 0
"""
FIXTURE = """import pytest


@pytest.fixture
def spark():
    return 3
"""
SURVIVORS = ["small | comparison | if x < LIMIT:", "small | return | return False", "module | one | LIMIT = 3"]
FAULT_COUNT = 14


def test_each_file_has_the_innermost_subject() -> None:
    assert reached.subject_of("outbox/emulator/amqp/link.py") == "outbox/emulator/amqp"
    assert reached.subject_of("outbox/emulator/faults.py") == "outbox/emulator"
    assert reached.subject_of("outbox/message.py") == "outbox"
    assert "outbox/message.py" in reached.files_of("outbox")
    assert "outbox/emulator/faults.py" not in reached.files_of("outbox")
    folders = [folder for tests in reached.subjects().values() for folder in tests]
    assert [folder for folder in folders if not (ROOT / folder).exists()] == []
    assert reached.subjects()["outbox/engine"] == ("tests/unit/engine", *reached.OTHERS["outbox/engine"])


def test_a_file_with_a_line_that_runs_at_the_import_asks_all_tests_that_reach_it() -> None:
    lines = {"a.py": {1: [""], 5: ["slow"], 6: ["slow", "fast"]}, "b.py": {1: ["other", "failed"]}}
    found = reached.reaching({"slow": 2.0, "fast": 1.0, "other": 9.0}, lines, ["failed"])
    assert found.tests_of("a.py", 1) == ["fast", "slow"]
    assert found.tests_of("a.py", 6) == ["fast", "slow"]
    assert found.tests_of("a.py", 7) == []
    assert found.tests_of("b.py", 1) == ["other"]


def test_of_more_tests_than_there_is_time_for_those_of_small_files_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutate, "TESTS_S_MAX", 10.0)
    seconds = {f"large.py::{n}": 0.5 for n in range(30)} | {"small.py::a": 1.0, "small.py::b": 6.0, "one.py::c": 0.1}
    found = reached.reaching(seconds, {"a.py": {1: seconds}})
    tests = found.tests_of("a.py", 1)
    assert tests[0] == "one.py::c" and tests[-1] == "small.py::b"
    chosen = mutate.within(found, tests)
    assert [test for test in chosen if test[0] != "l"] == ["one.py::c", "small.py::a", "small.py::b"]
    assert len(chosen) == 8 and chosen == sorted(chosen, key=tests.index)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one subject of one file, and the mutator."""
    shutil.copytree(
        ROOT / "tests/simulation", tmp_path / "tests/simulation", ignore=shutil.ignore_patterns("test_*", "__*")
    )
    for file, text in {
        "outbox/__init__.py": "",
        "outbox/example/sizes.py": SIZES,
        "tests/unit/example/test_sizes.py": TESTS,
        "tests/unit/example/conftest.py": FIXTURE,
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib\npythonpath = .\n")
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.simulation.mutate", "outbox/example/sizes.py", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_survivors_are_listed_until_they_are_judged_and_no_file_changes(tree: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    done = run(tree, "--all")
    assert done.returncode == 1, done.stderr
    head, *alive = done.stdout.splitlines()
    keys = [line.partition(" | -> ")[0].removeprefix("outbox/example/sizes.py | ") for line in alive]
    assert keys == SURVIVORS, done.stdout  # what never ends is not among them, nor what no test reaches
    assert head.startswith(f"outbox/example: {FAULT_COUNT} faults where 2 tests reach, {FAULT_COUNT} planted")
    assert {
        path: path.read_bytes() for path in tree.rglob("*") if path.is_file() and "build" not in path.parts
    } == before

    judged = [f"outbox/example/sizes.py | {key} | equivalent\n" for key in keys]
    (tree / "tests/simulation/judged.txt").write_text("".join(judged))
    (tree / "outbox/example/sizes.py").write_text(f"import math\n\n\n{SIZES}")
    done = run(tree, "--all")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 1), done.stdout + done.stderr


@pytest.mark.soak
def test_a_module_that_an_earlier_subject_has_imported_is_planted_all_the_same(tree: Path) -> None:
    (tree / "outbox/second").mkdir()
    (tree / "outbox/second/more.py").write_text("LIMIT = 4\n\n\ndef over(n):\n    return n > LIMIT\n")
    (tree / "tests/unit/second").mkdir()
    (tree / "tests/unit/second/test_more.py").write_text(
        "from outbox.second.more import over\n\n\ndef test_over():\n    assert over(9) and not over(0)\n"
    )
    with (tree / "tests/unit/example/test_sizes.py").open("a") as tests:
        tests.write("\n\nimport outbox.second.more\n")
    done = run(tree, "outbox/second/more.py", "--all")
    found = [line for line in done.stdout.splitlines() if line.startswith("outbox/second/more.py")]
    assert [line.split(" | ")[2] for line in found] == ["comparison", "one"], done.stdout + done.stderr


def test_a_fault_that_could_not_be_planted_is_not_found() -> None:
    [edit, *_] = edits("outbox/a.py", "LIMIT = 4\n")
    fault = mutate.Fault(edit, (), Mutant("x", "x", (), "outbox/a.py", ()), at_import=True)
    with pytest.raises(RuntimeError, match="could not be planted"):
        mutate.outcome(fault, mutate.UNPLANTED)


def test_in_a_file_of_which_all_are_judged_another_survivor_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutate, "JUDGED", tmp_path / "judged.txt")
    first, second = edits("outbox/a.py", "def f(x):\n    return x < 1\n")[1:3]
    found = [mutate.Outcome(first, "", 0.1), mutate.Outcome(second, "", 0.1), mutate.Outcome(second, "test_f", 0.1)]
    mutate.JUDGED.write_text(f"# why\n{first.key} | equivalent\n")
    assert mutate.survivors(found) == found[1:2]
    assert mutate.findings(found) == []
    mutate.JUDGED.write_text(f"{first.key} | equivalent\noutbox/a.py\n")
    assert mutate.findings(found) == [f"survives: {found[1]}"]


def test_what_is_judged_is_still_drawn() -> None:
    known, whole = mutate.judged()
    files = {key.partition(" | ")[0] for key in known}
    drawn = {str(edit.key) for file in files for edit in edits(file, (ROOT / file).read_text())}
    assert sorted(known - drawn) == []
    assert [file for file in sorted(whole) if not (ROOT / file).is_file()] == []


def test_a_tree_and_a_seed_draw_the_same_faults() -> None:
    text = (ROOT / "outbox/engine/state/queues.py").read_text()
    known = reached.reaching({"t": 1.0}, {"outbox/engine/state/queues.py": {n: ["t"] for n in range(999)}})
    faults = mutate.faults_of("outbox/engine/state/queues.py", known)
    assert len(faults) == len(edits("outbox/engine/state/queues.py", text))
    first = mutate.drawn(faults, 10, 1)
    assert first == mutate.drawn(list(reversed(faults)), 10, 1) != mutate.drawn(faults, 10, 2)
    assert len(first) == 10 and len(mutate.drawn(faults, None, 1)) == len(faults)
