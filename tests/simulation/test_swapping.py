"""Faults planted in a package that is imported: a body takes effect wherever its function is held, and nothing else."""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.forked import each
from tests.simulation.importing import ROOT
from tests.simulation.swapping import exchanged, functions_below

TEXT = """
from functools import cache

LIMIT = 3

def plain(x, more=1):
    return x + more

@cache
def wrapped(x):
    return x * 2

def outer(x):
    def inner():
        return x + 1
    return inner

class Holder:
    size = 1

    def __init__(self):
        super().__init__()
        self.kept = plain

    @property
    def value(self):
        return 1

    @value.setter
    def value(self, given):
        self.given = given
"""


@pytest.fixture
def module(tmp_path: Path) -> Iterator[Any]:
    path = tmp_path / "swapped_module.py"
    path.write_text(TEXT)
    spec = importlib.util.spec_from_file_location("swapped_module", path)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    yield made
    del sys.modules[spec.name]


def swap(module: Any, old: str, new: str) -> bool:
    path = Path(module.__file__)
    assert TEXT.count(old) == 1
    return exchanged(functions_below(str(path.parent)), str(path), TEXT, TEXT.replace(old, new))


@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_body_is_exchanged_wherever_its_function_is_held(module: Any, is_frozen: bool) -> None:
    gc.freeze() if is_frozen else gc.unfreeze()
    held, made = module.plain, module.Holder()
    assert swap(module, "x + more", "x - more") and held(5) == 4 == made.kept(5)
    assert swap(module, "x * 2", "x * 7") and module.wrapped(2) == 14
    assert swap(module, "x + 1", "x - 1") and module.outer(5)() == 4


def test_of_two_functions_with_one_name_the_changed_one_is_exchanged(module: Any) -> None:
    made = module.Holder()
    assert swap(module, "self.given = given", "self.given = -given")
    made.value = 5
    assert (made.value, made.given) == (1, -5)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("LIMIT = 3", "LIMIT = 4"),
        ("more=1", "more=2"),
        ("plain(x, more=1)", "plain(x, more=1, most=2)"),
        ("    size = 1", "    size = 2"),
        ("@cache\n", ""),
        ("def outer(x)", "def other(x)"),
    ],
)
def test_a_change_outside_of_bodies_is_left_to_an_import(module: Any, old: str, new: str) -> None:
    assert not swap(module, old, new)
    assert module.plain(1) == 2 and module.LIMIT == 3 and module.Holder.size == 1


def test_a_function_that_is_gone_is_not_taken_for_planted(module: Any) -> None:
    del module.Holder.value
    assert not swap(module, "return 1", "return 2")


def test_each_thing_has_a_process_and_one_without_an_end_is_done_again_alone(tmp_path: Path) -> None:
    def work(n: int) -> dict[str, Any]:
        tries = tmp_path / f"{n}"
        with tries.open("a") as file:
            file.write("x")
        while n == 2 or (n == 3 and tries.stat().st_size == 1):
            pass
        if n == 4:
            raise SystemExit
        return {"n": n}

    found = dict(each(range(5), work, within_s=0.5))
    assert found == {0: {"n": 0}, 1: {"n": 1}, 2: None, 3: {"n": 3}, 4: {}}
    assert [(tmp_path / f"{n}").stat().st_size for n in range(4)] == [1, 1, 2, 2]


PARENT = """import os, subprocess, sys
from tests.simulation.forked import each
from tests.simulation.importing import ROOT

def work(n):
    begun = subprocess.Popen(["sleep", "60"])
    with open(f"{sys.argv[1]}/{n}", "w") as file:
        file.write(f"{os.getpid()} {begun.pid}\\n")
    while True:
        pass

list(each(range(2), work, within_s=60))
"""


def test_what_was_forked_ends_with_the_process_that_did_so(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], env=environment)
    try:
        wait_for(lambda: all((tmp_path / name).exists() and (tmp_path / name).read_text() for name in "01"))
    finally:
        running.kill()
        running.wait()
    ids = [int(id) for name in "01" for id in (tmp_path / name).read_text().split()]
    try:
        wait_for(lambda: not any(map(is_running, ids)))
    finally:
        for id in filter(is_running, ids):
            os.kill(id, signal.SIGKILL)


def wait_for(is_so: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < ends_s
        time.sleep(0.02)


def is_running(id: int) -> bool:
    """Whether a process is there, and not just kept until somebody asks how it ended."""
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(id)], capture_output=True, text=True, check=False).stdout
    return bool(told.strip()) and not told.startswith("Z")
