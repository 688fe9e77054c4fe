"""Engine scope's transaction: one `Commit` in the making, and the state that the next message of the group sees.

A group starts from the loaded states and markers.  Each applied or refused message adds to the `Commit`, and later
messages of the group see its effect; a message whose handler raises adds nothing.  No I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from outbox.cancellation import cancelled
from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage, TooLarge, UnknownDestination
from outbox.ports import Commit, DeadLettering, Marker, Postponement, Refusal, StateChange, StateDocument
from outbox.resubmission import Replaced
from outbox.runtime.commit.marker_replies import as_record, with_replaced, with_reply
from outbox.runtime.delivery.claim_check import checked_outputs
from outbox.runtime.failures.error_text import safe_text
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.verdict import Verdict, differs_from_record, edit_without_record, replaced_over
from outbox.runtime.work import Attempt, Later, Work


class EngineTransaction:
    """A commit in the making."""

    __slots__ = ("_plan", "blobs", "commit", "documents", "durable", "markers", "now_ms", "unapplied", "works")

    def __init__(
        self,
        plan: CompiledApp,
        now_ms: int,
        documents: dict[str, StateDocument],
        markers: dict[bytes, Marker],
        durable: Callable[[], Awaitable[None]],
    ) -> None:
        self._plan = plan
        self.documents = documents
        self.markers = markers
        self.now_ms = now_ms
        self.durable = durable
        """Waits until the loaded states are durable; an external call of a handler needs that."""
        self.works: list[Work] = []
        """The first branch of each message that this commit settles."""
        self.unapplied: tuple[tuple[Attempt, PoisonMessage | Later], ...] = ()
        """The refused and rescheduled ones and their outcomes; logged after the commit."""
        self.blobs: list[tuple[str, bytes]] = []
        self.commit = Commit(now_ms, now_ms + plan.record_life_ms, [], {}, {}, [], {}, {}, {}, [], [], [])

    def sibling(self) -> EngineTransaction:
        """Another group over the same loaded states and markers."""
        return EngineTransaction(self._plan, self.now_ms, dict(self.documents), dict(self.markers), self.durable)

    # What a message finds

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        """Follow the message's marker: True if it was applied, a refusal, or False to run it.

        The age fence is part of it: at an age of retention a message never runs, because its marker may be gone, unless
        its own refusal still exists.
        """
        work = attempt.work
        marker = as_record(self.markers.get(work.inbox)) if work.remembered else None
        is_past = work.created_ms <= self._plan.retention.oldest_ms(self.now_ms)
        match work.verdict(marker, is_past_retention=is_past):
            case Verdict.DUPLICATE:
                return True
            case Verdict.REFUSED if marker is not None:
                return PoisonMessage(marker.reason, marker.description)
            case Verdict.PAYLOAD_DIFFERS:
                return differs_from_record(work.delivery.message)
            case Verdict.EDIT_WITHOUT_RECORD:
                return edit_without_record(work.delivery.message.identity)
            case Verdict.TOO_OLD:
                return self._plan.retention.refusal(work.created_ms, self.now_ms)
        return False

    def state(self, work: Work) -> Any:
        """Decode the state that a message sees, anew; a fresh one where there is none.

        Raises:
            FormatTooNew: a newer version of the code wrote it.
        """
        codec, id = work.handler.state if work.handler is not None else None, work.state_id
        if codec is None or id is None:
            return None
        found = self.commit.states.get(id) or self.documents.get(id)
        return codec.decode(found.value, found.schema) if found is not None and found.value else codec.fresh()

    # What a message does

    def apply(self, attempt: Attempt, state: Any, context: Context | None) -> None:
        """Add a handled message: its state, outputs, blobs and marker; an encoding error adds nothing."""
        work, commit = attempt.work, self.commit
        handler = work.handler
        if work.state_id is not None and handler is not None and handler.state is not None:
            if context is not None and context.replaced is not ABSENT:
                state = context.replaced
            value = b"" if state is None else handler.state.encode(state)
            self._write(work.state_id, value, handler.state.version)
        if context is not None:
            outputs, blobs = checked_outputs(context.outputs, above_bytes=self._plan.claim_check_bytes)
            commit.outputs += outputs
            self.blobs += [*blobs, *(context.blobs or ())]
        key = work.inbox
        commit.handled.append(key)
        if work.remembered:
            marker = work.fingerprint
            if context is not None and context.answer is not None:
                marker = with_reply(marker, context.answer)
            if key in self.markers:
                self._mark(work, with_replaced(marker, self._replaced(work)))
            else:
                self.markers[key] = commit.applied[key] = marker

    def _write(self, id: str, value: bytes, schema: int) -> None:
        """Write a state under its loaded version; an unchanged one adds the condition only."""
        loaded, commit = self.documents.get(id), self.commit
        commit.if_versions[id] = 0 if loaded is None else loaded.version
        before = commit.states.get(id) or loaded
        if before is None:
            if value:
                commit.states[id] = StateChange(value, schema, 1)
        elif before.value != value or before.schema != schema:
            commit.states[id] = StateChange(value, schema, before.serial + 1)

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """Add a refusal: the message's marker, and its unchanged state as a condition.

        Every refusal gets a marker, because its message may be resubmitted.
        """
        work, id = attempt.work, attempt.work.state_id
        if id is not None:
            loaded = self.documents.get(id)
            self.commit.if_versions[id] = 0 if loaded is None else loaded.version
        fingerprint = with_replaced(work.digest, self._replaced(work))
        self._mark(work, Refusal(fingerprint, poison.reason, poison.description, work.delivery.message.attempt))

    def cancel(self, attempt: Attempt) -> None:
        """Add what a cancellation leaves: the marker of its message, for as long as that may still come."""
        work, commit = attempt.work, self.commit
        life_ms = self._plan.record_life_ms + max(0, work.cancels_due_ms - self.now_ms)
        commit.markers_expire_ms = max(commit.markers_expire_ms, self.now_ms + life_ms)
        commit.handled.append(work.inbox)
        replaced = (*self._replaced(work), cancelled(work.delivery.message.attempt, self.now_ms))
        self._mark(work, with_replaced(work.digest, replaced))

    def has_refused(self, attempt: Attempt) -> bool:
        """Whether the refusal on record is one that this attempt follows: its own, a later one's, or an edit's."""
        marker = self.markers.get(attempt.work.inbox)
        return isinstance(marker, Refusal) and attempt.work.verdict(as_record(marker)) is Verdict.REFUSED

    def may_be_old(self, attempt: Attempt) -> bool:
        """Whether the age fence does not apply: the message's own record proves that it was not applied."""
        work = attempt.work
        marker = as_record(self.markers.get(work.inbox)) if work.remembered else None
        return work.verdict(marker, is_past_retention=True) is Verdict.RESUBMISSION

    def _replaced(self, work: Work) -> tuple[Replaced, ...]:
        """The refused payloads that the message's marker is to remember."""
        return replaced_over(as_record(self.markers.get(work.inbox)), work.digest, self.now_ms)

    def _mark(self, work: Work, marker: Marker) -> None:
        commit, key = self.commit, work.inbox
        earlier = self.markers.get(key)
        if isinstance(earlier, Refusal):
            # An edit replaces the refusal that it names, and none of a later attempt.
            is_edit = work.delivery.message.replaces is not None
            commit.replacing[key] = earlier.attempt + 1 if is_edit else work.delivery.message.attempt
            commit.refused.pop(key, None)
        self.markers[key] = marker
        if isinstance(marker, Refusal):
            commit.refused[key] = marker
        else:
            commit.applied[key] = marker

    # Settlement

    def complete(self, work: Work) -> None:
        """Complete a delivery whose message was applied, now or before."""
        self.works.append(work)
        self.commit.consumed.append(work.delivery)

    def complete_all(self, works: Sequence[Work]) -> None:
        """Complete deliveries whose messages were applied."""
        self.works += works
        self.commit.consumed += [work.delivery for work in works]

    def settle(self, attempt: Attempt, outcome: PoisonMessage | Later) -> None:
        """Dead-letter or reschedule a delivery whose message was not applied."""
        work = attempt.work
        self.works.append(work)
        self.unapplied += ((attempt, outcome),)
        delivery, commit = work.delivery, self.commit
        if isinstance(outcome, Later):
            due_ms = self.now_ms + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0
            commit.postponed.append(Postponement(delivery, due_ms, outcome.failures, outcome.why))
        else:
            reason, text = outcome.reason, outcome.description
            commit.dead_lettered.append(DeadLettering(delivery, reason, text, delivery.failures + 1, work.blocks_key))


def refuse_futile(attempt: Attempt, error: Exception) -> None:
    """Refuse a message after an error that every other attempt would meet as well; after others, do nothing."""
    if isinstance(error, TooLarge):
        attempt.refuse(PoisonMessage("oversize", str(error)))
    elif isinstance(error, UnknownDestination):  # declared after the worker started
        attempt.refuse(PoisonMessage("failed", safe_text(str(error))))


def wanted(works: Sequence[Work]) -> tuple[list[str], list[bytes]]:
    """The states and markers to load for these works."""
    return [w.state_id for w in works if w.state_id is not None], [w.inbox for w in works if w.remembered]
