"""One client's connection: events to the engine's queues, and what time asks of it.

Decides which node a link is for, who may attach, and when a connection is ended that is idle, not authorised or not
read.  How bytes come and go is `transport`'s part; senders, receivers, sessions, management and faults do the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

from outbox.emulator.amqp.errors import (
    MESSAGE_LOCK_LOST,
    NOT_ALLOWED,
    NOT_FOUND,
    SERVER_BUSY,
    UNAUTHORIZED,
    LinkFault,
    OperationFault,
)
from outbox.emulator.amqp.events import Attached, Closed, Credit, Detached, Event, Opened, Settled, Window
from outbox.emulator.amqp.frames import EMPTY_FRAME
from outbox.emulator.amqp.link import Delivery, Link
from outbox.emulator.amqp.session import Session
from outbox.emulator.amqp.states import LinkState, State
from outbox.emulator.bus import addresses, faulty
from outbox.emulator.bus.addresses import Kind, Node, parse_address
from outbox.emulator.bus.links import Receiver, Sender, accept_session, wanted_session
from outbox.emulator.bus.management import Management
from outbox.emulator.bus.requests import Claims, Replies
from outbox.emulator.bus.transport import Endpoint, Room, Transport, Writer, loop_time
from outbox.emulator.connections import TAKE_WITHIN_S
from outbox.engine.entities import SessionLock
from outbox.errors import LockLost
from outbox.escape import printable

log = logging.getLogger(__name__)

REQUEST_BACKLOG_MAX_BYTES = 2 << 20
"""The unsent answers above which a peer's requests are refused: one small request may have 1 MB of answer."""
BACKLOG_MAX_BYTES = 8 << 20
"""A peer that lets more answers pile up is not read from any more."""
UNTRUSTED_BACKLOG_MAX_BYTES = 256 << 10
"""The backlog above which a peer without a valid token is dropped: nothing on `$cbs` is that large."""
OPEN_WITHIN_S = 10.0
"""How long a client may take to open its connection."""
CLAIM_WITHIN_S = 30.0
"""How long a client may take to put a valid token."""
LINKLESS_MAX_S = 60.0
"""How long a connection without links is kept, as Service Bus has it."""
IDLE_MAX_S = 600.0
"""How long a connection with links may be silent, unless one of them waits for messages."""
LOG_TEXT_LENGTH_MAX = 500
"""How much of a peer's words a line of the log holds."""


class Peer(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, endpoint: Endpoint, room: Room[Peer], writer: Writer) -> None:
        """`room` says whether there may be another connection; `writer` takes its answers through the gate."""
        self.transport = Transport(endpoint, writer, on_room=self._pump_all, on_failed=self._drop_all)
        self.connection = self.transport.connection
        self.receivers: dict[Link, Receiver] = {}
        self._engine = endpoint.engine
        self._room = room
        self._log_lines = endpoint.log_lines
        self._claims = Claims(endpoint.key, endpoint.engine.now_ms)
        self._replies = Replies()
        self._management = Management(endpoint.engine, endpoint.limits.message_size_max_bytes, self._find_lock)
        self._is_trusted = False
        self._idle_s = 0.0
        self._opened_s = self._heard_s = self._linked_s = loop_time()
        self._handlers: dict[type, Callable[[Any], None]] = {
            Opened: self._on_opened,
            Attached: self._on_attached,
            Delivery: self._on_delivery,
            Credit: self._on_credit,
            Window: lambda event: self._pump_all(),
            Settled: self._on_settled,
            Detached: self._on_detached,
            Closed: self._on_closed,
        }

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport.open(transport)
        if not self._room.admit(self) and not (self._displace() and self._room.admit(self)):
            self.transport.abort()
        elif self._claims.authorised:
            self._trust()

    def _displace(self) -> bool:
        """Drop the oldest connection that has no links, for this one; whether there was any.

        Otherwise clients that say nothing keep all others out until their time is over.
        """
        idle = [peer for peer in self._room if not any(peer._links())]
        if not idle:
            return False
        oldest = min(idle, key=lambda peer: peer._opened_s)
        oldest.leave()
        oldest.transport.abort()
        return True

    def _trust(self) -> None:
        self._is_trusted = True
        self.connection.trust()

    def data_received(self, data: bytes) -> None:
        self._heard_s = loop_time()
        self._handle(self.connection.receive(data))
        self.transport.flush_soon()
        backlog_bytes = self.transport.backlog_bytes
        if backlog_bytes > UNTRUSTED_BACKLOG_MAX_BYTES and not self._is_trusted:
            self.transport.abort()
        elif backlog_bytes > BACKLOG_MAX_BYTES:
            self.transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._handle(self.connection.lose())
        self._drop_all()
        self._replies.clear()
        self.transport.cancel_all()
        self.leave()

    def pause_writing(self) -> None:
        self.transport.pause_writing()

    def resume_writing(self) -> None:
        self.transport.resume_writing()

    # What the server calls

    def leave(self) -> None:
        """Make room for another connection: this one is gone, or is none of AMQP."""
        self._room.leave(self)

    def shut_down(self) -> None:
        """Tell the peer that the server goes, and close."""
        with self.transport.guarded():
            self.connection.fail("amqp:connection:forced", "the server is shutting down; connect again")
            self._drop_all(release=True)
            self.transport.flush_soon()

    def check_time(self, now_s: float) -> None:
        """Do what time asks for: keep alive, end what never opens, is idle or lost its token, notice lost sessions."""
        connection, ended_s = self.connection, self.transport.ended_s
        never_opens = connection.state < State.OPEN and now_s - self._opened_s > OPEN_WITHIN_S
        if never_opens or (ended_s is not None and now_s - ended_s > TAKE_WITHIN_S):
            self.transport.abort()
            return
        with self.transport.guarded():
            if connection.state is State.OPEN and (reason := self._is_idle(now_s)):
                self._end("amqp:connection:forced", f"{reason}; connect again")
            elif connection.state is State.OPEN and self._is_trusted and not self._claims.authorised:
                self._end(UNAUTHORIZED, "the token has expired and no other was put; connect again")
            if self._idle_s and now_s - self.transport.written_s > self._idle_s / 2 and connection.state is State.OPEN:
                connection.output.write(EMPTY_FRAME)  # lest the peer takes this side for dead
                self.transport.flush_soon()
            for receiver in list(self.receivers.values()):
                if not receiver.holds_session():
                    self._drop_receiver(receiver.link, release=False)
                    self.transport.flush_soon()
            for session in [channel.session for channel in connection.channels.values()]:
                if session.starved and len(session.unsettled) >= session.limits.unsettled_count_max:
                    self._forget_lost(session)

    def _end(self, condition: str, description: str) -> None:
        """Close with an error; locks run out by themselves."""
        self.connection.fail(condition, description)
        self._drop_all()
        self.transport.flush_soon()

    def _is_idle(self, now_s: float) -> str:
        """Why a connection is ended that does nothing; empty while there is no reason."""
        if not self._is_trusted:
            if self._claims.authorised:
                self._trust()
            elif now_s - self._opened_s > CLAIM_WITHIN_S:
                return f"no valid token was put within {CLAIM_WITHIN_S:g} s"
        if not any(link.state is not LinkState.DETACHED for link in self._links()):
            idle_s = now_s - max(self._linked_s, self._opened_s)
            return f"the connection had no links for {LINKLESS_MAX_S:g} s" if idle_s > LINKLESS_MAX_S else ""
        self._linked_s = now_s
        if now_s - self._heard_s <= IDLE_MAX_S:
            return ""
        is_waiting = any(
            link.state is LinkState.PENDING or (link.state is LinkState.ATTACHED and link.is_sender and link.credit > 0)
            for link in self._links()
        )
        return "" if is_waiting else f"the connection was silent for {IDLE_MAX_S:g} s"

    def _links(self) -> Iterator[Link]:
        return (link for channel in self.connection.channels.values() for link in channel.links.values())

    def _forget_lost(self, session: Session) -> None:
        """Make room among the deliveries that a client never settles: those whose locks have run out."""
        for delivery_id, (_, tag) in list(session.unsettled.items()):
            try:
                self._engine.broker.locked(tag)
            except LockLost:
                del session.unsettled[delivery_id]
        if session.room:
            session.starved = False
            self._pump_all()

    # Events

    def _handle(self, events: list[Event]) -> None:
        with self.transport.guarded():
            for event in events:
                if self.transport.broken and type(event) is not Closed:
                    continue
                self._handlers[type(event)](event)

    def _on_opened(self, event: Opened) -> None:
        self._idle_s = event.idle_timeout_ms / 1_000
        self.transport.client = event.container_id

    def _on_attached(self, event: Attached) -> None:
        link = event.link
        attach = link.attach
        try:
            terminus = attach.source if attach.is_receiver else attach.target
            node = parse_address(terminus[0] if terminus else None)
            node = node._replace(path=addresses.declared_path(self._engine, node.path))
            if node.kind is not Kind.CLAIMS and not self._claims.covers(node.path):
                text = f"put a valid token for {node.path!r} on $cbs first; check key and connection string"
                raise LinkFault(UNAUTHORIZED, text)
            if node.kind is Kind.ENTITY:
                if not (self.transport.faults and faulty.on_attach(self.transport, link, node.path)):
                    self._attach_entity(link, node.path)
            else:
                self._attach_requests(link, node)
        except LinkFault as fault:
            link.refuse(fault.condition, fault.description)

    def _attach_requests(self, link: Link, node: Node) -> None:
        if node.kind is Kind.MANAGEMENT and not (
            addresses.can_receive(self._engine, node.path) or addresses.can_send(self._engine, node.path)
        ):
            raise LinkFault(NOT_FOUND, addresses.missing(node.path))
        link.app = node
        if link.is_sender:
            self._replies.add(node, link)
        link.accept()

    def _attach_entity(self, link: Link, path: str) -> None:
        engine = self._engine
        if not link.is_sender:
            if not addresses.can_send(engine, path):
                raise LinkFault(NOT_FOUND, addresses.missing(path))
            link.app = Sender(engine, path, needs_session=addresses.needs_session(engine, path))
            link.accept()
            return
        if not addresses.can_receive(engine, path):
            raise LinkFault(NOT_FOUND, addresses.missing(path))
        wanted = wanted_session(link.attach.source)
        keyed = addresses.needs_session(engine, path)
        if keyed and wanted is None:
            raise LinkFault(NOT_ALLOWED, f"{path} requires sessions; accept a session to receive from it")
        if wanted is not None and not keyed:
            raise LinkFault(NOT_ALLOWED, f"{path} has no sessions; receive from it without one")
        if wanted is not None:
            accept_session(self.transport, link, path, wanted, self._receive)
            return
        self._receive(link, path)
        link.accept()

    def _receive(self, link: Link, path: str, lock: SessionLock | None = None) -> Receiver:
        receiver = Receiver(self.transport, link, path, lock, divert=faulty.on_claims)
        link.app = self.receivers[link] = receiver
        return receiver

    def _find_lock(self, path: str, session_id: str) -> SessionLock | None:
        """The lock that a session receiver of this connection holds."""
        locks = [receiver.lock for receiver in self.receivers.values() if receiver.lock is not None]
        return next((lock for lock in locks if (lock.path, lock.session_id) == (path, session_id)), None)

    def _on_delivery(self, event: Delivery) -> None:
        app = event.link.app
        if isinstance(app, Sender):
            if self.transport.faults:
                faulty.on_send(self.transport, app, event)
            else:
                app.on_delivery(event)
            return
        assert isinstance(app, Node)
        session = event.link.session
        try:
            if self.transport.backlog_bytes > REQUEST_BACKLOG_MAX_BYTES:
                raise OperationFault(SERVER_BUSY, "too many answers wait to be read; read them, then ask again")
            if app.kind is Kind.CLAIMS:
                self._claims.on_request(event.link, event.payload, self._replies)
                if not self._is_trusted and self._claims.authorised:
                    self._trust()
            elif self.transport.faults:
                faulty.on_request(self.transport, self._management, event, app.path, self._replies)
            else:
                self._management.on_request(event.link, app.path, event.payload, self._replies)
        except OperationFault as fault:
            if not event.settled:
                session.reject(event.delivery_id, fault.condition, fault.description)
            return
        if not event.settled:
            session.accept(event.delivery_id)

    def _on_credit(self, event: Credit) -> None:
        app = event.link.app
        if isinstance(app, Receiver):
            app.pump()
        else:
            self._replies.on_credit(event.link)
        event.link.finish_flow(drain=event.drain, echo=event.echo)

    def _pump_all(self) -> None:
        with self.transport.guarded():
            sent = [receiver.pump() for receiver in list(self.receivers.values())]
            if any(sent):
                self.transport.flush_soon()

    def _on_settled(self, event: Settled) -> None:
        for delivery_id, link, tag in event.deliveries:
            receiver = link.app
            if not isinstance(receiver, Receiver):
                continue
            if self.transport.faults:
                faulty.on_settled(receiver, event, delivery_id, tag)
            else:
                receiver.settle(event, delivery_id, tag)
        for first, last in [] if event.settled else event.unknown:
            event.session.deny(first, last, MESSAGE_LOCK_LOST, "this delivery is settled already or its link is gone")
        if event.session.starved and event.session.room:
            event.session.starved = False
            self._pump_all()

    def _on_detached(self, event: Detached) -> None:
        self._replies.remove(event.link)
        self._drop_receiver(event.link, release=True)

    def _drop_receiver(self, link: Link, *, release: bool) -> None:
        receiver = self.receivers.pop(link, None)
        if receiver is not None:
            receiver.close(release=release)
            link.app = None  # each names the other; what links hold goes now, not with a collection of cycles

    def _on_closed(self, event: Closed) -> None:
        """Let sessions go if the peer closed in good order; a connection that broke keeps them until they run out."""
        self._drop_all(release=event.orderly)
        for link in event.links:
            link.app = None
        is_due, left_out = self._log_lines.due("closed") if event.condition else (False, 0)
        if is_due:
            texts = {"condition": event.condition, "text": event.description}  # a peer's words may be in both
            fields = {name: printable(text[:LOG_TEXT_LENGTH_MAX]) for name, text in texts.items()}
            log.warning("service bus connection closed", extra={**fields, "left_out": left_out})

    def _drop_all(self, *, release: bool = False) -> None:
        for link in list(self.receivers):
            self._drop_receiver(link, release=release)
