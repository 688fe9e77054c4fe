"""How often a commit that did not take effect is tried again: a bounded number of times, with jittered pauses.

Entered only after the first loss, because even an uncontended retry object costs more than a whole message.  A message
whose tries all failed is released after a pause, and the cause is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import random

import tenacity
from tenacity import RetryError

from outbox.errors import OutcomeUnknown, Refused
from outbox.ports import Delivery
from outbox.runtime.failures.error_text import failure_text
from outbox.seldom import Seldom

__all__ = ["MAY_RETRY", "Backoff", "NothingCommitted", "RetryBackoff", "RetryError", "cause_of"]

log = logging.getLogger("outbox.worker")

ATTEMPT_COUNT_MAX = 12
REST_FIRST_S = 0.25
REST_MAX_S = 15.0
"""How long a message rests before it is given back after all attempts: it would come again at once."""

TELL_EVERY_MS = 60_000
MAY_RETRY = (OutcomeUnknown, Refused)
"""What a port raises when nothing was written, or when nobody can tell."""


class NothingCommitted(Exception):
    """This attempt wrote nothing; make another.  A signal between an attempt and its loop, never seen outside."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a worker tries again: how it sleeps, and how often at most before it gives a message back.

    `pause` is how it rests, where that is to end early: a worker that stops must not wait for it.
    """

    sleep: Callable[[float], Awaitable[None]]
    count_max: int = ATTEMPT_COUNT_MAX
    pause: Callable[[float], Awaitable[None]] | None = None

    def attempts(self) -> tenacity.AsyncRetrying:
        """Tries to iterate over: another follows one that raises `NothingCommitted`, and `RetryError` the last."""
        return tenacity.AsyncRetrying(
            sleep=self.sleep,
            wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.5),
            stop=tenacity.stop_after_attempt(self.count_max),
            retry=tenacity.retry_if_exception_type(NothingCommitted),
        )

    async def rest(self, count: int) -> None:
        """Pause before a message is given back: the longer, the more of them came to nothing in a row before it."""
        await (self.pause or self.sleep)(min(REST_MAX_S, REST_FIRST_S * 2 ** min(count, 10)) * (0.5 + random()))


def cause_of(error: BaseException) -> BaseException | None:
    """Why nothing came of an attempt or of the last of several; None: others were there first."""
    last = error.last_attempt.exception() if isinstance(error, RetryError) else error
    return last.__cause__ if isinstance(last, NothingCommitted) else last


class RetryBackoff:
    """What one worker gives up on; the more in a row, the longer the rest before a message comes again."""

    def __init__(self, backoff: Backoff, now_ms: Callable[[], int]) -> None:
        self._backoff = backoff
        self._told = Seldom(TELL_EVERY_MS, now_ms)
        self.count = 0
        """How many messages in a row were given back because nothing could be committed."""

    async def cool_down(self, delivery: Delivery, error: BaseException) -> None:
        """Tell why nothing could be committed, once a minute for each cause and queue, and let the message rest."""
        cause, queue = cause_of(error), delivery.queue
        is_unsent = isinstance(cause, RetryError)  # committed, and told by whoever could not send
        if cause is not None and not is_unsent and self._told.is_due(f"{type(cause).__name__}\0{queue}"):
            fields = {"id": delivery.message.identity, "queue": queue, "error": failure_text(cause)}
            log.warning("message released, because nothing could be committed; it will be redelivered", extra=fields)
        self.count += 1
        await self._backoff.rest(self.count - 1)

    def reset(self) -> None:
        """Something could be committed again."""
        self.count = 0
