"""One session of a connection: windows, delivery ids, unsettled deliveries, links by handle.

Decides how transfers are counted and which deliveries a disposition means.  Answers of the same kind to neighbouring
deliveries are joined into one disposition, which is written when something else must be, or when a read is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.errors import (
    DECODE_ERROR,
    HANDLE_IN_USE,
    INVALID_FIELD,
    NOT_ALLOWED,
    RESOURCE_LIMIT,
    UNATTACHED_HANDLE,
    ConnectionFault,
)
from outbox.emulator.amqp.events import Attach, Attached, Credit, Detached, Event, Limits, Sent, Settled, Window
from outbox.emulator.amqp.frames import Frame, frame
from outbox.emulator.amqp.held import ATTACH_FACTOR, LINK_BYTES
from outbox.emulator.amqp.link import Link, LinkState
from outbox.emulator.amqp.performatives import as_bool, as_map, as_outcome, as_terminus, as_text, as_uint
from outbox.emulator.amqp.types import NULL, field_spans, uint

if TYPE_CHECKING:
    from outbox.emulator.amqp.connection import Connection

WINDOW = (1 << 31) - 1
HANDLE_MAX = 1023

_MASK = 0xFFFFFFFF
_UNKNOWN_COUNT_MAX = 256


class Session:
    """The state of one session."""

    __slots__ = (
        "_accepted_first",
        "_accepted_last",
        "_next_delivery_id",
        "_next_incoming_id",
        "_next_outgoing_id",
        "_peer_window",
        "channel",
        "connection",
        "frame_size_max_bytes",
        "limits",
        "links",
        "starved",
        "unsettled",
    )  # fmt: skip

    def __init__(self, connection: Connection, channel: int, fields: list[object]) -> None:
        self.connection = connection
        self.channel = channel
        self.limits: Limits = connection.limits
        self.frame_size_max_bytes = connection.peer_frame_size_max_bytes
        self.links: dict[int, Link] = {}
        self.unsettled: dict[int, tuple[Link, bytes]] = {}
        self._next_delivery_id = 0
        self._next_outgoing_id = 0
        self._next_incoming_id = as_uint(fields[1], "next-outgoing-id")
        self._peer_window = as_uint(fields[2], "incoming-window")
        self._accepted_first = self._accepted_last = -1
        self.starved = False
        """Something could not be sent for want of room: look again when there is."""
        self.write(performatives.begin(channel, window=WINDOW, handle_max=HANDLE_MAX))

    @property
    def room(self) -> bool:
        """Whether the peer takes another transfer and has not left too many unsettled."""
        if self._peer_window > 0 and len(self.unsettled) < self.limits.unsettled_count_max:
            return True
        self.starved = True
        return False

    def write(self, body: bytes) -> None:
        """Write one performative; joined answers that were given before it go first."""
        if self._accepted_first >= 0:
            self.flush_accepted()
        self.connection.write(frame(body, channel=self.channel))

    def write_flow(self, handle: int, *, delivery_count: int, credit: int, drain: bool) -> None:
        self.write(
            performatives.flow(
                next_incoming_id=self._next_incoming_id,
                window=WINDOW,
                next_outgoing_id=self._next_outgoing_id,
                handle=uint(handle),
                delivery_count=uint(delivery_count),
                credit=uint(max(credit, 0)),
                drain=drain,
            )
        )

    def write_transfer(self, head: bytes, payload: bytes) -> None:
        self._next_outgoing_id = (self._next_outgoing_id + 1) & _MASK
        self._peer_window -= 1
        self.connection.write(head)
        self.connection.write(payload)

    def take_delivery_id(self) -> int:
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & _MASK
        return delivery_id

    def track(self, delivery_id: int, link: Link, tag: bytes) -> None:
        """Remember a delivery until the peer settles it or the link goes."""
        self.unsettled[delivery_id] = (link, tag)

    def accept(self, delivery_id: int) -> None:
        """Answer a delivery of the peer: accepted, settled."""
        if self._accepted_first >= 0 and delivery_id == self._accepted_last + 1:
            self._accepted_last = delivery_id
            return
        if self._accepted_first >= 0:
            self.flush_accepted()
        self._accepted_first = self._accepted_last = delivery_id

    def flush_accepted(self) -> None:
        """Write the joined answer, if there is one."""
        first, last = self._accepted_first, self._accepted_last
        if first >= 0:
            self._accepted_first = self._accepted_last = -1
            self.connection.write(performatives.accepted_frame(self.channel, receiver=True, first=first, last=last))

    def reject(self, delivery_id: int, condition: str, description: str) -> None:
        """Answer a delivery of the peer: rejected for this reason, settled."""
        state = performatives.rejected(condition, description)
        self.write(performatives.disposition(receiver=True, first=delivery_id, last=delivery_id, state=state))

    def confirm(self, delivery_id: int, code: int) -> None:
        """Answer a settlement of the peer with the outcome that was applied."""
        if code == performatives.ACCEPTED:
            body = performatives.accepted_frame(self.channel, receiver=False, first=delivery_id, last=delivery_id)
            self.connection.write(body)
            return
        state = performatives.outcome_state(code)
        self.write(performatives.disposition(receiver=False, first=delivery_id, last=delivery_id, state=state))

    def deny(self, delivery_id: int, condition: str, description: str) -> None:
        """Answer a settlement of the peer that was not applied."""
        state = performatives.rejected(condition, description)
        self.write(performatives.disposition(receiver=False, first=delivery_id, last=delivery_id, state=state))

    def on_attach(self, fields: list[object], source: Frame) -> Event:
        """Make a link that waits for the application's answer."""
        handle = as_uint(fields[1], "handle")
        if handle in self.links:
            raise ConnectionFault(HANDLE_IN_USE, f"handle {handle} is in use on channel {self.channel}")
        if handle > HANDLE_MAX or len(self.links) >= self.limits.link_count_max:
            raise ConnectionFault(RESOURCE_LIMIT, f"more than {self.limits.link_count_max} links in a session")
        held_bytes = LINK_BYTES + ATTACH_FACTOR * (source.end - source.start)
        self.connection.held.take(held_bytes)
        is_receiver = as_bool(fields[2], "role")
        # The fields were decoded before, so the second walk that finds their bytes cannot fail.
        at = source.data.index(b"\x12", source.start) + 1
        spans = field_spans(source.data, at) + [NULL] * 7
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
        link = self.links[handle] = Link(self, attach, held_bytes)
        return Attached(link)

    def link_at(self, handle: object) -> Link:
        link = self.links.get(as_uint(handle, "handle"))
        if link is None:
            raise ConnectionFault(UNATTACHED_HANDLE, f"handle {handle} on channel {self.channel} is not attached")
        return link

    def on_transfer(self, fields: list[object], source: Frame, at: int) -> Event | None:
        self._next_incoming_id = (self._next_incoming_id + 1) & _MASK
        link = self.links.get(as_uint(fields[0], "handle"))
        if link is None:
            raise ConnectionFault(UNATTACHED_HANDLE, f"transfer on handle {fields[0]!r}, which is not attached")
        if link.state is LinkState.DETACHED:
            return None  # it was on its way when we detached
        if link.state is LinkState.PENDING:
            raise ConnectionFault(NOT_ALLOWED, f"transfer on link {link.attach.name} before it was attached")
        return link.on_transfer(fields, source.data[at : source.end])

    def on_flow(self, fields: list[object]) -> list[Event]:
        """Take the peer's window and, if a handle is given, a link's credit."""
        expected = as_uint(fields[0], "next-incoming-id", 0)
        window = (expected + as_uint(fields[1], "incoming-window") - self._next_outgoing_id) & _MASK
        self._peer_window = window if window <= WINDOW else 0
        events: list[Event] = []
        if self.starved and self.room:
            self.starved = False
            events.append(Window(self))
        if fields[4] is not None:
            link = self.link_at(fields[4])
            if link.on_flow(fields):
                events.append(Credit(link, as_bool(fields[8], "drain"), as_bool(fields[9], "echo")))
        return events

    def on_disposition(self, fields: list[object]) -> Event | None:
        """Find the deliveries of ours that the peer ends."""
        if not as_bool(fields[0], "role"):
            return None  # the peer settles what it sent and we have answered
        first = as_uint(fields[1], "first")
        last = as_uint(fields[2], "last", first)
        settled = as_bool(fields[3], "settled")
        outcome = as_outcome(fields[4])
        if last < first:
            raise ConnectionFault(INVALID_FIELD, f"disposition from {first} to {last}")
        if outcome is None:
            if not settled:
                return None
            outcome = performatives.Outcome(performatives.RELEASED, [])
        if not performatives.ACCEPTED <= outcome.code <= performatives.MODIFIED:
            if outcome.code == performatives.RECEIVED:
                return None
            raise ConnectionFault(DECODE_ERROR, f"delivery state 0x{outcome.code:02x} is not an outcome")
        deliveries, unknown = self._take_unsettled(first, last)
        return Settled(self, deliveries, unknown, outcome, settled)

    def _take_unsettled(self, first: int, last: int) -> tuple[list[Sent], list[int]]:
        unsettled = self.unsettled
        if last - first < _UNKNOWN_COUNT_MAX:
            ids = list(range(first, last + 1))
            unknown = [number for number in ids if number not in unsettled]
        else:  # the ids are the peer's to choose: walk what is tracked, not the range
            ids = [number for number in unsettled if first <= number <= last]
            unknown = []
        deliveries = [Sent(number, *unsettled.pop(number)) for number in ids if number in unsettled]
        return deliveries, unknown

    def on_detach(self, fields: list[object]) -> Event | None:
        link = self.link_at(fields[0])
        was_there = link.state is not LinkState.DETACHED
        if was_there:
            link.state = LinkState.DETACHED
            self.write(performatives.detach(link.handle, closed=as_bool(fields[1], "closed")))
        self.forget(link, keep_handle=False)
        return Detached(link, as_bool(fields[1], "closed")) if was_there else None

    def end(self) -> list[Event]:
        """The session is over: every link of it is detached without another word."""
        live = [link for link in self.links.values() if link.state is not LinkState.DETACHED]
        for link in live:
            link.state = LinkState.DETACHED
        for link in self.links.values():
            link.let_go()
        self.links.clear()
        self.unsettled.clear()
        return [Detached(link, True) for link in live]

    def forget(self, link: Link, *, keep_handle: bool) -> None:
        """Drop what is tracked for a link; its handle stays reserved until the peer's detach, too, is there."""
        gone = [number for number, (owner, _) in self.unsettled.items() if owner is link]
        for number in gone:
            del self.unsettled[number]
        if not keep_handle and self.links.pop(link.handle, None) is not None:
            link.let_go()
