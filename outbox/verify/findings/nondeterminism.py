"""The clocks and the sources of chance that code asks as it runs, and its result on another day.

The interpreter reports every call to a profile function.  Where another profiler runs already, nothing is noted.

A handler that asks what day it is does the same all day long.  So for as long as `shifted_clock` is entered,
`time.time`, `datetime.now` and their like tell a time some days ahead, as seen from the modules that asked and from
those that ask `time` and `datetime` themselves.  Nothing else runs meanwhile in this thread; other threads may see it.
"""

from __future__ import annotations

import datetime
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

CLOCKS = frozenset(("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"))
DURATIONS = frozenset(f"time.{name}" for name in CLOCKS - {"time", "time_ns"})
"""Clocks that do not show the time of day."""

SILENT = ("logging/__init__.py", "asyncio/", "outbox/runtime/", "outbox/verify/")
"""The files whose reads of clocks and chance decide nothing."""

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
        """The clocks and sources asked, in the order of the first calls."""
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
                is_known = any(known is frame.f_globals for known in self.clock_readers)
                if found[0] not in DURATIONS and found[1] == INSTEAD["now"] and not is_known:
                    self.clock_readers.append(frame.f_globals)


def _named(function: Any, frame: FrameType) -> tuple[str, str] | None:
    """The name of a built-in function for people, and the one to use instead."""
    name, owner = getattr(function, "__name__", ""), getattr(function, "__self__", None)
    if getattr(owner, "__name__", "") == "time" and name in CLOCKS:
        return f"time.{name}", INSTEAD["now"]
    if isinstance(owner, type) and issubclass(owner, _date) and name in ("now", "utcnow", "today"):
        return f"{owner.__name__}.{name}", INSTEAD["now"]
    if isinstance(owner, random.Random) and not isinstance(owner, random.SystemRandom):
        return "random", INSTEAD["random"]
    if name == "urandom":
        caller = frame.f_code.co_name
        return ("uuid.uuid4", INSTEAD["uuid"]) if caller == "uuid4" else ("os.urandom", INSTEAD["random"])
    return None


AHEADS = (datetime.timedelta(days=400, hours=12, minutes=7), datetime.timedelta(days=433, hours=11, minutes=29))
"""Shifts to another year, month, weekday, half of the day and minute; near noon only one changes the half."""

_ahead = [AHEADS[0]]
"""How far ahead it is while it is later."""

_date, _datetime, _time, _time_ns = datetime.date, datetime.datetime, time.time, time.time_ns


class _AsReal(type):
    """Whatever is an instance of the real class is one of its stand-in."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls.__mro__[1])


class _LaterDate(datetime.date, metaclass=_AsReal):
    def __new__(cls, *fields: Any, **named: Any) -> Any:
        return _date(*fields, **named)

    @classmethod
    def today(cls) -> Any:
        return (_datetime.now() + _ahead[0]).date()  # in place of one without a zone


class _LaterDatetime(datetime.datetime, metaclass=_AsReal):
    def __new__(cls, *fields: Any, **named: Any) -> Any:
        return _datetime(*fields, **named)

    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return _datetime.now(tz) + _ahead[0]

    @classmethod
    def utcnow(cls) -> Any:
        return _datetime.now(datetime.UTC).replace(tzinfo=None) + _ahead[0]

    @classmethod
    def today(cls) -> Any:
        return cls.now()


_STAND_INS: tuple[tuple[Any, Any], ...] = (
    (_date, _LaterDate),
    (_datetime, _LaterDatetime),
    (_time, lambda: _time() + _ahead[0].total_seconds()),
    (_time_ns, lambda: _time_ns() + round(_ahead[0].total_seconds()) * 1_000_000_000),
)


@contextmanager
def shifted_clock(clock_readers: Iterable[dict[str, Any]], ahead: datetime.timedelta) -> Iterator[None]:
    """Let it be later for those namespaces, and for `time` and `datetime`."""
    _ahead[0] = ahead
    changed: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for names in (vars(time), vars(datetime), *clock_readers):
            for name, value in list(names.items()):
                for real, stand_in in _STAND_INS:
                    if value is real:
                        changed.append((names, name, value))
                        names[name] = stand_in
        yield
    finally:
        for names, name, value in changed:
            names[name] = value
