"""How a store protocol reads and writes, and how often a commit that did not take effect is tried again.

A failed read or write becomes `NothingCommitted`, which starts another attempt: a bounded number of times, with
jittered pauses.  That is entered only after the first loss, because even an uncontended retry object costs more than a
whole message.  A message whose tries all failed is released after a pause, and the cause is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from random import random

import tenacity
from tenacity import RetryError

from outbox.errors import NoBlobStore, OutcomeUnknown, Refused
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.ports import BlobStore, Delivery, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Won, Write
from outbox.runtime.failures.error_text import failure_text

__all__ = ["MAY_RETRY", "Backoff", "NothingCommitted", "RetryBackoff", "RetryError", "cause_of"]

log = logging.getLogger("outbox.worker")

ATTEMPT_COUNT_MAX = 12
REST_FIRST_S = 0.25
REST_MAX_S = 15.0
"""How long to pause before a message is released after all attempts; without it the redelivery would be immediate."""

MAY_RETRY = (OutcomeUnknown, Refused)
"""The errors of a port after which nothing was written, or the outcome is unknown."""
LOOK_COUNT_MAX = 5
"""How often to read a document that must exist, before the attempt starts again."""


class NothingCommitted(Exception):
    """Nothing is known to have been written: make another attempt.  A signal inside the runtime, never seen outside."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """How a worker retries: how it sleeps, and after how many attempts it releases the message.

    `pause` replaces `sleep` for the pause before a release, so that a stopping worker can cut it short.
    """

    sleep: Callable[[float], Awaitable[None]]
    count_max: int = ATTEMPT_COUNT_MAX
    pause: Callable[[float], Awaitable[None]] | None = None

    def attempts(self) -> tenacity.AsyncRetrying:
        """Attempts to iterate over: `NothingCommitted` starts the next, and after the last it becomes `RetryError`."""
        return tenacity.AsyncRetrying(
            sleep=self.sleep,
            wait=tenacity.wait_random_exponential(multiplier=0.002, max=0.5),
            stop=tenacity.stop_after_attempt(self.count_max),
            retry=tenacity.retry_if_exception_type(NothingCommitted),
        )

    async def rest(self, count: int) -> None:
        """Pause before a release, longer with each of the `count` releases in a row before it."""
        await (self.pause or self.sleep)(min(REST_MAX_S, REST_FIRST_S * 2 ** min(count, 10)) * (0.5 + random()))


def cause_of(error: BaseException) -> BaseException | None:
    """Why an attempt, or the last of several, committed nothing; None: it lost to others."""
    last = error.last_attempt.exception() if isinstance(error, RetryError) else error
    return last.__cause__ if isinstance(last, NothingCommitted) else last


class RetryBackoff:
    """The releases in a row of one worker; each pauses for longer, so that redelivery slows down."""

    def __init__(self, backoff: Backoff, now_ms: Callable[[], int]) -> None:
        self._backoff = backoff
        self._log_throttle = LogThrottle(LOG_EVERY_MS, now_ms)
        self.count = 0
        """How many messages in a row were released because nothing could be committed."""

    async def cool_down(self, delivery: Delivery, error: BaseException) -> None:
        """Log why nothing could be committed, once a minute for each cause and queue, then pause."""
        cause, queue = cause_of(error), delivery.queue
        has_failed_push = isinstance(cause, RetryError)  # committed; the failed push has a log line of its own
        if cause is not None and not has_failed_push and self._log_throttle.is_due(f"{type(cause).__name__}\0{queue}"):
            fields = {"id": delivery.message.identity, "queue": queue, "error": failure_text(cause)}
            log.warning("message released, because nothing could be committed; it will be redelivered", extra=fields)
        self.count += 1
        await self._backoff.rest(self.count - 1)

    def reset(self) -> None:
        self.count = 0


async def read(store: StateStore, key: DocumentKey, session: Session = "") -> Document | None:
    """Read a document, at least as fresh as `session`.

    Raises:
        NothingCommitted: the store cannot be read now.
    """
    try:
        return await store.read(key, session=session)
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def write_one(store: StateStore, write: Write) -> Won | Lost:
    """Write one document.

    Raises:
        OutcomeUnknown: it may have been written.
        NothingCommitted: it was not.
    """
    try:
        return await store.write([write])
    except Refused as error:
        raise NothingCommitted from error


async def write_known(store: StateStore, write: Write) -> Won | Lost:
    """Write one document whose unknown outcome needs no resolving, because the next attempt meets the document.

    Raises:
        NothingCommitted: it was not written, or the outcome is unknown.
    """
    try:
        return await store.write([write])
    except MAY_RETRY as error:
        raise NothingCommitted from error


async def confirmed(store: StateStore, document: Document) -> Document:
    """Write a document back unchanged, which proves that the read was not stale.

    Raises:
        NothingCommitted: it has changed, or the outcome is unknown.
    """
    answer = await write_known(store, Replace(document.key, document.body, document.version, None, Tag("confirm")))
    if isinstance(answer, Lost):
        raise NothingCommitted
    return Document(document.key, document.body, answer.versions[0], answer.session)


async def write_blobs(blobs: BlobStore, named: Iterable[tuple[str, bytes]]) -> None:
    """Write blobs named by their content, so an existing one is the same.

    Raises:
        NoBlobStore: there is no blob store.
        NothingCommitted: a blob may be missing.
    """
    for name, data in named:
        try:
            await blobs.write(name, data)
        except NoBlobStore:
            raise
        except MAY_RETRY as error:
            raise NothingCommitted from error
