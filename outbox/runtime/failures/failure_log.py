"""Log messages and requests that were not applied: each failed attempt, and each refusal once.

    handler failed                     WARNING  an attempt raised: its number, the limit, and when the next one is due
    handler asked for another delivery INFO     a `Retry`, or a state of a newer schema; once a minute for each place
    message rescheduled                WARNING  this worker cannot handle it yet, and why; once a minute for each queue
    message dead-lettered              ERROR    a refusal, by the handler or by the runtime
    request failed                     WARNING  an attempt at an HTTP request raised
    request refused                    ERROR    the failure of a request is on record, so the response stays 500

The traceback is logged once a minute for each handler and raising line; lines without it count the tracebacks left
out.  It is a bounded, redacted and escaped text, passed as the record's `exc_text`, which every formatter of `logging`
prints behind the line; a formatter given the exception itself would print the callers' data.

Each line is written after the commit of its outcome: an attempt whose commit is lost runs again, and is not logged.
An applied message never gets here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outbox.deliveries import split_stack
from outbox.errors import PoisonMessage
from outbox.escape import printable
from outbox.log_throttle import LogThrottle
from outbox.registration.handlers import UNKEPT
from outbox.resubmission import REJECTED
from outbox.retries import Retries
from outbox.runtime.failures.error_text import failure_text, raised_at, stack_of
from outbox.runtime.work import Attempt, Later, Work

log = logging.getLogger("outbox.failures")

TRACEBACK_EVERY_MS = 60_000
FIELD_LENGTH_MAX = 1_000
ID_LENGTH_MAX = 200

Write = Callable[[int, str, dict[str, Any], str], None]
"""Write a line: its level, its event, its fields, and a traceback or nothing."""


class Failure(msgspec.Struct, frozen=True):
    """The error of an attempt as texts, so that no exception and no frame is kept."""

    error: str
    line: str
    """The line that raised it, as `file:line`."""
    traceback: str
    """Empty where the handler asked for another delivery."""
    attempt: int
    attempt_count_max: int | None
    """None: no limit."""


def failure_of(error: BaseException, outcome: PoisonMessage | Later, work: Work, retries: Retries) -> Failure | None:
    """The failure to log; None for a `Reject`, because its refusal has a line."""
    if isinstance(outcome, PoisonMessage) and outcome.description == REJECTED:
        return None
    counted = not isinstance(outcome, Later) or outcome.failures > work.delivery.failures
    count_max = None if retries is UNKEPT else retries.limit
    return Failure(
        failure_text(error), raised_at(error), stack_of(error) if counted else "", 1 + work.delivery.failures, count_max
    )


def write_nowhere(level: int, event: str, fields: dict[str, Any], traceback: str) -> None:
    """Drop a line: explorations repeat a failure thousands of times."""


def write_to_log(level: int, event: str, fields: dict[str, Any], traceback: str) -> None:
    """Log a line with its traceback."""
    if log.isEnabledFor(level):
        record = log.makeRecord(log.name, level, __file__, 0, event, (), None, "write_to_log", fields)
        record.exc_text = traceback or None
        log.handle(record)


class FailureLog:
    """The failure log of one worker, HTTP entry or Functions process."""

    def __init__(self, now_ms: Callable[[], int], write: Write = write_to_log) -> None:
        self._write = write
        self._throttle = LogThrottle(TRACEBACK_EVERY_MS, now_ms)

    def note(self, branches: Sequence[Attempt], outcome: PoisonMessage | Later, *, is_settled: bool = True) -> None:
        """Log a message that was not applied; `branches` are those of all its handlers.

        With `is_settled` false the dead letter is logged by the redelivery that follows the record.
        """
        works = [branch.work for branch in branches]
        for branch in branches:
            if (failure := branch.failure) is not None:
                self._attempt("handler failed", branch.work, failure, outcome, _id(branch.work))
        delivery = works[0].delivery
        if isinstance(outcome, Later):
            if outcome.text and self._throttle.is_due(f"message rescheduled\0{delivery.queue}"):
                fields = {"id": _id(works[0]), "queue": delivery.queue, "again_s": outcome.delay_s}
                self._write(logging.WARNING, "message rescheduled", fields | {"error": _field(outcome.text)}, "")
        else:
            names = ", ".join(work.handler.name for work in works if work.handler is not None)
            fields = {"id": _id(works[0]), "queue": delivery.queue, "handler": names or "-"}
            if is_settled:
                self._refusal("message dead-lettered", fields, outcome)
            elif self._throttle.is_due(delivery.queue):
                event = "message refused, but not dead-lettered yet; it will be redelivered"
                self._write(logging.WARNING, event, fields | {"reason": _field(outcome.reason)}, "")

    def note_request(self, attempt: Attempt, outcome: PoisonMessage | Later) -> None:
        """Log a failed request, unless the response is 4xx."""
        work = attempt.work
        if (failure := attempt.failure) is not None:
            self._attempt("request failed", work, failure, outcome, work.inbox.hex() or "-")
        is_own = failure is not None or work.refusal is not None  # else it follows its record
        if isinstance(outcome, PoisonMessage) and is_own and not _is_clients(outcome):
            handler = "-" if work.handler is None else work.handler.name
            self._refusal("request refused", {"id": work.inbox.hex() or "-", "handler": handler}, outcome)

    def _attempt(self, event: str, work: Work, failure: Failure, outcome: PoisonMessage | Later, identity: str) -> None:
        handler = "-" if work.handler is None else work.handler.name
        fields: dict[str, Any] = {"id": identity, "queue": work.delivery.queue, "handler": handler}
        is_due, left_out = self._throttle.due("\0".join((event, handler, failure.line)))
        if not failure.traceback and isinstance(outcome, Later):
            if is_due:
                fields |= {"error": _field(failure.error), "line": failure.line, "again_s": outcome.delay_s}
                more = {"left_out": left_out} if left_out else {}
                self._write(logging.INFO, "handler asked for another delivery", fields | more, "")
            return
        fields["attempt"] = failure.attempt
        if failure.attempt_count_max is not None:
            fields["attempts"] = failure.attempt_count_max
        if isinstance(outcome, Later) and failure.attempt_count_max is not None:
            fields["again_s"] = outcome.delay_s
        fields |= {"error": _field(failure.error), "line": failure.line}
        if left_out:
            fields["tracebacks_left_out"] = left_out
        traceback = f"{failure.traceback}\n{_field(failure.error)}" if is_due and failure.traceback else ""
        self._write(logging.WARNING, event, fields, traceback)

    def _refusal(self, event: str, fields: dict[str, Any], poison: PoisonMessage) -> None:
        text, _ = split_stack(poison.description)
        self._write(logging.ERROR, event, fields | {"reason": _field(poison.reason), "error": _field(text)}, "")


def _is_clients(poison: PoisonMessage) -> bool:
    """Whether a refusal is answered 4xx, with its reason."""
    return poison.description == REJECTED or poison.reason in ("payload-differs", "too-old")


def _id(work: Work) -> str:
    return printable(work.delivery.message.identity[:ID_LENGTH_MAX]) or "-"


def _field(text: str) -> str:
    return printable(text[:FIELD_LENGTH_MAX])
