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
from outbox.resubmission import is_copy, resubmission
from outbox.runtime.delivery.claim_check import check_in

LETTERS = "letters:"
"""With a queue's path: the partition of its dead letters."""
LETTER = "letter:"
"""With a number: the id of one."""
DISCARDED = "discarded:"
"""With a queue's path: the partition of what was discarded of it; with a number, the id of one."""
_DIGITS = 20
"""Zero-padded, so that the order of ids is the order of numbers."""
_DIGEST_BITS = 20
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


class StoredDeadLetters:
    """The dead letters of one store, or what was `discarded` of them."""

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
        entry = DeadLetterEntry(
            delivery.queue, delivery.sequence, delivery.message, *texts, count, delivery.enqueued_ms
        )
        await self.put(entry)

    async def put(self, entry: DeadLetterEntry, *, ttl_s: float | None = None) -> None:
        """Store a dead letter, once; for ever, or for a time, which begins anew where it is stored already.

        Raises:
            Refused, OutcomeUnknown: it may not be stored.
        """
        message = entry.message
        with suppress(NoBlobStore):  # then the body is stored inline
            message = await check_in(message, self._blobs, above_bytes=CLAIM_CHECK_BYTES)
        texts = entry.reason, entry.description
        dead = StoredDeadLetter(entry.sequence, message, *texts, entry.delivery_count, entry.enqueued_ms)
        body, first = msgspec.json.encode(dead), _number(dead)
        for number in range(first, first + NUMBER_COUNT_MAX):
            key = self._key(entry.queue, number)
            answer = await self._store.write([Create(key, body, ttl_s=ttl_s, tag=Tag("letter"))])
            if isinstance(answer, Won):
                return
            there = answer.current or await self._store.read(key, session=answer.session)
            with suppress(CorruptRecord):  # a foreign document
                if there is not None and _decoded(there).origin == dead.origin:
                    if ttl_s is not None:
                        await self._renew(there, ttl_s)
                    return  # stored by an earlier delivery, or by a discard that was broken off
        raise Refused(f"{entry.queue}/{entry.sequence} cannot be stored: its numbers are taken; discard dead letters")

    async def _renew(self, there: Document, ttl_s: float) -> None:
        write = Replace(there.key, there.body, there.version, ttl_s=ttl_s, tag=Tag("letter"))
        if not isinstance(await self._store.write([write]), Won):
            raise OutcomeUnknown(f"{there.key.partition}/{there.key.id} was changed meanwhile; try again")

    async def list(self, queue: str) -> list[DeadLetterEntry]:
        """The stored dead letters of a queue or subscription, oldest first; `sequence` is their own number."""
        found = []
        async for document in self._store.scan(self._partitions + queue, prefix=self._ids):
            dead, number = _decoded(document), int(document.key.id.removeprefix(self._ids))
            texts = dead.reason, dead.description
            found.append(DeadLetterEntry(queue, number, dead.message, *texts, dead.delivery_count, dead.enqueued_ms))
        return found

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

    async def has(self, queue: str, sequence: int) -> bool:
        return await self._store.read(self._key(queue, sequence)) is not None

    async def resubmit(
        self,
        queue: str,
        sequence: int,
        send: Callable[[Sequence[Output]], Awaitable[None]],
        *,
        attempt: int,
        edit: Message | None = None,
    ) -> None:
        """Send a dead letter to its queue as this attempt with its first creation time, then delete it and its copies.

        A crash between send and delete leaves a dead letter that may be resubmitted: the attempt is the same, so the
        second delivery is a duplicate.  Sent in its place, an `edit` has an id of its own for the broker, which else
        would drop it as a duplicate of what was sent before the crash.

        Raises:
            LookupError: there is no such dead letter.
        """
        document = await self._find(queue, sequence)
        dead = _decoded(document)
        message = dead.message
        again = msgspec.structs.replace(
            resubmission(edit or message, attempt=attempt, enqueued_ms=dead.enqueued_ms),
            outbox_id=message.identity,
            message_id=_broker_id(message.identity, sequence, attempt, edit),
        )
        others = await self.list(queue)
        copies = {
            other.sequence for other in others if is_copy(other.message, message) and other.message.attempt < attempt
        }
        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])
        for copy in sorted({sequence, *copies}):
            await self._delete(await self._store.read(self._key(queue, copy)))

    async def discard(self, queue: str, sequence: int) -> None:
        """Delete a dead letter.

        Raises:
            LookupError: there is no such dead letter, or another client has just moved it.
        """
        if not await self._delete(await self._find(queue, sequence)):
            raise LookupError(f"dead letter {sequence} of {queue} was moved meanwhile; list them again")

    async def _find(self, queue: str, sequence: int) -> Document:
        found = await self._store.read(self._key(queue, sequence))
        if found is None:
            raise LookupError(f"{queue} has no dead letter {sequence}; list them to see what is there")
        return found

    def _key(self, queue: str, number: int) -> DocumentKey:
        return DocumentKey(self._partitions + queue, f"{self._ids}{number:0{_DIGITS}d}")

    async def _delete(self, document: Document | None) -> bool:
        if document is None:
            return False
        answer = await self._store.write([Delete(document.key, document.version, Tag("letter-gone"))])
        return isinstance(answer, Won)


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


def _decoded(document: Document) -> StoredDeadLetter:
    try:
        return msgspec.json.decode(document.body, type=StoredDeadLetter)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise CorruptRecord(
            f"document {document.key.partition}/{document.key.id} is not a dead letter: {error}; who else writes here?"
        ) from error
