"""The `$management` node of an entity: everything that is asked for instead of streamed.

Decides nothing by itself: every operation is one call of the engine, its arguments checked and bounded here, its
refusals answered with the status and condition that the SDK knows.  Session operations need a session receiver on the
same connection: its lock is what they act on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import DEFERRED, encode_delivery, encode_peeked, encode_reply, encode_wrapped
from outbox.emulator.amqp.errors import (
    ARGUMENT_ERROR,
    INTERNAL_ERROR,
    MESSAGE_LOCK_LOST,
    MESSAGE_NOT_FOUND,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    SERVER_BUSY,
    SESSION_LOCK_LOST,
    SESSION_NOT_FOUND,
    OperationFault,
)
from outbox.emulator.amqp.link import Link
from outbox.emulator.amqp.messages import decode_transfer
from outbox.emulator.bus import addresses
from outbox.emulator.bus.links import Ending, put, settle
from outbox.emulator.bus.requests import Replies, Request
from outbox.engine.engine import Engine
from outbox.engine.entities import SessionLock, Settlement
from outbox.errors import EngineStopped, LockLost, OutboxError, TooLarge, UnknownDestination

OK, NO_CONTENT, BAD_REQUEST, UNAUTHORIZED, NOT_FOUND_STATUS, GONE, ERROR, UNSUPPORTED, BUSY = (
    200, 204, 400, 401, 404, 410, 500, 501, 503,
)  # fmt: skip
T = TypeVar("T")

PREFIX = "com.microsoft:"
ITEM_COUNT_MAX = 1_000
REPLY_SIZE_MAX_BYTES = 1 << 20
_ALL_SESSIONS_MS = 253_402_300_800_000
"""The last update that clients send when they mean all sessions: the year 10000."""

_DISPOSITIONS = {
    "completed": Settlement.COMPLETE,
    "abandoned": Settlement.ABANDON,
    "defered": Settlement.DEFER,  # spelled so on the wire
    "suspended": Settlement.DEAD_LETTER,
}
_STATUSES = {
    MESSAGE_LOCK_LOST: GONE,
    SESSION_LOCK_LOST: GONE,
    MESSAGE_NOT_FOUND: NOT_FOUND_STATUS,
    NOT_FOUND: NOT_FOUND_STATUS,
    NOT_IMPLEMENTED: UNSUPPORTED,
    SERVER_BUSY: BUSY,
}


_KINDS = {str: "a string", int: "a number", bytes: "binary", dict: "a map"}


class Answer(NamedTuple):
    """A status and the value of the reply's body."""

    status: int
    value: bytes = types.map_(())


class Management:
    """The management nodes as one connection sees them."""

    def __init__(
        self, engine: Engine, message_size_max_bytes: int, find_lock: Callable[[str, str], SessionLock | None]
    ) -> None:
        """`find_lock` gives the lock that a receiver of the connection holds on a session, by path and session id."""
        self._engine = engine
        self._message_size_max_bytes = message_size_max_bytes
        self._find_lock = find_lock
        self._operations: dict[str, Callable[[str, Arguments], Answer]] = {
            "renew-lock": self._renew_lock,
            "peek-message": self._peek,
            "schedule-message": self._schedule,
            "cancel-scheduled-message": self._cancel,
            "receive-by-sequence-number": self._receive_deferred,
            "update-disposition": self._update_disposition,
            "get-session-state": self._get_session_state,
            "set-session-state": self._set_session_state,
            "renew-session-lock": self._renew_session,
            "get-message-sessions": self._list_sessions,
        }

    def on_request(
        self, link: Link, path: str, payload: bytes, replies: Replies | None, *, refusal: OperationFault | None = None
    ) -> None:
        """Do what a request asks, or refuse it for the reason given, and answer it; no `replies` take no answer.

        Raises: OperationFault if there is no way to answer.
        """
        request = Request.decode(payload)
        try:
            if refusal is not None:
                raise refusal
            answer, condition, text = self._run(path, request), "", "OK"
        except OperationFault as fault:
            condition, text = fault.condition, fault.description
            status = NO_CONTENT if condition == SESSION_NOT_FOUND else _STATUSES.get(condition, BAD_REQUEST)
            answer = Answer(status)
        properties = [
            types.string("statusCode"),
            types.int_(answer.status),
            types.string("statusDescription"),
            types.string(text),
        ]
        if condition:
            properties += (types.string("errorCondition"), types.symbol(condition))
        if replies is not None:
            replies.send(link, request, encode_reply(request.message_id, properties, answer.value))

    def _run(self, path: str, request: Request) -> Answer:
        name = request.properties.get("operation")
        operation = self._operations.get(name.removeprefix(PREFIX)) if isinstance(name, str) else None
        if operation is None:
            raise OperationFault(NOT_IMPLEMENTED, f"operation {name!r} is not supported by this emulator")
        if not isinstance(request.value, dict):
            raise OperationFault(ARGUMENT_ERROR, "the body of a request must be a map")
        try:
            return operation(path, Arguments(request.value))
        except EngineStopped:
            raise
        except LockLost as error:
            raise OperationFault(MESSAGE_LOCK_LOST, str(error)) from error
        except LookupError as error:
            raise OperationFault(MESSAGE_NOT_FOUND, str(error)) from error
        except UnknownDestination as error:
            is_there = addresses.can_receive(self._engine, path)  # and has no sessions
            raise OperationFault(NOT_FOUND, str(error) if is_there else addresses.missing(path)) from error
        except TooLarge as error:
            raise OperationFault(ARGUMENT_ERROR, str(error)) from error
        except OutboxError as error:
            raise OperationFault(INTERNAL_ERROR, str(error)) from error

    # Messages

    def _renew_lock(self, path: str, given: Arguments) -> Answer:
        expirations = [self._engine.broker.renew(token.bytes_le) for token in given.items("lock-tokens", UUID, "uuids")]
        return Answer(OK, types.map_([types.string("expirations"), types.array_of_numbers(0x83, expirations)]))

    def _peek(self, path: str, given: Arguments) -> Answer:
        tasks = self._engine.broker.peek(
            path,
            given.value_or("from-sequence-number", 0),
            given.count("message-count", 1, ITEM_COUNT_MAX),
            session=given.text_or_none("session-id"),
        )
        encoded, size_bytes = [], 0
        for task in tasks:
            encoded.append(encode_wrapped(encode_peeked(task)))
            size_bytes += len(encoded[-1])
            if size_bytes > REPLY_SIZE_MAX_BYTES:
                break  # the client goes on from the last sequence number that it got
        if not encoded:
            return Answer(NO_CONTENT)
        return Answer(OK, types.map_([types.string("messages"), types.list_(encoded)]))

    def _schedule(self, path: str, given: Arguments) -> Answer:
        incoming = [
            entry
            for item in given.items("messages", dict, "maps")
            for entry in decode_transfer(Arguments(item).value("message", bytes), 0)
        ]
        limit = self._message_size_max_bytes
        for entry in incoming:
            if len(entry.message.body) + len(entry.message.wire) + len(entry.message.wire_body) > limit:
                raise OperationFault(ARGUMENT_ERROR, f"a scheduled message is over {limit} bytes; send a reference")
        if not addresses.can_send(self._engine, path):
            raise OperationFault(NOT_FOUND, f"{path} takes no messages; schedule on the queue or topic")
        keyed = addresses.needs_session(self._engine, path)
        sequences = put(self._engine, path, incoming, needs_session=keyed)
        return Answer(OK, types.map_([types.string("sequence-numbers"), types.array_of_numbers(0x81, sequences)]))

    def _cancel(self, path: str, given: Arguments) -> Answer:
        sequences = given.items("sequence-numbers", int, "numbers")
        if self._engine.broker.cancel(path, sequences) < len(set(sequences)):
            raise OperationFault(MESSAGE_NOT_FOUND, "a sequence number is not that of a scheduled message")
        return Answer(OK)

    def _receive_deferred(self, path: str, given: Arguments) -> Answer:
        session_id = given.text_or_none("session-id")
        if session_id is not None:
            self._session_lock(path, session_id)
        claims = self._engine.broker.claim_deferred(
            path, given.items("sequence-numbers", int, "numbers"), session=session_id
        )
        if given.value_or("receiver-settle-mode", 1) == 0:
            for claim in claims:
                self._engine.broker.settle(claim.token, Settlement.COMPLETE)
        encoded = [
            encode_wrapped(encode_delivery(claim, state=DEFERRED), types.uuid_(UUID(bytes_le=claim.token)))
            for claim in claims
        ]
        return Answer(OK, types.map_([types.string("messages"), types.list_(encoded)]))

    def _update_disposition(self, path: str, given: Arguments) -> Answer:
        how = _DISPOSITIONS.get(given.value("disposition-status", str))
        if how is None:
            raise OperationFault(ARGUMENT_ERROR, f"disposition-status must be one of {', '.join(_DISPOSITIONS)}")
        ending = Ending(
            how,
            given.value_or("deadletter-reason", ""),
            given.value_or("deadletter-description", ""),
            given.value_or("properties-to-modify", dict[object, object]()),
        )
        try:
            for token in given.items("lock-tokens", UUID, "uuids"):
                settle(self._engine, token.bytes_le, ending)
        except LockLost as error:
            of_session = given.text_or_none("session-id") is not None
            raise OperationFault(SESSION_LOCK_LOST if of_session else MESSAGE_LOCK_LOST, str(error)) from error
        return Answer(OK)

    # Sessions

    def _session_lock(self, path: str, session_id: str) -> SessionLock:
        """The lock that a session receiver of this connection holds.

        Raises: OperationFault.
        """
        lock = self._find_lock(path, session_id)
        if lock is not None:
            return lock
        raise OperationFault(SESSION_LOCK_LOST, f"this connection holds no lock on session {session_id!r} of {path}")

    def _get_session_state(self, path: str, given: Arguments) -> Answer:
        lock = self._session_lock(path, given.value("session-id", str))
        state = _held(lambda: self._engine.sessions.state(lock.token))
        return Answer(OK, types.map_([types.string("session-state"), types.binary(state) if state else types.NULL]))

    def _set_session_state(self, path: str, given: Arguments) -> Answer:
        lock = self._session_lock(path, given.value("session-id", str))
        state = given.value_or("session-state", b"")
        _held(lambda: self._engine.sessions.set_state(lock.token, state))
        return Answer(OK)

    def _renew_session(self, path: str, given: Arguments) -> Answer:
        lock = self._session_lock(path, given.value("session-id", str))
        until_ms = _held(lambda: self._engine.sessions.renew(lock.token))
        return Answer(OK, types.map_([types.string("expiration"), types.timestamp(until_ms)]))

    def _list_sessions(self, path: str, given: Arguments) -> Answer:
        if given.value_or("last-updated-time", _ALL_SESSIONS_MS) < _ALL_SESSIONS_MS:
            raise OperationFault(NOT_IMPLEMENTED, "sessions cannot be listed by the time of their last update")
        skip, top = given.count("skip", 0, 1 << 31), given.count("top", 100, ITEM_COUNT_MAX)
        found = self._engine.sessions.ids(path)[skip : skip + top]
        if not found:
            raise OperationFault(SESSION_NOT_FOUND, f"{path} has no more sessions")
        items = types.list_([types.string(session_id) for session_id in found])
        return Answer(OK, types.map_([types.string("skip"), types.int_(skip), types.string("sessions-ids"), items]))


class Arguments:
    """Typed access to a request's map.  Every method raises OperationFault for what is missing or of another type."""

    def __init__(self, values: dict[object, object]) -> None:
        self._values = values

    def value(self, name: str, kind: type[T]) -> T:
        value = self._values.get(name)
        if type(value) is not kind:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be {_KINDS[kind]}")
        return value

    def value_or(self, name: str, default: T) -> T:
        """A value of the kind of its default, which it has if it is null or not there."""
        return default if self._values.get(name) is None else self.value(name, type(default))

    def text_or_none(self, name: str) -> str | None:
        return None if self._values.get(name) is None else self.value(name, str)

    def count(self, name: str, default: int, highest: int) -> int:
        """A number from 0 on, cut to `highest`."""
        value = self.value_or(name, default)
        if value < 0:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must not be negative")
        return min(value, highest)

    def items(self, name: str, kind: type[T], what: str) -> list[T]:
        """A list of values of one kind, of which `what` is the plural."""
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > ITEM_COUNT_MAX:
            raise OperationFault(ARGUMENT_ERROR, f"{name} must be a list of {ITEM_COUNT_MAX} items at most")
        if not all(type(item) is kind for item in value):
            raise OperationFault(ARGUMENT_ERROR, f"{name} must hold {what} only")
        return value


def _held(operation: Callable[[], T]) -> T:
    try:
        return operation()
    except LockLost as error:
        raise OperationFault(SESSION_LOCK_LOST, str(error)) from error
