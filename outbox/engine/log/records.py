"""The records of the engine's log: what happened, as data, enough to happen again.

Every change of the engine's memory is one of these values.  Live, a record is logged and then applied; at open it
is read and applied by the same code.  Nothing here depends on a clock: what time caused is a record too.
Encoded as MessagePack arrays, so a field is only ever added at the end, with a default.
"""

from __future__ import annotations

from typing import Any

import msgspec

from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.engine.state.rules import Rule
from outbox.message import Message, Scalar
from outbox.ports import Output, Refusal, StateChange


class Opened(msgspec.Struct, array_like=True, gc=False):
    """A writer took over: every lock of an older epoch is void and its deliveries count as failed."""

    now_ms: int


class Declared(msgspec.Struct, array_like=True, gc=False):
    """Queues and topics came to be or changed settings."""

    queues: list[QueueSettings]
    topics: list[TopicSettings]


class Sent(msgspec.Struct, array_like=True, gc=False):
    """Messages arrived from outside at a queue or topic."""

    now_ms: int
    path: str
    due_ms: int
    messages: list[Message]


class Claimed(msgspec.Struct, array_like=True, gc=False):
    """Messages of one queue were handed out; `outside`: to a receiver that is not this engine's own runtime.

    `deferred` says that they were deferred, and asked for by their numbers.
    """

    queue: int
    sequences: list[int]
    outside: bool = False
    deferred: bool = False


class Settled(msgspec.Struct, array_like=True, gc=False):
    """Messages of one queue were settled one way; `wire`, if any, and `properties` are their new ones."""

    now_ms: int
    queue: int
    how: int
    sequences: list[int]
    reason: str = ""
    description: str = ""
    wire: bytes = b""
    properties: dict[str, Scalar] | None = None


class Lapsed(msgspec.Struct, array_like=True, gc=False):
    """Time ran out: for locks (`unlocked`, a failed delivery) or for messages (`expired`)."""

    now_ms: int
    queue: int
    unlocked: list[int]
    expired: list[int]


class Cancelled(msgspec.Struct, array_like=True, gc=False):
    """Scheduled messages were cancelled, or dead letters discarded."""

    queue: int
    sequences: list[int]


class Resubmitted(msgspec.Struct, array_like=True, gc=False):
    """A dead letter went back to its queue as a new attempt."""

    now_ms: int
    queue: int
    sequence: int
    message: Message


class SessionSet(msgspec.Struct, array_like=True, gc=False):
    """A session's state was set; empty removes it."""

    queue: int
    session: str
    state: bytes


class DeadLettered(msgspec.Struct, array_like=True, gc=False):
    """A message that a commit dead-letters."""

    queue: int
    sequence: int
    reason: str
    description: str
    failures: int
    stops_session: bool = False


class Postponed(msgspec.Struct, array_like=True, gc=False):
    """A message that a commit gives back until `due_ms`, with its count of failures and why."""

    queue: int
    sequence: int
    due_ms: int
    failures: int
    error: str = ""


class Committed(msgspec.Struct, array_like=True, gc=False):
    """One commit in engine scope: for up to a batch of messages, everything that each of them does."""

    now_ms: int
    markers_expire_ms: int
    consumed: dict[int, list[int]]
    states: dict[str, StateChange]
    outputs: list[Output]
    applied: dict[bytes, bytes]
    refused: dict[bytes, Refusal]
    dead_lettered: list[DeadLettered]
    postponed: list[Postponed]


class RestoredLetter(msgspec.Struct, array_like=True, gc=False):
    """A discarded dead letter that comes back, under its former number."""

    sequence: int
    reason: str
    description: str
    failures: int
    enqueued_ms: int
    external: bool
    remembered_until_ms: int


class TaskInsert(msgspec.Struct, array_like=True, gc=False):
    """A message to put into a queue; `restored` among its dead letters, as it was before it was discarded."""

    path: str
    message: Message
    due_ms: int = 0
    restored: RestoredLetter | None = None


class TaskChange(msgspec.Struct, array_like=True, gc=False):
    """A task to move (`path`), postpone (`due_ms`) or rewrite (`message`); whoever claimed it loses the claim."""

    path: str
    sequence: int
    version: int
    to_path: str | None = None
    due_ms: int = 0
    message: Message | None = None


class TaskRef(msgspec.Struct, array_like=True, gc=False):
    """A task at one version."""

    path: str
    sequence: int
    version: int


class DocWrite(msgspec.Struct, array_like=True, gc=False):
    """A document to write: `version` 0 creates it, another replaces just that version."""

    namespace: str
    id: str
    value: bytes
    version: int = 0
    expires_ms: int = 0
    schema: int = 1


class DocRef(msgspec.Struct, array_like=True, gc=False):
    """A document at one version (0: absent)."""

    namespace: str
    id: str
    version: int


class Modify(msgspec.Struct, array_like=True, gc=False, kw_only=True):
    """EntroQ's one mutation: insert, change, delete and depend over tasks and documents, all or nothing.

    `operation_id` names the call: repeated after a lost reply it succeeds again instead of colliding.
    Source: github.com/shiblon/entroq, `Modify`; the operation id is ours.
    """

    operation_id: str = ""
    inserts: list[TaskInsert] = []
    changes: list[TaskChange] = []
    deletes: list[TaskRef] = []
    depends: list[TaskRef] = []
    documents: list[DocWrite] = []
    document_deletes: list[DocRef] = []
    document_depends: list[DocRef] = []


class Modified(msgspec.Struct, array_like=True, gc=False):
    """A modification that was accepted."""

    now_ms: int
    modify: Modify


class Ruled(msgspec.Struct, array_like=True, gc=False):
    """A subscription has these rules from here on."""

    path: str
    rules: list[Rule]


class Routed(msgspec.Struct, array_like=True, gc=False):
    """Messages arrived from outside at a topic with rules; `parts` are the queues that took some, with which."""

    now_ms: int
    due_ms: int
    messages: list[Message]
    parts: list[tuple[int, list[int]]]


class Deleted(msgspec.Struct, array_like=True, gc=False):
    """A queue, subscription or topic is gone with all that it held."""

    path: str


Record = (
    Opened
    | Declared
    | Sent
    | Claimed
    | Settled
    | Lapsed
    | Cancelled
    | Resubmitted
    | SessionSet
    | Committed
    | Modified
    | Ruled
    | Routed
    | Deleted
)

TYPES: dict[int, type[Any]] = {
    16: Opened,
    17: Declared,
    18: Sent,
    19: Claimed,
    20: Settled,
    21: Lapsed,
    22: Cancelled,
    23: Resubmitted,
    24: SessionSet,
    25: Committed,
    26: Modified,
    27: Ruled,
    28: Routed,
    29: Deleted,
}
"""The log's record types; a number is never used again for something else."""

NUMBERS: dict[type[Any], int] = {kind: number for number, kind in TYPES.items()}
_encoder = msgspec.msgpack.Encoder()
_decoders = {number: msgspec.msgpack.Decoder(kind) for number, kind in TYPES.items()}

encode = _encoder.encode


def decode(number: int, payload: bytes) -> Record:
    """The record that was logged under a type number.

    Raises:
        KeyError: the number is not one of ours.
        msgspec.ValidationError: the payload is not such a record.
    """
    record: Record = _decoders[number].decode(payload)
    return record


def readable(number: int, payload: bytes) -> bool:
    """Whether `decode` would read it."""
    try:
        decode(number, payload)
    except (KeyError, msgspec.DecodeError):  # of which a ValidationError is one
        return False
    return True
