"""One link of a session: attaching, credit, transfers in and out, detaching.

Writes the frames of a link, as far as its state (`states`) lets it; where messages come from or go to is for the
application above.  `Link.is_sender` is this side's role.  A link starts `PENDING`: the application accepts or refuses
it, at once or later (a receiver that waits for a session).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from outbox.emulator.amqp import performatives, types
from outbox.emulator.amqp.errors import DECODE_ERROR, MESSAGE_SIZE_EXCEEDED, ConnectionFault
from outbox.emulator.amqp.limits import PART_BYTES
from outbox.emulator.amqp.performatives import as_bool, as_uint
from outbox.emulator.amqp.session import Session
from outbox.emulator.amqp.states import LINK, LinkState, OnLink, after
from outbox.emulator.amqp.types import NULL

CREDIT_GRANTED = 2_000
TAG_BYTES = 16
TRANSFER_OVERHEAD_BYTES = 50

_DISCARD_FACTOR = 16
_PART_MIN_BYTES = 256
"""A transfer counts for at least this towards a message's end: the smallest frame that peers may choose has 512."""
_COUNT_MASK = 0xFFFFFFFF
_EMPTY_MAP = types.map_(())
_TRANSFER = struct.Struct(">I2sH7sIBI2s16s8s")
_TRANSFER_CODE = b"\x00\x53\x14\xc0\x25\x0b\x70"
# Behind the tag: message-format 0, settled, more, four nulls, batchable false.
_TAILS = {
    (settled, more): b"\x43" + types.boolean(settled) + types.boolean(more) + NULL * 4 + types.FALSE
    for settled in (False, True)
    for more in (False, True)
}


class Attach(NamedTuple):
    """The peer's attach; `source_bytes` and `target_bytes` are what it sent, to be echoed."""

    name: str
    handle: int
    is_receiver: bool
    snd_settle_mode: int
    rcv_settle_mode: int
    source: list[object] | None
    target: list[object] | None
    source_bytes: bytes
    target_bytes: bytes
    initial_delivery_count: int
    properties: dict[object, object]


class Delivery(NamedTuple):
    """A whole message arrived; unless `settled`, answer with `session.accept` or `session.reject`."""

    link: Link
    delivery_id: int
    settled: bool
    message_format: int
    payload: bytes


class Link:
    """The state of one link."""

    __slots__ = (
        "_first",
        "_held_bytes",
        "_parts",
        "_parts_bytes",
        "_parts_count",
        "_parts_held_bytes",
        "app",
        "attach",
        "credit",
        "delivery_count",
        "handle",
        "is_sender",
        "presettled",
        "session",
        "state",
    )  # fmt: skip

    def __init__(self, session: Session, attach: Attach, held_bytes: int) -> None:
        """`held_bytes` is what the link counts for among what its connection holds."""
        self.session = session
        self.attach = attach
        self.handle = attach.handle
        self.is_sender = attach.is_receiver
        self.state = LinkState.PENDING
        self.delivery_count = 0
        self.credit = 0
        self.presettled = attach.snd_settle_mode == 1
        self.app: object = None
        """Whatever the application wants to find again here."""
        self._parts: list[bytes] = []
        self._parts_bytes = self._parts_count = self._parts_held_bytes = 0
        self._held_bytes = held_bytes
        self._first: tuple[int, int, bool] | None = None

    def accept(self, *, source: bytes | None = None, properties: bytes = _EMPTY_MAP) -> None:
        """Answer the attach; a link that receives grants its first credit at once."""
        state = after(LINK, self.state, OnLink.ACCEPT)
        if state is None:
            return
        self.state = state
        self._write_attach(source or self.attach.source_bytes, self.attach.target_bytes, properties)
        if not self.is_sender:
            self.delivery_count = self.attach.initial_delivery_count
            self._grant_credit()

    def free(self) -> None:
        """Drop everything held for the link, which is gone."""
        self._reset()
        self.session.quota.give_back(self._held_bytes)
        self.session.quota.link_count -= 1
        self._held_bytes = 0

    def refuse(self, condition: str, description: str) -> None:
        """Answer the attach with null source and target, then detach with the reason."""
        if after(LINK, self.state, OnLink.REFUSE) is not None:
            self._write_attach(NULL, NULL, _EMPTY_MAP)
            self.detach(condition, description)

    def detach(self, condition: str = "", description: str = "") -> None:
        """Detach for good, with an error if a condition is given."""
        state = after(LINK, self.state, OnLink.CLOSE)
        if state is None:
            return
        self.state = state
        fault = performatives.error(condition, description) if condition else NULL
        self.session.write(performatives.detach(self.handle, closed=True, fault=fault))
        self.session.untrack(self.handle)

    def _write_attach(self, source: bytes, target: bytes, properties: bytes) -> None:
        attach = self.attach
        self.session.write(
            performatives.attach(
                attach.name,
                self.handle,
                sender=self.is_sender,
                snd_settle_mode=attach.snd_settle_mode,
                rcv_settle_mode=attach.rcv_settle_mode,
                source=source,
                target=target,
                message_size_max_bytes=self.session.limits.message_size_max_bytes,
                properties=properties,
            )
        )

    def on_flow(self, fields: list[object]) -> bool:
        """Take a flow from the peer; whether the application has something to do."""
        echo = as_bool(fields[9], "echo")
        if not self.is_sender:
            if echo and self.state is LinkState.ATTACHED:
                self._write_flow(drain=False)
            return False
        counted = as_uint(fields[5], "delivery-count", self.delivery_count)
        credit = (counted + as_uint(fields[6], "link-credit", 0) - self.delivery_count) & _COUNT_MASK
        self.credit = credit if credit < 1 << 31 else 0
        return True

    def finish_flow(self, *, drain: bool, echo: bool) -> None:
        """Answer a flow when as much as there is was sent: a drain uses up what credit is left."""
        if self.state is not LinkState.ATTACHED:
            return
        if drain:
            self.delivery_count = (self.delivery_count + self.credit) & _COUNT_MASK
            self.credit = 0
        if drain or echo:
            self._write_flow(drain=drain)

    def _grant_credit(self) -> None:
        self.credit = CREDIT_GRANTED
        self._write_flow(drain=False)

    def _write_flow(self, *, drain: bool) -> None:
        self.session.write_flow(self.handle, delivery_count=self.delivery_count, credit=self.credit, drain=drain)

    def send(self, tag: bytes, payload: bytes, *, settled: bool) -> int:
        """Transfer one message under a tag of 16 bytes; return its delivery id."""
        session = self.session
        delivery_id = session.take_delivery_id()
        self.delivery_count = (self.delivery_count + 1) & _COUNT_MASK
        self.credit -= 1
        room = session.frame_size_max_bytes - TRANSFER_OVERHEAD_BYTES
        if len(payload) > room:
            payload = self._send_parts(delivery_id, tag, payload, room, settled)
        head = _TRANSFER.pack(
            TRANSFER_OVERHEAD_BYTES + len(payload), b"\x02\x00", session.channel, _TRANSFER_CODE, self.handle,
            0x70, delivery_id, b"\xa0\x10", tag, _TAILS[settled, False],
        )  # fmt: skip
        session.write_transfer(head, payload)
        if not settled:
            session.unsettled[delivery_id] = (self.handle, tag)  # until the peer settles it or the link goes
        return delivery_id

    def _send_parts(self, delivery_id: int, tag: bytes, payload: bytes, room: int, settled: bool) -> bytes:
        """Send all but the last frame of a message that needs several, and return the rest for the last."""
        at = 0
        while len(payload) - at > room:
            head = _TRANSFER.pack(
                TRANSFER_OVERHEAD_BYTES + room, b"\x02\x00", self.session.channel, _TRANSFER_CODE, self.handle,
                0x70, delivery_id, b"\xa0\x10", tag, _TAILS[settled, True],
            )  # fmt: skip
            self.session.write_transfer(head, payload[at : at + room])
            at += room
        return payload[at:]

    def on_transfer(self, fields: list[object], payload: bytes) -> Delivery | None:
        """Take a transfer; return the delivery when its last frame is there and it is not too large.

        Raises: ConnectionFault.
        """
        if self.is_sender:
            raise ConnectionFault(DECODE_ERROR, f"a transfer on link {self.attach.name}, where the peer receives")
        settled = as_bool(fields[4], "settled") or self.presettled
        if self._first is None:
            delivery_id = as_uint(fields[1], "delivery-id")
            message_format = as_uint(fields[3], "message-format", 0)
        else:
            delivery_id, message_format, was_settled = self._first
            settled = settled or was_settled
        if as_bool(fields[9], "aborted"):
            self._reset()
            return None
        if as_bool(fields[5], "more"):
            self._first = (delivery_id, message_format, settled)
            self._collect(payload)
            return None
        if self._first is not None:
            self._collect(payload)
            size_bytes, payload = self._parts_bytes, b"".join(self._parts)
            self._reset()
        else:
            size_bytes = len(payload)
        self.delivery_count = (self.delivery_count + 1) & _COUNT_MASK
        self.credit -= 1
        if self.credit < CREDIT_GRANTED // 2 and self.state is LinkState.ATTACHED:
            self._grant_credit()
        limit = self.session.limits.message_size_max_bytes
        if size_bytes > limit:
            text = f"a message of {size_bytes} bytes is above the limit of {limit}; send less or a reference to a blob"
            if not settled:
                self.session.reject(delivery_id, MESSAGE_SIZE_EXCEEDED, text)
            return None
        return Delivery(self, delivery_id, settled, message_format, payload)

    def _collect(self, payload: bytes) -> None:
        """Keep a part, but not of a message that is too large already: of that only the size is counted.

        Raises: ConnectionFault for a message without end, in bytes or in transfers, and for one too many at a time.
        """
        size_max_bytes = self.session.limits.message_size_max_bytes
        self._parts_bytes += len(payload)
        self._parts_count += 1
        counted_bytes = max(self._parts_bytes, self._parts_count * _PART_MIN_BYTES)
        if counted_bytes > size_max_bytes * _DISCARD_FACTOR:
            text = f"a message of {self._parts_bytes} bytes in {self._parts_count} transfers, and no end"
            raise ConnectionFault(MESSAGE_SIZE_EXCEEDED, text)
        if self._parts_bytes > size_max_bytes:
            self._drop_parts()
        elif payload:
            self.session.quota.take(len(payload) + PART_BYTES)
            self._parts_held_bytes += len(payload) + PART_BYTES
            self._parts.append(payload)

    def _reset(self) -> None:
        self._drop_parts()
        self._parts_bytes = self._parts_count = 0
        self._first = None

    def _drop_parts(self) -> None:
        self._parts.clear()
        self.session.quota.give_back(self._parts_held_bytes)
        self._parts_held_bytes = 0
