"""Several messages, one commit: what has been decided so far, and what the next message therefore sees.

A group starts from the states and markers as loaded.  Every message that is applied or refused adds its part to one
`Commit` and changes what later messages of the group see; one that raises adds nothing.  The group does no I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage
from outbox.lineage import fingerprint
from outbox.ports import Burial, Commit, Marker, Output, Postponement, Refusal, StateChange, StateDocument
from outbox.runtime.commit.marker_replies import as_record, with_reply
from outbox.runtime.delivery.claim_check import to_claim
from outbox.runtime.start.plan import Plan
from outbox.runtime.verdict import Verdict, payload_differs
from outbox.runtime.work import Attempt, Later, Work


class EngineTransaction:
    """A commit in the making."""

    __slots__ = ("_plan", "blobs", "commit", "documents", "durable", "markers", "now_ms", "unapplied", "works")

    def __init__(
        self,
        plan: Plan,
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
        """Waits until what was loaded survives the declared failures; a call out of a handler needs that."""
        self.works: list[Work] = []
        """The first branch of every message that is settled in this commit."""
        self.unapplied: tuple[tuple[Attempt, PoisonMessage | Later], ...] = ()
        """Those of them that are not applied, and what becomes of each; for the log, once it is committed."""
        self.blobs: list[tuple[str, bytes]] = []
        self.commit = Commit(now_ms, now_ms + plan.record_life_ms, [], {}, {}, [], {}, {}, {}, [], [], [])

    def sibling(self) -> EngineTransaction:
        """Another group that starts from the same states and markers."""
        return EngineTransaction(self._plan, self.now_ms, dict(self.documents), dict(self.markers), self.durable)

    # What a message finds

    def follow(self, attempt: Attempt) -> PoisonMessage | bool:
        """What is on record for a message: False nothing, True that it was applied, or why it is refused.

        The age fence is part of it: at an age of retention a message is never run, because its record may be gone; but
        one whose own refusal is still there is.
        """
        work = attempt.work
        marker = as_record(self.markers.get(work.inbox)) if work.remembered else None
        is_past = work.created_ms <= self._plan.memory.oldest_ms(self.now_ms)
        match work.verdict(marker, is_past_retention=is_past):
            case Verdict.DUPLICATE:
                return True
            case Verdict.REFUSED if marker is not None:
                return PoisonMessage(marker.reason, marker.description)
            case Verdict.PAYLOAD_DIFFERS:
                return payload_differs(work.delivery.message.identity)
            case Verdict.TOO_OLD:
                return self._plan.memory.refusal(work.created_ms, self.now_ms)
        return False

    def state(self, work: Work) -> Any:
        """The state that a message sees, decoded anew; a fresh one where there is none.

        Raises:
            FormatTooNew: a newer version of the code wrote it.
        """
        codec, id = work.handler.state if work.handler is not None else None, work.state_id
        if codec is None or id is None:
            return None
        found = self.commit.states.get(id) or self.documents.get(id)
        if found is None or not found.value:
            return codec.fresh()
        return codec.decode(found.value, found.schema)

    # What a message does

    def apply(self, attempt: Attempt, state: Any, context: Context | None) -> None:
        """Add a handled message: its state, outputs, blobs and marker.  What cannot be encoded adds nothing."""
        work, commit = attempt.work, self.commit
        handler = work.handler
        if work.state_id is not None and handler is not None and handler.state is not None:
            if context is not None and context.replaced is not ABSENT:
                state = context.replaced
            value = b"" if state is None else handler.state.encode(state)
            self._write(work.state_id, value, handler.state.version)
        if context is not None:
            limit_bytes = self._plan.claim_check_bytes
            commit.outputs += [
                self._claim_checked(output) if len(output.message.body) > limit_bytes else output
                for output in context.outputs
            ]
            if context.blobs:
                self.blobs += context.blobs
        key = work.inbox
        commit.handled.append(key)
        if work.remembered:
            marker = work.fingerprint
            if context is not None and context.answer is not None:
                marker = with_reply(marker, context.answer)
            if key in self.markers:
                self._mark(work, marker)
            else:
                self.markers[key] = commit.applied[key] = marker

    def _write(self, id: str, value: bytes, schema: int) -> None:
        """Change a state, under the condition that it still is as loaded; one that is unchanged is a condition only."""
        loaded, commit = self.documents.get(id), self.commit
        commit.if_versions[id] = 0 if loaded is None else loaded.version
        before = commit.states.get(id) or loaded
        if before is None:
            if value:
                commit.states[id] = StateChange(value, schema, 1)
        elif before.value != value or before.schema != schema:
            commit.states[id] = StateChange(value, schema, before.serial + 1)

    def _claim_checked(self, output: Output) -> Output:
        name, data = to_claim(output.message)
        self.blobs.append((name, data))
        return Output(output.destination, output.due_ms, msgspec.structs.replace(output.message, body=b"", claim=name))

    def refuse(self, attempt: Attempt, poison: PoisonMessage) -> None:
        """Add a refusal: the message's record, and its state unchanged but conditional.

        Every refusal is remembered, because its message may be resubmitted.
        """
        work, id = attempt.work, attempt.work.state_id
        if id is not None:
            loaded = self.documents.get(id)
            self.commit.if_versions[id] = 0 if loaded is None else loaded.version
        message = work.delivery.message
        digest = work.fingerprint or fingerprint(message.body, message.type)
        self._mark(work, Refusal(digest, poison.reason, poison.description, message.attempt))

    def has_refused(self, attempt: Attempt) -> bool:
        """Whether the refusal of a message is on record under this number of its attempts or a later one."""
        marker = self.markers.get(attempt.work.inbox)
        return isinstance(marker, Refusal) and marker.attempt >= attempt.work.delivery.message.attempt

    def may_be_old(self, attempt: Attempt) -> bool:
        """Whether no age fence applies to a message that is run: its own record shows that it was not applied."""
        work = attempt.work
        marker = as_record(self.markers.get(work.inbox)) if work.remembered else None
        return work.verdict(marker, is_past_retention=True) is Verdict.RESUBMISSION

    def _mark(self, work: Work, marker: Marker) -> None:
        commit, key = self.commit, work.inbox
        earlier = self.markers.get(key)
        if isinstance(earlier, Refusal):
            commit.replacing[key] = work.delivery.message.attempt
            commit.refused.pop(key, None)
        self.markers[key] = marker
        if isinstance(marker, Refusal):
            commit.refused[key] = marker
        else:
            commit.applied[key] = marker

    # How a delivery ends

    def complete(self, work: Work) -> None:
        """End a delivery whose message was applied, now or before."""
        self.works.append(work)
        self.commit.consumed.append(work.delivery)

    def complete_all(self, works: Sequence[Work]) -> None:
        """End deliveries whose messages were applied."""
        self.works += works
        self.commit.consumed += [work.delivery for work in works]

    def settle(self, attempt: Attempt, outcome: PoisonMessage | Later) -> None:
        """End a delivery whose message was not: dead-letter it, or give it back until a delay is over."""
        work = attempt.work
        self.works.append(work)
        self.unapplied += ((attempt, outcome),)
        delivery, commit = work.delivery, self.commit
        if isinstance(outcome, Later):
            due_ms = self.now_ms + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0
            commit.postponed.append(Postponement(delivery, due_ms, outcome.failures))
        else:
            reason, text = outcome.reason, outcome.description
            commit.buried.append(Burial(delivery, reason, text, delivery.failures + 1, work.stops_key))


def wanted(works: Sequence[Work]) -> tuple[list[str], list[bytes]]:
    """The states and markers that a group of these works starts from."""
    return [w.state_id for w in works if w.state_id is not None], [w.inbox for w in works if w.remembered]
