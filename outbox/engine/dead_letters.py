"""Dead letters: back to their queue as a new attempt, discarded and back again, or away for good.

Decides whether a dead letter may still be resubmitted and what goes with it; listing them is a peek at their queue.
One that is discarded becomes a document, in the one record that takes it out of its queue, and is kept for a while:

    namespace = discarded/<queue>   its number   the message, why it was refused, and what else was known of it
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.entities import dead_letter_path
from outbox.engine.log import records
from outbox.engine.state.queues import DISCARDED, Queue
from outbox.engine.state.tasks import LOCKED, Task
from outbox.errors import CorruptRecord
from outbox.message import Message
from outbox.ports import DeadLetterEntry, StateDocument
from outbox.resubmission import check_resubmittable, identified, is_copy, next_attempt, resubmission

_DIGITS = 20
"""Zero-padded, so that the order of ids is the order of numbers."""


class _Discarded(msgspec.Struct, array_like=True):
    """A discarded dead letter as stored."""

    letter: records.RestoredLetter
    message: Message


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Discarded).decode


class DeadLetters:
    """The dead letters of every queue."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker

    def resubmit(self, path: str, sequence: int, *, attempt: int = 0, edit: Message | None = None) -> None:
        """Send a dead letter, or its edit, back to its queue as a new attempt with its first creation time.

        It is this `attempt` at least.  Other copies of it go: resubmitted later, when nothing remembers this one, they
        would be applied again.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
            Refused: no record proves that it was not applied.
        """
        core, (dead, task) = self._core, self.find(path, sequence)
        where, until_ms = f"{path}/{task.message.identity or sequence}", task.remembered_until_ms
        check_resubmittable(where, task.reason, task.description, is_remembered=not 0 < until_ms <= core.now_ms())
        alike = [] if dead.letters is None else dead.letters.of(task.message.identity)
        others = [other for other in alike if other is not task]
        copies = [other for other in others if other.status != LOCKED and is_copy(other.message, task.message)]
        attempt = max(attempt, next_attempt(task.message, [other.message for other in copies]))
        if copies:
            core.do(records.Cancelled(dead.number, [other.sequence for other in copies]))
        message = resubmission(edit or task.message, attempt=attempt, enqueued_ms=task.enqueued_ms)
        core.do(records.Resubmitted(core.now_ms(), dead.number, sequence, message))
        self._broker.wake()

    def discard(self, path: str, sequence: int) -> None:
        """Delete a dead letter of the queue `path`, for good.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
        """
        dead, _ = self.find(path, sequence)
        self._core.do(records.Cancelled(dead.number, [sequence]))
        self._broker.wake()

    def set_aside(self, path: str, sequence: int, *, until_ms: int) -> None:
        """Discard a dead letter of the queue `path` so that it can be restored until then.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
        """
        dead, task = self.find(path, sequence)
        letter = records.RestoredLetter(
            sequence,
            task.reason,
            task.description,
            task.failures + task.delivery_count,
            task.enqueued_ms,
            task.external,
            task.remembered_until_ms,
        )
        kept = records.DocWrite(
            DISCARDED + path, f"{sequence:0{_DIGITS}d}", _encode(_Discarded(letter, task.message)), 0, until_ms
        )
        change = records.Modify(deletes=[records.TaskRef(dead.path, sequence, task.version)], documents=[kept])
        self._core.do(records.Modified(self._core.now_ms(), change))
        self._broker.wake()

    def set_aside_of(self, path: str) -> Iterator[DeadLetterEntry]:
        """The discarded dead letters of a queue that can be restored, in their order, each read when asked for."""
        self._broker.queue(path)  # it exists
        space, now_ms = self._core.state.documents.spaces.get(DISCARDED + path, {}), self._core.now_ms()
        for id in sorted(space):
            document = space.get(id)  # it may have been restored since
            if document is None or document.expires_ms <= now_ms:
                continue
            each = _decoded(path, id, document)
            letter = each.letter
            yield identified(
                DeadLetterEntry(
                    path,
                    letter.sequence,
                    each.message,
                    letter.reason,
                    letter.description,
                    letter.failures + each.message.failures,
                    letter.enqueued_ms,
                )
            )

    def restore(self, path: str, sequence: int) -> None:
        """Let a discarded dead letter be one again; a key that has gone on is not blocked again.

        Raises:
            LookupError: nothing was discarded under that number, or its time is over.
        """
        dead, namespace, id = self._broker.queue(dead_letter_path(path)), DISCARDED + path, f"{sequence:0{_DIGITS}d}"
        found = self._core.state.documents.spaces.get(namespace, {}).get(id)
        if found is None or found.expires_ms <= self._core.now_ms():
            raise LookupError(f"{path} has no discarded dead letter {sequence} any more; list them again")
        kept = _decoded(path, id, found)
        change = records.Modify(
            inserts=[records.TaskInsert(dead.path, kept.message, 0, kept.letter)],
            document_deletes=[records.DocRef(namespace, id, found.version)],
        )
        self._core.do(records.Modified(self._core.now_ms(), change))
        self._broker.wake()

    def find(self, path: str, sequence: int) -> tuple[Queue, Task]:
        """Return a dead letter that no receiver has claimed, and its queue.

        Raises:
            LookupError: there is none.
        """
        dead = self._broker.queue(dead_letter_path(path))
        task = dead.tasks.get(sequence)
        if task is None or task.status == LOCKED:
            raise LookupError(f"{path} has no dead letter {sequence} that is free; list them again")
        return dead, task


def _decoded(path: str, id: str, document: StateDocument) -> _Discarded:
    try:
        return _decode(document.value)
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"document {id} of {DISCARDED}{path} is no discarded dead letter: {error}") from error
