"""Which clocks and which sources of chance code asks while it runs.

The interpreter reports every call to a profile function.  Where another profiler runs already, nothing is noted.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from datetime import date
from types import FrameType
from typing import Any

CLOCKS = frozenset(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"))
DURATIONS = frozenset(f"time.{name}" for name in CLOCKS - {"time", "time_ns"})
"""Clocks that do not show the time of day."""

SILENT = ("logging/__init__.py", "asyncio/", "outbox/runtime/", "outbox/verify/")
"""What these files read decides nothing."""

INSTEAD = {"now": "ctx.now()", "random": "ctx.random()", "uuid": "ctx.uuid()"}


class ProfiledCalls:
    """Notes calls while it is entered; `names` has them, each with what to use instead."""

    def __init__(self) -> None:
        self.clock_readers: list[dict[str, Any]] = []
        """The modules from which the time of day was asked, as their namespaces."""
        self._names: dict[str, str] = {}
        self._before: Callable[..., Any] | None = None

    @property
    def names(self) -> list[str]:
        """What was asked, in the order of the first calls."""
        return [f"{name} (use {instead})" for name, instead in self._names.items()]

    def __enter__(self) -> ProfiledCalls:
        self._before = sys.getprofile()
        if self._before is None:
            sys.setprofile(self._profile)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            sys.setprofile(None)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            found = _named(argument, frame)
            if found is not None and not any(part in frame.f_code.co_filename for part in SILENT):
                self._names.setdefault(*found)
                if found[0] not in DURATIONS and found[1] == INSTEAD["now"] and not self._knows(frame.f_globals):
                    self.clock_readers.append(frame.f_globals)

    def _knows(self, names: dict[str, Any]) -> bool:
        return any(known is names for known in self.clock_readers)


def _named(function: Any, frame: FrameType) -> tuple[str, str] | None:
    """What a built-in function is called by people, and what to use instead."""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if getattr(owner, "__name__", "") == "time" and name in CLOCKS:
        return f"time.{name}", INSTEAD["now"]
    if isinstance(owner, type) and issubclass(owner, date) and name in ("now", "utcnow", "today"):
        return f"{owner.__name__}.{name}", INSTEAD["now"]
    if isinstance(owner, random.Random) and not isinstance(owner, random.SystemRandom):
        return "random", INSTEAD["random"]
    if name == "urandom":
        caller = frame.f_code.co_name
        return ("uuid.uuid4", INSTEAD["uuid"]) if caller == "uuid4" else ("os.urandom", INSTEAD["random"])
    return None
