"""Tasks, the entries of a queue, and the tokens that lock them."""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Literal

import msgspec

from outbox.lineage import FINGERPRINT_BYTES
from outbox.message import Message

ACTIVE, LOCKED, SCHEDULED, DEFERRED = range(4)
STATE_NAMES: tuple[Literal["active", "locked", "scheduled", "deferred"], ...] = (
    "active",
    "locked",
    "scheduled",
    "deferred",
)

_TOKEN = Layout(">IIQ")
_QUEUE_BITS = 16
_LOCK_BITS = 32
_LOCK_MASK = (1 << _LOCK_BITS) - 1
QUEUE_COUNT_MAX = 1 << _QUEUE_BITS


def version_of(epoch: int, ordinal: int) -> int:
    """A version: the epoch and ordinal of the record that wrote it, so that none ever repeats."""
    return epoch << 48 | ordinal


def first_lock(epoch: int) -> int:
    """The number before a writer's first lock: no other writer's locks have its numbers."""
    return epoch << _LOCK_BITS


def pack_token(epoch: int, lock: int, sequence: int, queue: int) -> bytes:
    """A lock token: 16 bytes; it carries the writer's epoch, so a reopening voids all of them at once."""
    return _TOKEN.pack(epoch, lock & _LOCK_MASK, sequence << _QUEUE_BITS | queue)


def unpack_token(token: bytes) -> tuple[int, int, int, int]:
    """Epoch, lock, sequence and queue number of a token; nonsense gives numbers that match nothing."""
    if len(token) != _TOKEN.size:
        return 0, 0, 0, 0
    epoch, lock, rest = _TOKEN.unpack(token)
    return epoch, epoch << _LOCK_BITS | lock, rest >> _QUEUE_BITS, rest & (QUEUE_COUNT_MAX - 1)


def held_bytes(message: Message) -> int:
    """The bytes of a message's contents in memory, roughly; its short texts are part of a task's own estimate."""
    size_bytes = len(message.body) + len(message.wire) + len(message.wire_body)
    if message.properties:
        for name, value in message.properties.items():
            size_bytes += 100 + len(name) + (len(value) if isinstance(value, str) else 0)
    return size_bytes


def held_bytes_of(messages: Iterable[Message]) -> int:
    """The same for many; most have nothing but a body, and need no call of their own."""
    size_bytes = 0
    for message in messages:
        if message.properties or message.wire or message.wire_body:
            size_bytes += held_bytes(message)
        else:
            size_bytes += len(message.body)
    return size_bytes


class Task(msgspec.Struct, gc=False):
    """A message in a queue.  `failures` counts failed handlings, `delivery_count` deliveries that never settled.

    One from outside keeps the digest of what was sent, so that no delivery of it hashes again.  In a queue
    `description` is why it was put back last; a dead letter has a reason and a description.
    """

    sequence: int
    path: str
    message: Message
    enqueued_ms: int
    version: int
    status: int = ACTIVE
    due_ms: int = 0
    expires_ms: int = 0
    delivery_count: int = 0
    failures: int = 0
    external: bool = True
    fingerprint: bytes = b""
    stops_session: bool = False
    reason: str = ""
    description: str = ""
    lock: int = 0
    locked_until_ms: int = 0
    remembered_until_ms: int = 0
    """Of a dead letter that a commit refused, when the record of its refusal goes; 0: it has none."""
    set_aside: Literal[True] | msgspec.UnsetType = msgspec.UNSET
    """Whether a locked one was deferred: it is again when it is given back or its lock runs out.

    Unset it is not written, so that snapshots are as they were before there was this.
    """

    @property
    def state(self) -> Literal["active", "locked", "scheduled", "deferred"]:
        """`active`, `locked`, `scheduled` or `deferred`."""
        return STATE_NAMES[self.status]


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A peek-locked message.  `delivery_count` is the number of failed deliveries before this one.

    `expires_ms` is when it would be too old to be handed out (0: never).
    """

    token: bytes
    sequence: int
    message: Message
    delivery_count: int
    enqueued_ms: int
    locked_until_ms: int
    reason: str = ""
    description: str = ""
    expires_ms: int = 0


def reply_bytes_of(markers: Iterable[object]) -> int:
    """The bytes of markers beside a fingerprint: the replies of HTTP requests."""
    return sum([len(m) - FINGERPRINT_BYTES for m in markers if isinstance(m, bytes) and len(m) > FINGERPRINT_BYTES])
