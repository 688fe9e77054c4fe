"""What a client is told: the reply that is on record, or why there is none and what to do about it.

    409 rejected                the handler refused it, on record: the same for this key for ever
    422 idempotency-key-reused  another request has this key: use a new one
    422 too-old                 the key was first used longer ago than anybody remembers: use a new one
    500 failed, kept            the last try that the entry's `retries=` allows failed, or the result cannot be stored
    500 failed, not kept        the handler failed, nothing took effect: the same request again is safe
    503 try-again               nothing took effect, or nobody can tell: the same request again is safe
    409 in-progress             the same request is being worked on: ask again with the same key

Why a handler failed is for the log and the record, not for the client.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from outbox.errors import CorruptRecord, PoisonMessage
from outbox.http import Response, problem
from outbox.runtime.delivery.retrying import RetryError, cause_of
from outbox.runtime.failures.error_text import failure_text
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.verdict import REJECTED
from outbox.runtime.work import Attempt, Later, Outcome, Work
from outbox.seldom import Seldom
from outbox.stored import Record

log = logging.getLogger("outbox.http")

TELL_EVERY_MS = 60_000
AGAIN_AFTER_S = 1
RETRY_AFTER_S_MAX = 86_400


def answer_of(record: Record) -> Response:
    """The response that is on record."""
    if record.refusal is not None:
        return refused(record.refusal)
    return Response(204) if record.reply is None else record.reply.response


def refused(poison: PoisonMessage) -> Response:
    """The response to a request that is refused for good."""
    if poison.description == REJECTED:
        return problem(409, "rejected", poison.reason)
    if poison.reason == "payload-differs":
        text = "this Idempotency-Key was used for another request; use a new key"
        return problem(422, "idempotency-key-reused", text)
    if poison.reason == "too-old":
        text = "this Idempotency-Key was first used too long ago; look at what it did, and use a new key"
        return problem(422, "too-old", text)
    text = "the request failed, and is not tried again under this Idempotency-Key; nothing took effect"
    return problem(500, poison.reason, text)


def put_off(later: Later, work: Work) -> Response:
    """The response to a request of which nothing took effect."""
    if later.failures > work.delivery.failures:
        text = "the request failed and nothing took effect; the same request again, under the same key, is safe"
        return problem(500, "failed", text, retry_after_s=AGAIN_AFTER_S)
    return unavailable(math.ceil(later.delay_s))


def unavailable(after_s: int = AGAIN_AFTER_S) -> Response:
    """The response where nobody could commit, or could tell."""
    text = "the request could not be completed now; the same request again, under the same key, is safe"
    return problem(503, "try-again", text, retry_after_s=min(max(after_s, AGAIN_AFTER_S), RETRY_AFTER_S_MAX))


def in_progress() -> Response:
    """The response to a repetition of a request that is being worked on."""
    text = "the same request is still being worked on; ask again with the same key"
    return problem(409, "in-progress", text, retry_after_s=AGAIN_AFTER_S)


class RequestLog:
    """The log of one entry's requests that come to nothing; their clients learn no causes."""

    def __init__(self, now_ms: Callable[[], int], failure_log: FailureLog) -> None:
        self._failure_log = failure_log
        self._unavailable = Seldom(TELL_EVERY_MS, now_ms)

    def unavailable(self, error: RetryError) -> Response:
        """Answer a request that nothing came of; what stands in the way is told once a minute."""
        cause = cause_of(error)
        if cause is not None and self._unavailable.is_due(type(cause).__name__):
            log.warning("request not answered; the same request again is safe", extra={"error": failure_text(cause)})
        return unavailable()

    def put_off(self, error: CorruptRecord) -> Response:
        """Answer a request that met a document which is none; whoever mends that must know which."""
        log.error("request met an unreadable document; repair or delete it", extra={"error": str(error)})
        return unavailable()

    def ended(self, attempt: Attempt, outcome: Outcome) -> None:
        """Say that a handler failed, if it did."""
        if outcome is not None:
            self._failure_log.note_request(attempt, outcome)
