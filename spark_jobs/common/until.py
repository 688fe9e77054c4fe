"""When a job that waits for more ends: after a time, after a count, or by a signal."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from outbox.errors import Refused

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def never() -> bool:
    """Nobody asks for an end."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """The end of a wait: after `seconds`, or at a `count` that `option` names; 0 is no limit.  One is required."""

    seconds: float = 0.0
    count: int = 0
    option: str = "--count COUNT"
    is_asked: Callable[[], bool] = never
    """Whether somebody asked for the end, as `asked_by_signal` finds out."""

    def __post_init__(self) -> None:
        """Refuse a wait without an end.

        Raises:
            Refused: neither is given, or one is negative.
        """
        if not min(self.seconds, self.count) >= 0 or not (self.seconds or self.count):
            raise Refused(f"what waits for more has an end: give --for-s SECONDS, {self.option}, or both")

    def is_over(self, passed_s: float, count: int) -> bool:
        """Whether the end has come."""
        is_late, is_full = passed_s >= self.seconds > 0, count >= self.count > 0
        return is_late or is_full or self.is_asked()

    def left_s(self, passed_s: float, limit_s: float) -> float:
        """How long to go on at a time, `limit_s` at the most."""
        return max(0.0, min(limit_s, self.seconds - passed_s)) if self.seconds else limit_s


@contextmanager
def asked_by_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether SIGTERM or SIGINT came; a second signal has its usual effect.

    Enter it in the main thread when Spark runs, because Spark has a handler of its own for SIGINT.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}
    came = list[int]()

    def ask(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.signal(number, before[signal.Signals(number)])

    try:
        for number in SIGNALS:
            signal.signal(number, ask)
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
