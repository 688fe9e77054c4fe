"""One client's connection: bytes to events, events to the engine, answers back behind the gate.

*Theory of operation.*  Everything that one read brought is handled at once, in memory; its answers stand in the
connection's buffer.  `take_answers` and `write` belong to the server, which passes the engine's gate between the two:
so nothing leaves before what it depends on is safe, and a hundred transfers cost one gate and one write.  While
answers pile up, or the peer does not read, nothing more is read from it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outbox.emulator.amqp.connection import Connection, State
from outbox.emulator.amqp.errors import (
    INTERNAL_ERROR,
    MESSAGE_LOCK_LOST,
    NOT_ALLOWED,
    NOT_FOUND,
    UNAUTHORIZED,
    LinkFault,
    OperationFault,
)
from outbox.emulator.amqp.events import Attached, Closed, Credit, Delivery, Detached, Event, Opened, Settled, Window
from outbox.emulator.amqp.frames import EMPTY_FRAME
from outbox.emulator.amqp.link import Link, LinkState
from outbox.emulator.amqp.session import Session
from outbox.emulator.bus import faulty, nodes
from outbox.emulator.bus.accepting import accept_session, wanted_session
from outbox.emulator.bus.claims import Claims
from outbox.emulator.bus.management import Management
from outbox.emulator.bus.nodes import Kind, Node, parse_address
from outbox.emulator.bus.receivers import Receiver
from outbox.emulator.bus.requests import Replies
from outbox.emulator.bus.senders import Sender
from outbox.emulator.faults import FaultRule
from outbox.errors import EngineStopped, LockLost
from outbox.seldom import printable

if TYPE_CHECKING:
    from outbox.emulator.servicebus import ServiceBusServer

log = logging.getLogger(__name__)

OUTPUT_MAX_BYTES = 1 << 20
"""Deliveries are added to the buffer up to here."""
BACKLOG_MAX_BYTES = 8 << 20
"""A peer that lets more answers pile up is not read from any more."""
OPEN_WITHIN_S = 30.0
"""How long a client may take to open its connection, and to put a valid token."""
LINKLESS_MAX_S = 60.0
"""How long a connection without links is kept, as Service Bus has it."""
IDLE_MAX_S = 600.0
"""How long a connection with links may be silent, unless one of them waits for messages."""
KEEPALIVE_IDLE_S = 60
KEEPALIVE_COUNT = 4
LOG_TEXT_LENGTH_MAX = 500
"""How much of a peer's words a line of the log holds."""


class Peer(asyncio.Protocol):
    """One connection of the server."""

    def __init__(self, server: ServiceBusServer) -> None:
        self.engine = server.engine
        self.connection = Connection(container_id=server.container_id, limits=server.limits, pool=server.pool)
        self.receivers: dict[Link, Receiver] = {}
        self._server = server
        self._claims = Claims(server.key, server.engine.now_ms)
        self._replies = Replies()
        self.management = Management(self)
        self._transport: asyncio.Transport | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writable = True
        self._reading = True
        self.blocked = False
        """A receiver stopped for want of room."""
        self._broken = self._paused = self._is_trusted = False
        self._client = ""
        self._idle_s = 0.0
        self._opened_s = self._written_s = self._heard_s = self._linked_s = server.loop_time()
        self._handlers: dict[type, Callable[[Any], None]] = {
            Opened: self._on_opened,
            Attached: self._on_attached,
            Delivery: self._on_delivery,
            Credit: self._on_credit,
            Window: self._on_window,
            Settled: self._on_settled,
            Detached: self._on_detached,
            Closed: self._on_closed,
        }

    # Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.admit(self):
            transport.abort()
            return
        connection = transport.get_extra_info("socket")
        if connection is not None:
            _watch(connection)
        if self._claims.authorised:
            self._trust()

    def _trust(self) -> None:
        self._is_trusted = True
        self.connection.trust()

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._server.loop_time()
        self._handle(self.connection.receive(data))
        self.flush_soon()
        if self._backlog_bytes > BACKLOG_MAX_BYTES:
            self._pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._handle(self.connection.lose())
        self._drop_all(release=False)
        self._replies.clear()
        for task in self._tasks:
            task.cancel()
        self._server.forget(self)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        self._resume()

    def _pause_reading(self) -> None:
        if self._reading and self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()
            self._reading = False

    def _resume(self) -> None:
        """Room was made: go on reading and sending."""
        if self._transport is None or self._transport.is_closing() or not self.has_room:
            return
        self.blocked = False
        if not self._reading:
            self._transport.resume_reading()
            self._reading = True
        asyncio.get_running_loop().call_soon(self._pump_all)

    @property
    def _backlog_bytes(self) -> int:
        """Answers that the peer has not taken."""
        waiting = self._transport.get_write_buffer_size() if self._transport is not None else 0
        return waiting + self.connection.output_bytes

    @property
    def has_room(self) -> bool:
        """Whether more may be put into the buffer."""
        return self._writable and not self._paused and self.connection.output_bytes < OUTPUT_MAX_BYTES

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run something for as long as the connection lives."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)
        return task

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            if not isinstance(error, EngineStopped):
                self._log_failure(error)
            self.abort()

    def call_later(self, delay_s: float, work: Callable[[], object]) -> None:
        """Do something once, if the connection still lives then, and write what came of it."""

        async def wait() -> None:
            await asyncio.sleep(delay_s)
            with self._guarded():
                work()
            self.flush_soon()

        self.spawn(wait())

    def abort(self) -> None:
        """Drop the connection without another byte, in or out."""
        self._broken = True
        if self._transport is not None:
            self._transport.abort()

    def shut_down(self) -> None:
        """Tell the peer that the server goes, and close."""
        with self._guarded():
            self.connection.fail("amqp:connection:forced", "the server is shutting down; connect again")
            self._drop_all(release=True)
            self.flush_soon()

    def flush_soon(self) -> None:
        """Have what is in the buffer written once the gate is passed."""
        if not self._paused:
            self._server.flush_soon(self)

    def take_answers(self) -> tuple[bytes, bool]:
        """What is to be written once the gate is passed, and whether the connection ends with it."""
        if self._paused:
            return b"", False
        return self.connection.take_output(), self.connection.state is State.OVER

    def write(self, data: bytes, last: bool) -> None:
        """Write what was taken; the gate is passed."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if data:
            transport.write(data)
            self._written_s = self._server.loop_time()
        if last:
            transport.close()
        elif not self._reading or self.blocked:
            self._resume()

    def check_time(self, now_s: float) -> None:
        """Do what time asks for: keep alive, end what never opens or is idle, notice lost sessions."""
        connection = self.connection
        if connection.state < State.OPEN and now_s - self._opened_s > OPEN_WITHIN_S:
            self.abort()
            return
        with self._guarded():
            if connection.state is State.OPEN and (reason := self._is_idle(now_s)):
                connection.fail("amqp:connection:forced", f"{reason}; connect again")
                self._drop_all(release=False)
                self.flush_soon()
            if self._idle_s and now_s - self._written_s > self._idle_s / 2 and connection.state is State.OPEN:
                connection.write(EMPTY_FRAME)
                self.flush_soon()
            for receiver in list(self.receivers.values()):
                if not receiver.holds_session():
                    self._drop_receiver(receiver.link, release=False)
                    self.flush_soon()
            for session in connection.sessions.values():
                if session.starved and len(session.unsettled) >= session.limits.unsettled_count_max:
                    self._forget_lost(session)

    def _is_idle(self, now_s: float) -> str:
        """Why a connection is ended that does nothing; empty while there is no reason."""
        if not self._is_trusted:
            if self._claims.authorised:
                self._trust()
            elif now_s - self._opened_s > OPEN_WITHIN_S:
                return f"no valid token was put within {OPEN_WITHIN_S:g} s"
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
        return (link for session in self.connection.sessions.values() for link in session.links.values())

    def _forget_lost(self, session: Session) -> None:
        """Make room among the deliveries that a client never settles: those whose locks have run out."""
        for delivery_id, (_, tag) in list(session.unsettled.items()):
            try:
                self.engine.locked(tag)
            except LockLost:
                del session.unsettled[delivery_id]
        if session.room:
            session.starved = False
            self._pump_all()

    @property
    def has_faults(self) -> bool:
        """Whether any rule is installed."""
        return bool(self._server.faults)

    def fault(self, operation: str, kinds: frozenset[str], where: str, key: str = "") -> FaultRule | None:
        """What is to go wrong with an operation of this client; a pause begins here and leaves the operation alone."""
        rule = self._server.faults.ask(operation, kinds=kinds, where=where, key=key, client=self._client)
        if rule is None or rule.kind != "pause":
            return rule
        self._paused = True
        self._pause_reading()
        self.call_later(rule.delay_s, self._end_pause)
        return None

    def _end_pause(self) -> None:
        self._paused = False
        self._resume()

    # Events

    def _handle(self, events: list[Event]) -> None:
        with self._guarded():
            for event in events:
                if self._broken and type(event) is not Closed:
                    continue
                self._handlers[type(event)](event)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Let a failure here end this connection and nothing else."""
        try:
            yield
        except EngineStopped:
            self.abort()
        except Exception as error:
            self._log_failure(error)
            self.connection.fail(INTERNAL_ERROR, "the server failed on this; its log has the details")
            self._drop_all(release=False)

    def _log_failure(self, error: BaseException) -> None:
        left_out = self._server.log_lines.left_out("failed")
        if left_out is not None:
            log.error("service bus connection failed; this is a bug", exc_info=error, extra={"left_out": left_out})

    def _on_opened(self, event: Opened) -> None:
        self._idle_s = event.idle_timeout_ms / 1_000
        self._client = event.container_id

    def _on_attached(self, event: Attached) -> None:
        link = event.link
        attach = link.attach
        try:
            terminus = attach.source if attach.is_receiver else attach.target
            node = parse_address(terminus[0] if terminus else None)
            node = node._replace(path=nodes.declared_path(self.engine, node.path))
            if node.kind is not Kind.CLAIMS and not self._claims.authorised:
                raise LinkFault(UNAUTHORIZED, "put a valid token on $cbs first; check key and connection string")
            if node.kind is Kind.ENTITY:
                if not (self.has_faults and faulty.on_attach(self, link, node.path)):
                    self._attach_entity(link, node.path)
            else:
                self._attach_requests(link, node)
        except LinkFault as fault:
            link.refuse(fault.condition, fault.description)

    def _attach_requests(self, link: Link, node: Node) -> None:
        if node.kind is Kind.MANAGEMENT and not (
            nodes.can_receive(self.engine, node.path) or nodes.can_send(self.engine, node.path)
        ):
            raise LinkFault(NOT_FOUND, f"{node.path!r} does not exist; declare it, or check the spelling")
        link.app = node
        if link.is_sender:
            self._replies.add(node, link)
        link.accept()

    def _attach_entity(self, link: Link, path: str) -> None:
        engine = self.engine
        if not link.is_sender:
            if not nodes.can_send(engine, path):
                raise LinkFault(NOT_FOUND, f"queue or topic {path!r} does not exist; declare it, or check the spelling")
            link.app = Sender(engine, path, needs_session=nodes.needs_session(engine, path))
            link.accept()
            return
        if not nodes.can_receive(engine, path):
            raise LinkFault(NOT_FOUND, f"queue or subscription {path!r} does not exist; declare it, or check the name")
        wanted = wanted_session(link.attach.source)
        keyed = nodes.needs_session(engine, path)
        if keyed and wanted is None:
            raise LinkFault(NOT_ALLOWED, f"{path} requires sessions; accept a session to receive from it")
        if wanted is not None and not keyed:
            raise LinkFault(NOT_ALLOWED, f"{path} has no sessions; receive from it without one")
        if wanted is not None:
            accept_session(self, link, path, wanted)
            return
        self.add_receiver(Receiver(self, link, path))
        link.accept()

    def add_receiver(self, receiver: Receiver) -> None:
        receiver.link.app = receiver
        self.receivers[receiver.link] = receiver

    def _on_delivery(self, event: Delivery) -> None:
        app = event.link.app
        if isinstance(app, Sender):
            if self.has_faults:
                faulty.on_send(self, app, event)
            else:
                app.on_delivery(event)
            return
        assert isinstance(app, Node)
        session = event.link.session
        try:
            if app.kind is Kind.CLAIMS:
                self._claims.on_request(event.link, event.payload, self._replies)
                if not self._is_trusted and self._claims.authorised:
                    self._trust()
            elif self.has_faults:
                faulty.on_request(self, event, app.path, self._replies)
            else:
                self.management.on_request(event.link, app.path, event.payload, self._replies)
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

    def _on_window(self, event: Window) -> None:
        self._pump_all()

    def _pump_all(self) -> None:
        with self._guarded():
            sent = [receiver.pump() for receiver in list(self.receivers.values())]
            if any(sent):
                self.flush_soon()

    def _on_settled(self, event: Settled) -> None:
        for delivery_id, link, tag in event.deliveries:
            receiver = link.app
            if isinstance(receiver, Receiver):
                receiver.on_settled(event, delivery_id, tag)
        for delivery_id in [] if event.settled else event.unknown:
            event.session.deny(delivery_id, MESSAGE_LOCK_LOST, "this delivery is settled already or its link is gone")
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
        if event.condition and (left_out := self._server.log_lines.left_out("closed")) is not None:
            texts = {"condition": event.condition, "text": event.description}  # a peer's words may be in both
            fields = {name: printable(text[:LOG_TEXT_LENGTH_MAX]) for name, text in texts.items()}
            log.warning("service bus connection closed", extra={**fields, "left_out": left_out})

    def _drop_all(self, *, release: bool) -> None:
        for link in list(self.receivers):
            self._drop_receiver(link, release=release)


def _watch(connection: socket.socket) -> None:
    """Have the system notice a client whose machine or network is gone; it says nothing and may wait for messages."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        ("TCP_KEEPINTVL", KEEPALIVE_IDLE_S),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
    ):
        if hasattr(socket, name):  # not every system has all of them
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
