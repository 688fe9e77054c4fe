"""How often a commit that did not take effect is tried again: a bounded number of times, with jittered pauses.

Entered only after the first loss, because even an uncontended retry object costs more than a whole message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import tenacity
from tenacity import RetryError

__all__ = ["Again", "RetryError", "attempts"]

ATTEMPT_COUNT_MAX = 12


class Again(Exception):
    """This attempt wrote nothing; make another.  A signal between an attempt and its loop, never seen outside."""


def attempts(sleep: Callable[[float], Awaitable[None]]) -> tenacity.AsyncRetrying:
    """Attempts to iterate over; one that raises `Again` is followed by another, the last by its `RetryError`."""
    return tenacity.AsyncRetrying(
        sleep=sleep,
        wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.5),
        stop=tenacity.stop_after_attempt(ATTEMPT_COUNT_MAX),
        retry=tenacity.retry_if_exception_type(Again),
    )
