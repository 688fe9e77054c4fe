"""Messages on their way: what is sent, what is handed out under a lock, how that ends, and what was dead-lettered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from outbox.message import Message

SUBSCRIPTIONS = "/Subscriptions/"
"""Between the names of a topic and of its subscription, where both name a source."""


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, the queue or topic it goes to, and when it may be seen (`due_ms` 0: at once)."""

    destination: str
    due_ms: int
    message: Message


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message handed out under a lock.

    `lock` names the lock together with the queue and sequence; `failures` is our own count of failed handlings,
    `delivery_count` the broker's of deliveries that never settled.
    `from_outside` says that the id was not made by a commit of this very log, so a marker must remember it; then
    `fingerprint` is the digest of what was sent, if the backend keeps it (empty: to be computed).
    """

    queue: str
    sequence: int
    message: Message
    lock: int
    enqueued_ms: int
    locked_until_ms: int
    delivery_count: int = 0
    failures: int = 0
    from_outside: bool = True
    fingerprint: bytes = b""


@dataclass(frozen=True, slots=True)
class Settle:
    """How a delivery ends: `complete`, `abandon` (counted), `release` (uncounted), `defer` or `dead-letter`.

    What is released may rest until `due_ms`, in its place, where the bus can do that; else it comes back at once.
    """

    how: Literal["complete", "abandon", "release", "defer", "dead-letter"]
    reason: str = ""
    description: str = ""
    due_ms: int = 0


class Buried(msgspec.Struct, frozen=True, gc=False):
    """A dead letter as stored."""

    queue: str
    sequence: int
    message: Message
    reason: str
    description: str
    delivery_count: int
    enqueued_ms: int
