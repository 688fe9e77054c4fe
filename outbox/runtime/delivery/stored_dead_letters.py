"""Dead letters in the store, for hosts that cannot dead-letter on the bus.

Under a Functions trigger a message can only be completed or abandoned.  So a refused message, whose refusal is on
record already, is stored as a document without a time to live before its delivery is completed.  After a crash between
the two the delivery is redelivered, its record is followed, and the same document is found.  Clients and operators see
the dead letters of bus and store as one list.

    partition = letters:<queue>     `letter:<number>`      the message, why it was refused, how often it was delivered
    partition = discarded:<queue>   `discarded:<number>`   the same of a dead letter that was discarded, for a while

A broker's sequence numbers start again with a recreated queue.  So a stored dead letter has a number of its own, made
of its enqueue time and a digest: the same for every delivery of one message, different for different messages.

Nothing here is a commit: the record alone decides the outcome of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from outbox import stored
from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import CorruptRecord, NoBlobStore, OutcomeUnknown, Refused
from outbox.message import Message
from outbox.ports import (
    SUBSCRIPTIONS,
    BlobStore,
    Create,
    DeadLetterEntry,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Output,
    Replace,
    StateStore,
    Tag,
    Won,
)
from outbox.resubmission import dead_letter_identity, is_copy, resubmission
from outbox.runtime.delivery.claim_check import check_in

LETTERS = "letters:"
"""With a queue's path: the partition of its dead letters."""
LETTER = "letter:"
"""With a number: the id of one."""
DISCARDED = "discarded:"
"""The prefix of a queue's partition of discarded dead letters, and of their ids."""
_DIGITS = 20
"""Zero-padded, so that the order of ids is the order of numbers."""
_DIGEST_BITS = 20
TRIES_MAX = 8
"""How often a dead letter is written where others write or delete it meanwhile."""
NUMBER_COUNT_MAX = 8
"""How many dead letters may share a number; the chance of two is one in a million for each millisecond."""


class StoredDeadLetter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refused message as stored."""

    sequence: int
    message: Message
    reason: str
    description: str
    delivery_count: int
    enqueued_ms: int

    @property
    def origin(self) -> tuple[int, int, str]:
        """The message of the broker: two deliveries of one message have the same origin."""
        return self.enqueued_ms, self.sequence, self.message.identity


class StoredEntry(DeadLetterEntry, frozen=True, gc=False):
    """A dead letter of a store; its `sequence` is its own number, and this the document as it was read."""

    document: Document


class StoredDeadLetters:
    """The dead letters of one store, or its `discarded` ones."""

    def __init__(self, store: StateStore, blobs: BlobStore, *, discarded: bool = False) -> None:
        self._store = store
        self._blobs = blobs
        self._partitions, self._ids = (DISCARDED, DISCARDED) if discarded else (LETTERS, LETTER)

    async def keep(self, delivery: Delivery, reason: str, description: str) -> None:
        """Store a refused message; on return its delivery may be completed.

        Raises:
            Refused, OutcomeUnknown: it may not be stored; the delivery must be redelivered.
        """
        texts, count = (reason, description), 1 + delivery.delivery_count + delivery.failures
        await self.put(
            DeadLetterEntry(delivery.queue, delivery.sequence, delivery.message, *texts, count, delivery.enqueued_ms)
        )

    async def put(self, entry: DeadLetterEntry, *, ttl_s: float | None = None, anew: bool = False) -> None:
        """Store a dead letter, once; for ever, or for a time.

        Where it is stored already it is left as it is, or written `anew`: its time begins again, and who has read it
        before does not delete it any more.

        Raises:
            Refused, OutcomeUnknown: it may not be stored.
        """
        dead = _decoded(entry.document) if isinstance(entry, StoredEntry) else _stored(entry)
        with suppress(NoBlobStore):  # then the body is stored inline
            message = await check_in(dead.message, self._blobs, above_bytes=CLAIM_CHECK_BYTES)
            dead = msgspec.structs.replace(dead, message=message)
        first = _number(dead)
        for number in range(first, first + NUMBER_COUNT_MAX):
            if await self._is_put(self._key(entry.queue, number), dead, ttl_s=ttl_s, anew=anew):
                return
        raise Refused(f"{entry.queue}/{entry.sequence} cannot be stored: its numbers are taken; discard dead letters")

    async def _is_put(self, key: DocumentKey, dead: StoredDeadLetter, *, ttl_s: float | None, anew: bool) -> bool:
        """Store a dead letter under this key; False where another has it."""
        body, tag = msgspec.json.encode(dead), Tag("letter")
        for _ in range(TRIES_MAX):
            answer = await self._store.write([Create(key, body, ttl_s=ttl_s, tag=tag)])
            if isinstance(answer, Won):
                return True
            there = answer.current or await self._store.read(key, session=answer.session)
            if there is None:
                continue  # another has just deleted it
            if not _is_of(there, dead):
                return False
            # Unless it is to be anew, it was stored by an earlier delivery.
            write = Replace(key, body, there.version, ttl_s=ttl_s, tag=tag)
            if not anew or isinstance(await self._store.write([write]), Won):
                return True
        raise OutcomeUnknown(f"{key.partition}/{key.id} is changed all the time; try again")

    async def list(self, queue: str) -> list[StoredEntry]:
        """The stored dead letters of a queue or subscription, oldest first."""
        return [
            self._entry(queue, found) async for found in self._store.scan(self._partitions + queue, prefix=self._ids)
        ]

    async def read(self, queue: str, number: int) -> StoredEntry | None:
        """A stored dead letter of a queue or subscription by its number; None: there is none."""
        document = await self._store.read(self._key(queue, number))
        return None if document is None else self._entry(queue, document)

    async def delete(self, entry: StoredEntry) -> bool:
        """Delete a dead letter as it was read; whether nobody has written or deleted it meanwhile."""
        document = entry.document
        answer = await self._store.write([Delete(document.key, document.version, Tag("letter-gone"))])
        return isinstance(answer, Won)

    async def count(self, queue: str, *, count_max: int) -> int:
        """How many dead letters of a queue or subscription are stored, up to `count_max`: each costs a read."""
        count = 0
        async for _ in self._store.scan(self._partitions + queue, prefix=self._ids):
            count += 1
            if count >= count_max:
                break
        return count

    async def counts(self, holders: Callable[[str], AsyncIterator[str]], *, count_max: int) -> Counter[str]:
        """How many dead letters are stored, by queue or subscription, up to `count_max` in all: in one query.

        `holders` gives the partition of each document whose id begins so.
        """
        found = Counter[str]()
        async for partition in holders(LETTER):
            if partition.startswith(LETTERS):
                found[partition.removeprefix(LETTERS)] += 1
            if found.total() >= count_max:
                break
        return found

    async def resubmit(
        self,
        queue: str,
        sequence: int,
        send: Callable[[Sequence[Output]], Awaitable[None]],
        *,
        attempt: int,
        edit: Message | None = None,
    ) -> None:
        """Send a dead letter to its queue as this attempt, with its first creation time; then delete all copies.

        A crash between send and delete leaves a dead letter that may be resubmitted: the attempt is the same, so the
        second delivery is a duplicate.  Sent in its place, an `edit` has an id of its own for the broker, which else
        would drop it as a duplicate of what was sent before the crash.

        Raises:
            LookupError: there is no such dead letter.
        """
        found = await self.read(queue, sequence)
        if found is None:
            raise LookupError(f"{queue} has no dead letter {sequence}; list them to see what is there")
        message = found.message
        again = msgspec.structs.replace(
            resubmission(edit or message, attempt=attempt, enqueued_ms=found.enqueued_ms),
            outbox_id=message.identity,
            message_id=_broker_id(message.identity, sequence, attempt, edit),
        )
        others = await self.list(queue)
        copies = {
            other.sequence for other in others if is_copy(other.message, message) and other.message.attempt < attempt
        }
        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])
        for copy in sorted({sequence, *copies}):
            if (there := await self.read(queue, copy)) is not None:
                await self.delete(there)

    def _entry(self, queue: str, document: Document) -> StoredEntry:
        dead, number = _decoded(document), int(document.key.id.removeprefix(self._ids))
        texts, count = (dead.reason, dead.description), dead.delivery_count
        identity = dead_letter_identity(queue, dead.sequence, dead.message, dead.reason)  # by the broker's number
        message = dead.message
        if identity != message.identity:
            message = msgspec.structs.replace(message, outbox_id=identity)
        return StoredEntry(queue, number, message, *texts, count, dead.enqueued_ms, document)

    def _key(self, queue: str, number: int) -> DocumentKey:
        return DocumentKey(self._partitions + queue, f"{self._ids}{number:0{_DIGITS}d}")


def _stored(entry: DeadLetterEntry) -> StoredDeadLetter:
    texts = entry.reason, entry.description
    return StoredDeadLetter(entry.sequence, entry.message, *texts, entry.delivery_count, entry.enqueued_ms)


def _number(dead: StoredDeadLetter) -> int:
    """The first number to try; numbers follow the order in which messages were enqueued."""
    enqueued_ms, *what = dead.origin
    digest = sha256(repr(what).encode("utf-8", "surrogatepass")).digest()
    return (enqueued_ms << _DIGEST_BITS) | (int.from_bytes(digest[:4]) >> (32 - _DIGEST_BITS))


def _broker_id(identity: str, sequence: int, attempt: int, edit: Message | None) -> str:
    """An id that duplicate detection has not seen, and that a repeated resubmission of the same body uses again."""
    if not identity:
        return ""
    plain = f"{identity}~{sequence}-{attempt}"
    return plain if edit is None else f"{plain}-{sha256(edit.body + edit.claim.encode()).hexdigest()[:16]}"


def _is_of(document: Document, dead: StoredDeadLetter) -> bool:
    """Whether a document holds this very dead letter."""
    with suppress(CorruptRecord):  # a foreign document
        return _decoded(document).origin == dead.origin
    return False


def _decoded(document: Document) -> StoredDeadLetter:
    return stored.decode(document, StoredDeadLetter, "dead letter")
