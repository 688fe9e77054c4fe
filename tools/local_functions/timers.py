"""Timers: six fields from seconds to weekdays, as NCRONTAB has them, or a time span."""

from __future__ import annotations

from datetime import datetime, timedelta

from tools.local_functions.settings import seconds

_RANGES = ((0, 59), (0, 59), (0, 23), (1, 31), (1, 12), (0, 6))
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
LOOK_AHEAD = timedelta(days=366 * 5)


class Schedule:
    """When a timer fires."""

    def __init__(self, text: str) -> None:
        """Read a schedule.

        Raises:
            ValueError: it is none.
        """
        fields = text.split()
        self._span_s = seconds(text, 0) if len(fields) == 1 else 0.0
        if self._span_s:
            return
        if len(fields) == 5:
            fields = ["0", *fields]
        if len(fields) != 6:
            raise ValueError(f"{text!r} is no schedule; six fields from seconds to weekdays, as in 0 */5 * * * *")
        self._sets = [_values(field, *limits) for field, limits in zip(fields, _RANGES, strict=True)]

    def after(self, now: datetime) -> datetime:
        """The next time that it fires.

        Raises:
            ValueError: it never does.
        """
        if self._span_s:
            return now + timedelta(seconds=self._span_s)
        sec, minute, hour, day, month, weekday = self._sets
        at, limit = now.replace(microsecond=0) + timedelta(seconds=1), now + LOOK_AHEAD
        while at < limit:
            if at.month not in month or at.day not in day or (at.weekday() + 1) % 7 not in weekday:
                at = at.replace(hour=0, minute=0, second=0) + timedelta(days=1)
            elif at.hour not in hour:
                at = at.replace(minute=0, second=0) + timedelta(hours=1)
            elif at.minute not in minute:
                at = at.replace(second=0) + timedelta(minutes=1)
            elif at.second not in sec:
                at += timedelta(seconds=1)
            else:
                return at
        raise ValueError("the schedule never comes")


def _values(field: str, low: int, high: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.lower().split(","):
        span, slash, step = part.partition("/")
        first, dash, last = span.partition("-")
        start, end = (low, high) if span == "*" else (_number(first), _number(last) if dash else _number(first))
        if slash and not dash and span != "*":
            end = high
        if not (low <= start <= end <= high) or (slash and not step.isdecimal()) or (slash and int(step) < 1):
            raise ValueError(f"{part!r} does not fit between {low} and {high}")
        found |= set(range(start, end + 1, int(step) if slash else 1))
    return frozenset(found)


def _number(text: str) -> int:
    if text in _MONTHS:
        return _MONTHS.index(text) + 1
    if text in _DAYS:
        return _DAYS.index(text)
    if not text.isdecimal():
        raise ValueError(f"{text!r} is not a number")
    return int(text)
