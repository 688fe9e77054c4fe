"""The kinds of values that arguments have; argparse names these functions where a value does not fit."""

from __future__ import annotations

import argparse
import re
from datetime import UTC, datetime, timedelta

PAGE_COUNT_MAX = 1_000
DEPTH_MAX = 50


def queue(text: str) -> str:
    """A queue, or a subscription as `topic/Subscriptions/name`, however that word is written."""
    if not text:
        raise argparse.ArgumentTypeError("the name of a queue is empty; `outbox status` lists them")
    topic, *name = re.split("/subscriptions/", text, maxsplit=1, flags=re.IGNORECASE)
    return "/Subscriptions/".join([topic, *name])


def identity(text: str) -> str:
    """An id, a key, or the beginning of one."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty, which stands for nothing; a list shows what there is")
    return text


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def count(text: str) -> int:
    """A number of at least one."""
    value = _whole(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return value


def page(text: str) -> int:
    """How many of many to show."""
    value = _whole(text)
    if not 1 <= value <= PAGE_COUNT_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not 1 to {PAGE_COUNT_MAX}; look on with --after")
    return value


def depth(text: str) -> int:
    """How many hops of a trail."""
    value = _whole(text)
    if not 1 <= value <= DEPTH_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not 1 to {DEPTH_MAX}; trace the last message that is shown")
    return value


def number(text: str) -> int:
    """The number of a message in its queue."""
    value = _whole(text)
    if not 0 <= value < 1 << 62:
        raise argparse.ArgumentTypeError(f"{text} is no number of a message")
    return value


def port(text: str) -> int:
    """A port, or 0 for any free one."""
    value = _whole(text)
    if not 0 <= value <= 65_535:
        raise argparse.ArgumentTypeError(f"{text} is not a port; use 0 to 65535")
    return value


def port_or_none(text: str) -> int | None:
    """A port, 0 for any free one, or `none` for no endpoint."""
    return None if text == "none" else port(text)


def seconds(text: str) -> float:
    """A time in seconds since 1970."""
    value = _decimal(text)
    if not 0 <= value <= 1e11:
        raise argparse.ArgumentTypeError(f"{text} is not a time in seconds since 1970")
    return value


def instant(text: str) -> float:
    """A time as commands print it, in seconds since 1970; one without a zone is in UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text} is no time; write it as 2026-01-31T12:00:00Z") from None
    value = (found if found.tzinfo is not None else found.replace(tzinfo=UTC)).timestamp()
    if not 0 <= value <= 1e11:
        raise argparse.ArgumentTypeError(f"{text} is not in the years from 1970 to 5138")
    return value


def rate(text: str) -> float:
    """How many a second."""
    value = _decimal(text)
    if not 0.01 <= value <= 10_000:
        raise argparse.ArgumentTypeError(f"{text} is no rate; give 0.01 to 10000 a second")
    return value


def share(text: str) -> float:
    """A share of all, from 0 to 1."""
    value = _decimal(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share; give 0 to 1, as 0.01 for one in a hundred")
    return value


_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}


def duration(text: str, *, s_max: float = 1e9) -> float:
    """Seconds, from a number and its unit."""
    number = text.rstrip("abcdefghijklmnopqrstuvwxyz")
    unit_s = _UNITS_S.get(text[len(number) :])
    if unit_s is None or not number.isascii() or not number.replace(".", "", 1).isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no duration; write it as 90s, 15min, 12h or 7d")
    if float(number) * unit_s > s_max:
        raise argparse.ArgumentTypeError(f"{text} is longer than {s_max / 3.16e7:.0f} years")
    return float(number) * unit_s


def span(text: str) -> timedelta:
    """The same as a `timedelta`, up to some centuries; argparse names the kind of value after this."""
    return timedelta(seconds=duration(text, s_max=1e10))


def position(text: str) -> str:
    """A place in an ordered log: the index of a cell, and of an entry within it."""
    index, dot, offset = text.partition(".")
    if not all(part.isascii() and part.isdigit() for part in (index, *([offset] if dot else []))):
        raise argparse.ArgumentTypeError(f"{text} is no position; write it as index.offset, as 17.0")
    if len(index) > 15 or len(offset) > 6:
        raise argparse.ArgumentTypeError(f"{text} is behind every position")
    return text


def row(text: str) -> str:
    """A row of an ordered log: its writer shard and its reader shard."""
    parts = text.split(".")
    if len(parts) != 2 or not all(part.isascii() and part.isdigit() and len(part) <= 3 for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is no row; write it as writer.reader, as 0.0")
    return text
