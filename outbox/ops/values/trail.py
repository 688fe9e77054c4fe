"""Requests and answers on a message's trail: facts, and the tree that they make."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outbox.ops.values.requests import Read

DEPTH_MAX = 50
KNOWN_COUNT_MAX = 1_000
"""The most ids that a history may add to a question."""

Place = Literal[
    "waiting",
    "retrying",
    "blocked",
    "in-hand",
    "scheduled",
    "deferred",
    "dead-letter",
    "pending",
    "sent",
    "applied",
    "refused",
    "unknown",
]
KnownBy = Literal["queue", "dead letter", "pending output", "record", "its output", "history"]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a message is, or what became of it: `pending` is committed and not known to have left, `sent` is on record
    as sent, `applied` and `refused` are outcomes.  `at` is in seconds since 1970.
    """

    id: str
    place: Place
    known_by: KnownBy
    why: str = ""
    cause: str = ""
    queue: str = ""
    handler: str = ""
    key: str = ""
    tx: str = ""
    correlation_id: str = ""
    at: float | UnsetType = UNSET


class Trail(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message's full id, its facts, those of its causes and effects, and why there may be more.

    `near` are some other ids in sight with the requested prefix, `cut` the queues that were read in part, each with the
    number up to which it was read.
    """

    id: str
    facts: list[Fact]
    notes: list[str] = []
    near: list[str] = []
    cut: dict[str, int] = {}


class FindTrail(Read[Trail], frozen=True):
    """Find the causes and effects of a message, by its id or a prefix, over `depth` hops each way.

    `known` are the ids that a history has of it, `key` the key that its handler gave it, for the record of a message
    that is in no queue any more.
    """

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
    known: Annotated[list[Text], msgspec.Meta(max_length=KNOWN_COUNT_MAX)] = msgspec.field(default_factory=list)
    key: Text = ""
    kind: Literal["text", "int", "uuid"] = "text"
    depth: Annotated[int, msgspec.Meta(ge=1, le=DEPTH_MAX)] = 10


class Hop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message of a trail: `depth` 0 is the one that was asked for, below are its causes, above its effects.

    `facts` is empty where nothing but its id is known; `more` counts effects that are not listed.
    """

    id: str
    depth: int
    facts: list[Fact] = []
    more: int = 0


class Trace(msgspec.Struct, frozen=True):
    """The hops from the first known cause to the last known effect, each effect behind its cause, and notes."""

    id: str
    hops: list[Hop]
    notes: list[str]
