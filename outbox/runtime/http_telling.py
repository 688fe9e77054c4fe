"""What the log is told of requests that come to nothing, and the answer to them: the client is not told why."""

from __future__ import annotations

import logging
from collections.abc import Callable

from outbox.errors import CorruptRecord
from outbox.http import Response
from outbox.runtime import http_answers
from outbox.runtime.backoff import RetryError, cause_of
from outbox.runtime.failure_log import FailureLog
from outbox.runtime.telling import failure_text
from outbox.runtime.work import Attempt, Outcome
from outbox.seldom import Seldom

log = logging.getLogger("outbox.http")

TELL_EVERY_MS = 60_000


class HttpTelling:
    """The log of one entry."""

    def __init__(self, now_ms: Callable[[], int], failure_log: FailureLog) -> None:
        self._failure_log = failure_log
        self._unavailable = Seldom(TELL_EVERY_MS, now_ms)

    def unavailable(self, error: RetryError) -> Response:
        """Answer a request that nothing came of; what stands in the way is told once a minute."""
        cause = cause_of(error)
        if cause is not None and self._unavailable.is_due(type(cause).__name__):
            log.warning("request not answered, it may be sent again", extra={"error": failure_text(cause)})
        return http_answers.unavailable()

    def put_off(self, error: CorruptRecord) -> Response:
        """Answer a request that met a document which is none; whoever mends that must know which."""
        log.error("request put off", extra={"error": str(error)})
        return http_answers.unavailable()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Say that a handler failed, if it did."""
        if outcome is not None:
            self._failure_log.note_request(attempt, outcome)
