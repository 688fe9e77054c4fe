"""Dead letters, the keys that they block, and what may be done about them."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from outbox.ops.values.requests import BATCH_COUNT_MAX, Change, Name, Number, Read, Seconds, Text


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


class BlockedKey(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A key that a dead letter blocks: its queue, the dead letter, and how many messages wait.

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


class DeadLetterFilter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A filter of dead letters; all conditions given must hold.

    `type` is the one that they were handled as, `text` a part of their description, stack or body (unless it lies in a
    blob); `since` and `before` limit when they were enqueued, in seconds since 1970. For failed ones: `exception` is
    the name of its class, `handler` the name of a function in the stack.
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
    """Run the newest dead letter of an id again, or (null) all of the queue's except the too old.

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
    """Discard dead letters of a queue by their numbers, unless a receiver has them; `numbers` says which."""

    queue: Name
    sequences: Annotated[list[int], msgspec.Meta(max_length=BATCH_COUNT_MAX)]
    for_good: bool = False


class ListDiscarded(Read[list[DeadLetterView]], frozen=True):
    """List the discarded dead letters of a queue that can be restored, without bodies, in order of arrival."""

    queue: Name


class Restore(Change[Moved], frozen=True):
    """Restore the discarded dead letters of an id, or (null) all of the queue's."""

    queue: Name
    id: Text | None


class ListBlocked(Read[BlockedPage], frozen=True):
    """List keys that dead letters block, of a queue or (empty) of all; `after` is the end of a page."""

    queue: Text = ""
    after: Annotated[str, msgspec.Meta(max_length=8_192)] = ""
    count: Annotated[int, msgspec.Meta(ge=1, le=BATCH_COUNT_MAX)] = BATCH_COUNT_MAX
