"""Messages on their way: what is sent, what is handed out under a lock, how that ends, and what was dead-lettered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec

from outbox.errors import Refused
from outbox.message import Message

SUBSCRIPTIONS = "/Subscriptions/"
"""Between the names of a topic and of its subscription, where both name a source."""


STACK_HEAD = "\nTraceback (most recent call last):\n"
"""What stands in a dead letter's description between what happened and the stack of the code that raised it."""


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
    `waits` says that its key is blocked: it is not to be handled, but put on record as waiting.
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


def split_stack(description: str) -> tuple[str, str]:
    """A description as it is stored, in two: what happened, and the stack with its head line; empty without one."""
    text, head, stack = description.partition(STACK_HEAD)
    return text, f"{head.lstrip()}{stack}"


# What is resubmitted


def sequence_identity(sequence: int) -> str:
    """The identity of a message that has none, in a queue where its number is one."""
    return f"sequence-{sequence}"


def dead_letter_identity(queue: str, sequence: int, message: Message, reason: str) -> str:
    """The identity that a dead letter's handling had: of a message without one its number, where that may be one."""
    if message.identity or reason == "no-identity" or SUBSCRIPTIONS in queue:
        return message.identity
    return sequence_identity(sequence)


def identified(letter: Buried) -> Buried:
    """A dead letter under the identity that its handling had."""
    identity = dead_letter_identity(letter.queue, letter.sequence, letter.message, letter.reason)
    if identity == letter.message.identity:
        return letter
    return msgspec.structs.replace(letter, message=msgspec.structs.replace(letter.message, outbox_id=identity))


def is_copy(one: Message, other: Message) -> bool:
    """Whether two messages are one, of whatever attempts; of those without an identity nobody can tell."""
    names = (one.identity, one.type, one.body, one.claim)
    return bool(one.identity) and names == (other.identity, other.type, other.body, other.claim)


def resubmission(message: Message, *, attempt: int, enqueued_ms: int) -> Message:
    """A dead letter's message as it is run again: a later attempt, with its first time.

    Neither the failures that it has had count any more, nor the handlers that its chain had passed.
    """
    created_ms = message.created_ms or enqueued_ms
    return msgspec.structs.replace(message, attempt=attempt, created_ms=created_ms, failures=0, hops=0)


def late(where: str) -> Refused:
    """Why a dead letter is not run again whose refusal nobody remembers any more."""
    return Refused(
        f"{where} was refused so long ago that the record of it is gone, and would be refused as too-old now; look at "
        "its state, discard it, and if it is still to be done send it again under a new id"
    )


def next_attempt(message: Message, others: Iterable[Message]) -> int:
    """Which attempt a resubmission is: the first that no copy of it has been, for an earlier one follows its record."""
    return 1 + max(message.attempt, *(other.attempt for other in others if is_copy(other, message)), 0)
