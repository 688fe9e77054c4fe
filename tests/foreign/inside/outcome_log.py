"""A pytest plugin that runs beside foreign tests and writes down at once what became of each, a JSON object a line.

The first line has all tests that were collected, so that those of a process that ends early are known as well.
Loaded with `-p outcome_log`; the file is named by OUTCOME_LOG.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

REASON_LENGTH_MAX = 400


def write(**fields: Any) -> None:
    """Add one line."""
    with Path(os.environ["OUTCOME_LOG"]).open("a") as file:
        file.write(json.dumps(fields) + "\n")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        write(collect_error=_last_line(report))


def pytest_collection_finish(session: pytest.Session) -> None:
    write(collected=[item.nodeid for item in session.items])


def pytest_runtest_logstart(nodeid: str) -> None:
    write(started=nodeid)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        write(failed=report.nodeid, reason=_last_line(report))
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        write(skipped=report.nodeid, reason=reason.removeprefix("Skipped: ")[:REASON_LENGTH_MAX])
    elif report.when == "call":
        write(passed=report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    write(finished=nodeid)


def _last_line(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:REASON_LENGTH_MAX]
