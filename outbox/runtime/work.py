"""A message on its way through a commit protocol: its `Work`, and an `Attempt` at it.

A `Work` is one handler's branch of a message, or a whole message without a handler; it does not change.  An `Attempt`
is what one process learns about that work: its record, the state version that it was refused over, what its handler
raised.  When an attempt learns more of the work itself (its failure count, its key from an earlier request), it
replaces the work.  Nothing of an attempt is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outbox.app import Handler
from outbox.deliveries import split_stack
from outbox.errors import REASON_LENGTH_MAX, PoisonMessage
from outbox.lineage import Key, fingerprint
from outbox.ports import Delivery, Version
from outbox.runtime.verdict import StoredRecord, Verdict, judged
from outbox.stored import Record


@dataclass(frozen=True, slots=True)
class Later:
    """A rescheduled message: its delay, its failure count, and the reason where no handler ran, else its error.

    `is_newer` says that a newer build wrote its schema, or its state's.
    """

    delay_s: float
    failures: int
    text: str = ""
    error: str = ""
    is_newer: bool = False

    @property
    def why(self) -> str:
        """Why it waits, for whoever looks into its queue."""
        return self.error or self.text


Outcome = PoisonMessage | Later | None
"""The outcome of one handling: refused, rescheduled, or (None) applied."""


def outcome_data(outcome: Outcome) -> tuple[Any, ...]:
    """An outcome as plain data; equal outcomes have equal data."""
    if isinstance(outcome, PoisonMessage):
        return "refused", outcome.reason, outcome.description
    return () if outcome is None else ("later", outcome.delay_s, outcome.failures, outcome.text, outcome.error)


class Work(msgspec.Struct, gc=False, frozen=True):
    """One handler's branch of a message, or a whole message without a handler.

    Works of one `lane` are handled in turn; `in_order`: nothing of the lane may overtake it; `blocks_key`: its dead
    letter blocks the lane.  A fan-out message has its other branches in `others`.  A message that a commit of this very
    log made, for one handler, and that was neither abandoned nor handed to an outside receiver, needs no marker (it is
    not `remembered`): the record that applies it consumes its task.
    """

    delivery: Delivery
    handler: Handler | None = None
    value: Any = None
    key: Key | None = None
    state_id: str | None = None
    lane: str | None = None
    remembered: bool = False
    inbox: bytes = b""
    """The inbox key: (app, handler, state type, key, identity)."""
    fingerprint: bytes = b""
    """The digest of the payload."""
    in_order: bool = False
    blocks_key: bool = False
    refusal: PoisonMessage | Later | None = None
    """Why it cannot be handled, for good or for now."""
    others: tuple[Work, ...] = ()
    was_run: bool = False
    """Whether its handler got `value` before, and may have changed it."""
    caller: str = ""
    """The caller of an HTTP request, where its entry declares `caller=`."""
    cancels_due_ms: int = 0
    """Of a cancellation when the message is due that it cancels, whose inbox key and payload it has; else 0."""

    @property
    def digest(self) -> bytes:
        """The digest of the payload, computed where admission did not need it."""
        message = self.delivery.message
        return self.fingerprint or fingerprint(message.body, message.type)

    @property
    def created_ms(self) -> int:
        """Its creation time, else its enqueue time."""
        return self.delivery.message.created_ms or self.delivery.enqueued_ms

    def verdict(self, record: StoredRecord | None, *, is_past_retention: bool = False) -> Verdict:
        """The verdict for this record; without `is_past_retention` the age fence is left to the attempt.

        A cancellation is never too old: it may be on record twice, and a message past retention does not run anyway.
        Where the message was handled, however that ended, nothing is left to cancel.
        """
        message = self.delivery.message
        verdict = judged(
            record,
            fingerprint=self.fingerprint,
            attempt=message.attempt,
            replaces=message.replaces,
            is_past_retention=is_past_retention and not self.cancels_due_ms,
        )
        return Verdict.DUPLICATE if self.cancels_due_ms and verdict is Verdict.REFUSED else verdict

    @property
    def stays_in_place(self) -> bool:
        """Whether no copy can reschedule it: nothing may overtake it, or a copy would reach other subscriptions."""
        return self.in_order or "/Subscriptions/" in self.delivery.queue

    @property
    def delivery_count(self) -> int:
        """The number of this delivery, from 1."""
        return 1 + self.delivery.failures + self.delivery.delivery_count


class Attempt(msgspec.Struct, eq=False):
    """One process' attempt at a work, and what it has learned so far."""

    work: Work
    others: tuple[Attempt, ...] = ()
    """The attempts at the other branches of its message."""
    fan_out: FanOut | None = None
    """The fan-out that the branches share, until its message is settled."""
    rests_on: Version | None = None
    """The state version that it was refused over; None: any."""
    found: Record | None = None
    """The record that it may replace: a refusal of an earlier attempt, or a waiting record."""
    replaces: Version = ""
    """The version of that record; empty: create one."""
    record: Record | None = None
    """Its committed record."""
    ledger_entries: tuple[str, ...] = ()
    """Entries of a dispatch ledger for batches of it that may be written yet."""
    on_committed: Callable[[Record], None] | None = None
    """Called with the record, before its outputs are pushed, so that a reply need not wait for that."""
    failure: Any = None
    """The last error of its handler, as a `failure_log.Failure`; None: nothing to log."""
    is_blocker: bool = False
    """Whether it blocks its session, which is unblocked when it is applied."""
    is_released: bool = False
    is_duplicate: bool = False
    """Whether its record says that it was applied before; for whoever counts."""

    @property
    def branches(self) -> tuple[Attempt, ...]:
        """The attempts at all branches of its message, this one first."""
        return (self, *self.others)

    def remembered(self) -> tuple[Any, ...]:
        """All that this attempt has learned, as plain data; the rest of its work follows from the delivery."""
        work, refusal = self.work, self.work.refusal
        learned = self.rests_on, self.found, self.replaces, self.record, self.failure, self.is_blocker, self.is_released
        return work.delivery, work.key, work.was_run, outcome_data(refusal), *learned, self.ledger_entries

    def refuse(self, refusal: PoisonMessage) -> None:
        """Refuse it, unless it is refused already; the next attempt records that."""
        if self.work.refusal is None:
            self.work = msgspec.structs.replace(self.work, refusal=refusal)

    def refuse_over(self, version: Version, refusal: PoisonMessage) -> None:
        """Refuse it over this state version; the next attempt over the same version records that."""
        self.work, self.rests_on = msgspec.structs.replace(self.work, refusal=refusal), version

    def meet(self, version: Version) -> None:
        """Drop a refusal over another state version: it says nothing about this one."""
        if self.rests_on is not None and self.rests_on != version:
            self.work, self.rests_on = msgspec.structs.replace(self.work, refusal=None), None

    def ran(self) -> None:
        """Note that its handler got the value, and may have changed it."""
        self.work = msgspec.structs.replace(self.work, was_run=True)

    def committed(self, record: Record) -> None:
        """Take its committed record."""
        self.record = record
        if self.on_committed is not None:
            self.on_committed(record)


class FanOut:
    """A message with several handlers: the attempts at its branches, and their outcomes."""

    def __init__(self, branches: tuple[Attempt, ...]) -> None:
        self.branches = branches
        self.outcomes: dict[int, Outcome] = {}
        for branch in branches:
            branch.fan_out = self

    def note(self, branch: Attempt, outcome: Outcome) -> bool:
        """Note the outcome of a branch; whether it was the last."""
        self.outcomes[id(branch)] = outcome
        return len(self.outcomes) == len(self.branches)

    def are_others_applied(self) -> bool:
        """Whether all branches but one are applied."""
        return len(self.outcomes) + 1 == len(self.branches) and not any(self.outcomes.values())

    def outcome(self) -> Outcome:
        """The outcome of the message: redelivered for one branch, it is for all."""
        return outcome_of_all(self.branches, [self.outcomes[id(branch)] for branch in self.branches])

    def close(self) -> tuple[Attempt, ...]:
        """Return the branches and cut the references between them."""
        branches, self.branches = self.branches, ()
        for branch in branches:
            branch.fan_out = None
        return branches


def attempt_at(work: Work) -> Attempt:
    """A first attempt at a work and its other branches."""
    return Attempt(work, tuple([Attempt(other) for other in work.others]) if work.others else ())


def holds_lane(work: Work, outcome: Outcome) -> bool:
    """Whether the outcome of a message keeps its successors back."""
    return isinstance(outcome, Later) or (work.blocks_key and isinstance(outcome, PoisonMessage))


def outcome_of_all(branches: Sequence[Attempt], outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a message: rescheduled if a branch is, else refused if one is, naming those handlers."""
    later = [outcome for outcome in outcomes if isinstance(outcome, Later)]
    if later:
        return later[0]
    works = [branch.work for branch in branches]
    refused = [(work, o) for work, o in zip(works, outcomes, strict=True) if isinstance(o, PoisonMessage)]
    if not refused or len(works) == 1:
        return refused[0][1] if refused else None
    reasons = {poison.reason for _, poison in refused}
    apart = [(work.handler.name if work.handler else "?", p.reason, *split_stack(p.description)) for work, p in refused]
    text = "; ".join(f"{name}: {reason}: {text}" for name, reason, text, _ in apart)[:REASON_LENGTH_MAX]
    stacks = [stack for _, _, _, stack in apart if stack]
    return PoisonMessage(reasons.pop() if len(reasons) == 1 else "rejected", "\n".join([text, *stacks[:1]]))
