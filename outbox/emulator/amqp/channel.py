"""One channel of a connection: which of its links the peer's frames are for.

Decides which link a frame is for, by its handle, which deliveries a disposition settles, and what is left for the
application to do.  What may happen to a link in which state is in `states`, what it does then in `link`; how transfers
are counted is `session`'s part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.errors import (
    DECODE_ERROR,
    INVALID_FIELD,
    RESOURCE_LIMIT,
    ConnectionFault,
    SessionFault,
)
from outbox.emulator.amqp.events import Attached, Credit, Detached, Event, Sent, Settled, Window
from outbox.emulator.amqp.frames import Frame
from outbox.emulator.amqp.limits import ATTACH_FACTOR, LINK_BYTES, SESSION_BYTES
from outbox.emulator.amqp.link import Attach, Link
from outbox.emulator.amqp.performatives import as_bool, as_map, as_outcome, as_terminus, as_text, as_uint
from outbox.emulator.amqp.session import ID_MASK, Session
from outbox.emulator.amqp.states import LINK, LinkState, OnLink, after
from outbox.emulator.amqp.types import NULL, field_spans

_UNKNOWN_COUNT_MAX = 256


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
