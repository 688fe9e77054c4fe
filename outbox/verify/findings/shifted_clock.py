"""Code as it would run on another day: a handler that asks what day it is does the same all day long.

For as long as it is entered, `time.time`, `datetime.now` and their like tell a time some days ahead, as seen from the
modules that asked and from those that ask `time` and `datetime` themselves.  Nothing else runs meanwhile in this
thread; other threads may see it.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

AHEADS = (datetime.timedelta(days=400, hours=12, minutes=7), datetime.timedelta(days=433, hours=11, minutes=29))
"""To another year, month, weekday, half of the day and minute: some minutes before noon by the one or by the other."""

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


def _later_time() -> float:
    return _time() + _ahead[0].total_seconds()


def _later_time_ns() -> int:
    return _time_ns() + round(_ahead[0].total_seconds()) * 1_000_000_000


_STAND_INS: tuple[tuple[Any, Any], ...] = (
    (_date, _LaterDate),
    (_datetime, _LaterDatetime),
    (_time, _later_time),
    (_time_ns, _later_time_ns),
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
