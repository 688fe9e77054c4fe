"""What the log says of messages and requests that were not applied: each failed attempt, and each refusal once.

    handler failed                     WARNING  an attempt that raised: which of how many, and when the next one is due
    handler asked for another delivery INFO     a `Retry`, or a state of a newer schema; once a minute for each place
    message rescheduled                WARNING  nobody here can handle it yet, and why; once a minute for each queue
    message dead-lettered              ERROR    a refusal, by the handler or by the runtime
    request failed                     WARNING  an attempt at an HTTP request that raised
    request refused                    ERROR    a request whose failure is on record, and so is answered 500 for good

The whole traceback is logged once a minute for each handler and raising line; a line without it says how many were
left out.  It is a text that is bounded, redacted and escaped, so it goes with the record as `exc_text`, which every
formatter of `logging` puts behind the line; a formatter given the exception itself would print what callers sent.

Each line is written when what it says is settled: an attempt whose commit is lost is run again, and says nothing.
Nothing here is reached by a message that is applied.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from outbox.deliveries import told_apart
from outbox.errors import PoisonMessage
from outbox.handlers import UNKEPT
from outbox.retries import Retries
from outbox.runtime.failures.error_text import failure_text, raised_at, stack_of
from outbox.runtime.verdict import REJECTED
from outbox.runtime.work import Attempt, Later, Work
from outbox.seldom import printable

log = logging.getLogger("outbox.failures")

TRACEBACK_EVERY_MS = 60_000
PLACE_COUNT_MAX = 1_000
"""For how many handlers and lines it is remembered when their traceback was logged."""
FIELD_LENGTH_MAX = 1_000
ID_LENGTH_MAX = 200

Write = Callable[[int, str, dict[str, Any], str], None]
"""Write a line: its level, its event, its fields, and a traceback or nothing."""


class Failure(msgspec.Struct, frozen=True):
    """An attempt that raised, as texts: no exception is kept, and so no frame."""

    error: str
    line: str
    """The line that raised it, as `file:line`."""
    traceback: str
    """Empty where the handler asked for another delivery."""
    attempt: int
    attempt_count_max: int | None
    """None: there is no last one."""


def failure_of(error: BaseException, outcome: PoisonMessage | Later, work: Work, retries: Retries) -> Failure | None:
    """What is worth a line of an attempt that raised; None for a `Reject`, whose refusal says all."""
    if isinstance(outcome, PoisonMessage) and outcome.description == REJECTED:
        return None
    counted = not isinstance(outcome, Later) or outcome.failures > work.delivery.failures
    count_max = None if retries is UNKEPT else retries.limit
    return Failure(
        failure_text(error), raised_at(error), stack_of(error) if counted else "", 1 + work.delivery.failures, count_max
    )


def write_nowhere(level: int, event: str, fields: dict[str, Any], traceback: str) -> None:
    """Write nothing, for those who run the same failure thousands of times to see what it does."""


def write_to_log(level: int, event: str, fields: dict[str, Any], traceback: str) -> None:
    """Write a line to the log, with its traceback behind it."""
    if log.isEnabledFor(level):
        record = log.makeRecord(log.name, level, __file__, 0, event, (), None, "write_to_log", fields)
        record.exc_text = traceback or None
        log.handle(record)


class FailureLog:
    """The log of failures of one worker, entry or process of a Functions host."""

    def __init__(self, now_ms: Callable[[], int], write: Write = write_to_log) -> None:
        self._now_ms = now_ms
        self._write = write
        self._places: dict[tuple[str, str, str], tuple[int, int]] = {}
        """Until when the traceback of a place is left out, and how many were."""

    def note(self, branches: Sequence[Attempt], outcome: PoisonMessage | Later, *, is_settled: bool = True) -> None:
        """Log that a message was not applied; `branches` are those of all its handlers.

        A dead letter that could not be settled is one with the delivery that finds its record.
        """
        works = [branch.work for branch in branches]
        for branch in branches:
            if (failure := branch.failure) is not None:
                self._attempt("handler failed", branch.work, failure, outcome, _id(branch.work))
        delivery = works[0].delivery
        if isinstance(outcome, Later):
            if outcome.text and self._is_due(("message rescheduled", delivery.queue, ""))[0]:
                fields = {"id": _id(works[0]), "queue": delivery.queue, "again_s": outcome.delay_s}
                self._write(logging.WARNING, "message rescheduled", fields | {"error": _field(outcome.text)}, "")
        else:
            names = ", ".join(work.handler.name for work in works if work.handler is not None)
            fields = {"id": _id(works[0]), "queue": delivery.queue, "handler": names or "-"}
            if is_settled:
                self._refusal("message dead-lettered", fields, outcome)
            elif self._is_due(("", delivery.queue, ""))[0]:
                event = "message refused, but its delivery is not settled; it is redelivered"
                self._write(logging.WARNING, event, fields | {"reason": _field(outcome.reason)}, "")

    def note_request(self, attempt: Attempt, outcome: PoisonMessage | Later) -> None:
        """Log that a request failed; what is answered 4xx is its client's affair."""
        work = attempt.work
        if (failure := attempt.failure) is not None:
            self._attempt("request failed", work, failure, outcome, work.inbox.hex() or "-")
        is_own = failure is not None or work.refusal is not None  # else it follows what is on record
        if isinstance(outcome, PoisonMessage) and is_own and not _is_clients(outcome):
            handler = "-" if work.handler is None else work.handler.name
            self._refusal("request refused", {"id": work.inbox.hex() or "-", "handler": handler}, outcome)

    def _attempt(self, event: str, work: Work, failure: Failure, outcome: PoisonMessage | Later, identity: str) -> None:
        handler = "-" if work.handler is None else work.handler.name
        fields: dict[str, Any] = {"id": identity, "queue": work.delivery.queue, "handler": handler}
        is_due, left_out = self._is_due((event, handler, failure.line))
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
        text, _ = told_apart(poison.description)
        self._write(logging.ERROR, event, fields | {"reason": _field(poison.reason), "error": _field(text)}, "")

    def _is_due(self, place: tuple[str, str, str]) -> tuple[bool, int]:
        """Whether the traceback of a place is due, and how many were left out since it was, this one included."""
        now_ms = self._now_ms()
        until_ms, count = self._places.get(place, (0, 0))
        if now_ms < until_ms:
            self._places[place] = until_ms, count + 1
            return False, count + 1
        self._places.pop(place, None)
        self._places[place] = now_ms + TRACEBACK_EVERY_MS, 0
        if len(self._places) > PLACE_COUNT_MAX:
            del self._places[next(iter(self._places))]
        return True, count


def _is_clients(poison: PoisonMessage) -> bool:
    """Whether a refused request is its client's affair, who is told why."""
    return poison.description == REJECTED or poison.reason in ("payload-differs", "too-old")


def _id(work: Work) -> str:
    return printable(work.delivery.message.identity[:ID_LENGTH_MAX]) or "-"


def _field(text: str) -> str:
    return printable(text[:FIELD_LENGTH_MAX])
