"""Checks before the log: a record that could not be read back or applied later never reaches it.

Values from outside are not what their annotations say: a text may be a number, a time infinite.  A record that holds
one would be acknowledged today and keep the folder from opening tomorrow.  So everything with outside content is
decoded from its own bytes before it is logged, and what is decoded is what takes effect.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from time import gmtime, strftime
from typing import Any

import msgspec

from outbox.engine.entities import NAME_LENGTH_MAX, QueueSettings, TopicSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records
from outbox.engine.state.state import State
from outbox.errors import NotRegistrable, OutboxError, Refused, Throttled
from outbox.message import Message
from outbox.ports import Clock

TIME_MAX_MS = 1 << 53
"""The last time that a message may name: a float and a record hold the sum of two exactly."""

DAY_S = 86_400

SECONDS_MAX = 1e12
"""The longest setting in seconds; the protocol's own `forever` (29,247 years) is below it."""

FROM_OUTSIDE = frozenset(
    (
        records.Sent,
        records.Declared,
        records.Modified,
        records.Resubmitted,
        records.SessionSet,
        records.Ruled,
        records.Routed,
    )
)
"""Kinds of records that hold what a caller gave, as it gave it."""

_STEP = re.compile(r"\[(\.\.\.|\d+)\]")


def reread(record: records.Record) -> tuple[records.Record, bytes]:
    """The record as the next open will read it, and its bytes.

    Raises:
        Refused: it could not be read; the text names the field.
    """
    kind = type(record)
    _check_record(record)
    try:
        payload = records.encode(record)
        return records.decode(records.NUMBERS[kind], payload), payload
    except msgspec.ValidationError as error:
        text, _, where = str(error).partition(" - at ")
        field = _field(record, where)
        raise Refused(f"{_identity(record)}{field}: {text}; nothing was written, give a value of that type") from error
    except (TypeError, ValueError, OverflowError) as error:  # UnicodeEncodeError is a ValueError
        raise Refused(
            f"{_identity(record)}{kind.__name__}: {error}; nothing was written, give plain text, bytes and numbers of "
            "at most 64 bits"
        ) from error


def _check_record(record: records.Record) -> None:
    """Refuse a record with a time that is none."""
    match record:
        case records.Modified(modify=change):
            _check_modify(change)
        case records.Sent(due_ms=due_ms, messages=messages) | records.Routed(due_ms=due_ms, messages=messages):
            check_due(due_ms)
            for message in messages:
                _check_times(message)
        case records.Resubmitted(message=message):
            _check_times(message)


def _check_modify(change: records.Modify) -> None:
    for insert in change.inserts:
        check_due(insert.due_ms)
        _check_times(insert.message)
    for item in change.changes:
        check_due(item.due_ms)
        if item.message is not None:
            _check_times(item.message)
    for write in change.documents:
        check_due(write.expires_ms)


def check_due(due_ms: int) -> None:
    """Refuse a time that is none.

    Raises:
        Refused: it is negative, not a number, or beyond the last time.
    """
    if not isinstance(due_ms, int) or not 0 <= due_ms <= TIME_MAX_MS:
        raise Refused(f"{due_ms!r} is no time in milliseconds since 1970; give a whole number from 0 to {TIME_MAX_MS}")


def _check_times(message: Message) -> None:
    for name in ("time_to_live_ms", "created_ms", "attempt", "hops"):
        value = getattr(message, name, None)
        least = -TIME_MAX_MS if name == "created_ms" else 0
        if not isinstance(value, int) or not least <= value <= TIME_MAX_MS:
            raise Refused(
                f"message {getattr(message, 'identity', '')!r}: {name} is {value!r}; give a whole number up to "
                f"{TIME_MAX_MS}"
            )


def _identity(record: records.Record) -> str:
    match record:
        case records.Sent(path=path, messages=[Message() as only]):
            return f"message {only.identity!r} to {path!r}: "
        case records.Sent(path=path):
            return f"messages to {path!r}: "
    return ""


def _field(record: records.Record, where: str) -> str:
    """The names behind a decoder's `$[3][...][5]`; in a list the first element stands for all."""
    names: list[str] = [type(record).__name__]
    value: Any = record
    for step in _STEP.findall(where):
        if isinstance(value, msgspec.Struct) and step.isdigit() and int(step) < len(value.__struct_fields__):
            name = value.__struct_fields__[int(step)]
            names.append(name)
            value = getattr(value, name)
        elif isinstance(value, Mapping):
            value = next(iter(value.values()), None)
        elif isinstance(value, list | tuple):
            value = next(iter(value), None)
    return ".".join(names)


# Declarations


def check_name(name: str) -> None:
    """Refuse a name that no queue may have.

    Raises:
        NotRegistrable: it is no text, empty, too long, or holds a `$`.
    """
    if not isinstance(name, str) or not name or len(name) > NAME_LENGTH_MAX or "$" in name:
        shown = repr(name)[:80]
        raise NotRegistrable(f"{shown} cannot be the name of a queue; use 1 to {NAME_LENGTH_MAX} characters, no '$'")


def check_settings(item: QueueSettings | TopicSettings) -> None:
    """Refuse settings that no queue or topic can have.

    Raises:
        NotRegistrable: the text names the setting.
    """
    check_name(item.name)
    if isinstance(item, TopicSettings):
        return
    if item.ordering not in ("unordered", "per_key"):
        raise NotRegistrable(f"queue {item.name!r}: ordering {item.ordering!r} is unknown; use unordered or per_key")
    for name in ("lock_s", "duplicate_window_s", "time_to_live_s"):
        value = getattr(item, name)
        if not isinstance(value, int | float) or not math.isfinite(value) or not 0 <= value <= SECONDS_MAX:
            raise NotRegistrable(f"queue {item.name!r}: {name} is {value!r}; give seconds from 0 to {SECONDS_MAX:.0f}")
    if not isinstance(item.max_delivery_count, int) or item.max_delivery_count < 1:
        raise NotRegistrable(
            f"queue {item.name!r}: max_delivery_count is {item.max_delivery_count!r}; give a whole number from 1"
        )


def check_deletes(deletes: Sequence[records.DocRef]) -> None:
    """Refuse to delete an absent document.

    Raises:
        Refused: a version is 0.
    """
    for ref in deletes:
        if not ref.version:
            raise Refused(
                f"document {ref.namespace}/{ref.id}: version 0 is that of an absent one and there is nothing to "
                "delete; say document_depends where it must be absent"
            )


def check_clock(logged_ms: int, clock: Clock, limits: EngineLimits, accepted: timedelta) -> None:
    """Refuse to open a log with a wall clock far ahead of it, unless by about the `accepted` time.

    Raises:
        OutboxError: it is; how to confirm it.
    """
    wall_ms = clock.wall_ms()
    ahead_s = (wall_ms - logged_ms) / 1_000
    accepted_s = accepted.total_seconds() if isinstance(accepted, timedelta) else 0.0  # True names no figure
    unaccepted_s = abs(ahead_s - accepted_s)
    if logged_ms and min(ahead_s, unaccepted_s) > limits.clock_ahead_max_s:
        days = math.ceil(ahead_s / DAY_S)
        raise OutboxError(
            f"the wall clock ({_day(wall_ms)}) is {days} days ahead of the log ({_day(logged_ms)}).  Opened so, it "
            "keeps that time: markers expire at once, and what a right clock stamps later is too old.  If the clock is "
            f"right, open with accept_clock=timedelta(days={days}) (on the command line: --accept-clock {days}d)"
        )


def _day(time_ms: int) -> str:
    return strftime("%Y-%m-%d", gmtime(time_ms // 1_000))


def check_room(state: State, limits: EngineLimits, *, cure: str = "drain queues, shorten retention") -> None:
    """Make sure that there is room for something more from outside; `cure` makes room.

    Raises:
        Throttled: the engine holds all that it may.
    """
    if state.held_bytes > limits.memory_bytes_max:
        raise Throttled(
            f"the engine holds {limits.memory_bytes_max} bytes, all that it may; {cure} or raise memory_bytes_max",
            retry_after_s=1.0,
        )
