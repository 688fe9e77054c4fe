"""Dead letters that lie in the store, because whoever delivered their messages could not dead-letter them.

Under a Functions trigger a message can be completed or be given back, nothing else.  So one that is refused (its record
says so already) is kept as a document of its own, without a time to live, before its delivery is completed; a crash in
between brings the delivery back, its record is followed, and the same document is found.  Who looks after dead letters
sees those of the bus and these as one list.

    partition = letters:<queue>   `letter:<number>`   the message, why it was refused, and how often it was delivered

A broker's sequence numbers start again with a queue that is made anew, so a letter has a number of its own, made of
when the message was enqueued and a digest of what it is: the same for every delivery of it, another for another one.

Nothing here is a commit: what became of the message is decided by its record alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from outbox.app import CLAIM_CHECK_BYTES
from outbox.deliveries import is_copy, resubmission
from outbox.errors import CorruptRecord, NoBlobStore, Refused
from outbox.message import Message
from outbox.ports import (
    SUBSCRIPTIONS,
    BlobStore,
    Buried,
    Create,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Output,
    StateStore,
    Tag,
    Won,
)
from outbox.runtime.delivery.claim_check import check_in

_PREFIX = "letter:"
_DIGITS = 20
"""So many that the order of numbers as texts is their order."""
_DIGEST_BITS = 20
NUMBER_COUNT_MAX = 8
"""How many letters may have asked for one number; the chance of two is one in a million for each millisecond."""


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refused message as it is kept."""

    sequence: int
    message: Message
    reason: str
    description: str
    delivery_count: int
    enqueued_ms: int

    @property
    def origin(self) -> tuple[int, int, str]:
        """Which message of the broker's it is."""
        return self.enqueued_ms, self.sequence, self.message.identity


class StoredDeadLetters:
    """The dead letters that lie in one store."""

    def __init__(self, store: StateStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    async def keep(self, delivery: Delivery, reason: str, description: str) -> None:
        """Keep a message that is refused; on return it is safe to complete its delivery.

        Raises:
            Refused, OutcomeUnknown: it may not be kept; the delivery must come again.
        """
        message = delivery.message
        with suppress(NoBlobStore):  # then it is kept whole, as it came
            message = await check_in(message, self._blobs, above_bytes=CLAIM_CHECK_BYTES)
        count = 1 + delivery.delivery_count + delivery.failures
        letter = Letter(delivery.sequence, message, reason, description, count, delivery.enqueued_ms)
        body, first = msgspec.json.encode(letter), _number(letter)
        for number in range(first, first + NUMBER_COUNT_MAX):
            key = _key(delivery.queue, number)
            answer = await self._store.write([Create(key, body, tag=Tag("letter"))])
            if isinstance(answer, Won):
                return
            there = answer.current or await self._store.read(key, session=answer.session)
            with suppress(CorruptRecord):  # somebody else's
                if there is not None and _decoded(there).origin == letter.origin:
                    return  # an earlier delivery of this message has kept it
        raise Refused(f"{delivery.queue}/{delivery.sequence} cannot be kept: its letter's numbers are taken")

    async def list(self, queue: str) -> list[Buried]:
        """The dead letters of a queue or subscription that lie here, oldest first; `sequence` is their own number."""
        found = []
        async for document in self._store.scan(_partition(queue), prefix=_PREFIX):
            letter = _decoded(document)
            found.append(
                Buried(
                    queue,
                    int(document.key.id.removeprefix(_PREFIX)),
                    letter.message,
                    letter.reason,
                    letter.description,
                    letter.delivery_count,
                    letter.enqueued_ms,
                )
            )
        return found

    async def count(self, queue: str, *, count_max: int) -> int:
        """How many dead letters of a queue or subscription lie here, as far as `count_max`: each is read for it."""
        count = 0
        async for _ in self._store.scan(_partition(queue), prefix=_PREFIX):
            count += 1
            if count >= count_max:
                break
        return count

    async def has(self, queue: str, sequence: int) -> bool:
        """Whether a dead letter lies here."""
        return await self._store.read(_key(queue, sequence)) is not None

    async def resubmit(
        self,
        queue: str,
        sequence: int,
        send: Callable[[Sequence[Output]], Awaitable[None]],
        *,
        attempt: int,
    ) -> None:
        """Send a dead letter to its queue again, as such an attempt with its first time; copies of it go.

        A crash between the sending and the deleting leaves a letter that may be sent again: the attempt is the same,
        and whichever comes second is a duplicate.

        Raises:
            LookupError: there is no such letter.
        """
        document = await self._find(queue, sequence)
        letter = _decoded(document)
        message = letter.message
        again = msgspec.structs.replace(
            resubmission(message, attempt=attempt, enqueued_ms=letter.enqueued_ms),
            outbox_id=message.identity,
            message_id=_broker_id(message.identity, sequence, attempt),
        )
        letters = await self.list(queue)
        copies = {x.sequence for x in letters if is_copy(x.message, message) and x.message.attempt < attempt}
        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])
        for copy in sorted({sequence, *copies}):
            await self._delete(await self._store.read(_key(queue, copy)))

    async def discard(self, queue: str, sequence: int) -> None:
        """Delete a dead letter.

        Raises:
            LookupError: there is no such letter, or somebody else has just moved it.
        """
        if not await self._delete(await self._find(queue, sequence)):
            raise LookupError(f"dead letter {sequence} of {queue} was moved meanwhile; list them again")

    async def _find(self, queue: str, sequence: int) -> Document:
        found = await self._store.read(_key(queue, sequence))
        if found is None:
            raise LookupError(f"{queue} has no dead letter {sequence}; list them to see what is there")
        return found

    async def _delete(self, document: Document | None) -> bool:
        if document is None:
            return False
        answer = await self._store.write([Delete(document.key, document.version, Tag("letter-gone"))])
        return isinstance(answer, Won)


def _partition(queue: str) -> str:
    return f"letters:{queue}"


def _key(queue: str, number: int) -> DocumentKey:
    return DocumentKey(_partition(queue), f"{_PREFIX}{number:0{_DIGITS}d}")


def _number(letter: Letter) -> int:
    """The number that a letter asks for first; they are in the order in which their messages came."""
    enqueued_ms, *what = letter.origin
    digest = sha256(repr(what).encode("utf-8", "surrogatepass")).digest()
    return (enqueued_ms << _DIGEST_BITS) | (int.from_bytes(digest[:4]) >> (32 - _DIGEST_BITS))


def _broker_id(identity: str, sequence: int, attempt: int) -> str:
    """An id that a broker which drops duplicates has not seen, and that a repeated resubmission has again."""
    return f"{identity}~{sequence}-{attempt}" if identity else ""


def _decoded(document: Document) -> Letter:
    try:
        return msgspec.json.decode(document.body, type=Letter)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        where = f"{document.key.partition}/{document.key.id}"
        raise CorruptRecord(f"document {where} is not a dead letter: {error}; who else writes here?") from error
