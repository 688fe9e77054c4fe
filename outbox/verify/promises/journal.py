"""The promises of engine scope, watched: every commit is judged by running its handlers again.

Nothing that a commit says of itself is believed.  Which messages it handled decides only what is run again; the states
it writes, under which versions, and what it emits have to be what the handlers do at the states before.

The gate of an engine: nothing is told to outsiders that a loss of power could still take.  What has happened is known
twice: as of now, and as of what was synced.  A loss of power puts the second in place of the first, but for what
outsiders were told: that nobody takes back, so it has to be true already.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import msgspec

from outbox.cancellation import cancelled_ms
from outbox.lineage import fingerprint
from outbox.message import Message
from outbox.ports import Commit, Delivery, Marker, Output, StateDocument
from outbox.runtime.commit.marker_replies import as_record, fingerprint_in, reply_in
from outbox.runtime.verdict import OnRecord as Kind
from outbox.runtime.verdict import kind_of
from outbox.stored import Record
from outbox.verify.explorer.models.journal import JournalState, PowerLost
from outbox.verify.explorer.ops import Finding, Monitor, Op, Outcome, canonical, short
from outbox.verify.promises.ledger import (
    Answered,
    Applied,
    Differs,
    Ledger,
    OnRecord,
    Payload,
    ReadAnswered,
    Resubmitted,
    differing,
    resubmitted,
)
from outbox.verify.promises.reference import Declined, Effect, Handling, SideEffect, StoredState
from outbox.verify.promises.view import CODES, UNPROVEN, Documents, Ends, on_record

JOURNAL = 0
"""The resource of engine scope."""


class JournalMonitor:
    """Watches the commits of a journal."""

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._book = ends.book

    def initial(self) -> Ledger:
        return Ledger()

    # A commit

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource == JOURNAL and op.verb == "resubmit" and outcome.note is not None:
            again: Message = outcome.note
            return resubmitted(self._book.handlings(op.args[0], again), again)
        if op.resource != JOURNAL or op.verb != "commit" or outcome.result is not None:
            return None
        commit: Commit = op.args[0]
        known = {marker[0] for marker in before.markers if marker[2] > now_ms or not marker[2]}
        for inbox, refusal in commit.refused.items():
            if refusal.waits and inbox in known:
                return Finding("NoDuplicate", f"{self._book.name(inbox)} waits over what is on record")
        return self._judged(commit, {id: d for id, d in before.documents if not 0 < d.expires_ms <= now_ms})

    def _judged(self, commit: Commit, documents: dict[str, StateDocument]) -> Applied | Finding:
        consumed = [h for d in commit.consumed for h in self._book.handlings(d.queue, d.message)]
        dead_lettered = [
            h for b in commit.dead_lettered for h in self._book.handlings(b.delivery.queue, b.delivery.message)
        ]
        postponed = [h for p in commit.postponed for h in self._book.handlings(p.delivery.queue, p.delivery.message)]
        by_inbox = self._by_inbox(commit, [*consumed, *dead_lettered, *postponed, *self._asked(commit)])
        before = {id: StoredState(d.value, d.schema, d.serial) for id, d in documents.items()}
        after = dict(before)
        outputs: list[Output] = []
        seen = [dict(after)]
        for inbox in commit.handled:
            handling = by_inbox.get(inbox)
            if handling is None:
                return Finding("NoGhost", f"a commit applies {self._book.name(inbox)} without settling its message")
            effect = self._effect(handling, after, commit.now_ms)
            if isinstance(effect, Declined):
                text = f"{self._book.name(inbox)} was applied to a state at which its handler refuses ({effect.error})"
                return Finding("Serializable", text)
            if handling.state_id is not None and effect.state is not None and effect.state.serial:
                after[handling.state_id] = effect.state
            if inbox in self._book.requests and reply_in(commit.applied[inbox]) != effect.reply:
                return Finding("OneAnswer", f"{handling.name} is kept with another reply than its handler gives")
            outputs += effect.outputs
            seen.append(dict(after))
        wrong = self._wrong_states(commit, documents, before, after) or self._wrong_outputs(commit, outputs)
        wrong = wrong or self._wrong_refusal(commit, by_inbox, seen)
        return wrong or self._meaning(commit, by_inbox, consumed, dead_lettered)

    @staticmethod
    def _by_inbox(commit: Commit, handlings: list[Handling]) -> dict[bytes, Handling]:
        """The handlings that a commit settles; of several payloads the one that it puts on record."""
        found = {h.inbox: h for h in handlings}
        for handling in handlings:
            marker = commit.applied.get(handling.inbox) or commit.refused.get(handling.inbox)
            record, message = as_record(marker), handling.message
            if record is None or _is_cancelled(marker) != handling.cancels:
                continue
            if record.fingerprint == fingerprint(message.body, message.type):
                found[handling.inbox] = handling
        return found

    def _asked(self, commit: Commit) -> list[Handling]:
        ended = {inbox: fingerprint_in(marker) for inbox, marker in commit.applied.items()}
        ended |= {inbox: refusal.fingerprint for inbox, refusal in commit.refused.items()}
        found = [self._book.find(inbox, payload) for inbox, payload in ended.items() if inbox in self._book.requests]
        return [handling for handling in found if handling is not None]

    def _replies(self, commit: Commit) -> list[OnRecord]:
        records = {i: Record("", fingerprint_in(m), 0, reply=reply_in(m)) for i, m in commit.applied.items()}
        for inbox, refusal in commit.refused.items():
            records[inbox] = Record("", refusal.fingerprint, 0, reason=refusal.reason, description=refusal.description)
        return [on_record(inbox, record) for inbox, record in records.items() if inbox in self._book.requests]

    def _effect(self, handling: Handling, states: dict[str, StoredState], now_ms: int) -> Effect | Declined:
        return self._book.reference.run(handling, states.get(handling.state_id or ""), now_ms)

    @staticmethod
    def _wrong_states(
        commit: Commit,
        documents: dict[str, StateDocument],
        before: dict[str, StoredState],
        after: dict[str, StoredState],
    ) -> Finding | None:
        written = {id: StoredState(change.value, change.schema, change.serial) for id, change in commit.states.items()}
        expected = {id: state for id, state in after.items() if state != before.get(id)}
        if written == expected:
            return None
        for id in sorted(written.keys() | expected.keys()):
            if written.get(id) == expected.get(id):
                continue
            version = documents[id].version if id in documents else 0
            text = f"{id} was written as {_shown(written.get(id))}, its handlers make it {_shown(expected.get(id))}"
            if commit.if_versions.get(id) != version:
                read = commit.if_versions.get(id, "none")
                return Finding("OneChangePerETag", f"{text}: version {version} was replaced unseen, read was {read}")
            return Finding("Serializable", text)
        return None

    @staticmethod
    def _wrong_outputs(commit: Commit, outputs: list[Output]) -> Finding | None:
        written, expected = sorted(map(canonical, commit.outputs)), sorted(map(canonical, outputs))
        if written == expected:
            return None
        ids = [output.message.identity for output in commit.outputs]
        wanted = [output.message.identity for output in outputs]
        for id in sorted({*ids, *wanted}):
            if id not in wanted:
                return Finding("NoGhost", f"output {short(id)} leaves, and no committed handling emitted it")
            if ids.count(id) < wanted.count(id):
                return Finding("NoLost", f"output {short(id)} is missing from the commit of its cause")
            if ids.count(id) > wanted.count(id):
                return Finding("NoDuplicate", f"output {short(id)} is emitted {ids.count(id)} times")
        return Finding("ConsistentOutput", "an output has another payload than its handler gives it")

    def _wrong_refusal(
        self, commit: Commit, by_inbox: dict[bytes, Handling], seen: list[dict[str, StoredState]]
    ) -> Finding | None:
        for inbox, refusal in commit.refused.items():
            handling = by_inbox.get(inbox)
            if handling is None or refusal.waits:
                continue
            wrong = self._book.not_old(handling, refusal, commit.now_ms)
            if wrong is not None:
                return wrong
            if refusal.reason in CODES:
                continue
            runs = [self._effect(handling, states, commit.now_ms) for states in seen]
            if all(isinstance(run, Effect) for run in runs):
                text = (
                    f"{self._book.name(inbox)} was refused ({refusal.reason}) at a state at which its handler accepts"
                )
                return Finding("Serializable", text)
        return None

    def _meaning(
        self,
        commit: Commit,
        by_inbox: dict[bytes, Handling],
        consumed: list[Handling],
        dead_lettered: list[Handling],
    ) -> Applied:
        differing = {b.delivery.message.identity for b in commit.dead_lettered if b.reason == "payload-differs"}
        settled = [*consumed, *(h for h in dead_lettered if h.message.identity not in differing)]
        return Applied(
            tuple(commit.handled),
            tuple(inbox for inbox, r in commit.refused.items() if r.reason not in UNPROVEN and not r.waits),
            tuple(self._book.emission(output) for output in commit.outputs),
            tuple(dict.fromkeys(h.inbox for h in settled)),
            tuple(inbox for inbox, refusal in commit.refused.items() if refusal.reason in UNPROVEN),
            tuple(self._replies(commit)),
            tuple((i, by_inbox[i].message.attempt) for i in commit.replacing if i in by_inbox),
            tuple(self._payloads(commit)),
            tuple(
                inbox
                for inbox, refusal in commit.refused.items()
                if inbox in by_inbox and self._book.is_unfounded(by_inbox[inbox], refusal, commit.now_ms)
            ),
            tuple(
                payload
                for dead in commit.dead_lettered
                if dead.reason == "payload-differs"
                for payload in self._differing(dead.delivery).payloads
            ),
            tuple(inbox for inbox, marker in commit.applied.items() if _is_cancelled(marker)),
        )

    def _differing(self, delivery: Delivery) -> Differs:
        message = self._book.reference.whole(delivery.message)
        return differing(self._book.handlings(delivery.queue, message), message)

    @staticmethod
    def _payloads(commit: Commit) -> Iterator[Payload]:
        markers: dict[bytes, Marker] = {**commit.applied, **commit.refused}
        for inbox, marker in markers.items():
            record = as_record(marker)
            if record is not None and record.reason not in UNPROVEN and kind_of(record) is not Kind.WAITING:
                yield inbox, record.fingerprint

    def step(self, ghost: Ledger, event: Applied | SideEffect | Resubmitted) -> Ledger | Finding:
        if isinstance(event, SideEffect):
            return self._book.note(ghost, event)
        return self._book.resubmit(ghost, event) if isinstance(event, Resubmitted) else self._book.apply(ghost, event)

    # A world

    def check(self, ghost: Ledger, states: Sequence[Any]) -> Finding | None:
        return self._ends.check(ghost, states[JOURNAL], lambda: values_in(states[JOURNAL]))

    def outcome(self, ghost: Ledger, states: Sequence[Any]) -> Hashable:
        return self._ends.outcome(ghost, states[JOURNAL], values_in(states[JOURNAL]))

    def is_over(self, ghost: Ledger, states: Sequence[Any], now_ms: int) -> bool:
        return False  # a queue of the engine hands out nothing of a blocked session

    def final(self, ghost: Ledger, states: Sequence[Any], now_ms: int) -> list[Finding]:
        return self._ends.missing(ghost, states[JOURNAL], values_in(states[JOURNAL]))


def values_in(state: JournalState) -> Documents:
    """The states of an engine by id: value and schema."""
    return {id: (d.value, d.schema) for id, d in state.documents if d.value}


def _shown(state: StoredState | None) -> str:
    return "unchanged" if state is None else f"{state.value.decode() or 'deleted'} (change {state.serial})"


def _is_cancelled(marker: Marker | None) -> bool:
    record = as_record(marker)
    return record is not None and cancelled_ms(record.replaced) > 0


class Gated(msgspec.Struct, frozen=True):
    """The ledger by now, and the synced part of it."""

    now: Ledger
    synced: Ledger


class Synced(msgspec.Struct, frozen=True):
    """The meaning of a sync: all that was written before is there to stay."""


class GateMonitor:
    """Watches what leaves an engine against what it has synced; the rest is for the monitor of the scope."""

    def __init__(self, scope: Monitor) -> None:
        self._scope = scope

    def initial(self) -> Gated:
        ledger: Any = self._scope.initial()
        return Gated(ledger, ledger)

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource == JOURNAL and op.verb == "durable":
            return Synced()
        return self._scope.observe(op, before, outcome, now_ms)

    def step(self, ghost: Gated, event: Any) -> Gated | Finding:
        if isinstance(event, Synced):
            return Gated(ghost.now, ghost.now)
        if isinstance(event, PowerLost):
            left = msgspec.structs.replace(ghost.synced, called=ghost.now.called)
            return Gated(left, left)
        now: Any = self._scope.step(ghost.now, event)
        if isinstance(now, Finding):
            return now
        if isinstance(event, Answered | ReadAnswered):
            told = self._scope.step(ghost.synced, event)
            if isinstance(told, Finding):
                return Finding("NothingLeavesEarly", f"{told.text}, or not synced")
        if isinstance(event, SideEffect) and ghost.now.applied != ghost.synced.applied:
            return Finding("NothingLeavesEarly", "a handler calls outside over a commit that is not synced")
        return Gated(now, ghost.synced)

    def check(self, ghost: Gated, states: Sequence[Any]) -> Finding | None:
        return self._scope.check(ghost.now, states)

    def is_over(self, ghost: Gated, states: Sequence[Any], now_ms: int) -> bool:
        return self._scope.is_over(ghost.now, states, now_ms)

    def final(self, ghost: Gated, states: Sequence[Any], now_ms: int) -> list[Finding]:
        return self._scope.final(ghost.now, states, now_ms)

    def outcome(self, ghost: Gated, states: Sequence[Any]) -> Hashable:
        return self._scope.outcome(ghost.now, states)
