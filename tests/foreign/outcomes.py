"""What became of each foreign test, read from the log that a process of theirs left, and beside what is known of it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.foreign.suites import Suite

PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
NO_ANSWER = "no answer"
"""It was to run, but its process ended or was ended before it had."""


@dataclass(slots=True)
class Outcome:
    """What became of one test, and why where it did not pass."""

    test: str
    kind: str
    reason: str = ""


@dataclass(slots=True)
class FileOutcome:
    """What became of a file: its tests in their order, or why there are none."""

    file: str
    outcomes: list[Outcome] = field(default_factory=list)
    error: str = ""
    """Why what became of its tests is not all."""
    elapsed_s: float = 0.0
    first_attempt: list[str] = field(default_factory=list)
    """What was not as expected when the file ran before, if it ran twice."""

    def count(self, kind: str) -> int:
        """How many tests of this kind."""
        return sum(outcome.kind == kind for outcome in self.outcomes)


def read(file: str, lines: Iterable[str], elapsed_s: float) -> FileOutcome:
    """The outcomes in a log.  A test passes if its body did and nothing of it failed, set-up and clean-up included."""
    found, by_test = FileOutcome(file, elapsed_s=elapsed_s), dict[str, Outcome]()
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if "collect_error" in event:
            found.error = f"cannot be collected: {event['collect_error']}"
        for test in event.get("collected", ()):
            by_test[test] = Outcome(test, NO_ANSWER, "its process ended before it ran")
        for kind in (PASSED, SKIPPED, FAILED):
            if kind in event and by_test[event[kind]].kind != FAILED:
                by_test[event[kind]].kind, by_test[event[kind]].reason = kind, event.get("reason", "")
        if "started" in event:
            by_test[event["started"]].reason = "it did not end in time"
    found.outcomes = list(by_test.values())
    return found


def better(first: FileOutcome, second: FileOutcome) -> FileOutcome:
    """The second attempt at a file, where a test has passed if it did in either."""
    passed = {one.test: one for one in first.outcomes if one.kind == PASSED}
    second.outcomes = [passed.get(one.test, one) for one in second.outcomes]
    return second


def surprises(files: Iterable[FileOutcome], suite: Suite) -> list[str]:
    """What is not as the suite's table of refusals says, a line each."""
    found, ran, known = [], set[str](), suite.known()
    for file in files:
        if file.error:
            found.append(f"{file.file}: {file.error}")
        for one in file.outcomes:
            ran.add(one.test)
            if one.kind in (FAILED, NO_ANSWER) and one.test not in known and not suite.is_race(one.test):
                found.append(f"{one.test}: {one.kind}: {one.reason}")
            if one.kind in (PASSED, SKIPPED) and one.test in known:
                found.append(f"{one.test}: {one.kind}, though the table of refusals names it; take it out there")
    names = {file.file for file in files}
    gone = [test for test in known if test.partition("::")[0] in names and test not in ran]
    return found + [f"{test}: named in the table of refusals, and no test of this version" for test in gone]
