"""The promises of partition and item scope, watched: what documents say is checked against what handlers do.

What a write means is read from the documents before and after it, not from its tag.  A record that was not there, or a
state that points to another transaction than before, is a commit: its handler is run again at the state before, and
has to give the state after and the outputs that are stored.  Sends and settlements are held against what is committed.

A state and what is staged for it may lie in two stores, so what a swap means is known only together with what has been
staged: the ledger keeps that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import msgspec

from outbox.cancellation import cancelled_ms
from outbox.ports import Create, Delete, Delivery, Output, Settle, Won, Write
from outbox.runtime.delivery.stored_dead_letters import LETTER, LETTERS, StoredDeadLetter
from outbox.runtime.verdict import OnRecord, kind_of
from outbox.stored import RECORD_PREFIX, STAGED_PREFIX, STATE, Inline, Record, Staged, StateItem
from outbox.verify.explorer.models.bus import BusState
from outbox.verify.explorer.models.queues import NEVER_MS, Dead
from outbox.verify.explorer.models.store import StoreState, body_at, visible
from outbox.verify.explorer.ops import Finding, Op, Outcome, canonical, short
from outbox.verify.promises.ledger import (
    Applied,
    Differs,
    Ledger,
    Marked,
    Pushed,
    Resubmitted,
    SettledHandlings,
    differing,
    digest_of,
    resubmitted,
)
from outbox.verify.promises.reference import CANCELLED, Declined, SideEffect, StoredState
from outbox.verify.promises.view import CODES, UNPROVEN, Documents, Ends, on_record

DONE_PREFIX = "done:"
OVERFLOW_BLOB_PREFIX = "overflow/"
STORE, BUS, BLOBS = 0, 1, 2
"""The resources of a store scope."""


class Staging(msgspec.Struct, frozen=True):
    """The meaning of a write of a staged record: it is there now, or (without a body) gone."""

    tx: str
    body: bytes = b""


class Swap(msgspec.Struct, frozen=True):
    """The meaning of a write that points a state to a transaction, or (empty `tx`) nowhere any more."""

    state_id: str
    before: bytes
    after: bytes
    tx: str


class StoreMonitor:
    """Watches a store and a bus."""

    def __init__(
        self,
        ends: Ends,
        *,
        is_swept: bool = False,
        is_patient: bool = False,
        stores: Sequence[int] = (0,),
    ) -> None:
        """Take the parts; one that `is_patient` waits for a resubmission behind its successors, as there is an end."""
        self._ends = ends
        self._book = ends.book
        self._queues = ends.queues
        self._is_swept = is_swept
        self._is_patient = is_patient
        self._stores = tuple(stores)
        self._steps: dict[type, Callable[[Ledger, Any], Ledger | Finding]] = {
            Applied: self._book.apply,
            Pushed: self._book.push,
            Staging: stage,
            Swap: self._swap,
            SideEffect: self._book.note,
            Marked: self._book.mark,
            Resubmitted: self._book.resubmit,
            Differs: self._book.differ,
            SettledHandlings: self._book.settle,
        }

    def initial(self) -> Ledger:
        return Ledger()

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource in self._stores and op.verb == "write" and isinstance(outcome.result, Won):
            return self._written(op.args[0], before, now_ms)
        if op.resource == BUS and op.verb == "send" and outcome.note:
            return self._sent(op.args[0][: outcome.note])
        if op.resource == BUS and op.verb == "settle" and outcome.result is None:
            return self._settled(before, *op.args)
        return None

    def step(self, ghost: Ledger, event: Any) -> Ledger | Finding:
        return self._steps[type(event)](ghost, event)

    # Writes

    def _written(self, writes: Sequence[Write], before: StoreState, now_ms: int) -> Hashable:
        fresh: list[tuple[bytes, Record]] = []
        marked: list[bytes] = []
        state: tuple[bytes, bytes, str] | None = None
        for write in writes:
            id, body = write.key.id, getattr(write, "body", b"")
            if isinstance(write, Delete) and not id.startswith(STAGED_PREFIX):
                continue  # nothing is committed by that; what it does to a promise will show
            if id.startswith(RECORD_PREFIX):
                record, known = _record(body), body_at(before, write.key, now_ms)
                inbox = bytes.fromhex(id.removeprefix(RECORD_PREFIX))
                if kind_of(record) is OnRecord.WAITING:
                    if known is not None:
                        return Finding("NoDuplicate", f"{self._book.name(inbox)} waits over what is on record")
                elif known is not None and _record(known).tx == record.tx:
                    marked += () if record.pending else (inbox,)  # or written as it is, which confirms it
                else:
                    fresh.append((inbox, record))
            elif id == STATE:
                known = body_at(before, write.key, now_ms)
                state = (b"{}" if known is None else known, body, write.key.partition)
            elif id.startswith(DONE_PREFIX):
                if kind_of(_record(body)) is OnRecord.WAITING:
                    if body_at(before, write.key, now_ms) is not None:
                        return Finding("NoDuplicate", f"{write.key.id} waits over what is on record")
                    continue
                marked.append(bytes.fromhex(id.removeprefix(DONE_PREFIX)))
            elif id.startswith(STAGED_PREFIX):
                return staging(write)
        if fresh or state is not None:
            return self._changed(fresh, state)
        return Marked(tuple(marked)) if marked else None

    def _changed(self, fresh: list[tuple[bytes, Record]], state: tuple[bytes, bytes, str] | None) -> Hashable:
        """A commit: of records beside their state, of a record by itself, or of a staged one by a pointer."""
        if state is None:
            return self._judged(fresh, None, None, "")
        before, after, state_id = _state(state[0]), _state(state[1]), state[2]
        if fresh:
            return self._judged(fresh, before, after, state_id)
        is_cleared = before.pointer and not after.pointer and _same(before, after)
        if is_cleared or (after.pointer and after.pointer != before.pointer):
            return Swap(state_id, state[0], state[1], after.pointer)
        if _same(before, after) and before.pointer == after.pointer:
            return None  # written again as it is, which confirms it
        return Finding("NoGhost", f"{state_id} was written as {_shown(after)} and no record says for what")

    def _judged(
        self, entries: list[tuple[bytes, Record]], before: StateItem | None, after: StateItem | None, state_id: str
    ) -> Applied | Finding:
        stored = None if before is None or before.is_tombstone else StoredState(bytes(before.value), before.schema)
        emitted: list[Output] = []
        for inbox, record in entries:
            handling = self._book.find(inbox, record.fingerprint)
            if handling is None:
                return Finding("NoGhost", f"record {inbox.hex()[:8]} is that of a message that was never sent")
            if handling.state_id is not None and after is None:
                return Finding("Serializable", f"{self._book.name(inbox)} was committed apart from its state")
            name, is_cancelled = self._book.name(inbox), cancelled_ms(record.replaced) > 0
            if is_cancelled and inbox not in self._book.cancellable:
                return Finding("NoLost", f"{name} is on record as cancelled, and nobody cancelled it")
            effect = CANCELLED if is_cancelled else self._book.reference.run(handling, stored, record.at_ms)
            if record.reason:
                wrong = self._book.not_old(handling, record, record.at_ms)
                if wrong is not None:
                    return wrong
                if record.reason not in CODES and not isinstance(effect, Declined):
                    text = f"was refused ({record.reason}) at a state at which its handler accepts"
                    return Finding("Serializable", f"{name} {text}")
                continue
            if isinstance(effect, Declined):
                return Finding(
                    "Serializable", f"{name} was applied to a state at which its handler refuses ({effect.error})"
                )
            wrong = _wrong_outputs(name, record, effect.outputs)
            if wrong is not None:
                return wrong
            if record.reply != effect.reply:
                return Finding("OneAnswer", f"{name} is kept with another reply than its handler gives")
            emitted += effect.outputs
            if effect.state is not None:
                stored = effect.state if effect.state.value else None
        if before is not None and after is not None:
            wrong = _wrong_state(state_id, before, after, stored)
            if wrong is not None:
                return wrong
        return self._meaning(entries, emitted)

    def _meaning(self, entries: list[tuple[bytes, Record]], emitted: list[Output]) -> Applied:
        return Applied(
            tuple(inbox for inbox, record in entries if not record.reason),
            tuple(inbox for inbox, record in entries if record.reason and record.reason not in UNPROVEN),
            tuple(self._book.emission(output) for output in emitted),
            (),
            tuple(inbox for inbox, record in entries if record.reason in UNPROVEN),
            tuple(on_record(inbox, record) for inbox, record in entries if inbox in self._book.requests),
            tuple((inbox, record.attempt) for inbox, record in entries if record.attempt),
            tuple((inbox, record.fingerprint) for inbox, record in entries if record.reason not in UNPROVEN),
            tuple(inbox for inbox, record in entries if self._is_unfounded(inbox, record)),
            cancelled=tuple(inbox for inbox, record in entries if cancelled_ms(record.replaced)),
        )

    def _is_unfounded(self, inbox: bytes, record: Record) -> bool:
        handling = self._book.find(inbox, record.fingerprint)
        return handling is not None and self._book.is_unfounded(handling, record, record.at_ms)

    def _swap(self, ledger: Ledger, event: Swap) -> Ledger | Finding:
        """A ledger after a state was pointed to a transaction, which is its commit, or nowhere."""
        before, after = (msgspec.json.decode(body, type=StateItem) for body in (event.before, event.after))
        pointers = frozenset(pair for pair in ledger.pointers if pair[0] != event.state_id)
        finished = _pointed(ledger, before.pending)
        if event.tx and isinstance(before.pending, str) and before.pending:
            return Finding(
                "NoLost", f"{event.state_id} points to transaction {before.pending}, and is pointed to another"
            )
        inboxes = () if finished is None else (finished.inbox,)
        cleared = self._book.mark(msgspec.structs.replace(ledger, pointers=pointers), Marked(inboxes))
        if isinstance(cleared, Finding) or not event.tx:
            return cleared
        made = _pointed(ledger, after.pending)
        if made is None:
            return Finding("StagedVanish", f"{event.state_id} points to transaction {event.tx}, which is not staged")
        applied = self._judged([(made.inbox, made.record)], before, after, event.state_id)
        if isinstance(applied, Finding):
            return applied
        committed = self._book.apply(cleared, applied)
        if isinstance(committed, Finding) or isinstance(made, Inline):
            return committed
        return msgspec.structs.replace(committed, pointers=pointers | {(event.state_id, event.tx)})

    # Sends and settlements

    def _sent(self, outputs: Sequence[Output]) -> Hashable:
        """The meaning of a send; a delayed copy of a known message is neither new nor an output."""
        left = []
        for output in outputs:
            message = self._book.reference.whole(output.message)
            known = map(self._book.reference.whole, self._book.variants(output.destination, message.identity))
            if message.message_id and message.message_id != message.identity:
                if not any((m.body, m.type, m.claim) == (message.body, message.type, message.claim) for m in known):
                    return Finding("NoGhost", f"a copy of {short(message.identity)} leaves, which was never sent so")
                if message.attempt:
                    return resubmitted(self._book.caused(output.destination, message), message)
            else:
                left.append(digest_of(output))
        return Pushed(tuple(left)) if left else None

    def _settled(self, before: BusState, delivery: Delivery, settle: Settle) -> Hashable:
        """A message's end, unless a copy of it is still there."""
        if settle.how not in ("complete", "dead-letter"):
            return None
        identity = delivery.message.identity
        if settle.reason == "payload-differs":
            message = self._book.reference.whole(delivery.message)
            return differing(self._book.handlings(delivery.queue, message), message)
        if settle.reason in CODES or self._queues.is_there(before, delivery.queue, identity, but=delivery.sequence):
            return None
        inboxes = tuple(handling.inbox for handling in self._book.handlings(delivery.queue, delivery.message))
        return SettledHandlings(inboxes, settle.how == "dead-letter")

    # A world

    def check(self, ghost: Ledger, states: Sequence[Any]) -> Finding | None:
        return self._ends.check(ghost, states[BUS], lambda: values_in(states[STORE]))

    def outcome(self, ghost: Ledger, states: Sequence[Any]) -> Hashable:
        return self._ends.outcome(ghost, self._with_letters(states, 0), values_in(states[STORE]))

    def _with_letters(self, states: Sequence[Any], now_ms: int) -> BusState:
        """The bus with the dead letters that hosts have stored."""
        state: BusState = states[BUS]
        dead = list(state.dead)
        for key, body in visible(states[self._stores[-1]], now_ms).items():
            if key.id.startswith(LETTER):
                letter = msgspec.json.decode(body, type=StoredDeadLetter)
                number = self._queues.numbers[key.partition.removeprefix(LETTERS)]
                dead.append(Dead(number, self._queues.message_number(letter.message), letter.reason, 1))
        return state if len(dead) == len(state.dead) else msgspec.structs.replace(state, dead=tuple(sorted(dead)))

    def is_over(self, ghost: Ledger, states: Sequence[Any], now_ms: int) -> bool:
        """Whether only messages of blocked sessions are due later: they are rescheduled for ever.

        What blocks them may lie behind them, resubmitted; one that `is_patient` waits for it.
        """
        state: BusState = states[BUS]
        queues = zip(self._queues.specs, state.tasks, strict=True)
        found = [(queue.path, task, self._queues.messages[task.message]) for queue, tasks in queues for task in tasks]
        if self._is_patient and any(message.attempt for _, _, message in found):
            return False
        due = [(path, message) for path, task, message in found if now_ms < task.due_ms < NEVER_MS]
        return bool(due) and all(self._book.is_blocked(ghost, path, message) for path, message in due)

    def final(self, ghost: Ledger, states: Sequence[Any], now_ms: int) -> list[Finding]:
        found = [
            Finding("NoLost", f"output {short(identity)} to {destination} was committed and never left")
            for destination, identity, _ in sorted(ghost.emitted)
            if (destination, identity) not in ghost.pushed
        ]
        found += self._ends.missing(ghost, self._with_letters(states, now_ms), values_in(states[STORE]))
        found += [
            Finding("StagedVanish", f"{key.id} is still there, and nothing will take it away")
            for store in (self._stores if self._is_swept else ())
            for key in visible(states[store], now_ms)
            if key.id.startswith(STAGED_PREFIX)
        ]
        return [*found, *self._forgotten(states, now_ms)]

    def _forgotten(self, states: Sequence[Any], now_ms: int) -> list[Finding]:
        """Overflow blobs that no document names, so that they would stay for ever."""
        blobs = [name.encode() for name, _ in states[BLOBS] if name.startswith(OVERFLOW_BLOB_PREFIX)]
        bodies = [body for store in self._stores for body in visible(states[store], now_ms).values()] if blobs else []
        return [
            Finding("StagedVanish", f"blob {blob.decode()} is still there, and no document knows of it")
            for blob in blobs
            if not any(blob in body for body in bodies)
        ]


def staging(write: Write) -> Staging | Marked | None:
    """The meaning of a write of a staged record."""
    tx = write.key.id.removeprefix(STAGED_PREFIX)
    match write:
        case Create():
            return Staging(tx, write.body)
        case Delete():
            return Staging(tx)
    staged = msgspec.json.decode(write.body, type=Staged)
    return Marked((staged.inbox,)) if staged.dispatched else None


def stage(ledger: Ledger, event: Staging) -> Ledger | Finding:
    """A ledger after a staged record has come or gone; it may go only when no state points to it."""
    others = frozenset(pair for pair in ledger.staged if pair[0] != event.tx)
    if event.body:
        return msgspec.structs.replace(ledger, staged=others | {(event.tx, event.body)})
    for state_id, tx in ledger.pointers:
        if tx == event.tx:
            return Finding("StagedVanish", f"transaction {tx} is deleted while {state_id} points to it")
    return msgspec.structs.replace(ledger, staged=others)


def _pointed(ledger: Ledger, pending: str | Inline) -> Inline | Staged | None:
    """The target of a state's pointer: inline in the state, or staged; None where there is none."""
    if isinstance(pending, Inline):
        return pending
    body = dict(ledger.staged).get(pending)
    return None if body is None else msgspec.json.decode(body, type=Staged)


def values_in(state: StoreState) -> Documents:
    """The states of a store by id: value and schema."""
    documents = {}
    for name, partition in state:
        for id, doc in partition.docs:
            item = _state(doc.body) if id == STATE else None
            if item is not None and not item.is_tombstone:
                documents[name] = (bytes(item.value), item.schema)
    return documents


def _record(body: bytes) -> Record:
    return msgspec.json.decode(body, type=Record)


def _state(body: bytes | None) -> StateItem:
    return StateItem() if body is None else msgspec.json.decode(body, type=StateItem)


def _same(before: StateItem, after: StateItem) -> bool:
    return (bytes(before.value), before.schema, before.version) == (bytes(after.value), after.schema, after.version)


def _wrong_outputs(name: str, record: Record, expected: tuple[Output, ...]) -> Finding | None:
    if not record.spilled and canonical(record.outputs) != canonical(expected):
        ids, wanted = [[o.message.identity for o in outputs] for outputs in (record.outputs, expected)]
        text = f"{name} is recorded with outputs {', '.join(map(short, ids)) or 'none'}"
        promise = "ConsistentOutput" if ids == wanted else "NoLost" if len(ids) < len(wanted) else "NoGhost"
        return Finding(promise, f"{text}, its handler gives {', '.join(map(short, wanted)) or 'none'}")
    if expected and not record.pending and not record.entry:
        return Finding("NoLost", f"{name} has outputs and its record does not say that they are pending")
    return None


def _wrong_state(state_id: str, before: StateItem, after: StateItem, expected: StoredState | None) -> Finding | None:
    value = b"null" if expected is None else expected.value
    if bytes(after.value) != value:
        return Finding(
            "Serializable", f"{state_id} was written as {_shown(after)}, its handlers make it {value.decode()}"
        )
    if after.version != before.version + 1:
        return Finding("OneChangePerETag", f"{state_id} went from version {before.version} to {after.version}")
    return None


def _shown(item: StateItem) -> str:
    return f"{bytes(item.value).decode()} (version {item.version})"
