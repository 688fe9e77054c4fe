"""What operators send and see, and the one interface behind which a host or a log is asked.

The values are the control endpoint's wire format as well: JSON, unknown fields refused, each list with a limit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

BATCH_COUNT_MAX = 1_000
"""Messages in one send, and dead letters in one page."""

KeyKind = Literal["text", "int", "uuid"]
Text = Annotated[str, msgspec.Meta(max_length=4_096)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]


class NewMessage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A message to send: its body is JSON, `type` the wire type, `created` in seconds since 1970 (none: now).

    The sender names the `id`, so that a send whose answer was lost can be repeated under it.
    """

    body: msgspec.Raw
    id: Annotated[str, msgspec.Meta(min_length=1, max_length=4_096)]
    type: Text = ""
    created: Seconds | None = None
    key: Text = ""
    correlation_id: Text = ""


class QueueStatus(msgspec.Struct, frozen=True):
    """A queue in numbers; `active` counts messages in hand too, `oldest_s` is the age of the oldest active one,
    `received` how many messages have ever been put in, `standing` how many keys stand still behind a dead letter.
    """

    active: int
    scheduled: int
    deferred: int
    dead_letters: int
    oldest_s: float | None
    received: int = 0
    standing: int = 0


class Handling(msgspec.Struct, frozen=True):
    """What a host's workers did since it started; the times from claim to durable commit, None before the first."""

    handled: int
    p50_ms: float | None
    p99_ms: float | None


class Status(msgspec.Struct, frozen=True, omit_defaults=True):
    """All queues; `pending` counts the transactions under way: messages in hand that are not settled yet.

    `handling` is there where a host with workers answers.
    """

    queues: dict[str, QueueStatus]
    pending: int
    handling: Handling | None = None


class DeadLetterView(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter; its body, where it is shown, is JSON or else text or else base64.  `created` in seconds.

    `type` is what the message itself names; one that names none is to its handler of the one type that the queue
    takes, which `handled_as` says (empty where several could be meant, or none is known).  `traceback` is where the
    application's code raised what the description says; empty where it did not.
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
    body: msgspec.Raw | UnsetType = UNSET
    body_text: str | UnsetType = UNSET
    body_base64: str | UnsetType = UNSET


class Moved(msgspec.Struct, frozen=True):
    """How many dead letters were resubmitted or discarded; `in_hand` were left because somebody receives them.

    `id` is the whole identity where one was asked for.
    """

    count: int
    in_hand: int = 0
    id: str | UnsetType = UNSET


class Compacted(msgspec.Struct, frozen=True):
    """A compaction: the last ordinal in the snapshot, and what the log took on disk before and after."""

    ordinal: int
    before_bytes: int
    after_bytes: int


class Operator(Protocol):
    """What an operator can do with an engine, without the application's code; each answer has passed the gate."""

    async def send(self, queue: str, messages: Sequence[NewMessage]) -> None:
        """Send up to BATCH_COUNT_MAX messages to a queue or topic, all or none."""

    async def check(self) -> None:
        """Raise what keeps it from answering, if anything does."""

    async def status(self) -> Status:
        """Count what every queue holds."""

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        """The JSON of a state; None where there is none or it was deleted."""

    def export(self, type: str = "") -> AsyncIterator[bytes]:
        """Every state of one instant, or those of one type, as JSON lines in pieces of any length."""

    async def dead_letters(
        self, queue: str, *, after: int = 0, count_max: int = BATCH_COUNT_MAX
    ) -> list[DeadLetterView]:
        """A page of dead letters without bodies, oldest first, behind the sequence `after`."""

    async def dead_letter(self, queue: str, id: str) -> DeadLetterView:
        """The newest dead letter of an id, or of the one id that begins so, with its body."""

    async def resubmit(self, queue: str, id: str | None) -> Moved:
        """Run the newest dead letter of an id, or of the one that begins so, again, or all of the queue's."""

    async def discard(self, queue: str, id: str | None) -> Moved:
        """Delete the dead letters of an id, or of the one that begins so, or all of the queue's."""

    async def compact(self) -> Compacted:
        """Snapshot what the engine holds and drop the log before it."""
