"""How often a commit that did not take effect is tried again: a bounded number of times, with jittered pauses.

Entered only after the first loss, because even an uncontended retry object costs more than a whole message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import tenacity
from tenacity import RetryError

__all__ = ["Again", "Backoff", "RetryError"]

ATTEMPT_COUNT_MAX = 12


class Again(Exception):
    """This attempt wrote nothing; make another.  A signal between an attempt and its loop, never seen outside."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a worker tries again: how it sleeps, and how often at most before it gives a message back."""

    sleep: Callable[[float], Awaitable[None]]
    count_max: int = ATTEMPT_COUNT_MAX

    def attempts(self) -> tenacity.AsyncRetrying:
        """Attempts to iterate over; one that raises `Again` is followed by another, the last by its `RetryError`."""
        return tenacity.AsyncRetrying(
            sleep=self.sleep,
            wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.5),
            stop=tenacity.stop_after_attempt(self.count_max),
            retry=tenacity.retry_if_exception_type(Again),
        )
