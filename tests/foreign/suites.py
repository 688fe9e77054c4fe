"""What a suite of foreign tests is: one SDK's, against one emulator.  Each is a file of its own beside this one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The tests that Microsoft ships with one SDK, how they are run here, and what does not pass.

    A test that fails and is not refused here fails `make foreign`, and so does one that is refused and passes.
    """

    package: str
    """The SDK, as the index and the installed distributions name it."""
    folder: str
    """Our stand-ins for modules of theirs, below `inside/`; the suite's own file has this name too."""
    ports: tuple[str, ...]
    """Arguments of `outbox emulator`."""
    endpoint: re.Pattern[str]
    """What the emulator prints once it serves."""
    environment: Callable[[re.Match[str]], dict[str, str]]
    """The environment of their tests, from that line."""
    mark: str = ""
    """Only tests with this mark of pytest are run, and only files that have it; empty: all."""
    pytest: tuple[str, ...] = ()
    """Further arguments of pytest."""
    file_s_max: float = 600.0
    test_s_max: int = 120
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Files that are not run, by reason."""
    refusals: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tests that do not pass, by reason."""
    races: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tests, whatever their parameters, that pass or fail by chance, by reason."""

    def known(self) -> dict[str, str]:
        """The reason of a refusal by test."""
        return {test: reason for reason, tests in self.refusals.items() for test in tests}

    def is_left_out(self, file: str) -> bool:
        """Whether a file is not run."""
        return any(file in files for files in self.left_out.values())

    def is_race(self, test: str) -> bool:
        """Whether a test passes or fails by chance."""
        return any(test.partition("[")[0] in tests for tests in self.races.values())


def tests_of(of: str, names: str) -> tuple[str, ...]:
    """Tests of a class by their names."""
    return tuple(f"{of}::{name}" for name in names.split())
