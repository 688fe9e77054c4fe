"""Log a record, let it take effect, and say when it is safe to speak of it.

Theory of operation.  All changes happen synchronously on one event loop: check, append to the log's buffer, apply
to memory.  Memory is therefore ahead of the disk, and that is harmless as long as nothing outside depends on it:
**nothing leaves the process before `gate`**.  The gate is the highest ordinal that survives the declared failures:
synced under power loss (policy `every`), written under a process crash (the other policies).

A failed write or fsync stops the engine for good.  What was in memory only is never acknowledged, and the log,
opened again, says what is true.  The same holds for a record that memory cannot take in: it stays unwritten.

A record that could not be read back or applied later never reaches the log.  Values from outside are not what their
annotations say: a text may be a number, a time infinite.  A record that holds one would be acknowledged today and keep
the folder from opening tomorrow.  So everything with outside content is decoded from its own bytes before it is logged,
and what is decoded is what takes effect.
"""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from time import gmtime, strftime
from typing import Any, Literal, NoReturn, TypeVar

import msgspec

from outbox.engine.entities import NAME_LENGTH_MAX, QueueSettings, TopicSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import records
from outbox.engine.log.wal import Log
from outbox.engine.state.state import State
from outbox.engine.state.tasks import version_of
from outbox.errors import EngineStopped, NotRegistrable, OutboxError, Refused, Throttled
from outbox.message import Message
from outbox.ports import Clock

T = TypeVar("T")
_STEADY: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Not the plain monotonic clock: to a laptop that slept, locks and scheduled messages would be too young."""
SKEW_S = 60.0
"""By how much engine time may be ahead of the wall clock without a word."""
LONE_COUNT, LONE_S = 16, 0.002
"""The lone flushes in a row after which as many next ones, within `LONE_S`, wait for no second waiter."""
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


class SystemClock:
    """The machine's clocks."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds that never run backwards and, where the system can tell, go on while the machine is suspended."""
        return time.clock_gettime(_STEADY)


_conforms: type[Clock] = SystemClock


@dataclass(frozen=True, slots=True)
class SyncPolicy:
    """When the log is flushed to the device.

    `every`: before anything is acknowledged, one fsync for all that wait (survives power loss).  `every_n` and
    `interval`: acknowledged once written, flushed every `count` records or `interval_s` seconds.  `never`: left to
    the operating system.  The last three survive a crash of the process, not of the machine.
    """

    kind: Literal["every", "every_n", "interval", "never"] = "every"
    count: int = 64
    interval_s: float = 0.05

    @classmethod
    def parse(cls, text: str) -> SyncPolicy:
        """`every`, `every_n:64`, `interval:0.05` or `never`."""
        kind, _, value = text.partition(":")
        if kind == "every_n":
            return cls("every_n", count=int(value or 64))
        if kind == "interval":
            return cls("interval", interval_s=float(value or 0.05))
        if kind == "every" and not value:
            return cls("every")
        if kind == "never" and not value:
            return cls("never")
        raise ValueError(f"sync policy {text!r} is unknown; use every, every_n:COUNT, interval:SECONDS or never")


class Core:
    """The engine's memory, its log and its gate; every part of the engine holds it."""

    def __init__(self, state: State, log: Log | None, clock: Clock, sync: SyncPolicy, limits: EngineLimits) -> None:
        self.state = state
        self.log = log
        self.clock = clock
        self.limits = limits
        self.epoch = log.epoch if log is not None else 1
        """That of this writer."""
        self.stopped: EngineStopped | None = None
        """Why the engine stopped, if it has."""
        self._sync = sync
        self._ordinal = 0
        self._gate_waiters: dict[asyncio.Future[None], bool] = {}  # whether each has written something
        self._lone_count = 0
        """Writers in a row that were alone."""
        self._lone_until_s = 0.0
        """Until when one is taken to be alone; then the loop has a turn, and whoever is ready can join."""
        self._time_base_ms = max(state.time_ms, clock.wall_ms())
        self._monotonic_base_s = clock.monotonic_s()
        self._last_sync_s = self._monotonic_base_s
        self.flush_count = 0
        self.on_stop: Callable[[EngineStopped], None] | None = None
        """Called with the reason, for a host."""
        self.dismiss_waiters: Callable[[EngineStopped], None] | None = None
        """Called with the reason, to fail the claims that wait for a message."""

    def now_ms(self) -> int:
        """Engine time, milliseconds since 1970: never behind the log, never running backwards."""
        return self._time_base_ms + round((self.clock.monotonic_s() - self._monotonic_base_s) * 1_000)

    def ahead_s(self) -> float:
        """By how much engine time is ahead of the wall clock; 0 for a small skew."""
        ahead_s = (self.now_ms() - self.clock.wall_ms()) / 1_000
        return ahead_s if ahead_s > SKEW_S else 0.0

    def do(self, record: records.Record) -> int:
        """Log a record, let it take effect and give its version.

        Raises:
            EngineStopped: the engine stopped after a failed write, or is closed.
            Refused: the record holds what could not be read back; nothing was logged.
        """
        if self.stopped is not None:
            raise self.stopped
        kind, payload = type(record), b""
        if kind in FROM_OUTSIDE:
            record, payload = reread(record)
        if self.log is None:
            self._ordinal += 1
            ordinal = self._ordinal
        else:
            ordinal = self.log.append(records.NUMBERS[kind], payload or records.encode(record))
        version = version_of(self.epoch, ordinal)
        try:
            self.state.apply(record, version)
        except BaseException as error:
            self._abandon(ordinal, record, error)
        return version

    def _abandon(self, ordinal: int, record: records.Record, error: BaseException) -> NoReturn:
        """Stop, because memory took in half of a record; it was not acknowledged, and is not written any more."""
        reason = EngineStopped(
            f"record {ordinal} ({type(record).__name__}) could not take effect ({error!r}); it was not acknowledged. "
            "Open the folder again, and please report this"
        )
        if self.log is not None:
            self.log.abandon(str(reason))
        self.stop(reason)
        raise reason from error

    def write(self) -> None:
        """Hand everything logged so far to the operating system.

        Raises:
            EngineStopped: the write failed; the engine has stopped.
        """
        log = self.log
        if log is not None and log.written < log.appended:
            self.guarded(log.write)

    def flush(self) -> None:
        """Write and sync everything logged so far.

        Raises:
            EngineStopped: the write or the fsync failed; the engine has stopped.
        """
        log = self.log
        if log is not None and log.synced < log.appended:
            self.guarded(log.flush)
            self.flush_count += 1
            self._last_sync_s = self.clock.monotonic_s()

    def flush_when_due(self, *, idle: bool) -> None:
        """Sync written records that no traffic would sync: an interval is over, or a count may never fill.

        Raises:
            EngineStopped: the write or the fsync failed; the engine has stopped.
        """
        interval_s = self._sync.interval_s if self._sync.kind == "interval" else None
        is_over = interval_s is not None and self.clock.monotonic_s() - self._last_sync_s >= interval_s
        if is_over or (idle and self._sync.kind == "every_n"):
            self.flush()

    def guarded(self, step: Callable[[], T]) -> T:
        """Do a step on the log and give what it gave; if it fails, stop.

        Raises:
            EngineStopped: it failed; the engine has stopped.
        """
        try:
            return step()
        except EngineStopped as stopped:
            self.stop(stopped)
            raise
        except OSError as error:
            reason = EngineStopped(f"the log could not be written ({error}); free the disk or repair it and reopen")
            self.stop(reason)
            raise reason from error

    def stop(self, reason: EngineStopped) -> None:
        """Acknowledge nothing more, for this reason; a second one changes nothing."""
        if self.stopped is None:
            self.stopped = reason
            waiters, self._gate_waiters = self._gate_waiters, {}
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(reason)
            if self.dismiss_waiters is not None:
                self.dismiss_waiters(reason)
            if self.on_stop is not None:
                self.on_stop(reason)

    @property
    def _is_through(self) -> bool:
        log = self.log
        if log is None:
            return True
        return (log.synced if self._sync.kind == "every" else log.written) >= log.appended

    async def gate(self, *, alone: bool = False, reads: bool = False) -> None:
        """Wait until everything done so far survives the declared failures.

        Waiters of one turn of the loop share one flush.  `alone` says that no other caller can join, so that the flush
        happens at once instead of in the loop's next turn; so do a few in a row where none has joined lately but who
        only `reads` what the first has written.

        Raises:
            EngineStopped: it will not; acknowledge nothing.
        """
        if self.stopped is not None:
            raise self.stopped
        if self._is_through:
            return
        if self._sync.kind != "every":
            self._write_and_sync_when_due()
        elif not self._gate_waiters and (alone or self._is_lone()):
            self.flush()
        else:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._gate_waiters[waiter] = not reads
            if len(self._gate_waiters) == 1:
                loop.call_soon(self._flush_for_waiters)
            await waiter

    def _is_lone(self) -> bool:
        """Whether a waiter is likely to be the turn's only one, and the loop's last turn was a moment ago."""
        if self._lone_count < LONE_COUNT:
            return False
        self._lone_count += 1
        return self._lone_count <= 2 * LONE_COUNT and self._last_sync_s < self._lone_until_s

    def _flush_for_waiters(self) -> None:
        try:
            self.flush()
        except EngineStopped:
            return  # stop has failed the waiters
        waiters, self._gate_waiters = self._gate_waiters, {}
        self._lone_count = min(self._lone_count + 1, LONE_COUNT) if sum(waiters.values()) < 2 else 0
        self._lone_until_s = self._last_sync_s + LONE_S
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _write_and_sync_when_due(self) -> None:
        self.write()
        log, sync = self.log, self._sync
        assert log is not None
        elapsed_s = self.clock.monotonic_s() - self._last_sync_s
        full = sync.kind == "every_n" and log.written - log.synced >= sync.count
        if full or (sync.kind == "interval" and elapsed_s >= sync.interval_s):
            self.flush()


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
