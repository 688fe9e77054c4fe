"""One session of a connection: windows, delivery ids, unsettled deliveries and the frames that are written for them.

Decides how transfers are counted and when the peer has room for another; it knows links by their handles only, and
which link a frame of the peer is for is decided by `connection`.  Answers of the same kind to neighbouring deliveries
are joined into one disposition, which is written when something else must be, or when a read is done.
"""

from __future__ import annotations

from outbox.emulator.amqp import performatives
from outbox.emulator.amqp.frames import Output, frame
from outbox.emulator.amqp.limits import Limits, Quota
from outbox.emulator.amqp.performatives import as_uint
from outbox.emulator.amqp.types import NULL, uint

WINDOW = (1 << 31) - 1

ID_MASK = 0xFFFFFFFF


class Session:
    """The state of one session."""

    __slots__ = (
        "_accepted_first",
        "_accepted_last",
        "_next_delivery_id",
        "_next_outgoing_id",
        "_output",
        "_peer_window",
        "channel",
        "frame_size_max_bytes",
        "limits",
        "next_incoming_id",
        "quota",
        "starved",
        "unsettled",
    )  # fmt: skip

    def __init__(
        self,
        output: Output,
        quota: Quota,
        limits: Limits,
        *,
        channel: int,
        frame_size_max_bytes: int,
        fields: list[object],
    ) -> None:
        """Answer the peer's begin, of which `fields` are.

        `output` takes what is to be sent in frames of at most `frame_size_max_bytes`, `quota` counts what is kept.
        """
        self._output = output
        self.quota = quota
        self.limits = limits
        self.channel = channel
        self.frame_size_max_bytes = frame_size_max_bytes
        self.unsettled: dict[int, tuple[int, bytes]] = {}
        """Deliveries of ours that the peer has not settled: handle and tag, by delivery id."""
        self._next_delivery_id = 0
        self._next_outgoing_id = 0
        self.next_incoming_id = as_uint(fields[1], "next-outgoing-id")
        self._peer_window = as_uint(fields[2], "incoming-window")
        self._accepted_first = self._accepted_last = -1
        self.starved = False
        """Something could not be sent for want of room: look again when there is."""
        self.write(performatives.begin(channel, window=WINDOW, handle_max=limits.link_count_max - 1))

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
        self._output.write(frame(body, channel=self.channel))

    def end(self, condition: str = "", description: str = "") -> None:
        """Answer the peer's end, or end the session with an error."""
        self.write(performatives.end(performatives.error(condition, description) if condition else NULL))

    def write_flow(self, handle: int, *, delivery_count: int, credit: int, drain: bool) -> None:
        self.write(
            performatives.flow(
                next_incoming_id=self.next_incoming_id,
                window=WINDOW,
                next_outgoing_id=self._next_outgoing_id,
                handle=uint(handle),
                delivery_count=uint(delivery_count),
                credit=uint(max(credit, 0)),
                drain=drain,
            )
        )

    def write_transfer(self, head: bytes, payload: bytes) -> None:
        self._next_outgoing_id = (self._next_outgoing_id + 1) & ID_MASK
        self._peer_window -= 1
        self._output.write(head)
        self._output.write(payload)

    def on_flow(self, fields: list[object]) -> bool:
        """Take the peer's window; whether what could not be sent for want of room can be now."""
        expected = as_uint(fields[0], "next-incoming-id", 0)
        window = (expected + as_uint(fields[1], "incoming-window") - self._next_outgoing_id) & ID_MASK
        self._peer_window = window if window <= WINDOW else 0
        if self.starved and self.room:
            self.starved = False
            return True
        return False

    def take_delivery_id(self) -> int:
        delivery_id = self._next_delivery_id
        self._next_delivery_id = (delivery_id + 1) & ID_MASK
        return delivery_id

    def untrack(self, handle: int) -> None:
        """Forget the deliveries of a link; the next link under its handle has nothing to do with them."""
        for number in [number for number, (owner, _) in self.unsettled.items() if owner == handle]:
            del self.unsettled[number]

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
            self._output.write(performatives.accepted_frame(self.channel, receiver=True, first=first, last=last))

    def reject(self, delivery_id: int, condition: str, description: str) -> None:
        """Answer a delivery of the peer: rejected for this reason, settled."""
        state = performatives.rejected(condition, description)
        self.write(performatives.disposition(receiver=True, first=delivery_id, last=delivery_id, state=state))

    def confirm(self, delivery_id: int, code: int) -> None:
        """Answer a settlement of the peer with the outcome that was applied."""
        if code == performatives.ACCEPTED:
            body = performatives.accepted_frame(self.channel, receiver=False, first=delivery_id, last=delivery_id)
            self._output.write(body)
            return
        state = performatives.outcome_state(code)
        self.write(performatives.disposition(receiver=False, first=delivery_id, last=delivery_id, state=state))

    def deny(self, first: int, last: int, condition: str, description: str) -> None:
        """Answer a settlement of the peer that was not applied."""
        state = performatives.rejected(condition, description)
        self.write(performatives.disposition(receiver=False, first=first, last=last, state=state))
