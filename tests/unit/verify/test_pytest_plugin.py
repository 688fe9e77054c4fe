"""The fixture `explored`: a test that explores, and fails with what is wrong in words."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outbox.verify import explore
from outbox.verify.__main__ import main

pytest_plugins = ["pytester"]

SHOP = """
from dataclasses import dataclass
from outbox import App, Context, Retry

app = App("shop")

@dataclass
class Order:
    id: str
    price: int = 1

@dataclass
class Till:
    sum: int = 0

@app.handler("orders", key="id")
async def take(order: Order, till: Till, ctx: Context) -> None:
    await ctx.call(lambda key: key, idempotent=order.price == 1)
    till.sum += order.price
"""

TESTS = """
from shop import Order, Till, app

def test_fine(explored):
    report = explored(app, [("orders", Order("o1"), "o1")])
    assert report.states > 10

def test_twice(explored):
    explored(app, [("orders", Order("o1", 2), "o1")])

def test_wrong(explored):
    explored(app, [("orders", Order("o1"), "o1")], invariant=lambda world: not world.states(Till))

def test_long(explored):
    explored(app, [("orders", Order(f"o{n}"), f"o{n}") for n in range(7)], seconds=0.05)

def test_long_and_fine(explored):
    explored(app, [("orders", Order(f"o{n}"), f"o{n}") for n in range(7)], seconds=0.05, exhausted=False)
"""


ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest('pytest_plugins = ["outbox.verify.pytest_plugin"]')
    pytester.makepyfile(shop=SHOP, test_shop=TESTS)
    return pytester


def ran(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest_subprocess("-p", "no:asyncio", *arguments)


def test_what_is_wrong_is_the_failure(project: pytest.Pytester) -> None:
    result = ran(project)
    result.assert_outcomes(passed=2, failed=3)
    text = result.stdout.str()
    assert "a side effect happens twice" in text and "*** CRASH ***" in text and "Cure: A call is at least" in text
    assert "the invariant is broken" in text
    assert "not exhausted" in text and "explore fewer messages, requests, workers or faults" in text
    assert "pytest_plugin.py" not in text, "the way through the fixture helps nobody"


def test_a_failure_shows_the_command_that_runs_it_again(project: pytest.Pytester) -> None:
    text = ran(project, "-k", "test_twice").stdout.str()
    (path,) = set(re.findall(r"python -m outbox\.verify replay (\S+\.json)", text))  # where pytest cuts nothing, twice
    command = [sys.executable, "-m", "outbox.verify", "replay", path]
    again = subprocess.run(command, cwd=project.path, capture_output=True, text=True, timeout=60, check=False)
    assert again.returncode == 1, again.stdout + again.stderr
    assert "OneCall: o1 (take) makes a call of ctx.call twice" in again.stdout


MENDED = """
mended = App("shop")

@mended.handler("orders", key="id")
async def take(order: Order, till: Till, ctx: Context) -> None:
    await ctx.call(lambda key: key, idempotent=True)
    till.sum += order.price

other = App("shop")

@other.handler("orders", key="id")
def look(order: Order, till: Till) -> None: ...

def made() -> App:
    return app
"""


def test_a_trace_ends_well_only_where_every_step_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (tmp_path / "replayed_shop.py").write_text(SHOP + MENDED)
    shop: Any = import_module_from(tmp_path / "replayed_shop.py")
    report = explore(shop.app, [("orders", shop.Order("o1", 2), "o1")])
    (tmp_path / "trace.json").write_bytes(report.anomalies[0].trace)
    (tmp_path / "cut.json").write_bytes(report.anomalies[0].trace[:-9])
    monkeypatch.delitem(sys.modules, "replayed_shop")  # as a process of its own has it, which finds it where it is
    for app, code in (("", 1), ("replayed_shop:made", 1), ("replayed_shop:mended", 0), ("replayed_shop:other", 1)):
        assert main(["replay", "trace.json", *(["--app", app] if app else [])]) == code, app
    for wrong in (
        ["none.json"],
        ["cut.json"],
        *(["trace.json", "--app", app] for app in ("x", "none:app", "sys:path", "replayed_shop:App")),
    ):
        with pytest.raises(SystemExit) as usage:
            main(["replay", *wrong])
        assert usage.value.code == 2, wrong


def import_module_from(path: Path) -> Any:
    """Import a module under its file's name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    sys.modules[path.stem] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_how_long_is_explored_can_be_said_from_outside(project: pytest.Pytester) -> None:
    result = ran(project, "-k", "test_fine or test_long", "--explore-seconds", "0.000001")
    result.assert_outcomes(failed=2, passed=1)  # also where a test says how long
    told = result.stdout.str()
    assert "the limit of 1e-06 CPU seconds is reached" in told and "the limit of 0.05" not in told


def test_a_project_that_does_not_ask_for_the_fixture_has_none(project: pytest.Pytester) -> None:
    project.makeconftest("")
    result = ran(project, "-k", "test_fine")
    result.assert_outcomes(errors=1)
    assert "fixture 'explored' not found" in result.stdout.str()


def test_the_library_needs_no_pytest() -> None:
    code = "import sys; from outbox.verify import explore; assert 'pytest' not in sys.modules, 'pytest'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)
