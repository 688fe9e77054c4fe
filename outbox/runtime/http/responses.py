"""Responses to HTTP requests: the reply on record, or why there is none and what to do.

    409 rejected                the handler refused it, on record: the same for this key for ever
    422 idempotency-key-reused  another request has this key: use a new one
    422 too-old                 the key was first used longer ago than retention: use a new one
    500 failed, on record       the last attempt of the entry's `retries=` failed, or the result cannot be stored
    500 failed                  the handler failed, nothing took effect: the same request again is safe
    503 try-again               nothing took effect, or the outcome is unknown: the same request again is safe
    409 in-progress             the same request is in progress: ask again with the same key

The cause of a failure is for the log and the record, not for the client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from outbox.errors import CorruptRecord, PoisonMessage
from outbox.http import Reply, Response, problem
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.resubmission import REJECTED
from outbox.runtime.delivery.retrying import RetryError, cause_of
from outbox.runtime.failures.error_text import failure_text
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.stored import Record

log = logging.getLogger("outbox.http")

AGAIN_AFTER_S = 1
RETRY_AFTER_S_MAX = 86_400


_REFUSED = {
    "payload-differs": (
        422,
        "idempotency-key-reused",
        "this Idempotency-Key was used for another request; use a new key",
    ),
    "too-old": (
        422,
        "too-old",
        "this Idempotency-Key was first used too long ago; look at what it did, and use a new key",
    ),
}
"""The responses to refusals by the runtime, by their reason."""
_FAILED = "the request failed, and is not tried again under this Idempotency-Key; nothing took effect"


def answer_of(record: Record) -> Response:
    if record.refusal is not None:
        return refused(record.refusal)
    return Response(204) if record.reply is None else record.reply.response


def read_answer(reply: Reply | None) -> Response:
    """The response to a read, by what its handler returned."""
    if reply is None or (reply.status == 204 and not reply.headers):
        return problem(404, "not-found", "there is nothing under this name")
    return reply.response


def refused(poison: PoisonMessage) -> Response:
    """The response to a recorded refusal."""
    if poison.description == REJECTED:
        return problem(409, "rejected", poison.reason)
    return problem(*_REFUSED.get(poison.reason, (500, poison.reason, _FAILED)))


def failed(later: Later, work: Work) -> Response:
    """The response to a request without an effect: its handler failed, or could not run yet."""
    if later.failures > work.delivery.failures:
        text = "the request failed and nothing took effect; the same request again, under the same key, is safe"
        return problem(500, "failed", text, retry_after_s=AGAIN_AFTER_S)
    return unavailable(math.ceil(later.delay_s))


def unavailable(after_s: int = AGAIN_AFTER_S) -> Response:
    """The response where nothing could be committed, or the outcome is unknown."""
    return problem(
        503,
        "try-again",
        "the request could not be completed now; the same request again, under the same key, is safe",
        retry_after_s=min(max(after_s, AGAIN_AFTER_S), RETRY_AFTER_S_MAX),
    )


def in_progress() -> Response:
    """The response to a repetition of a request in progress."""
    return problem(
        409,
        "in-progress",
        "the same request is still in progress; ask again with the same key",
        retry_after_s=AGAIN_AFTER_S,
    )


class RequestLog:
    """The log of one entry's requests without an effect; responses name no causes."""

    def __init__(self, now_ms: Callable[[], int], failure_log: FailureLog) -> None:
        self._failure_log = failure_log
        self._unavailable = LogThrottle(LOG_EVERY_MS, now_ms)

    def unavailable(self, error: RetryError) -> Response:
        """Respond to a request that could not be committed; the cause is logged once a minute."""
        cause = cause_of(error)
        if cause is not None and self._unavailable.is_due(type(cause).__name__):
            log.warning("request not answered; the same request again is safe", extra={"error": failure_text(cause)})
        return unavailable()

    def unreadable(self, error: CorruptRecord) -> Response:
        """Respond to a request that met an unreadable document, and log which."""
        log.error("request met an unreadable document; repair or delete it", extra={"error": str(error)})
        return unavailable()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Log a failed handler."""
        if outcome is not None:
            self._failure_log.note_request(attempt, outcome)
