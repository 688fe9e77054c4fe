"""Declared entities: queues, topics and the ways to settle a message."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

import msgspec

Ordering = Literal["unordered", "per_key"]

DEAD_LETTER_SUFFIX = "/$DeadLetterQueue"
NAME_LENGTH_MAX = 260


class QueueSettings(msgspec.Struct, frozen=True, array_like=True):
    """A queue or subscription; `per_key` queues are ordered by session and every message carries one.

    `duplicate_window_s` 0 switches broker duplicate detection off, `time_to_live_s` 0 keeps messages for ever.
    `stop_key` says that a message of a `per_key` queue that the engine itself dead-letters stops its key.
    """

    name: str
    ordering: Ordering = "unordered"
    lock_s: float = 60.0
    max_delivery_count: int = 100
    duplicate_window_s: float = 0.0
    time_to_live_s: float = 0.0
    dead_letter_on_expiry: bool = True
    stop_key: bool = False


class TopicSettings(msgspec.Struct, frozen=True, array_like=True):
    """A topic; every subscription is a queue of its own that receives every message."""

    name: str
    subscriptions: tuple[str, ...] = ()


class Settlement(IntEnum):
    """How a claim ends."""

    COMPLETE = 0
    ABANDON = 1
    """Give back; the delivery counts as failed."""
    DEAD_LETTER = 2
    DEFER = 3
    """Set aside until it is asked for by sequence number."""
    RELEASE = 4
    """Give back uncounted."""


class SessionLock(msgspec.Struct, frozen=True):
    """The right to receive the messages of one session, in order."""

    path: str
    session_id: str
    token: bytes
    locked_until_ms: int


def subscription_path(topic: str, subscription: str) -> str:
    """The path under which a subscription's queue is read."""
    return f"{topic}/Subscriptions/{subscription}"


def dead_letter_path(path: str) -> str:
    """The path of the dead-letter sub-queue of a queue or subscription."""
    return path + DEAD_LETTER_SUFFIX
