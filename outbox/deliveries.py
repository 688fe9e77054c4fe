"""Messages on their way: outputs, deliveries under a lock, and dead letters."""

from __future__ import annotations

from typing import Literal

import msgspec

from outbox.message import Message

SUBSCRIPTIONS = "/Subscriptions/"
"""Between the names of a topic and its subscription, in the path of a source."""


STACK_HEAD = "\nTraceback (most recent call last):\n"
"""In a dead letter's description, between the text and the stack."""


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A message, its queue or topic, and when it becomes visible (`due_ms` 0: at once)."""

    destination: str
    due_ms: int
    message: Message


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message delivered under a lock.

    `lock` names the lock together with the queue and sequence; `failures` is our own count of failed attempts,
    `delivery_count` the broker's of deliveries that never settled.
    `from_outside`: no commit of this very log made the id, or it was scheduled and may be cancelled, so a marker must
    deduplicate it; then `fingerprint` is the digest of its payload, if the backend stores it (empty: to be computed).
    `waits`: its key is blocked, so it gets a waiting record instead of running.
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
    waits: bool = False


class DeadLetterEntry(msgspec.Struct, frozen=True, gc=False):
    """A dead letter as stored."""

    queue: str
    sequence: int
    message: Message
    reason: str
    description: str
    delivery_count: int
    enqueued_ms: int


class EntityCounts(msgspec.Struct, frozen=True):
    """The counts that a bus has of a queue or subscription."""

    active: int
    scheduled: int
    dead_letters: int
    paused: bool = False
    """Whether nothing can be received from it."""


class HeldMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message in a queue as whoever looks at it finds it; nothing is locked by looking.

    `due_ms` is when it may be delivered (0: at any time), `locked_until_ms` when the lock of its receiver ends,
    `failures` how often handling it failed, `error` why it was put back last.  `blocked_by` is the identity of the dead
    letter that blocks its key (None: none does), `behind` the number of the message of its key that goes first (0:
    none).  `handler` has it in hand since `since_ms`, and waits `at` a line; empty where that is not known.  A bus that
    does not tell locked messages from active ones calls both active.
    """

    sequence: int
    message: Message
    status: Literal["active", "locked", "scheduled", "deferred"]
    enqueued_ms: int
    due_ms: int = 0
    locked_until_ms: int = 0
    delivery_count: int = 0
    failures: int = 0
    error: str = ""
    blocked_by: str | None = None
    behind: int = 0
    handler: str = ""
    since_ms: int = 0
    at: str = ""


def split_stack(description: str) -> tuple[str, str]:
    """Split a stored description into its text and its stack with the head line (empty without one)."""
    text, head, stack = description.partition(STACK_HEAD)
    return text, f"{head.lstrip()}{stack}"
