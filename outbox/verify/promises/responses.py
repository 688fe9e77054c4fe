"""Responses to HTTP clients, checked: each is what a commit has on record, and the same each time.

A read is answered from a state that was committed, at any time so far: which one depends on the store.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, cast

import msgspec

from outbox.app import App
from outbox.errors import PoisonMessage
from outbox.message import Message
from outbox.ports import Output
from outbox.resubmission import REJECTED
from outbox.runtime.http.responses import answer_of, read_answer, refused
from outbox.stored import Record
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.ops import Finding, Monitor, Op, Outcome, short
from outbox.verify.explorer.programs import REQUESTS, digest_of, work_of
from outbox.verify.promises.ledger import Answered, Book, Ledger, OnRecord, Readable, ReadAnswered
from outbox.verify.promises.reference import Declined, Handling, Reference, StoredState
from outbox.verify.promises.view import Documents

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
