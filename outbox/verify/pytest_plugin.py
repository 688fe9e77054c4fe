"""A pytest fixture, `explored`: explore an application, and fail with the finding as text.

It is loaded by name, in a project's top `conftest.py`:

    pytest_plugins = ["outbox.verify.pytest_plugin"]

and not by itself, so that test runs that explore nothing neither import it nor get a fixture that they did not ask
for.  Nothing else of outbox imports pytest.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Protocol

import pytest

from outbox.app import App
from outbox.verify.findings.exploration import SECONDS, explore
from outbox.verify.findings.report import Report

FILE_NAME_LENGTH_MAX = 120


class Explored(Protocol):
    """The fixture's function: `explore` that fails the test on any finding."""

    def __call__(self, app: App, messages: Any, *, exhausted: bool = True, **options: Any) -> Report:
        """Explore; where `exhausted` is False a scope passes that the time did not suffice for."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """How long to explore is a matter of where the tests run: seconds at every commit, hours at night."""
    parser.getgroup("outbox").addoption(
        "--explore-seconds",
        type=float,
        default=None,
        metavar="S",
        help=f"CPU seconds for each exploration, in place of what its test says (default: {SECONDS:g})",
    )


@pytest.fixture
def explored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Explored:
    """`explored(app, messages, ...)` with the arguments of `outbox.verify.explore`; gives its report."""
    seconds = request.config.getoption("explore_seconds")

    def run(app: App, messages: Any = (), *, exhausted: bool = True, **options: Any) -> Report:
        if seconds is not None:
            options["seconds"] = seconds
        report = explore(app, messages, **options)
        if report.anomalies or (exhausted and not report.exhausted):
            pytest.fail(_failure_text(request, tmp_path_factory, report), pytrace=False)
        return report

    return run


def _failure_text(request: pytest.FixtureRequest, folders: pytest.TempPathFactory, report: Report) -> str:
    """The report, and how to run what it found again."""
    if not report.anomalies:
        return f"{report.text}, or say exhausted=False"
    lines = [report.text]
    for number, found in enumerate(report.anomalies, 1):
        if found.trace:
            name = re.sub(r"[^\w.-]+", "-", request.node.nodeid)[-FILE_NAME_LENGTH_MAX:].strip("-")
            cache = getattr(request.config, "cache", None)  # where traces are kept until the next run
            path = (folders.mktemp("explored") if cache is None else cache.mkdir("outbox")) / f"{name}-{number}.json"
            path.write_bytes(found.trace)
            shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
            lines += ["", f"Step by step again: python -m outbox.verify replay {shown}"]
    return "\n".join(lines)
