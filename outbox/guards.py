"""Circuit breakers and rate limits of handlers and of single calls, which spare a service that is down.

    payments = Breaker("payments", share=0.5, least=10)

    @app.handler("orders", key="id", breaker=payments, rate=Rate(20))
    async def order(...): ...

    await ctx.call(charge, breaker=payments)            # in a handler: this call alone

*Theory of operation.*  Both decide before a handler runs, or before one call of it is made, and reschedule a message as
the handler itself would by `Retry`: nothing of it is committed, no attempt is counted, a message of an ordered queue
keeps its place, and how long a message may wait is retention's to say.  So nothing of a commit protocol knows of them,
and what explorations show of a `Retry` holds for them.

Of several calls of one attempt under one guard the first decides for all: else a message with two calls could wait for
a second place when it has the first, again and again.  Of the later ones only a breaker that is open by then stops any;
a rate learns how many calls the attempts of a handler make, and gives each as many places at once from then on.

An attempt that fails while its breaker is not closed is rescheduled as well: an outage costs a message no more attempts
than were made until it was noticed.

A breaker is `closed` until, of the last minute's attempts, at least `least` were made and `share` of them failed.  Then
it is `open` for `open_s`, and twice as long each time that it opens again before it was closed.  After that it lets one
attempt through; with its success it is `ramping`: one attempt a second, then two, four, and so on, and `closed` after
ten seconds without a failure.  A failure until then opens it.

A rate gives each message that is too early a place in the future and reschedules it for then; a message that comes
back at its place runs, if it is not late.  So each is rescheduled once, and once more for every ten minutes of backlog
before it.

The state of a guard is one process': of all workers and HTTP entries that share a `Counts`, and of all declarations of
one name.  On Azure each process has its own, so divide a limit by how many processes there may be.

Source: Nygard, Release It!, for the breaker; the virtual scheduling form of the generic cell rate algorithm (ITU-T
I.371) for the rate.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol
from zlib import crc32

from outbox.errors import NotRegistrable, PoisonMessage
from outbox.retries import Reject, Retry

PLACE_COUNT_MAX = 100_000
"""The number of messages that may have a place in the future; others are rescheduled without one."""
WAIT_S_MAX = 600.0
"""After so long at most a message asks again: retention, which ends all waiting, is longer."""
LATE_MS_MAX = 5_000
"""How late a message may come to its place; after that, as behind a stop, it needs another."""
KEY_COUNT_MAX = 100_000
"""How many keys a rate for each key knows; those idle longest are forgotten."""
WINDOW_S = 60
RAMP_S = 10
OPEN_DOUBLINGS_MAX = 5
PROBE_S = 120.0
"""How long an attempt that was let through may take to say how it ended; then another is."""
ERROR_LENGTH_MAX = 200

State = Literal["closed", "open", "half-open", "ramping"]


class BrokenOff(BaseException):
    """The runtime ends a handler before its call, because the message runs again at once or is on record already.

    Where it is cancelled for that, its context is `is_broken_off`.

    It says nothing of what the handler calls: for a breaker the attempt was not made, and a rate lets the next one of
    this message pass in its place.
    """


class Attempted(Protocol):
    """An attempt as a guard sees it: its time, and its message."""

    now_ms: int
    work: Any


class Guard(Protocol):
    """A guard of one process: a middleware, and what it says of itself."""

    declared: Any
    """Its declaration."""
    rescheduled_count: int
    """How often it has rescheduled a message so far."""

    @property
    def name(self) -> str:
        """The name in status and metrics."""

    @property
    def state(self) -> State:
        """Whether it lets attempts through."""

    def around(self, attempt: Attempted, *, earlier: int = 0) -> AbstractContextManager[None]:
        """One attempt, or one call of it; `Retry` before it where it may not be made now.

        `earlier` counts the calls of this attempt that it has let through.
        """

    def view(self, now_ms: int) -> GuardView:
        """The state of the guard now."""


@dataclass(frozen=True, slots=True)
class GuardView:
    """The state of a guard now: `why` in a line, and for how many seconds more (0: it lets all through).

    A rate limit is `open` while messages wait for it; `rescheduled` is how often it has rescheduled a message.
    """

    name: str
    kind: Literal["breaker", "rate"]
    state: State
    why: str
    rest_s: float
    rescheduled: int


@dataclass(frozen=True, slots=True, eq=False)
class Breaker:
    """A circuit breaker; handlers and calls that need the same thing share one, by its name.

    It opens when `share` of at least `least` attempts of the last minute have failed, for `open_s` seconds.  An attempt
    fails with an error of the class `errors`, or of one in that tuple; `Reject` and `Retry` are no failures.
    """

    name: str
    share: float = 0.5
    least: int = 10
    open_s: float = 30.0
    errors: tuple[type[BaseException], ...] | type[BaseException] = (Exception,)

    def __post_init__(self) -> None:
        if not self.name or not 0 < self.share <= 1 or self.least < 1 or not 0 < self.open_s <= 86_400:
            raise NotRegistrable(
                f"Breaker({self.name!r}, share={self.share}, least={self.least}, open_s={self.open_s}): it needs a "
                "name, a share above 0 and up to 1, at least one attempt, and up to a day to be open"
            )
        given: Any = self.errors
        classes = given if isinstance(given, tuple) else (given,)
        if not classes or not all(isinstance(each, type) and issubclass(each, BaseException) for each in classes):
            raise NotRegistrable(
                f"Breaker({self.name!r}, errors={given!r}): give a class of errors, or a tuple of some, such as "
                "errors=(ConnectionError, TimeoutError)"
            )

    def started(self) -> Guard:
        """A breaker for one process, closed."""
        return _Breaker(self)


@dataclass(frozen=True, slots=True, eq=False)
class Rate:
    """A rate limit: `per_s` attempts a second, and up to `burst` at once; with `by_key` each key has its own.

    Those of one `name` are one limit; without a name each is its own.
    """

    per_s: float
    burst: int = 1
    by_key: bool = False
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.per_s <= 1_000_000 or self.burst < 1:
            raise NotRegistrable(
                f"Rate({self.per_s}, burst={self.burst}): give the attempts a second, above 0, and a burst from 1"
            )

    def started(self) -> Guard:
        """A rate limit for one process, with nothing used."""
        return _Rate(self)


def _later_ms(began_ms: int, began_s: float) -> int:
    """The time at the end of what began then; `began_s` is what the monotonic clock said."""
    return began_ms + round((time.monotonic() - began_s) * 1_000)


@dataclass(slots=True)
class _Breaker:
    """A breaker at work."""

    declared: Breaker
    state: State = "closed"
    rescheduled_count: int = 0
    _until_ms: int = 0
    """Until when it is open, or when an attempt that was let through counts as lost."""
    _opened_count: int = 0
    """How often it has opened since it was closed."""
    _seconds: deque[list[int]] = field(default_factory=deque)
    """The attempts of the last minute, by second: [second, attempts, failures]."""
    _ramp_ms: int = 0
    """Since when it is ramping."""
    _why: str = ""

    @property
    def name(self) -> str:
        return self.declared.name

    @contextmanager
    def around(self, attempt: Attempted, *, earlier: int = 0) -> Iterator[None]:
        now_ms = attempt.now_ms
        rest_s = self._rest_again_s(now_ms) if earlier else self._rest_s(now_ms)
        if rest_s > 0:
            raise self._rescheduled(attempt, rest_s, f"the breaker {self.name} is {self.state}: {self._why}")
        began_s = time.monotonic()
        try:
            yield
        except (Reject, Retry, PoisonMessage):
            self._note(_later_ms(now_ms, began_s), None)
            raise
        except BaseException as error:
            if _is_broken_off(attempt, error):
                self._forget_attempt(now_ms)
                raise
            counts = isinstance(error, self.declared.errors) or not isinstance(error, Exception)
            was_closed, now_ms = self.state == "closed", _later_ms(now_ms, began_s)
            self._note(now_ms, error if counts else None)
            if was_closed or not counts or not isinstance(error, Exception):
                raise
            text = f"the breaker {self.name} is {self.state}: {_text(error)}"
            raise self._rescheduled(attempt, max(1.0, (self._until_ms - now_ms) / 1_000), text) from error
        self._note(_later_ms(now_ms, began_s), None)

    def _rescheduled(self, attempt: Attempted, rest_s: float, text: str) -> Retry:
        """Reschedule a message, spread so that not all come back in one moment, nor the same one first each time."""
        self.rescheduled_count += 1
        chance = crc32(attempt.work.inbox + self._until_ms.to_bytes(8, "big")) / (1 << 32)
        return Retry(text, after_s=min(rest_s, WAIT_S_MAX) * (1 + chance))

    def _rest_s(self, now_ms: int) -> float:
        """For how long no attempt may be made; 0: this one may, and is counted as under way."""
        match self.state:
            case "open" if now_ms < self._until_ms:
                return (self._until_ms - now_ms) / 1_000
            case "open":
                self.state, self._until_ms = "half-open", now_ms + round(PROBE_S * 1_000)
            case "half-open" if now_ms < self._until_ms:
                return 1.0
            case "half-open":
                self._until_ms = now_ms + round(PROBE_S * 1_000)
            case "ramping":
                # An attempt that works before its call may have begun before the ramp.
                second = max(0, now_ms - self._ramp_ms) // 1_000
                if second >= RAMP_S:
                    self._close()
                elif self._made(now_ms // 1_000) >= 1 << second:
                    return 1.0
        self._attempts(now_ms // 1_000)[1] += 1
        return 0.0

    def _rest_again_s(self, now_ms: int) -> float:
        """The same for a later call of an attempt that was let through: only an open breaker stops it."""
        if self.state == "open":
            return max(0.0, self._until_ms - now_ms) / 1_000 or 1.0
        self._attempts(now_ms // 1_000)[1] += 1
        return 0.0

    def _note(self, now_ms: int, error: BaseException | None) -> None:
        """Note how an attempt ended."""
        if error is None:
            if self.state == "half-open":
                self.state, self._ramp_ms = "ramping", now_ms
            return
        self._attempts(now_ms // 1_000)[2] += 1
        made, failed = sum(one[1] for one in self._seconds), sum(one[2] for one in self._seconds)
        is_failing = made >= self.declared.least and failed >= self.declared.share * made
        if self.state in ("half-open", "ramping") or (self.state == "closed" and is_failing):
            text = f"{failed} of {made} attempts failed, the last with {type(error).__qualname__}"
            self._why = text[:ERROR_LENGTH_MAX]
            open_ms = round(self.declared.open_s * 1_000) << min(self._opened_count, OPEN_DOUBLINGS_MAX)
            self.state, self._until_ms, self._opened_count = "open", now_ms + open_ms, self._opened_count + 1

    def _forget_attempt(self, now_ms: int) -> None:
        """Count an attempt out again; where it was the one that is let through, the next one is."""
        seconds = self._attempts(now_ms // 1_000)
        seconds[1] = max(0, seconds[1] - 1)
        if self.state == "half-open":
            self._until_ms = now_ms

    def _close(self) -> None:
        self.state, self._opened_count, self._why = "closed", 0, ""
        self._seconds.clear()

    def _attempts(self, second: int) -> list[int]:
        """The attempts of a second; those older than a minute are forgotten."""
        seconds = self._seconds
        while seconds and seconds[0][0] <= second - WINDOW_S:
            seconds.popleft()
        if not seconds or seconds[-1][0] < second:
            seconds.append([second, 0, 0])
        return seconds[-1]

    def _made(self, second: int) -> int:
        return self._attempts(second)[1]

    def view(self, now_ms: int) -> GuardView:
        if self.state == "ramping" and now_ms - self._ramp_ms >= RAMP_S * 1_000:  # it lets any attempt through by now
            self._close()
        rest_s = max(0.0, (self._until_ms - now_ms) / 1_000) if self.state == "open" else 0.0
        return GuardView(self.name, "breaker", self.state, self._why, rest_s, self.rescheduled_count)


@dataclass(slots=True)
class _Rate:
    """A rate limit at work."""

    declared: Rate
    rescheduled_count: int = 0
    _free_ms: dict[str, float] = field(default_factory=dict)
    """From when a key's next attempt is within the rate; one key for all where there is one limit."""
    _places: dict[bytes, float] = field(default_factory=dict)
    """The places of messages that were rescheduled, by inbox key."""
    _calls: dict[str, int] = field(default_factory=dict)
    """The calls of one attempt, by handler, where it makes more than one."""

    @property
    def name(self) -> str:
        return self.declared.name or f"{self.declared.per_s:g} a second{' for each key' * self.declared.by_key}"

    @contextmanager
    def around(self, attempt: Attempted, *, earlier: int = 0) -> Iterator[None]:
        rest_ms = self._take(attempt, earlier) if earlier else self._rest_ms(attempt)
        if rest_ms > 0:
            self.rescheduled_count += 1
            raise Retry(f"over the rate of {self.name}", after_s=rest_ms / 1_000)
        try:
            yield
        except BaseException as error:
            if _is_broken_off(attempt, error) and attempt.work.inbox and len(self._places) < PLACE_COUNT_MAX:
                self._places[attempt.work.inbox] = attempt.now_ms
            raise

    def _take(self, attempt: Attempted, earlier: int) -> float:
        """Count a later call of an attempt that was let through; what comes next waits for it."""
        if earlier < self._step_count(attempt):
            return 0.0  # it was counted with the first
        self._calls[attempt.work.handler.name] = earlier + 1
        key, step_ms = self._key(attempt), 1_000 / self.declared.per_s
        burst_ms = (self.declared.burst - 1) * step_ms
        self._free_ms[key] = max(self._free_ms.pop(key, 0.0), attempt.now_ms - burst_ms) + step_ms
        return 0.0

    def _step_count(self, attempt: Attempted) -> int:
        """How many calls an attempt makes: the most that any of its handler has made."""
        return self._calls.get(attempt.work.handler.name, 1) if self._calls else 1

    def _key(self, attempt: Attempted) -> str:
        return str(attempt.work.key) if self.declared.by_key else ""

    def _rest_ms(self, attempt: Attempted) -> float:
        """How long until this attempt is within the rate; 0: it is, and counts."""
        inbox, now_ms, declared = attempt.work.inbox, attempt.now_ms, self.declared
        place_ms = self._places.get(inbox)
        if place_ms is not None:
            if now_ms < int(place_ms):
                return place_ms - now_ms
            del self._places[inbox]
            if now_ms <= place_ms + LATE_MS_MAX:
                return 0.0
        key = self._key(attempt)
        step_ms = 1_000 / declared.per_s
        at_ms = max(self._free_ms.pop(key, 0.0), now_ms - (declared.burst - 1) * step_ms)
        is_far = at_ms - now_ms > WAIT_S_MAX * 1_000
        if at_ms > now_ms and (is_far or len(self._places) >= PLACE_COUNT_MAX or not inbox):
            self._free_ms[key] = at_ms
            return min(at_ms - now_ms, WAIT_S_MAX * 1_000)  # without a place; it asks again then
        self._free_ms[key] = at_ms + step_ms * self._step_count(attempt)
        if len(self._free_ms) > KEY_COUNT_MAX:
            del self._free_ms[next(iter(self._free_ms))]
        if at_ms <= now_ms:
            return 0.0
        self._forget_late(now_ms)
        self._places[inbox] = at_ms
        return at_ms - now_ms

    def _forget_late(self, now_ms: int) -> None:
        """Forget the oldest places that nobody came back for: their messages may be gone."""
        places = self._places
        while places and places[next(iter(places))] + LATE_MS_MAX < now_ms:
            del places[next(iter(places))]

    @property
    def state(self) -> State:
        return "open" if self._places else "closed"

    def view(self, now_ms: int) -> GuardView:
        self._forget_late(now_ms)
        rest_s = max(0.0, (max(self._free_ms.values(), default=0.0) - now_ms) / 1_000)
        why = f"{len(self._places)} messages wait for their place" if self._places else ""
        return GuardView(self.name, "rate", self.state, why, rest_s, self.rescheduled_count)


def _is_broken_off(attempt: Attempted, error: BaseException) -> bool:
    return isinstance(error, BrokenOff) or getattr(attempt, "is_broken_off", False)


def _text(error: BaseException) -> str:
    try:
        return f"{type(error).__qualname__}: {error}"[:ERROR_LENGTH_MAX]
    except Exception:  # a class of the application may raise anywhere
        return type(error).__qualname__
