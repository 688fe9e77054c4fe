"""A world as an application and its clients see it: states, messages and how they end, and responses.

An invariant sees states, and messages whose emission is committed and whose handling is not.  Messages are handled or
dead-lettered, none lost, none left.  Each response to an HTTP client is what a commit has on record, and the same each
time.  A read is answered from a state that was committed, at any time so far: which one depends on the store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from outbox.app import App
from outbox.errors import PoisonMessage
from outbox.lineage import Key
from outbox.message import Message
from outbox.name_checks import kept_states, known_state, known_state_id
from outbox.ports import Output
from outbox.resubmission import REJECTED
from outbox.runtime.http.responses import answer_of, read_answer, refused
from outbox.stored import Record
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.models.queues import OVER_DELIVERED, Dead, Queues, QueueState
from outbox.verify.explorer.ops import Finding, Monitor, Op, Outcome, short
from outbox.verify.explorer.programs import REQUESTS, digest_of, work_of
from outbox.verify.promises.ledger import Answered, Book, Ledger, OnRecord, Readable, ReadAnswered, has_ended
from outbox.verify.promises.reference import Declined, Handling, Reference, StoredState

T = TypeVar("T")


class View:
    """The view of an invariant."""

    def __init__(self, book: Book, ledger: Ledger, documents: Mapping[str, tuple[bytes, int]]) -> None:
        self._app = book.reference.plan.app
        self._book = book
        self._ledger = ledger
        self._documents = documents
        self.asked: set[type[Any]] = set()
        self.seen: set[type[Any]] = set()
        """The types that `in_flight` was asked for, and those of which there was a message."""

    def states(self, kind: type[T]) -> list[T]:
        """All states of a type; UnknownType where no handler has such a state, of which anything would be true."""
        codec = known_state(self._app, kind, kept_states(self._app))
        kept = sorted(self._documents.items())
        return [codec.decode(*stored) for id, stored in kept if id.rpartition(":")[0] == codec.name]

    def state(self, kind: type[T], key: Key) -> T | None:
        """The state of a key; None where there is none.

        Raises:
            UnknownType: no handler has such a state.
            TypeError: its handlers have keys of another kind.
        """
        known = kept_states(self._app)
        codec = known_state(self._app, kind, known)
        found = self._documents.get(known_state_id(self._app, kind, key, known))
        return None if found is None else cast(T, codec.decode(*found))

    def in_flight(self, kind: type[T]) -> list[T]:
        """The messages of a type that are committed and not handled, each once however many copies there are."""
        codec = self._app.codec(kind)
        found: list[T] = []
        self.asked.add(kind)
        for destination, message in self._book.logical(self._ledger):
            if message.type != codec.name:
                continue
            self.seen.add(kind)
            if self._book.open(self._ledger, destination, message):
                found.append(codec.decode(self._book.reference.whole(message).body))
        return found

    def judged(self, invariant: Invariant, *, at_end: bool = False) -> Finding | None:
        """The finding by an invariant, which may return False or raise an `AssertionError`; one of the end alone."""
        try:
            if invariant(self):
                return None
            reason = ""
        except AssertionError as error:
            reason = f": {error}" if str(error) else ""
        shown = ", ".join(f"{id} {value.decode()}" for id, (value, _) in sorted(self._documents.items()))
        promise, what = ("AtEnd", "at_end does not hold") if at_end else ("Invariant", "the invariant does not hold")
        return Finding(promise, f"{what}{reason} at {shown or 'no states'}")


Invariant = Callable[[View], Any]
"""A function that must be true of every world."""


CODES = frozenset(
    (
        "undecodable",
        "unknown-type",
        "missing-key",
        "no-identity",
        "payload-differs",
        "edit-without-record",
        "too-old",
        "oversize",
    )
)
"""Reasons that are not a handler's."""
UNPROVEN = frozenset(("too-old", "edit-without-record"))
"""The reasons that leave open whether the message took effect before."""

Documents = Mapping[str, tuple[bytes, int]]
"""The states in a world by id: value and schema."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Judges a world by its queues and states."""

    book: Book
    queues: Queues
    invariant: Invariant | None = None
    allows_dead_letters: bool = False
    at_end: Invariant | None = None

    def check(self, ghost: Ledger, state: QueueState, documents: Callable[[], Documents]) -> Finding | None:
        """A dead letter that nothing allows, where one for its age is no handler's doing; or the broken invariant."""
        for dead in () if self.allows_dead_letters else state.dead:
            if dead.reason != "too-old":
                return Finding("NoDeadLetter", f"{short(self._identity(dead))} is dead-lettered: {dead.reason}")
        return None if self.invariant is None else View(self.book, ghost, documents()).judged(self.invariant)

    def outcome(self, ghost: Ledger, state: QueueState, documents: Documents) -> Hashable:
        """A world as outsiders see it: states, outputs, verdicts and dead letters."""
        verdicts = ghost.applied, ghost.refused, ghost.fenced
        dead = {(self._identity(dead), dead.reason) for dead in state.dead}
        return tuple(sorted(documents.items())), ghost.emitted, verdicts, tuple(sorted(dead))

    def missing(self, ghost: Ledger, state: QueueState, documents: Documents) -> list[Finding]:
        """The findings when nothing more can happen: in messages, and by the invariant for the end."""
        found = [
            finding
            for destination, message in self.book.logical(ghost)
            for path in self.book.routes.get(destination, ())
            if (finding := self._unfinished(ghost, state, path, message)) is not None
        ]
        broken = None if self.at_end is None else View(self.book, ghost, documents).judged(self.at_end, at_end=True)
        return found if broken is None else [*found, broken]

    def _unfinished(self, ghost: Ledger, state: QueueState, path: str, message: Message) -> Finding | None:
        name, number = short(message.identity), self.queues.numbers[path]
        is_there = self.queues.is_there(state, path, message.identity)
        if not self.queues.specs[number].is_read:
            return None if is_there else Finding("NoLost", f"{name} is not in {path}")
        is_blocked = is_there and self.book.is_blocked(ghost, path, message)
        if is_blocked or self.queues.is_left_out(state, path, message.identity):
            return None
        if is_there:
            return Finding("EveryMessageEnds", f"{name} is still in {path}, and no worker handles it any more")
        handlings = self.book.handlings(path, message)
        dead = [dead for dead in state.dead if dead.queue == number and self._identity(dead) == message.identity]
        if any(each.reason == OVER_DELIVERED for each in dead):
            return None  # the broker has taken it away, whatever was committed of it; its outputs leave all the same
        is_dead = bool(dead)
        if any(not has_ended(ghost, h.inbox) for h in handlings) or (not handlings and not is_dead):
            return Finding("NoLost", f"{name} is gone from {path} and was neither applied nor refused")
        if any(h.inbox in ghost.refused for h in handlings) and not is_dead:
            return Finding("NoLost", f"{name} was refused, and is no dead letter of {path}")
        return self.book.unasked(ghost, handlings)

    def _identity(self, dead: Dead) -> str:
        return self.queues.messages[dead.message].identity


READ_MS = 0
"""The time that a read sees; its handler has to answer by the state alone."""


def on_record(inbox: bytes, record: Record) -> OnRecord:
    """The reply on record."""
    return inbox, record.fingerprint, digest_of(answer_of(record))


def _read_digest(reference: Reference, handling: Handling, documents: Documents) -> str:
    """The digest of the reply to a read in these states."""
    found = documents.get(handling.state_id or "")
    effect = reference.run(handling, None if found is None else StoredState(*found), READ_MS)
    if isinstance(effect, Declined):
        return digest_of(refused(PoisonMessage(effect.error, REJECTED)))
    return digest_of(read_answer(effect.reply))


def handling_of(app: App, message: Message, now_ms: int) -> tuple[Handling, bytes]:
    """The handling of a request, and its payload's fingerprint."""
    work = work_of(app, message, now_ms)
    handler = work.handler
    assert handler is not None, "a request has a handler"
    name = f"{short(message.outbox_id)} ({message.correlation_id})"
    decode = app.codec(handler.binding.messages[0]).decode
    sent = work.delivery.message
    return Handling(name, handler, sent, work.value, work.key, work.inbox, work.state_id, decode), work.fingerprint


class RequestMonitor:
    """Watches the answers that clients get, all else is for the monitor of the scope."""

    def __init__(
        self,
        scope: Monitor,
        book: Book,
        app: App,
        asked: Sequence[Output],
        *,
        model: BusModel,
        resource: int,
        values_in: Callable[[Any], Documents],
        states: Any,
    ) -> None:
        """Take the parts; `values_in` reads the first resource, which begins as `states`."""
        self._scope = scope
        self.check, self.is_over, self.outcome = scope.check, scope.is_over, scope.outcome
        self._values_in = values_in
        self._states = states
        self._reads: dict[Message, Handling] = {}
        self._book = book
        self._model = model
        self._resource = resource
        self._known: dict[Message, tuple[bytes, bytes]] = {}
        """Inbox key and payload of each request."""
        for output in asked:
            handling, payload = handling_of(app, output.message, READ_MS)
            self._known[output.message] = handling.inbox, payload
            if handling.inbox:
                book.expect(handling, payload)
            else:
                self._reads[output.message] = handling

    def initial(self) -> Ledger:
        return msgspec.structs.replace(cast(Ledger, self._scope.initial()), readable=self._readable(self._states))

    def _readable(self, state: Any) -> frozenset[tuple[str, str]]:
        documents = self._values_in(state)
        return frozenset(
            (message.outbox_id, _read_digest(self._book.reference, handling, documents))
            for message, handling in self._reads.items()
        )

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource != self._resource:
            event = self._scope.observe(op, before, outcome, now_ms)
            if self._reads and op.resource == 0 and outcome.state != before and not isinstance(event, Finding):
                return Readable(event, self._readable(outcome.state))
            return event
        if op.verb != "settle" or op.args[1].how != "complete" or outcome.result is not None:
            return None
        delivery, settle = op.args
        if delivery.message in self._reads:
            return ReadAnswered(delivery.message.outbox_id, settle.reason)
        return Answered(*self._known[delivery.message], int(settle.description), settle.reason)

    def step(self, ghost: Any, event: Any) -> Hashable:
        match event:
            case Answered():
                return self._book.answer(ghost, event)
            case ReadAnswered():
                return self._book.answer_read(ghost, event)
            case Readable():
                after: Any = ghost if event.event is None else self._scope.step(ghost, event.event)
                if isinstance(after, Finding):
                    return after
                seen: Ledger = msgspec.structs.replace(after, readable=after.readable | event.answers)
                return seen
        return self._scope.step(ghost, event)

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        found = self._scope.final(ghost, states, now_ms)
        if now_ms >= self._model.closes_ms:
            return found  # clients without a response have given up by then
        return found + [
            Finding("EveryMessageEnds", f"{short(message.outbox_id)} is sent and never answered")
            for message in self._known
            if self._model.queues.is_there(states[self._resource], REQUESTS, message.outbox_id)
        ]
