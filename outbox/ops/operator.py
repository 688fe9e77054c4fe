"""What an operator may ask of an application, whatever it runs on: one service behind every door.

An engine answers it, a store with a bus does, and so does a running host over its control endpoint; the command line
prints it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from outbox.ops.pending_values import PendingFinished, PendingView
from outbox.ops.state_values import StateWrites, StateWritten
from outbox.ops.stream_values import (
    StreamQuery,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    TrimRequest,
    UnregisterRequest,
)
from outbox.ops.trail_values import Trail, TrailQuery
from outbox.ops.values import (
    ANY_DEAD_LETTER,
    BATCH_COUNT_MAX,
    BlockedPage,
    BlockedQuery,
    Compacted,
    DeadAttempt,
    DeadLetterFilter,
    DeadLetterView,
    FindQuery,
    FoundMessage,
    KeyKind,
    Moved,
    NewMessage,
    Paused,
    PauseRequest,
    Peeked,
    PeekQuery,
    Signs,
    Status,
)


class Operator(Protocol):
    """The operations on an application's queues and states, without its code; each answer has passed the gate."""

    async def send(self, queue: str, messages: Sequence[NewMessage], *, due: float | None = None) -> None:
        """Send up to BATCH_COUNT_MAX messages to a queue or topic, all or none; on return they are durable.

        They are scheduled if they are `due` later, in seconds since 1970.

        Raises:
            UnknownDestination: no such queue or topic.
            Refused: a body is not JSON or not its handler's message, a key or one type of several is missing, a key
                is not the message's, or the backend takes no more.
        """

    async def check(self) -> None:
        """Raise the error that keeps it from answering, if any."""

    async def status(self) -> Status:
        """Count the messages of every queue."""

    async def signs(self) -> Signs:
        """What tells how an application is, beside its counts: large states, signs of life and so on."""

    async def metrics(self) -> str:
        """The metrics of a host with workers, in Prometheus' text format.

        Raises:
            Refused: there is no such host.
        """

    async def state(self, type: str, key: str, kind: KeyKind = "text") -> bytes | None:
        """The JSON of a state; None where there is none or it was deleted.

        Raises:
            Refused: the key is not of its kind.
            LookupError: no state and no handler has this type.
        """

    def export(self, type: str = "") -> AsyncIterator[bytes]:
        """Every state of one instant, or those of one type, as JSON lines in pieces of any length.

        Raises:
            LookupError: no state is of that type.
        """

    def states(self, type: str = "") -> AsyncIterator[bytes]:
        """Every state, or those of one type, as JSON lines of `StateLine` in pieces of any length.

        On an engine they are of one instant, on a store each as it was read.

        Raises:
            LookupError: no state and no handler has this type.
            Refused: the store cannot list its states.
        """

    async def write_states(self, asked: StateWrites) -> list[StateWritten]:
        """Write states, each by If-Match; what became of each, in their order."""

    async def peek(self, asked: PeekQuery) -> Peeked:
        """A page of what a queue holds, and why; nothing is locked or changed.

        Raises:
            UnknownDestination: no such queue.
        """

    async def find(self, asked: FindQuery) -> list[FoundMessage]:
        """Every place where the message of an id is, or of the one id with this prefix, with its body.

        Raises:
            LookupError: it is in no queue, and no dead letter.
            Refused: several ids have this prefix; or it was not seen, and a queue holds more than was looked through.
            UnknownDestination: no such queue.
        """

    async def trail(self, asked: TrailQuery) -> Trail:
        """What is known of a message, its causes and its effects; nothing but notes where nothing is.

        Raises:
            Refused: several ids have this prefix, or the key is not of its kind.
        """

    async def cancel(self, queue: str, id: str, *, after: int = 0) -> Moved:
        """Cancel what is scheduled under an id, or the one id with this prefix, behind the number `after`; it is gone.

        Raises:
            LookupError: nothing is scheduled under it: it was delivered, or is tried again.
            Refused: several ids have this prefix; or it was not seen, and the queue holds more than was looked through.
            UnknownDestination: no such queue.
        """

    async def make_due(self, queue: str, id: str, *, after: int = 0) -> Moved:
        """Let what is scheduled or waits for its next try under an id, or the one id with this prefix, be due now.

        Raises:
            LookupError: there is nothing for later under it.
            Refused: several ids begin so; or it was not seen, and the queue holds more than was looked through.
        """

    async def pending(self) -> list[PendingView]:
        """What was committed and is not finished, at most a thousand documents; on an engine there is nothing such."""

    async def finish(self, tx: str | None) -> PendingFinished:
        """Finish what the transaction of a name or prefix left, or (None) everything, if it is older than a minute.

        Raises:
            LookupError: nothing is pending of it.
            Refused: several transactions begin so.
        """

    async def dead_letters(
        self,
        queue: str,
        *,
        after: int = 0,
        count_max: int = BATCH_COUNT_MAX,
        where: DeadLetterFilter = ANY_DEAD_LETTER,
    ) -> list[DeadLetterView]:
        """A page of dead letters without bodies, oldest first, after the sequence `after`.

        Raises:
            UnknownDestination: no such queue.
        """

    async def dead_among(self, queue: str, ids: Sequence[str]) -> dict[str, list[DeadAttempt]]:
        """Those of up to BATCH_COUNT_MAX ids that are dead letters of a queue now: their numbers, and of which attempt.

        Raises:
            UnknownDestination: no such queue.
        """

    async def dead_letter(self, queue: str, id: str, *, sequence: int = 0) -> DeadLetterView:
        """The dead letter of an id, or of the one id with this prefix, that `resubmit` would take, with its body.

        With a `sequence`: of an id's the one of that number.

        Raises:
            LookupError: there is none.
            Refused: several ids have this prefix, or the body lies in a blob that is gone.
        """

    async def resubmit(self, queue: str, id: str | None, *, body: bytes | None = None, sequence: int = 0) -> Moved:
        """Run the newest dead letter of an id or prefix again, or (None) all of the queue's but those that were too
        old.  With a `sequence`: of an id's the one of that number.

        A named one may get another `body`, JSON without white space: the edit runs in its place if its refusal is still
        what is on record.

        Raises:
            LookupError: there is none, or a receiver has it.
            Refused: the named one was too old, or an edit of it would be refused.
        """

    async def discard(self, queue: str, id: str | None, *, for_good: bool = False, sequence: int = 0) -> Moved:
        """Discard the dead letters of an id or prefix, or (None) all of the queue's: for a time, or `for_good`.

        With a `sequence`: of an id's the one of that number.

        For as long as the longest registered retention they can be restored.

        Raises:
            LookupError: there is none, or a receiver has it.
        """

    async def discard_some(self, queue: str, sequences: Sequence[int], *, for_good: bool = False) -> Moved:
        """Discard those of up to BATCH_COUNT_MAX numbers that are free; `numbers` says which.

        Raises:
            UnknownDestination: no such queue.
        """

    async def discarded(self, queue: str) -> list[DeadLetterView]:
        """What was discarded of a queue and can be restored, without bodies, in the order in which it came.

        Raises:
            UnknownDestination: no such queue.
        """

    async def restore(self, queue: str, id: str | None) -> Moved:
        """Let what was discarded under an id or prefix be dead letters again, or (None) all of the queue's.

        Raises:
            LookupError: nothing was, or its time is over.
        """

    async def blocked(self, asked: BlockedQuery) -> BlockedPage:
        """A page of the keys that dead letters block, by queue and key.

        Raises:
            UnknownDestination: no such queue.
        """

    async def pause(self, asked: PauseRequest) -> Paused:
        """Let a queue or subscription hand out nothing, or go on; it survives restarts.

        Raises:
            UnknownDestination, Refused: there is none, or the right to manage is missing.
        """

    async def compact(self) -> Compacted:
        """Snapshot the engine in the background and drop the log before it.

        Raises:
            EngineStopped: the disk failed.
        """

    async def seal(self) -> int:
        """Make all that is acknowledged part of segments that are never written again; the last ordinal in them.

        Raises:
            EngineStopped: the disk failed.
        """

    async def streams(self) -> Streams:
        """All ordered logs and registers, with what the logs take."""

    def stream(self, asked: StreamQuery) -> AsyncIterator[bytes]:
        """The entries of a log as stored, as JSON lines in pieces of any length.

        Raises:
            LookupError: there is no such log, or row.
            Trimmed: the position is below the floor.
            Refused: a position is given and no row, and there are several.
        """

    async def unregister_stream(self, asked: UnregisterRequest) -> StreamUnregistered:
        """Forget a reader or writer of a log; trims wait for it no longer.

        Raises:
            LookupError: there is no such log, or no reader or writer of this name.
        """

    async def trim_stream(self, asked: TrimRequest) -> StreamTrimmed:
        """Trim a log up to what its readers and writers need.

        Raises:
            LookupError: there is no such log.
            Refused: nobody has registered as a reader, and no age is given.
        """
