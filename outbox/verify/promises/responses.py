"""Responses to HTTP clients, checked: each is what a commit has on record, and the same each time."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from outbox.app import App
from outbox.message import Message
from outbox.ports import Output
from outbox.runtime.http.responses import answer_of
from outbox.stored import Record
from outbox.verify.explorer.models.bus import BusModel
from outbox.verify.explorer.ops import Finding, Op, Outcome
from outbox.verify.explorer.requests import REQUESTS, digest_of, work_of
from outbox.verify.explorer.trace_text import short
from outbox.verify.explorer.world import Monitor
from outbox.verify.promises.ledger import Answered, Book, OnRecord
from outbox.verify.promises.reference import Handling


def on_record(inbox: bytes, record: Record) -> OnRecord:
    """What a record answers."""
    return inbox, record.fingerprint, digest_of(answer_of(record))


def handling_of(app: App, message: Message, now_ms: int) -> tuple[Handling, bytes]:
    """What a request sets off, and its payload's fingerprint."""
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
        self, scope: Monitor, book: Book, app: App, asked: Sequence[Output], *, model: BusModel, resource: int
    ) -> None:
        self._scope = scope
        self.initial, self.check = scope.initial, scope.check
        self.is_over, self.outcome = scope.is_over, scope.outcome
        self._book = book
        self._model = model
        self._resource = resource
        self._known: dict[Message, tuple[bytes, bytes]] = {}
        """Inbox key and payload of each request."""
        for output in asked:
            handling, payload = handling_of(app, output.message, 0)
            book.expect(handling, payload)
            self._known[output.message] = handling.inbox, payload

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource != self._resource:
            return self._scope.observe(op, before, outcome, now_ms)
        if op.verb != "settle" or op.args[1].how != "complete" or outcome.result is not None:
            return None
        delivery, settle = op.args
        return Answered(*self._known[delivery.message], int(settle.description), settle.reason)

    def step(self, ghost: Any, event: Any) -> Hashable:
        return self._book.answer(ghost, event) if isinstance(event, Answered) else self._scope.step(ghost, event)

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        found = self._scope.final(ghost, states, now_ms)
        if now_ms >= self._model.closes_ms:
            return found  # clients without a response have given up by then
        for message in self._known:
            if self._model.queues.is_there(states[self._resource], REQUESTS, message.outbox_id):
                found.append(Finding("EveryMessageEnds", f"{short(message.outbox_id)} is sent and never answered"))
        return found
