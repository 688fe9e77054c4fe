"""Failures of a processor's handler: the reads after one, their counts, and the refusal of an entry.

Theory of operation: the swap after a failure puts a note into the register: how far the failed step had read.  While
the note is there nothing beyond that is read, so traffic on other rows neither hides what fails nor changes it.  What
the step had read is gone through row by row: one entry alone after a failure, then two, four and so on with each
success.  Only what fails alone counts, by its row: the entry at that row's cursor.  After `retries.limit` failures it
is refused, or the processor stops.  Behind all that the failed step had read the note goes.

A timer that is due is tried without entries first; once that has succeeded, an entry is tried although another timer
may be due by then.  So neither counts the other's failures.

The note lies in the register, so it holds for all replicas and over restarts.  Code that does not know it drops it:
then its failures are counted anew.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from outbox.runtime.failures.error_text import failure_text
from outbox.streams.cells import Position
from outbox.streams.plan import REFUSED, HandlerFailed, ProcessorPlan, RefusedEntry
from outbox.streams.register import Failed, LastCell, Register
from outbox.streams.row import Entry

log = logging.getLogger("outbox.streams")

TIMER = ""
"""The name that counts the failures of a step without entries; no row has it."""
REASON_LENGTH_MAX = 1_000


class Ready(NamedTuple):
    """The entries of a step by input, the cursors behind them, and the last cell read of each row.

    `failed` is the note by which they were read.
    """

    entries: dict[str, list[Entry[Any]]]
    cursors: dict[str, Position]
    lasts: dict[str, LastCell]
    failed: Failed | None = None

    @property
    def entry_count(self) -> int:
        """The number of the entries."""
        return sum(map(len, self.entries.values()))

    def where(self) -> str:
        """The entries in words."""
        found = [f"{input} {entry.position}" for input, entries in self.entries.items() for entry in entries]
        return ", ".join(found) or "its timer"


def is_due(register: Register, now_ms: int) -> bool:
    """Whether a step is due without input."""
    return 0 < register.wake <= max(register.now, now_ms)


def rows_left(failed: Failed, cursors: Mapping[str, Position]) -> dict[str, Position]:
    """How far each row is read that is not yet past what the failed step had read."""
    return {key: at for key, at in failed.until.items() if key in cursors and cursors[key] < at}


def noted(register: Register, cursors: Mapping[str, Position], now_ms: int) -> Failed | None:
    """The note of a register, unless there is nothing left of what failed."""
    failed = register.failed
    if failed is None or rows_left(failed, cursors):
        return failed
    return failed if TIMER in failed.tries and is_due(register, now_ms) else None


def is_timer_first(failed: Failed, register: Register, now_ms: int) -> bool:
    """Whether the next step is that of a timer, without entries."""
    return is_due(register, now_ms) and not failed.timer


def count_of(failed: Failed | None) -> int:
    """The handler's failures on the next step, by a note."""
    return 0 if failed is None else max([1, *failed.tries.values()])


def delay_s(plan: ProcessorPlan, register: Register) -> float:
    """For how long the next step waits, since its last one failed; 0 where that did not."""
    failed = register.failed
    return plan.retries.delay_s(failed.waits) if failed is not None and failed.waits else 0.0


def after_success(before: Register, ready: Ready) -> Failed | None:
    """The note after a step from a register with the note `ready.failed`; None where nothing is left of it."""
    failed = ready.failed
    if failed is None:
        return None
    until = rows_left(failed, ready.cursors)
    if not until:
        return None
    is_timer = not ready.entry_count
    tries = {
        key: count
        for key, count in failed.tries.items()
        if (not is_timer if key == TIMER else before.cursors.get(key) == ready.cursors.get(key))
    }
    take = failed.take if is_timer else 2 * failed.take
    take = min(take, failed.most or take)
    return msgspec.structs.replace(failed, until=until, tries=tries, take=take, waits=0, timer=is_timer)


def after_failure(before: Register, ready: Ready, *, is_due: bool) -> tuple[Failed, str | None]:
    """The note after a failure, and what it counts for: a row, `TIMER`, or None where nothing was alone."""
    failed, count = ready.failed, ready.entry_count
    reached = {key: at for key, at in ready.cursors.items() if before.cursors[key] < at}
    if failed is None:
        failed = Failed(until=reached)
    alone: str | None = None
    if count == 0:
        alone = TIMER
    elif count == 1 and (not is_due or failed.timer):
        (alone,) = reached
    tries = failed.tries if alone is None else {**failed.tries, alone: failed.tries.get(alone, 0) + 1}
    most = max(1, count // 2) if count > 1 else failed.most
    waits = 1 if alone is None else tries[alone]
    return msgspec.structs.replace(failed, tries=tries, take=1, most=most, waits=waits, timer=False), alone


def failed_step(
    plan: ProcessorPlan, before: Register, ready: Ready, refusable: RefusedEntry | None, error: Exception
) -> Register:
    """The register after the handler has failed: with a note, or what failed alone too often refused.

    Raises:
        HandlerFailed: it has failed too often, and nothing takes what is refused.
    """
    failed, alone = after_failure(before, ready, is_due=is_due(before, before.now))
    limit, reason = plan.retries.limit, failure_text(error)[:REASON_LENGTH_MAX]
    count = 0 if alone is None else failed.tries[alone]
    fields: dict[str, Any] = {"processor": plan.name, "error": reason}
    if count < limit:
        text = "processor %s fails at %s, try %s of %s; it is run again: %s"
        if alone is None:
            text = "processor %s fails at %s; each is run alone, try %s of %s: %s"
        fields["failures"] = max(1, count)
        log.warning(text, plan.name, ready.where(), max(1, count), limit, reason, extra=fields)
        return msgspec.structs.replace(before, outs=[], failed=failed, failures=count_of(failed))
    if refusable is None:
        without = "" if alone == TIMER else ', or give refused=log and on_error="refuse" to go on without that entry'
        raise HandlerFailed(
            f"processor {plan.name} fails at {ready.where()} ({reason}); mend the handler and start again{without}"
        ) from error
    refused = msgspec.structs.replace(refusable, reason="; ".join(filter(None, (reason, refusable.reason))))
    fields |= {"input": refused.input, "position": refused.position}
    text = "processor %s refused entry %s %s: %s"
    log.error(text, plan.name, refused.input, refused.position, reason, extra=fields)
    left = after_success(before, ready._replace(failed=msgspec.structs.replace(failed, take=1, most=0)))
    left = None if left is None else msgspec.structs.replace(left, take=1)
    outs = plan.outs({REFUSED: [refused]})
    lasts = before.lasts | ready.lasts
    return msgspec.structs.replace(
        before, cursors=ready.cursors, lasts=lasts, outs=outs, failed=left, failures=count_of(left)
    )
