"""Messages on the links of clients: received from queues, and sent to them.

*Theory of operation.*  `pump` claims and transfers at once whatever credit, window and write buffer allow; only when
there is nothing to claim does a task wait for the queue, one a link.  A claim's lock token is the delivery tag, so a
settlement names its claim without a table of our own; a token that the engine no longer knows (settled, run out, or
given before a restart) is answered with lock-lost.  Detaching leaves claims locked until they are settled elsewhere
or run out, as Service Bus does; only what a client releases goes back at once.

A named session is granted or refused at once; "the next one with messages" waits as long as the client asked for, and
the attach is answered only then.

Of messages that a client sends, a refusal of the engine becomes the condition that the SDK maps to its own exception;
nothing of a refused transfer is kept: a batch is sent whole or not at all (one whose messages become due at different
times, due time by due time).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple
from uuid import uuid4

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import (
    DEAD_LETTER_DESCRIPTION,
    DEAD_LETTER_REASON,
    encode_delivery,
    with_changes,
    with_message_id,
)
from outbox.emulator.amqp.errors import (
    DEAD_LETTER,
    INVALID_FIELD,
    MESSAGE_LOCK_LOST,
    MESSAGE_SIZE_EXCEEDED,
    NOT_FOUND,
    SERVER_BUSY,
    SESSION_CANNOT_BE_LOCKED,
    SESSION_LOCK_LOST,
    TIMEOUT,
    LinkFault,
    OperationFault,
)
from outbox.emulator.amqp.events import Settled
from outbox.emulator.amqp.link import Delivery, Link
from outbox.emulator.amqp.messages import Incoming, decode_transfer
from outbox.emulator.amqp.performatives import ACCEPTED, MODIFIED, REJECTED, SOURCE, Outcome, as_error
from outbox.emulator.amqp.states import LinkState
from outbox.emulator.amqp.types import Described
from outbox.emulator.bus.addresses import missing
from outbox.emulator.bus.filters import wire_facts
from outbox.emulator.bus.transport import Transport
from outbox.engine.engine import Engine
from outbox.engine.entities import SessionLock, Settlement
from outbox.engine.state.tasks import Claim
from outbox.errors import LockLost, Throttled, TooLarge, UnknownDestination

CLAIM_COUNT_MAX = 128
CLAIM_SIZE_BYTES = 1 << 20
SIZE_GUESS_BYTES = 32 * 1024
WAIT_S = 60.0
CLOCK_STEP_S = 0.001
_LOST_RACE_S = 0.01
SESSION_FILTER = "com.microsoft:session-filter"
LOCKED_UNTIL = "com.microsoft:locked-until-utc"
OPERATION_TIMEOUT = "com.microsoft:timeout"
WAIT_DEFAULT_S = 65.0
WAIT_MAX_S = 3_600.0
_FILTER_FIELD = 7
_DOTNET_EPOCH_TICKS = 621_355_968_000_000_000
_TICKS_PER_MS = 10_000


class Aside(NamedTuple):
    """A message that is held back until a time of the loop, or until another was sent."""

    claim: Claim
    until_s: float
    until_overtaken: bool


class Receiver:
    """One link on which a client receives from a queue, a subscription, a session or a dead-letter sub-queue."""

    def __init__(
        self,
        transport: Transport,
        link: Link,
        path: str,
        lock: SessionLock | None = None,
        *,
        divert: Callable[[Receiver, list[Claim]], list[Claim]],
    ) -> None:
        """`divert` gives those of claimed messages that go out now; it is asked only where there are fault rules."""
        self.link = link
        self.path = path
        self.lock = lock
        self.transport = transport
        self.aside: list[Aside] = []
        """Claimed messages that fault rules hold back."""
        self.once_sent: list[Callable[[], object]] = []
        """The actions of fault rules right behind the next deliveries."""
        self._divert = divert
        self._engine = transport.engine
        self._session_id = lock.session_id if lock else None
        self._size_bytes = SIZE_GUESS_BYTES
        """The mean size of the messages last sent; large ones are claimed by few at a time."""
        self._waiter: asyncio.Task[None] | None = None

    def pump(self) -> bool:
        """Send what can be sent; whether anything was."""
        link, session = self.link, self.link.session
        sent = bool(self.aside) and self._send_ripe()
        while link.credit > len(self.aside) and link.state is LinkState.ATTACHED and session.room:
            if not self.transport.has_room:
                self.transport.blocked = True
                return sent
            if not self.holds_session():
                return sent
            count_max = min(
                link.credit - len(self.aside), CLAIM_COUNT_MAX, max(1, CLAIM_SIZE_BYTES // self._size_bytes)
            )
            try:
                claims = self._engine.broker.claim(self.path, count_max, session=self._session_id)
            except UnknownDestination:
                link.detach(NOT_FOUND, missing(self.path))
                return True
            if not claims:
                if self._waiter is None or self._waiter.done():
                    self._waiter = self.transport.spawn(self._wait_and_pump())
                break
            if self.transport.faults:
                claims = self._divert(self, claims)
                if not claims:
                    continue
            self._send(claims)
            sent = True
            while self.once_sent:
                self.once_sent.pop(0)()
            if self.aside:
                self._send_ripe(overtaken=True)
        return sent

    def put_aside(self, claim: Claim, wait_s: float, *, until_overtaken: bool) -> None:
        """Send a message later, or once another was sent after it."""
        self.aside.append(Aside(claim, asyncio.get_running_loop().time() + wait_s, until_overtaken))
        self.transport.call_later(wait_s, self.pump)

    def _send_ripe(self, *, overtaken: bool = False) -> bool:
        """Send messages held back for long enough, if the client still takes them."""
        now_s, sent = asyncio.get_running_loop().time(), False
        for aside in list(self.aside):
            is_ripe = now_s >= aside.until_s - CLOCK_STEP_S or (overtaken and aside.until_overtaken)
            if is_ripe and self.link.credit > 0 and self.link.state is LinkState.ATTACHED:
                self.aside.remove(aside)
                self._send([aside.claim])
                sent = True
        return sent

    def _send(self, claims: list[Claim]) -> None:
        link, total_bytes = self.link, 0
        for claim in claims:
            if link.presettled:
                try:
                    self._engine.broker.settle(claim.token, Settlement.COMPLETE)
                except LockLost:
                    continue  # it was held back for longer than its lock lasts: it is received again
            payload = encode_delivery(claim, settled=link.presettled)
            total_bytes += len(payload)
            link.send(claim.token, payload, settled=link.presettled)
        self._size_bytes = total_bytes // len(claims) + 1

    def holds_session(self) -> bool:
        """Whether a session receiver still holds its lock; if not, the link is detached with the reason."""
        if self.lock is None:
            return True
        try:
            self._engine.sessions.state(self.lock.token)
        except LockLost as error:
            self.link.detach(SESSION_LOCK_LOST, str(error))
            return False
        return True

    async def _wait_and_pump(self) -> None:
        link = self.link
        while link.credit > 0 and link.state is LinkState.ATTACHED:
            try:
                if not await self._engine.broker.wait_any([self.path], WAIT_S, session=self._session_id):
                    continue
            except UnknownDestination:
                link.detach(NOT_FOUND, missing(self.path))
                self.transport.flush_soon()
                return
            if self.pump():
                self.transport.flush_soon()
            elif not (link.session.room and self.transport.has_room):
                return  # it is pumped when there is room
            else:
                await asyncio.sleep(_LOST_RACE_S)  # another receiver was faster

    def close(self, *, release: bool) -> None:
        """The link is gone; `release` says that the client closed it and so releases its session."""
        if self._waiter is not None:
            self._waiter.cancel()
            self._waiter = None  # its traceback names this link
        if release and self.lock is not None:
            try:
                self._engine.sessions.release(self.lock.token)
            except LockLost:
                return  # it ran out before: nothing is left to release

    def settle(self, event: Settled, delivery_id: int, tag: bytes) -> None:
        """Apply one settlement and answer it."""
        try:
            settle(self._engine, tag, read_outcome(event.outcome))
        except (OperationFault, LockLost) as error:
            condition, text = MESSAGE_LOCK_LOST if self.lock is None else SESSION_LOCK_LOST, str(error)
            if isinstance(error, OperationFault):
                condition, text = error.condition, error.description
            if not event.settled:
                event.session.deny(delivery_id, delivery_id, condition, text)
            return
        if not event.settled:
            event.session.confirm(delivery_id, event.outcome.code)


class Ending(NamedTuple):
    """How a delivery ends: the settlement, reason and description of a dead letter, properties that are set with it."""

    how: Settlement
    reason: str = ""
    description: str = ""
    properties: Mapping[object, object] = {}


def settle(engine: Engine, token: bytes, ending: Ending) -> None:
    """End a claim.

    Raises:
        LockLost: it is not held any more.
        OperationFault: the properties are none.
    """
    how, reason, description, given = ending
    if not given or how is Settlement.COMPLETE:
        engine.broker.settle(token, how, reason=reason, description=description)
        return
    changed = with_changes(engine.broker.locked(token)[1].message, given)
    engine.broker.settle(
        token, how, reason=reason, description=description, wire=changed.wire, properties=changed.properties
    )


def read_outcome(outcome: Outcome) -> Ending:
    """Read the ending that an outcome asks for."""
    code, fields = outcome
    if code == ACCEPTED:
        return Ending(Settlement.COMPLETE)
    if code == REJECTED:
        condition, text, info = as_error(fields[0] if fields else None)
        reason, description = info.get(DEAD_LETTER_REASON), info.get(DEAD_LETTER_DESCRIPTION)
        fallback = "" if condition == DEAD_LETTER else condition
        return Ending(
            Settlement.DEAD_LETTER,
            reason if isinstance(reason, str) else fallback,
            description if isinstance(description, str) else text,
            {name: value for name, value in info.items() if name not in (DEAD_LETTER_REASON, DEAD_LETTER_DESCRIPTION)},
        )
    if code == MODIFIED:
        undeliverable_here = len(fields) > 1 and fields[1] is True
        given = fields[2] if len(fields) > 2 else None
        how = Settlement.DEFER if undeliverable_here else Settlement.ABANDON
        return Ending(how, properties=given if isinstance(given, dict) else {})
    return Ending(Settlement.RELEASE)


# Sessions


class Wanted(NamedTuple):
    """The session that a link asks for; `session_id` None means the next one that has messages."""

    session_id: str | None


def wanted_session(source: list[object] | None) -> Wanted | None:
    """The session filter of a source; None where there is none.

    Raises: LinkFault for a filter that is neither a session id nor null.
    """
    filters = source[_FILTER_FIELD] if source else None
    if not isinstance(filters, dict) or SESSION_FILTER not in filters:
        return None
    given = filters[SESSION_FILTER]
    value = given.value if isinstance(given, Described) else given
    if value is not None and not isinstance(value, str):
        raise LinkFault(INVALID_FIELD, "the session filter must be a session id, or null for the next session")
    return Wanted(value)


Receive = Callable[[Link, str, SessionLock], Receiver]
"""Makes the receiver of a session that was locked, and has its connection know it."""


def accept_session(transport: Transport, link: Link, path: str, wanted: Wanted, receive: Receive) -> None:
    """Answer an attach that asks for a session, now or when there is one."""
    lock = transport.engine.sessions.accept(path, wanted.session_id)
    if lock is not None:
        _grant(receive(link, path, lock), lock)
    elif wanted.session_id is not None:
        text = f"session {wanted.session_id!r} of {path} is held by another receiver; try again or take another"
        link.refuse(SESSION_CANNOT_BE_LOCKED, text)
    else:
        transport.spawn(_wait_for_session(transport, link, path, receive))


async def _wait_for_session(transport: Transport, link: Link, path: str, receive: Receive) -> None:
    loop = asyncio.get_running_loop()
    wait_s = _wait_s(link)
    deadline_s = loop.time() + wait_s
    while link.state is LinkState.PENDING:
        left_s = deadline_s - loop.time()
        try:
            is_there = left_s > 0 and await transport.engine.broker.wait_any([path], left_s)
        except UnknownDestination:
            link.refuse(NOT_FOUND, missing(path))
            break
        if not is_there:
            link.refuse(TIMEOUT, f"no session of {path} had a message within {wait_s:g} s")
            break
        lock = transport.engine.sessions.accept(path, None) if link.state is LinkState.PENDING else None
        if lock is not None:
            _grant(receive(link, path, lock), lock)
            break
        await asyncio.sleep(_LOST_RACE_S)  # another receiver was faster
    transport.flush_soon()


def _wait_s(link: Link) -> float:
    asked_ms = link.attach.properties.get(OPERATION_TIMEOUT)
    if isinstance(asked_ms, int) and not isinstance(asked_ms, bool) and asked_ms > 0:
        return min(asked_ms / 1_000, WAIT_MAX_S)
    return WAIT_DEFAULT_S


def _grant(receiver: Receiver, lock: SessionLock) -> None:
    ticks, link = lock.locked_until_ms * _TICKS_PER_MS + _DOTNET_EPOCH_TICKS, receiver.link
    link.accept(
        source=_source_with(link.attach.source_bytes, lock.session_id),
        properties=types.map_([types.symbol(LOCKED_UNTIL), types.long_(ticks)]),
    )
    receiver.pump()  # credit may have come with the attach


def _source_with(source: bytes, session_id: str) -> bytes:
    """The peer's source with the granted session in its filter."""
    fields = types.field_spans(source, source.index(bytes((SOURCE,))) + 1)
    fields[_FILTER_FIELD] = types.map_([types.symbol(SESSION_FILTER), types.string(session_id)])
    return types.described(SOURCE, types.list_(fields))


@dataclass(slots=True)
class Sender:
    """One link on which a client sends to a queue or a topic."""

    engine: Engine
    path: str
    needs_session: bool

    def on_delivery(self, event: Delivery) -> None:
        """Put a transfer's messages into the engine and answer it."""
        session = event.link.session
        try:
            incoming = decode_transfer(event.payload, event.message_format)
            put(self.engine, self.path, incoming, needs_session=self.needs_session)
        except OperationFault as fault:
            if not event.settled:
                session.reject(event.delivery_id, fault.condition, fault.description)
            return
        if not event.settled:
            session.accept(event.delivery_id)


def put(engine: Engine, path: str, incoming: list[Incoming], *, needs_session: bool) -> list[int]:
    """Send messages, with our own id where they have none, and return the sequence numbers in order.

    Raises: OperationFault.
    """
    if needs_session and not all(item.message.session_id for item in incoming):
        raise OperationFault(INVALID_FIELD, f"{path} requires sessions; give every message a session id")
    sequences: list[int] = []
    try:
        for due_ms, group in groupby(incoming, key=lambda item: item.due_ms):
            messages = [item.message for item in group]
            messages = [one if one.message_id else with_message_id(one, uuid4().hex) for one in messages]
            facts = [wire_facts(message) for message in messages] if engine.state.rules else []
            sequences += engine.broker.send(path, messages, due_ms=due_ms, facts=facts)
    except UnknownDestination as error:
        raise OperationFault(NOT_FOUND, missing(path)) from error
    except TooLarge as error:
        raise OperationFault(MESSAGE_SIZE_EXCEEDED, str(error)) from error
    except Throttled as error:
        raise OperationFault(SERVER_BUSY, str(error)) from error
    return sequences
