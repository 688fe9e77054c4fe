"""One AMQP 1.0 connection, as a server, without any I/O.

*Theory of operation.*  `receive(data)` takes what a peer sent and returns events; `take_output()` gives the bytes to
send.  Whatever the protocol can answer by itself (headers, SASL, open, begin, end, close, flow echoes) is answered
here; links, messages and settlements are the application's.  A peer that breaks the protocol or a limit gets a
`close` with the AMQP error, an event `Closed`, and nothing it sends afterwards is looked at: no input raises.

A channel of it decides which link a frame is for, by its handle, which deliveries a disposition settles, and what is
left for the application to do.  What may happen in which state is in `states`, what a link then does in `link`; how
transfers are counted is `session`'s part.  Who may do what is decided later, by the claims that a client puts on the
`$cbs` node.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.errors import (
    DECODE_ERROR,
    FRAMING_ERROR,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    AmqpFault,
    ConnectionFault,
    SessionFault,
)
from outbox.emulator.amqp.events import Attached, Closed, Credit, Detached, Event, Opened, Sent, Settled, Window
from outbox.emulator.amqp.frames import (
    HEADER_AMQP,
    HEADER_SASL,
    TYPE_AMQP,
    TYPE_SASL,
    Frame,
    FrameReader,
    Output,
    frame,
)
from outbox.emulator.amqp.limits import ATTACH_FACTOR, LINK_BYTES, SESSION_BYTES, Limits, Pool, Quota
from outbox.emulator.amqp.link import TRANSFER_OVERHEAD_BYTES, Attach, Link
from outbox.emulator.amqp.performatives import as_bool, as_map, as_outcome, as_terminus, as_text, as_uint
from outbox.emulator.amqp.session import ID_MASK, Session
from outbox.emulator.amqp.states import (
    CONNECTION,
    LINK,
    SESSION,
    Heard,
    LinkState,
    OnLink,
    OnSession,
    SessionState,
    State,
    after,
)
from outbox.emulator.amqp.types import NULL, field_spans

SASL_NAMES = ("ANONYMOUS", "MSSBCBS")
FRAME_SIZE_MIN_BYTES = 512
_HEADERS = {HEADER_SASL: Heard.SASL_HEADER, HEADER_AMQP: Heard.AMQP_HEADER}
_UNKNOWN_COUNT_MAX = 256


class Connection:
    """The state of one connection."""

    def __init__(self, *, container_id: str, limits: Limits, pool: Pool | None = None) -> None:
        """`pool` is what all connections together hold; without one, this connection has its own."""
        self.limits = limits
        self.quota = Quota(pool or Pool(), limits.unclaimed_max_bytes)
        self.state = State.SASL_HEADER
        self.channels: dict[int, Channel] = {}
        self.peer_frame_size_max_bytes = FRAME_SIZE_MIN_BYTES
        self.output = Output()
        self._container_id = container_id
        self._reader = FrameReader(frame_size_max_bytes=min(limits.frame_size_max_bytes, limits.unclaimed_max_bytes))
        self._events: list[Event] = []
        self._handlers: dict[int, Callable[[Frame, list[object]], None]] = {
            performatives.OPEN: self._on_open,
            performatives.BEGIN: self._on_begin,
            performatives.END: self._on_end,
            performatives.CLOSE: self._on_close,
        }

    def trust(self) -> None:
        """Give the peer all that the limits allow; until it has put a valid token it has little."""
        limits = self.limits
        self._reader.frame_size_max_bytes = limits.frame_size_max_bytes
        self.quota.max_bytes = max(limits.held_max_bytes, 2 * limits.message_size_max_bytes)

    def receive(self, data: bytes) -> list[Event]:
        """Take bytes from the peer; return what the application has to do."""
        events: list[Event] = []
        self._events = events
        if self.state is State.OVER:
            return events
        try:
            self._reader.feed(data)
            while self._step():
                pass
        except AmqpFault as fault:
            self.fail(fault.condition, fault.description)
        self._events = []  # what events name goes with those who handle them
        return events

    def take_output(self) -> bytes:
        """The bytes to send, once."""
        self._flush_answers()
        return self.output.take()

    def fail(self, condition: str, description: str) -> None:
        """Close with an error; nothing more is read."""
        if self.state is State.OVER:
            return
        if self.state is State.OPENING:
            self._write_open()
        self._flush_answers()
        if self.state in (State.OPENING, State.OPEN):
            self.output.write(frame(performatives.close(performatives.error(condition, description))))
        self._finish(condition, description)

    def lose(self) -> list[Event]:
        """The transport is gone; return what the application has to do."""
        events: list[Event] = []
        self._events = events
        self._finish("", "the peer went away")
        self._events = []
        return events

    def _finish(self, condition: str, description: str, *, orderly: bool = False) -> None:
        if self.state is State.OVER:
            return
        links = [link for channel in self.channels.values() for link in channel.links.values()]
        self._flush_answers()
        for channel in self.channels.values():
            channel.end()
        self.channels.clear()
        self._reader.clear()
        self.state = State.OVER
        self._events.append(Closed(links, orderly, condition, description))

    def _flush_answers(self) -> None:
        for channel in self.channels.values():
            channel.session.flush_accepted()

    def _step(self) -> bool:
        """Do the next header or frame; False when there is none or the connection is over."""
        if self.state is State.OVER:
            return False
        if self.state in (State.SASL_HEADER, State.AMQP_HEADER):
            return self._on_header(self._reader.next_header())
        source = self._reader.next_frame()
        if source is None:
            return False
        if source.start == source.end:
            return True  # an empty frame keeps the connection alive
        if self.state is State.SASL:
            self._on_sasl(source)
            return True
        if source.type != TYPE_AMQP:
            after(CONNECTION, self.state, Heard.SASL_INIT)
        code, fields, at = performatives.decode_performative(source)
        if (act := ON_FRAME.get(code)) is not None:
            channel = self._channel(source.channel)
            if channel is not None:
                try:
                    self._events += act(channel, fields, source, at)
                except SessionFault as fault:
                    self._end(channel, fault.condition, fault.description)
        elif (handler := self._handlers.get(code)) is not None:
            handler(source, fields)
        else:
            raise ConnectionFault(FRAMING_ERROR, f"performative 0x{code:02x} in an AMQP frame")
        return True

    def _on_header(self, header: bytes | None) -> bool:
        if header is None:
            return False
        event = _HEADERS.get(header, Heard.OTHER_HEADER)
        if CONNECTION[self.state][event] is State.SASL:
            self.output.write(HEADER_SASL + frame(performatives.sasl_mechanisms(*SASL_NAMES), frame_type=TYPE_SASL))
        else:
            self.output.write(HEADER_AMQP)  # a peer that speaks another protocol learns which is spoken here
        state = after(CONNECTION, self.state, event)
        assert state is not None, "headers are read in two states only"
        self.state = state
        return True

    def _on_sasl(self, source: Frame) -> None:
        code, fields, _ = performatives.decode_performative(source)
        is_init = source.type == TYPE_SASL and code == performatives.SASL_INIT
        state = after(CONNECTION, self.state, Heard.SASL_INIT if is_init else Heard.FRAME)
        known = as_text(fields[0], "mechanism") in SASL_NAMES
        self.output.write(frame(performatives.sasl_outcome(0 if known else 1), frame_type=TYPE_SASL))
        if known and state is not None:
            self.state = state
        else:
            self._finish(NOT_ALLOWED, "the SASL mechanism is not offered")

    def _on_open(self, source: Frame, fields: list[object]) -> None:
        state = after(CONNECTION, self.state, Heard.OPEN)
        assert state is not None, "an open is never passed over"
        container_id = as_text(fields[0], "container-id")[:256]
        size = as_uint(fields[2], "max-frame-size", 0xFFFFFFFF)
        if size < FRAME_SIZE_MIN_BYTES:
            raise ConnectionFault(DECODE_ERROR, f"max-frame-size {size} is below {FRAME_SIZE_MIN_BYTES}")
        self.peer_frame_size_max_bytes = min(size, self.limits.frame_size_max_bytes)
        assert self.peer_frame_size_max_bytes > TRANSFER_OVERHEAD_BYTES
        self._write_open()
        self.state = state
        self._events.append(Opened(container_id, as_uint(fields[4], "idle-time-out", 0)))

    def _write_open(self) -> None:
        size, channel_max = self.limits.frame_size_max_bytes, self.limits.session_count_max - 1
        body = performatives.open_(self._container_id, frame_size_max_bytes=size, channel_max=channel_max)
        self.output.write(frame(body))

    def _channel(self, number: int, event: OnSession = OnSession.FRAME) -> Channel | None:
        """The channel that a frame is for; None where there is none yet, or the frame is passed over."""
        channel = self.channels.get(number)
        if channel is None:  # else the connection is open
            after(CONNECTION, self.state, Heard.FRAME)
        after(SESSION, SessionState.UNMAPPED if channel is None else SessionState.MAPPED, event, "channel", number)
        return channel

    def _on_begin(self, source: Frame, fields: list[object]) -> None:
        self._channel(source.channel, OnSession.BEGIN)
        session = Session(
            self.output,
            self.quota,
            self.limits,
            channel=source.channel,
            frame_size_max_bytes=self.peer_frame_size_max_bytes,
            fields=fields,
        )
        if len(self.channels) >= self.limits.session_count_max or not self.quota.has_room(SESSION_BYTES):
            session.end(RESOURCE_LIMIT, f"{len(self.channels)} sessions are as many as there may be; end some")
            return
        self.quota.take(SESSION_BYTES)
        self.channels[source.channel] = Channel(session)

    def _on_end(self, source: Frame, fields: list[object]) -> None:
        channel = self._channel(source.channel, OnSession.END)
        if channel is not None:
            self._end(channel)

    def _end(self, channel: Channel, condition: str = "", description: str = "") -> None:
        """End a session, with an error if a condition is given; further frames of the peer on it are ignored."""
        self._events.extend(channel.end())
        channel.session.end(condition, description)
        del self.channels[channel.session.channel]

    def _on_close(self, source: Frame, fields: list[object]) -> None:
        if self.state is State.OPENING:
            self._write_open()
        self._flush_answers()
        self.output.write(frame(performatives.close(NULL)))
        self._finish("", "closed by the peer", orderly=True)


@dataclass(slots=True)
class Channel:
    """The links of one session; each `on_...` takes a frame: its fields, the frame, and the offset behind them."""

    session: Session
    links: dict[int, Link] = field(default_factory=dict)
    """By handle.  One that this side detached keeps its handle until the peer's detach, too, is there."""

    def on_attach(self, fields: list[object], source: Frame, at: int) -> list[Event]:
        """Make a link that waits for the application's answer.

        Raises:
            SessionFault: the connection has as many as it may.
        """
        handle = as_uint(fields[1], "handle")
        self._heard(handle, OnLink.ATTACH)
        quota, link_count_max = self.session.quota, self.session.limits.link_count_max
        if handle >= link_count_max or quota.link_count >= link_count_max:
            raise SessionFault(RESOURCE_LIMIT, f"more than {link_count_max} links; close some, and share senders")
        held_bytes = LINK_BYTES + ATTACH_FACTOR * (source.end - source.start)
        quota.take(held_bytes, SessionFault)
        is_receiver = as_bool(fields[2], "role")
        # The fields were decoded before, so the second walk that finds their bytes cannot fail.
        spans = field_spans(source.data, source.data.index(b"\x12", source.start) + 1) + [NULL] * 7
        attach = Attach(
            name=as_text(fields[0], "name")[:256],
            handle=handle,
            is_receiver=is_receiver,
            snd_settle_mode=as_uint(fields[3], "snd-settle-mode", 2) & 3,
            rcv_settle_mode=as_uint(fields[4], "rcv-settle-mode", 0) & 1,
            source=as_terminus(fields[5], "source"),
            target=as_terminus(fields[6], "target"),
            source_bytes=spans[5],
            target_bytes=spans[6],
            initial_delivery_count=as_uint(fields[9], "initial-delivery-count", 0),
            properties=as_map(fields[13], "properties"),
        )
        link = self.links[handle] = Link(self.session, attach, held_bytes)
        quota.link_count += 1
        return [Attached(link)]

    def _heard(self, handle: object, event: OnLink) -> Link | None:
        """The link that a frame is for, in its next state; None where none exists or the frame is ignored."""
        link = self.links.get(as_uint(handle, "handle"))
        state, name = (LinkState.FREE, "") if link is None else (link.state, link.attach.name)
        state_after = after(LINK, state, event, "handle", handle, "on channel", self.session.channel, name)
        if link is None or state_after is None:
            return None
        link.state = state_after
        return link

    def on_transfer(self, fields: list[object], source: Frame, at: int) -> list[Event]:
        session = self.session
        session.next_incoming_id = (session.next_incoming_id + 1) & ID_MASK
        link = self._heard(fields[0], OnLink.TRANSFER)
        delivery = None if link is None else link.on_transfer(fields, source.data[at : source.end])
        return [] if delivery is None else [delivery]

    def on_flow(self, fields: list[object], source: Frame, at: int) -> list[Event]:
        """Take the peer's window and, if a handle is given, a link's credit."""
        events: list[Event] = [Window(self.session)] if self.session.on_flow(fields) else []
        if fields[4] is not None:
            link = self._heard(fields[4], OnLink.FLOW)
            if link is not None and link.on_flow(fields):
                events.append(Credit(link, as_bool(fields[8], "drain"), as_bool(fields[9], "echo")))
        return events

    def on_disposition(self, fields: list[object], source: Frame, at: int) -> list[Event]:
        """Find the deliveries of ours that the peer ends."""
        if not as_bool(fields[0], "role"):
            return []  # the peer settles what it sent and we have answered
        first = as_uint(fields[1], "first")
        last = as_uint(fields[2], "last", first)
        settled = as_bool(fields[3], "settled")
        outcome = as_outcome(fields[4])
        if last < first:
            raise ConnectionFault(INVALID_FIELD, f"disposition from {first} to {last}")
        if outcome is None:
            if not settled:
                return []
            outcome = performatives.Outcome(performatives.RELEASED, [])
        if not performatives.ACCEPTED <= outcome.code <= performatives.MODIFIED:
            if outcome.code == performatives.RECEIVED:
                return []
            raise ConnectionFault(DECODE_ERROR, f"delivery state 0x{outcome.code:02x} is not an outcome")
        deliveries, unknown = self._take_unsettled(first, last)
        return [Settled(self.session, deliveries, unknown, outcome, settled)]

    def _take_unsettled(self, first: int, last: int) -> tuple[list[Sent], list[tuple[int, int]]]:
        unsettled, links = self.session.unsettled, self.links  # a link's deliveries go with it: each has its link here
        if last - first >= _UNKNOWN_COUNT_MAX:  # the ids are the peer's to choose: walk what is tracked, not the range
            ids = [number for number in unsettled if first <= number <= last]
            return [Sent(number, links[handle], tag) for number in ids for handle, tag in [unsettled.pop(number)]], []
        if not unsettled:
            return [], [(first, last)]
        deliveries, unknown = list[Sent](), list[tuple[int, int]]()
        for number in range(first, last + 1):
            if number in unsettled:
                handle, tag = unsettled.pop(number)
                deliveries.append(Sent(number, links[handle], tag))
            elif unknown and unknown[-1][1] == number - 1:
                unknown[-1] = (unknown[-1][0], number)
            else:
                unknown.append((number, number))
        return deliveries, unknown

    def on_detach(self, fields: list[object], source: Frame, at: int) -> list[Event]:
        known = self.links.get(as_uint(fields[0], "handle"))
        was_there = known is not None and known.state is not LinkState.DETACHED
        link = self._heard(fields[0], OnLink.DETACH)
        assert link is not None, "a detach is never passed over"
        if was_there:
            self.session.write(performatives.detach(link.handle, closed=as_bool(fields[1], "closed")))
        self.session.untrack(link.handle)
        del self.links[link.handle]
        link.free()
        return [Detached(link)] if was_there else []

    def end(self) -> list[Event]:
        """The session is over: every link of it is detached without another word."""
        live = [link for link in self.links.values() if link.state is not LinkState.DETACHED]
        for link in self.links.values():
            state = after(LINK, link.state, OnLink.END)
            assert state is not None, "no link outlives its session"
            link.state = state
            link.free()
        self.links.clear()
        self.session.unsettled.clear()
        self.session.quota.give_back(SESSION_BYTES)
        return [Detached(link) for link in live]


ON_FRAME: dict[int, Callable[[Channel, list[object], Frame, int], list[Event]]] = {
    performatives.ATTACH: Channel.on_attach,
    performatives.FLOW: Channel.on_flow,
    performatives.TRANSFER: Channel.on_transfer,
    performatives.DISPOSITION: Channel.on_disposition,
    performatives.DETACH: Channel.on_detach,
}
"""The method of the channel for each frame of a begun session."""
