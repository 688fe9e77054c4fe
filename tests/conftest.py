"""What every test shares: how hypothesis draws, a folder on a real disk, which files go first, and which together."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.drawn_tests import is_left_out
from tests.simulation.drawn_faults import is_drawn
from tests.simulation.larger_scopes import is_larger

ROOT = Path(__file__).resolve().parent.parent
FIRST = "tests/simulation/test_direct_mutants.py"
"""What takes a process longest; it goes in front of all others."""
SESSION_NAMES = (
    "lakes consume following feed watching reconcile_screens reconcile reconcile_inputs quarantines sweep "
    "spark_identity spark_ids spark_tasks inputs_on_spark ledger pipelines_on_spark class_archive"
)
ONE_SESSION = tuple(f"tests/spark/test_{name}.py" for name in SESSION_NAMES.split())
"""A Spark session takes twenty CPU seconds until it is warm: these run in one process, one after the other."""

# CI draws the same examples in every run, so that a red build is the change's doing; at a desk new ones are drawn.
# No deadline: on a shared machine a slow example says nothing about the code.
settings.register_profile("desk", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci" if os.environ.get("CI") else "desk")

gc.disable()  # while tests are collected, which takes a third longer with it: nearly all that is made then stays


@pytest.fixture(scope="module", autouse=True)
def nothing_to_collect_again() -> Iterator[None]:
    """What a file leaves, which is what it imported and cached, is passed over by the collections in later files."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture
def disk_path() -> Iterator[Path]:
    """A fresh folder beside the sources: a real file system where /tmp may be memory."""
    scratch = ROOT / "build"
    scratch.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="test-", dir=scratch) as folder:
        yield Path(folder)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--drawn`, with which a run leaves out three quarters of the long tests."""
    parser.addoption("--drawn", action="store_true", help="of the tests that take long only those drawn for this tree")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files with slow tests first: a run of several processes must not end with one of them on a long file."""
    for item in items:
        callspec: Any = getattr(item, "callspec", None)
        if item.get_closest_marker("planted") and not is_drawn(callspec.params["mutant"]):
            item.add_marker(pytest.mark.soak)
        if is_larger(item.path.stem, item.name) or (config.getoption("drawn") and is_left_out(item)):
            item.add_marker(pytest.mark.soak)
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    ranks = {ROOT / path: rank for rank, path in enumerate((FIRST, *ONE_SESSION))}
    items.sort(key=lambda item: ranks.get(item.path, len(ranks) + (item.path not in slow)))


def pytest_collection_finish() -> None:
    """What was collected stays to the end: else each full collection of garbage goes through all of it again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out files, as `--dist loadfile` does, and those that share a session as one."""
    if config.getoption("dist", "no") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]  # it has no types

    scheduler = LoadFileScheduling(config, log)
    scheduler._split_scope = unit_of
    return scheduler


def unit_of(test: str) -> str:
    """What a test is handed out with: its file, or all that share a session."""
    file = test.partition("::")[0]
    return "a Spark session" if file in ONE_SESSION else file
