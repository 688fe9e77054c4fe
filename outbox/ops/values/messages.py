"""Messages, and commits whose outputs have not left: what an admin is asked for, and what it answers.

The values are the control endpoint's wire format as well: JSON, unknown fields refused, each list with a limit.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from outbox.ops.values.dead_letters import DeadLetterView, Moved
from outbox.ops.values.requests import BATCH_COUNT_MAX, Change, Id, Name, Number, Read, Seconds, Text
from outbox.ops.values.trail import Fact


class PendingOutput(msgspec.Struct, frozen=True):
    """An output that is not known to have left: its id, its destination, and the size of its body."""

    id: str
    destination: str
    size_bytes: int


class PendingView(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something committed that is not finished: the transaction, its document, when it was committed, and why.

    `committed` is in seconds since 1970, 0 where it is not known; `more` counts outputs that are not listed.
    """

    tx: str
    document: str
    committed: float
    why: str
    outputs: list[PendingOutput] = []
    more: int = 0


class PendingFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """How many documents were finished, were too young for that, and are left; and what stands in the way."""

    finished: int
    young: int
    left: int
    troubles: list[str] = []


class ListPending(Read[list[PendingView]], frozen=True):
    """List pending transactions, at most a thousand documents."""


class Finish(Change[PendingFinished], frozen=True):
    """Finish what a transaction left, or (null) everything, if it is older than a minute."""

    tx: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)] | None


PEEK_COUNT = 20


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to send: its body is JSON, `type` the wire type, `created` in seconds since 1970 (none: when due).

    The sender names the `id`, so that a send whose answer was lost can be repeated under it.
    """

    body: msgspec.Raw
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
    type: Text = ""
    created: Seconds | None = None
    key: Text = ""
    correlation_id: Text = ""


MessageState = Literal["waiting", "retrying", "blocked", "in-hand", "scheduled", "deferred"]


class MessageView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message in a queue that is not settled: its state, and `why` it is in it.

    `waiting` is for a worker, `retrying` for its next try, `blocked` for the dead letter of its key, `in-hand` is under
    the lock of a receiver.  Times are in seconds since 1970: when it was `created` and `enqueued` (absent where it will
    be when it is due), when it is `due`, and how long it is locked (`locked_until`).  `failures` counts failed tries,
    `deliveries` those that were never settled; `error` is what it was put back for.  Of a message in hand of the host
    that is asked, `handler` has it `since` then, and waits `at` a line, as `file:line in name`.
    """

    id: str
    sequence: int
    queue: str
    state: MessageState
    why: str
    type: str = ""
    key: str = ""
    created: float
    enqueued: float | UnsetType = UNSET
    due: float | UnsetType = UNSET
    locked_until: float | UnsetType = UNSET
    handler: str = ""
    since: float | UnsetType = UNSET
    at: str = ""
    failures: int = 0
    deliveries: int = 0
    error: str = ""
    correlation_id: str = ""
    size_bytes: int


class Peeked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of messages, by sequence number or due time; `more` is the number to continue after (0: none follow).

    `paused` says that the queue hands out nothing until it is resumed.
    """

    messages: list[MessageView]
    more: int = 0
    paused: bool = False


class FoundMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A message in a queue or among its dead letters; in none of the two, the facts on record.

    The body of one in a queue is JSON, else text, else base64; it is empty where it lies in a blob that is gone.
    """

    message: MessageView | None = None
    dead_letter: DeadLetterView | None = None
    body: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET
    facts: list[Fact] = []


class Paused(msgspec.Struct, frozen=True):
    """Whether a queue is paused now, and whether that was a change."""

    queue: str
    paused: bool
    changed: bool


class Send(Change[None], frozen=True):
    """Send messages to a queue or topic, all or none; scheduled, if they are `due` later, in seconds since 1970."""

    queue: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=BATCH_COUNT_MAX)]
    due: Seconds | None = None


class Peek(Read[Peeked], frozen=True):
    """List at most `count` messages of a queue after a sequence number, of one state and one key if given.

    With `by_due` they come by due time, and `after` is the number of the last one before them.
    """

    queue: Name
    after: Number = 0
    count: Annotated[int, msgspec.Meta(ge=1, le=BATCH_COUNT_MAX)] = PEEK_COUNT
    state: MessageState | Literal[""] = ""
    key: Text = ""
    by_due: bool = False


class Find(Read[list[FoundMessage]], frozen=True):
    """Find every place of a message, with its body; in one queue, if given, behind the message of a number."""

    id: Id
    queue: Text = ""
    after: Number = 0


class Cancel(Change[Moved], frozen=True):
    """Cancel for good the scheduled messages of an id, after a sequence number."""

    queue: Name
    id: Id
    after: Number = 0


class MakeDue(Change[Moved], frozen=True):
    """Make messages of an id due now that are scheduled or wait for their next try."""

    queue: Name
    id: Id
    after: Number = 0


class Pause(Change[Paused], frozen=True):
    """Let a queue or subscription hand out nothing, or (false) go on; it survives restarts."""

    queue: Name
    paused: bool
