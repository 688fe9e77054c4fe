"""The values that operators send and get.

They are the control endpoint's wire format as well: JSON, unknown fields refused, each list with a limit.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple, get_args

import msgspec
from msgspec import UNSET, UnsetType

from outbox.ops.requests import Change, Lines, Read
from outbox.ops.stream_values import (
    Name,
    Seconds,
    Streams,
)
from outbox.ops.trail_values import Fact

BATCH_COUNT_MAX = 1_000
"""Messages in one send, and dead letters or messages in one page."""
PEEK_COUNT = 20

KeyKind = Literal["text", "int", "uuid"]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]


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


class QueueStatus(msgspec.Struct, frozen=True):
    """The counts of a queue; `active` includes locked messages, `oldest_s` is the age of the oldest active one,
    `received` counts all messages ever sent to it, `standing` the keys blocked by a dead letter; one that is `paused`
    hands out nothing.
    """

    active: int
    scheduled: int
    deferred: int
    dead_letters: int
    oldest_s: float | None
    received: int = 0
    standing: int = 0
    paused: bool = False
    unhandled: bool | UnsetType = UNSET
    """True where the application of the host that is asked has no handler for it; else absent."""
    handled: Handled | UnsetType = UNSET
    """What a host has done with its messages since its start; only a host with workers says that."""
    retrying: int | UnsetType = UNSET
    """How many of the scheduled ones wait for their next try; absent where a bus counts both."""


class Handled(msgspec.Struct, frozen=True):
    """What became of messages since a host's start: applied, duplicates of applied ones, refused by reason.

    `failed` are attempts that raised, whatever came of them, `rescheduled` those after which the message was
    rescheduled without a failure; `minute` are the messages that came to an end in the last minute.
    """

    applied: int
    duplicates: int
    failed: int
    rescheduled: int
    refused: dict[str, int]
    minute: int
    newer: int = 0
    """Of those rescheduled the ones whose schema, or whose state's, a newer build wrote."""
    newer_s: float | UnsetType = UNSET
    """How long ago the last of these was; absent without one."""


class Handling(msgspec.Struct, frozen=True):
    """The work of a host since its start; latencies from claim to durable commit, None before the first."""

    handled: int
    p50_ms: float | None
    p99_ms: float | None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """All queues; `pending` counts transactions in progress: locked messages that are not settled yet.

    Only a host with workers reports `handling`; `streams` is there where an engine has ordered logs or registers.
    """

    queues: dict[str, QueueStatus]
    pending: int
    handling: Handling | None = None
    streams: Streams | None = None
    guards: list[GuardStatus] = []
    """The breakers and rate limits of a host's handlers."""
    ahead_s: float | None = None
    """By how much an engine's time is ahead of the wall clock, where that is more than a minute."""


class GuardStatus(msgspec.Struct, frozen=True):
    """A breaker (`closed`, `open`, `half-open`, `ramping`) or a rate limit, which is `open` while messages wait for it.

    `why` says what it waits for, `rest_s` for how many seconds more; `rescheduled` is how often it has rescheduled a
    message.
    """

    name: str
    kind: Literal["breaker", "rate"]
    state: str
    why: str
    rest_s: float
    rescheduled: int


class LargeState(msgspec.Struct, frozen=True):
    """A state that is large, by its id, and its size."""

    id: str
    size_bytes: int


class WorkerSign(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process that gave a sign of life: whose, what it takes from, and when it started and was `seen` last.

    `newer` says of queues for how many seconds no message of a newer schema was put back.
    """

    app: str
    process: str
    queues: list[str]
    started: float
    seen: float
    newer: dict[str, float] = {}


class Signs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What tells how an application is, beside its counts.

    `large` are the largest states over 64 kB: on an engine of all, over a store of those in the caches of its workers.
    Only over a store and a bus: how many seconds the oldest messages of queues have waited (`oldest`), how many keys
    dead letters block, at most a thousand (`blocked`), which processes gave a sign of life, and the queues of
    registered handlers that none of these takes from (`unattended`).
    """

    large: list[LargeState] = []
    oldest: dict[str, float] = {}
    blocked: int = 0
    workers: list[WorkerSign] = []
    unattended: list[str] = []


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter; its body, if shown, is JSON, else text, else base64.  `created` in seconds since 1970.

    `type` is the message's own wire type, `handled_as` that or the queue's only type (empty if there are several, or
    none is known).  `traceback` is the stack of the application's error; empty without one.  `cure` says what may be
    done about it; empty in a list.
    """

    id: str
    sequence: int
    queue: str
    reason: str
    description: str
    type: str
    delivery_count: int
    created: float
    key: str
    correlation_id: str
    size_bytes: int
    handled_as: str = ""
    traceback: str = ""
    cure: str = ""
    body: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class DeadAttempt(NamedTuple):
    """A dead letter of an id: its number, and of which attempt it is."""

    sequence: int
    attempt: int


MessageState = Literal["waiting", "retrying", "blocked", "in-hand", "scheduled", "deferred"]
MESSAGE_STATES: tuple[MessageState, ...] = get_args(MessageState)


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
    """A page of messages, in the order of their sequence numbers or due times; `more` is the number of the one to go on
    after (0: that is all).

    `paused` says that the queue hands out nothing until it is resumed.
    """

    messages: list[MessageView]
    more: int = 0
    paused: bool = False


class FoundMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a message is: in a queue, or among its dead letters; or, where it is in none of the two, what is on record.

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


class BlockedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that a dead letter blocks: its queue, the dead letter's id, reason and error, and how many messages wait.

    `since` is when the dead letter was enqueued, in seconds since 1970 (0: not known): the key is blocked since then at
    the earliest, because when it was refused is not stored.  `is_there` says whether that dead letter, number
    `sequence`, can be moved; else `why` says what became of it.  On a bus `waiting` counts among the first messages of
    the queue.
    """

    queue: str
    key: str
    id: str
    since: float
    waiting: int
    reason: str = ""
    why: str = ""
    is_there: bool
    sequence: int = 0


class BlockedPage(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of blocked keys; `more` is what to go on after (empty: that is all)."""

    keys: list[BlockedKey]
    more: str = ""


class DeadLetterGroup(msgspec.Struct, frozen=True):
    """Dead letters of one queue that went wrong alike: how many, since when, and the id of the last.

    `error` is the class of the exception, or the text of a refusal; `at` the line that raised it, as `file:line`.
    """

    queue: str
    reason: str
    error: str
    at: str
    count: int
    first: float
    last: float
    example: str


Level = Literal["error", "warning", "ok"]


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was looked at, what is wrong with it (or what is right, at level `ok`), and the cure."""

    level: Level
    about: str
    what: str
    cure: str = ""


class Moved(msgspec.Struct, frozen=True):
    """How many dead letters were resubmitted or discarded; `in_hand` were left because a receiver has them.

    `id` is the full identity of a single one; `numbers` says which were discarded, where it had several.  Of what is
    scheduled `more` is the number up to which a queue was looked through, where it holds more.
    """

    count: int
    in_hand: int = 0
    id: str | UnsetType = UNSET
    numbers: list[int] | UnsetType = UNSET
    more: int | UnsetType = UNSET


class Compacted(msgspec.Struct, frozen=True):
    """A compaction: the last ordinal in the snapshot, and the log's size before and after."""

    ordinal: int
    before_bytes: int
    after_bytes: int


# Requests

Id = Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
"""An id, or the beginning of one."""
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The sequence number of a message in its queue; 0: of none."""


class Check(Read[None], frozen=True):
    """Raise the error that keeps it from answering, if any."""


class ReadStatus(Read[Status], frozen=True):
    """Count the messages of every queue."""


class ReadSigns(Read[Signs], frozen=True):
    """Tell how an application is, beside its counts: large states, signs of life and so on."""


class ReadMetrics(Read[str], frozen=True):
    """Read the metrics of a host with workers, in Prometheus' text format."""


class Compact(Change[Compacted], frozen=True):
    """Snapshot the engine in the background and drop the log before it."""


class Seal(Change[int], frozen=True):
    """Make all that is acknowledged part of segments that are never written again; the last ordinal in them."""


class Send(Change[None], frozen=True):
    """Send messages to a queue or topic, all or none; scheduled, if they are `due` later, in seconds since 1970."""

    queue: Name
    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=BATCH_COUNT_MAX)]
    due: Seconds | None = None


class Peek(Read[Peeked], frozen=True):
    """List messages of a queue: after a sequence number, at most so many, of one state and one key if given.

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
    """Cancel what is scheduled under an id, behind the message of a number: it is gone."""

    queue: Name
    id: Id
    after: Number = 0


class MakeDue(Change[Moved], frozen=True):
    """Let what is scheduled, or waits for its next try, be due now."""

    queue: Name
    id: Id
    after: Number = 0


class Pause(Change[Paused], frozen=True):
    """Let a queue or subscription hand out nothing, or (false) go on; it survives restarts."""

    queue: Name
    paused: bool


class ReadState(Read[bytes | None], frozen=True):
    """Read the JSON of a state; None where there is none or it was deleted."""

    type: Name
    key: Annotated[str, msgspec.Meta(max_length=65_536)]
    kind: KeyKind = "text"


class Export(Lines, frozen=True):
    """Read every state of one instant, or those of one type."""

    type: Annotated[str, msgspec.Meta(max_length=1_024)] = ""


class DeadLetterFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which dead letters are meant, by all that is given.

    Their `reason`, the `type` that they were handled as, a `text` in their description, stack or body (not in one that
    lies in a blob), and when they were enqueued: `since` and `before`, in seconds since 1970.  Of those that failed the
    `exception`, by the name of its class, and the `handler`, by the name of a function in the stack.
    """

    reason: Text = ""
    type: Text = ""
    text: Text = ""
    since: Seconds = 0
    before: Seconds = 1e11
    exception: Text = ""
    handler: Text = ""


ANY_DEAD_LETTER = DeadLetterFilter()


class ListDeadLetters(Read[list[DeadLetterView]], frozen=True):
    """List a page of dead letters without bodies, oldest first, after a sequence number."""

    queue: Name
    after: Number = 0
    count_max: Annotated[int, msgspec.Meta(ge=0, le=BATCH_COUNT_MAX)] = BATCH_COUNT_MAX
    where: DeadLetterFilter = ANY_DEAD_LETTER


class FindDead(Read[dict[str, list[DeadAttempt]]], frozen=True):
    """Find which of some ids are dead letters of a queue now: their numbers, and of which attempt."""

    queue: Name
    ids: Annotated[list[Text], msgspec.Meta(max_length=BATCH_COUNT_MAX)]


class ShowDeadLetter(Read[DeadLetterView], frozen=True):
    """Show the dead letter of an id that `Resubmit` would take, or the one of a number, with its body."""

    queue: Name
    id: Text
    sequence: Number = 0


class Resubmit(Change[Moved], frozen=True):
    """Run the newest dead letter of an id again, or (null) all of the queue's but those that were too old.

    With a `sequence`: of an id's the one of that number.  A named one may get another `body`, JSON: the edit runs in
    its place if its refusal is still what is on record.
    """

    queue: Name
    id: Text | None
    body: bytes | None = None
    sequence: Number = 0


class Discard(Change[Moved], frozen=True):
    """Discard the dead letters of an id, or (null) of the queue; `for_good`: they cannot be restored.

    With a `sequence`, of an id's only the one of that number.
    """

    queue: Name
    id: Text | None
    for_good: bool = False
    sequence: Number = 0


class DiscardSome(Change[Moved], frozen=True):
    """Discard dead letters of a queue by their numbers, those that are free; `numbers` says which."""

    queue: Name
    sequences: Annotated[list[int], msgspec.Meta(max_length=BATCH_COUNT_MAX)]
    for_good: bool = False


class ListDiscarded(Read[list[DeadLetterView]], frozen=True):
    """List what was discarded of a queue and can be restored, without bodies, in the order in which it came."""

    queue: Name


class Restore(Change[Moved], frozen=True):
    """Let what was discarded under an id be dead letters again, or (null) all of the queue's."""

    queue: Name
    id: Text | None


class ListBlocked(Read[BlockedPage], frozen=True):
    """List keys that dead letters block: of a queue, or (empty) of all; after where a page ended, at most so many."""

    queue: Text = ""
    after: Annotated[str, msgspec.Meta(max_length=8_192)] = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=BATCH_COUNT_MAX)] = BATCH_COUNT_MAX
