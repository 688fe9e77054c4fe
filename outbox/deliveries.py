"""Messages on their way: outputs, deliveries under a lock, settlements and dead letters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from outbox.errors import Refused
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
    `from_outside`: no commit of this very log made the id, so a marker must deduplicate it; then `fingerprint` is the
    digest of its payload, if the backend stores it (empty: to be computed).
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


@dataclass(frozen=True, slots=True)
class Settle:
    """How a delivery ends: `complete`, `abandon` (counted), `release` (uncounted), `defer` or `dead-letter`.

    A released message stays invisible until `due_ms`, in its place, if the bus can do that; else it is redelivered at
    once.
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


def split_stack(description: str) -> tuple[str, str]:
    """Split a stored description into its text and its stack with the head line (empty without one)."""
    text, head, stack = description.partition(STACK_HEAD)
    return text, f"{head.lstrip()}{stack}"


# Resubmission


def sequence_identity(sequence: int) -> str:
    """The identity of a message without one, in a queue with `identity="sequence-number"`."""
    return f"sequence-{sequence}"


def dead_letter_identity(queue: str, sequence: int, message: Message, reason: str) -> str:
    """The identity under which a dead letter was handled: its own, else its sequence number where that counts."""
    if message.identity or reason == "no-identity" or SUBSCRIPTIONS in queue:
        return message.identity
    return sequence_identity(sequence)


def identified(letter: Buried) -> Buried:
    """A dead letter under the identity of its handling."""
    identity = dead_letter_identity(letter.queue, letter.sequence, letter.message, letter.reason)
    if identity == letter.message.identity:
        return letter
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, outbox_id=identity))


def is_copy(one: Message, other: Message) -> bool:
    """Whether two messages are copies of one, of any attempts; without an identity they never are."""
    names = (one.identity, one.type, one.body, one.claim)
    return bool(one.identity) and names == (other.identity, other.type, other.body, other.claim)


def resubmission(message: Message, *, attempt: int, enqueued_ms: int) -> Message:
    """The message of a resubmission: a later attempt, with its first creation time.

    Its failure count and its hops start again.
    """
    created_ms = message.created_ms or enqueued_ms
    return msgspec.structs.replace(message, attempt=attempt, created_ms=created_ms, failures=0, hops=0)


def late(where: str) -> Refused:
    """The refusal to resubmit a dead letter whose record has expired."""
    return Refused(
        f"{where} was refused so long ago that the record of it is gone, and would be refused as too-old now; look at "
        "its state, discard it, and if it is still to be done send it again under a new id"
    )


def next_attempt(message: Message, others: Iterable[Message]) -> int:
    """The attempt of a resubmission: above all copies, because an earlier attempt follows its record."""
    return 1 + max(message.attempt, *(other.attempt for other in others if is_copy(other, message)), 0)
