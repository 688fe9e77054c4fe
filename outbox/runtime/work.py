"""A message on its way through a commit protocol: the work that it is, and an attempt at it.

A `Work` is one handler's branch of a message, or the whole of a message that nobody can handle; it does not change.
An `Attempt` is what one process learns while it has that work in hand: what is on record for it, which version of the
state it was refused over, what its handler raised.  Where an attempt learns better what the work is (its failures so
far, its key from an earlier request), it goes on with another work in its place.  Nothing of an attempt is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from outbox.app import Handler
from outbox.deliveries import told_apart
from outbox.errors import PoisonMessage
from outbox.lineage import Key
from outbox.ports import Delivery, Version
from outbox.runtime.start.plan import REASON_LENGTH_MAX
from outbox.runtime.verdict import Stored, Verdict, judged
from outbox.stored import Record


@dataclass(frozen=True, slots=True)
class Later:
    """A delivery that is given back: for how long, how many failures it has had, and why, where no handler ran."""

    delay_s: float
    failures: int
    text: str = ""


Outcome = PoisonMessage | Later | None
"""What became of one handling: refused, to be tried again, or (None) applied."""


class Work(msgspec.Struct, gc=False, frozen=True):
    """One handler's branch of a message, or the whole of a message that nobody can handle.

    Works of one `lane` are handled one after the other; `in_order` says that nothing of the lane may overtake it,
    `stops_key` that its dead letter blocks the lane.  A message that several handlers read has its other branches in
    `others`.  A message that a commit of this very log made, read by one handler, and that was neither given back nor
    handed to an outside receiver, is not `remembered` by a marker: its task is consumed by the record that applies it.
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
    """The digest of what was sent under that identity."""
    in_order: bool = False
    stops_key: bool = False
    refusal: PoisonMessage | Later | None = None
    """Why nobody can handle it, for good or for now."""
    others: tuple[Work, ...] = ()
    was_run: bool = False
    """Whether its handler has had `value` already, and may have changed it."""
    caller: str = ""
    """Who sent it, where it is an HTTP request and its entry asks."""

    @property
    def created_ms(self) -> int:
        """When it was created; of a message that does not say, when it arrived."""
        return self.delivery.message.created_ms or self.delivery.enqueued_ms

    def verdict(self, record: Stored | None, *, is_past_retention: bool = False) -> Verdict:
        """The verdict on it with this on record; who does not say how old it is leaves the age fence to the attempt."""
        attempt = self.delivery.message.attempt
        return judged(record, fingerprint=self.fingerprint, attempt=attempt, is_past_retention=is_past_retention)

    @property
    def stays_in_place(self) -> bool:
        """Whether it cannot be rescheduled as a copy: nothing may overtake it, or a copy would reach others too."""
        return self.in_order or "/Subscriptions/" in self.delivery.queue

    @property
    def delivery_count(self) -> int:
        """Which delivery this is, from 1."""
        return 1 + self.delivery.failures + self.delivery.delivery_count


class Attempt(msgspec.Struct, eq=False):
    """One process' attempt at a work: the work, and what was learned of it so far."""

    work: Work
    others: tuple[Attempt, ...] = ()
    """The attempts at the other branches of its message."""
    fan_out: FanOut | None = None
    """What the branches have in common, while a message that several handlers read is under way."""
    rests_on: Version | None = None
    """The version of the state that it was refused over; None: it is refused over any."""
    found: Record | None = None
    """What is on record for it and may be replaced: it was refused under an earlier attempt, or waits."""
    replaces: Version = ""
    """The version of that record; empty: its record is to be created."""
    record: Record | None = None
    """What is on record for it, as soon as it is known to be."""
    on_committed: Callable[[Record], None] | None = None
    """Called then: whoever waits for a reply need not wait until outputs have left."""
    failure: Any = None
    """What its handler raised last, as a `failure_log.Failure`; None where it raised nothing to log."""
    is_blocker: bool = False
    """Whether its session is blocked behind it, and unblocked when it is applied."""
    is_released: bool = False

    @property
    def branches(self) -> tuple[Attempt, ...]:
        """The attempts at all branches of its message, this one first."""
        return (self, *self.others)

    def refuse(self, refusal: PoisonMessage) -> None:
        """Learn why its message can never be committed, unless there is a reason already; the next try records it."""
        if self.work.refusal is None:
            self.work = msgspec.structs.replace(self.work, refusal=refusal)

    def refuse_over(self, version: Version, refusal: PoisonMessage) -> None:
        """Learn why it cannot be handled over a state of this version; the next try records it."""
        self.work, self.rests_on = msgspec.structs.replace(self.work, refusal=refusal), version

    def meet(self, version: Version) -> None:
        """Learn which state it has come to: what it was refused over another says nothing of this one."""
        if self.rests_on is not None and self.rests_on != version:
            self.work, self.rests_on = msgspec.structs.replace(self.work, refusal=None), None

    def ran(self) -> None:
        """Note that its handler has had the message's value, and may have changed it."""
        self.work = msgspec.structs.replace(self.work, was_run=True)

    def committed(self, record: Record) -> None:
        """Learn what is on record for it."""
        self.record = record
        if self.on_committed is not None:
            self.on_committed(record)


class FanOut:
    """A message that several handlers read: the attempts at its branches, and what became of them."""

    def __init__(self, branches: tuple[Attempt, ...]) -> None:
        self.branches = branches
        self.outcomes: dict[int, Outcome] = {}
        for branch in branches:
            branch.fan_out = self

    def note(self, branch: Attempt, outcome: Outcome) -> bool:
        """Note what became of a branch; whether it was the last."""
        self.outcomes[id(branch)] = outcome
        return len(self.outcomes) == len(self.branches)

    def are_others_applied(self) -> bool:
        """Whether all branches but one are applied."""
        return len(self.outcomes) + 1 == len(self.branches) and not any(self.outcomes.values())

    def outcome(self) -> Outcome:
        """What became of the message: redelivered for one branch, it is for all."""
        return outcome_of_all(self.branches, [self.outcomes[id(branch)] for branch in self.branches])

    def close(self) -> tuple[Attempt, ...]:
        """The branches, which from here on know nothing of each other (and keep nothing in memory)."""
        branches, self.branches = self.branches, ()
        for branch in branches:
            branch.fan_out = None
        return branches


def attempt_at(work: Work) -> Attempt:
    """The first attempt at a work, and at its other branches."""
    return Attempt(work, tuple([Attempt(other) for other in work.others]) if work.others else ())


def outcome_of_all(branches: Sequence[Attempt], outcomes: Sequence[Outcome]) -> Outcome:
    """What becomes of a message: tried again if a branch of it is, else refused if one is, naming those that are."""
    later = [outcome for outcome in outcomes if isinstance(outcome, Later)]
    if later:
        return later[0]
    works = [branch.work for branch in branches]
    refused = [(work, o) for work, o in zip(works, outcomes, strict=True) if isinstance(o, PoisonMessage)]
    if not refused or len(works) == 1:
        return refused[0][1] if refused else None
    reasons = {poison.reason for _, poison in refused}
    apart = [(work.handler.name if work.handler else "?", p.reason, *told_apart(p.description)) for work, p in refused]
    text = "; ".join(f"{name}: {reason}: {text}" for name, reason, text, _ in apart)[:REASON_LENGTH_MAX]
    stacks = [stack for _, _, _, stack in apart if stack]
    return PoisonMessage(reasons.pop() if len(reasons) == 1 else "rejected", "\n".join([text, *stacks[:1]]))
