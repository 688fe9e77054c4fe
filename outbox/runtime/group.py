"""Several messages, one commit: what has been decided so far, and what the next message therefore sees.

A group starts from the states and markers as loaded.  Every message that is applied or refused adds its part to one
`Commit` and changes what later messages of the group see; one that raises adds nothing.  The group does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from outbox.context import ABSENT, Context
from outbox.errors import PoisonMessage
from outbox.ports import Burial, Commit, Marker, Output, Postponement, Refusal, StateChange, StateDocument
from outbox.runtime.claims import to_claim
from outbox.runtime.plan import Plan
from outbox.runtime.step import Later, Outcome, Unit, Work


class Group:
    """A commit in the making."""

    __slots__ = ("_documents", "_markers", "_plan", "blobs", "commit", "now_ms", "units")

    def __init__(
        self, plan: Plan, now_ms: int, documents: dict[str, StateDocument | None], markers: dict[bytes, Marker | None]
    ) -> None:
        self._plan = plan
        self._documents = documents
        self._markers = markers
        self.now_ms = now_ms
        self.units: list[Unit] = []
        self.blobs: list[tuple[str, bytes]] = []
        self.commit = Commit(now_ms, now_ms + plan.record_life_ms, [], {}, [], {}, {}, {}, [], [])

    def sibling(self) -> Group:
        """Another group that starts from the same states and markers."""
        return Group(self._plan, self.now_ms, self._documents, self._markers)

    # What a message finds

    def follow(self, work: Work) -> PoisonMessage | bool:
        """What is on record for a message: False nothing, True that it was applied, or why it is refused.

        The age fence is part of it: at an age of retention a message is never run, because its record may be gone.
        """
        message = work.delivery.message
        marker = self._marker(work.inbox) if work.remembered else None
        if marker is not None:
            known = marker.fingerprint if isinstance(marker, Refusal) else marker
            if known != work.fingerprint:
                return PoisonMessage(
                    "payload-differs", f"id {message.identity} was used with another payload; use a new id"
                )
            if not isinstance(marker, Refusal):
                return True
            if marker.attempt >= message.attempt:
                return PoisonMessage(marker.reason, marker.description)
        created_ms = message.created_ms or work.delivery.enqueued_ms
        if self.now_ms - created_ms >= self._plan.retention_ms:
            return PoisonMessage(
                "too-old", f"created {self.now_ms - created_ms} ms ago, retention is {self._plan.retention_ms}"
            )
        return False

    def _marker(self, inbox: bytes) -> Marker | None:
        commit = self.commit
        return commit.applied.get(inbox) or commit.refused.get(inbox) or self._markers.get(inbox)

    def state(self, work: Work) -> Any:
        """The state that a message sees, decoded anew; a fresh one where there is none.

        Raises:
            FormatTooNew: a newer version of the code wrote it.
        """
        codec = work.handler.state
        if codec is None or work.state_id is None:
            return None
        change = self.commit.states.get(work.state_id)
        if change is not None and change.value is not None:
            return codec.decode(change.value, change.schema) if change.value else codec.fresh()
        document = self._documents.get(work.state_id)
        if document is None or not document.value:
            return codec.fresh()
        return codec.decode(document.value, document.schema)

    # What a message does

    def apply(self, work: Work, state: Any, context: Context | None) -> None:
        """Add a handled message: its state, outputs, blobs and marker."""
        commit = self.commit
        change = None if work.state_id is None else self._change(work, state, context)
        if context is not None:
            for output in context._outputs:
                if len(output.message.body) > self._plan.claim_check_bytes:
                    output = self._claim_checked(output)
                commit.outputs.append(output)
            if context._blobs is not None:
                self.blobs += context._blobs
        if change is not None and work.state_id is not None:
            commit.states[work.state_id] = change
        self._mark(work, None)

    def _change(self, work: Work, state: Any, context: Context | None) -> StateChange:
        codec, id = work.handler.state, work.state_id
        assert codec is not None and id is not None
        if context is not None and context._replaced is not ABSENT:
            state = context._replaced
        value = b"" if state is None else codec.codec.encode(state)
        earlier = self.commit.states.get(id)
        if earlier is None:
            document = self._documents.get(id)
            if document is None:
                return StateChange(value or None, codec.version, 1, 0)
            same = document.value == value and document.schema == codec.version
            return StateChange(None if same else value, codec.version, document.serial + 1, document.version)
        if earlier.value == value and earlier.schema == codec.version:
            return earlier
        document = self._documents.get(id)
        if value or earlier.value is not None or document is not None:
            return StateChange(value, codec.version, earlier.serial, earlier.if_version)
        return earlier

    def _claim_checked(self, output: Output) -> Output:
        name, data = to_claim(output.message)
        self.blobs.append((name, data))
        return Output(output.destination, output.due_ms, msgspec.structs.replace(output.message, body=b"", claim=name))

    def refuse(self, work: Work, poison: PoisonMessage) -> None:
        """Add a refusal: the message's record, and its state unchanged but conditional."""
        if work.state_id is not None and work.state_id not in self.commit.states:
            document = self._documents.get(work.state_id)
            version = 0 if document is None else document.version
            serial = 1 if document is None else document.serial
            self.commit.states[work.state_id] = StateChange(None, 1, serial, version)
        self._mark(work, poison)

    def _mark(self, work: Work, poison: PoisonMessage | None) -> None:
        """Remember what became of a message; every refusal is remembered, because it may be resubmitted."""
        if not work.remembered and poison is None:
            return
        key, message = work.inbox, work.delivery.message
        if isinstance(self._markers.get(key), Refusal):
            self.commit.replacing[key] = message.attempt
        self.commit.refused.pop(key, None)
        if poison is None:
            self.commit.applied[key] = work.fingerprint
        else:
            self.commit.refused[key] = Refusal(work.fingerprint, poison.reason, poison.description, message.attempt)

    # How a delivery ends

    def settle(self, unit: Unit, outcome: Outcome) -> None:
        """End a delivery: complete it, dead-letter it, or give it back until a delay is over."""
        self.units.append(unit)
        delivery = unit.delivery
        if outcome is None:
            self.commit.consumed.append(delivery)
        elif isinstance(outcome, Later):
            due_ms = self.now_ms + round(outcome.delay_s * 1_000) if outcome.delay_s > 0 else 0
            self.commit.postponed.append(Postponement(delivery, due_ms, outcome.failures))
        else:
            reason, text = outcome.reason, outcome.description
            self.commit.buried.append(Burial(delivery, reason, text, delivery.failures + 1, unit.stops_key))

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not self.units


def wanted(units: Sequence[Unit]) -> tuple[list[str], list[bytes]]:
    """The states and markers that a group of these units starts from."""
    states: dict[str, None] = {}
    markers: dict[bytes, None] = {}
    for unit in units:
        for work in unit.works:
            if work.state_id is not None:
                states[work.state_id] = None
            if work.remembered:
                markers[work.inbox] = None
        if unit.refused_work is not None:
            markers[unit.refused_work.inbox] = None
    return list(states), list(markers)
