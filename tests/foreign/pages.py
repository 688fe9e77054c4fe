"""What a run prints, and the page and the JSON that it publishes."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from pathlib import Path

from tests.foreign.outcomes import FAILED, NO_ANSWER, PASSED, SKIPPED, FileOutcome
from tests.foreign.suites import Suite

_AGAIN = (
    "A file with a test that fails unexpectedly runs once more, because some tests race with threads of the client; a "
    "test passes if it does in either attempt.  These failed in the first."
)
_COUNTED = (PASSED, FAILED, NO_ANSWER, SKIPPED)


def line(file: FileOutcome) -> str:
    """One file on one line."""
    counts = ", ".join(f"{file.count(kind)} {kind}" for kind in _COUNTED if file.count(kind)) or "no test"
    again = ", at the second attempt" if file.first_attempt else ""
    return f"foreign: {file.file}: {counts} in {file.elapsed_s:.1f} s{again}"


def summary(files: Sequence[FileOutcome], suite: Suite) -> str:
    """All files on one line."""
    counts = ", ".join(f"{_total(files, kind)} {kind}" for kind in _COUNTED)
    return f"foreign: {suite.package}: {len(files)} files: {counts}"


def _total(files: Sequence[FileOutcome], kind: str) -> int:
    return sum(file.count(kind) for file in files)


def publish(files: Sequence[FileOutcome], suite: Suite, sdk: str, folder: Path) -> None:
    """Write the page and the JSON of a run in which nothing was otherwise than the table of refusals says."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{suite.package}.md").write_text(page(files, suite, sdk))
    facts = {
        "date": _day(),
        suite.package: sdk,
        "python": platform.python_version(),
        "files": [_facts(file) for file in files],
        "refusals": {reason: list(tests) for reason, tests in suite.refusals.items()},
    }
    (folder / f"{suite.package}.json").write_text(json.dumps(facts, indent=1) + "\n")


def _facts(file: FileOutcome) -> dict[str, object]:
    """One file in the JSON: names by kind, and the reasons of tests that skip themselves."""
    by_kind = {kind: [one.test for one in file.outcomes if one.kind == kind] for kind in (PASSED, FAILED, NO_ANSWER)}
    facts: dict[str, object] = {"file": file.file, **{kind: tests for kind, tests in by_kind.items() if tests}}
    facts[SKIPPED] = {one.test: one.reason for one in file.outcomes if one.kind == SKIPPED}
    if file.first_attempt:
        facts["first attempt"] = [one.partition(": ")[0] for one in file.first_attempt]
    return facts


def page(files: Sequence[FileOutcome], suite: Suite, sdk: str) -> str:
    """The page: totals, what is refused and why, what their tests skip themselves, and the files."""
    passed, skipped = _total(files, PASSED), _total(files, SKIPPED)
    refused = _total(files, FAILED) + _total(files, NO_ANSWER)
    ran = passed + refused
    about = (
        f"{_day()}, {suite.package} {sdk}, Python {platform.python_version()}, {platform.system()}: "
        f"of {ran} tests in {len(files)} files **{passed} passed** and {refused} did not, for the reasons below; "
        f"{skipped} more skip themselves.  Some files ask nothing of a server."
    )
    lines = [
        f"# Microsoft's tests of {suite.package} against the emulator",
        "",
        "Written by `make foreign`; what that is stands in [Verification](../verification.md#microsofts-own-tests).",
        "",
        about,
        "",
        "## What does not pass, and why",
        "",
    ]
    for reason, tests in suite.refusals.items():
        lines += [f"**{reason}**", "", *(f"- `{test}`" for test in tests), ""]
    failed = [one.test for file in files for one in file.outcomes if one.kind == FAILED]
    for reason, tests in suite.races.items():
        if races := [test for test in failed if test.partition("[")[0] in tests]:
            lines += [f"**{reason}**", "", *(f"- `{test}`" for test in races), ""]
    again = [one.partition(": ")[0] for file in files for one in file.first_attempt]
    if again:
        lines += ["## What passed in one of two attempts", "", _AGAIN, "", *(f"- `{test}`" for test in again), ""]
    if suite.left_out:
        lines += ["## What is left out", ""]
    for reason, names in suite.left_out.items():
        lines += [reason, "", *(f"- `{name}`" for name in names), ""]
    lines += ["## What skips itself", "", "| test | its own reason |", "|---|---|"]
    skipping = [one for file in files for one in file.outcomes if one.kind == SKIPPED]
    lines += [f"| `{one.test}` | {one.reason.replace('|', '/')} |" for one in skipping]
    lines += ["", "## Files", "", "| file | passed | did not | skipped |", "|---|---:|---:|---:|"]
    for file in files:
        not_passed = file.count(FAILED) + file.count(NO_ANSWER)
        lines.append(f"| `{file.file}` | {file.count(PASSED)} | {not_passed} | {file.count(SKIPPED)} |")
    return "\n".join(lines) + "\n"


def _day() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
