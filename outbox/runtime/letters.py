"""Dead letters that lie in the store, because whoever delivered their messages could not dead-letter them.

Under a Functions trigger a message can be completed or be given back, nothing else.  So one that is refused (its record
says so already) is kept as a document of its own, without a time to live, before its delivery is completed; a crash in
between brings the delivery back, its record is followed, and the same document is found.  Who looks after dead letters
sees those of the bus and these as one list.

    partition = letters:<queue>   `letter:<sequence>`   the message, why it was refused, and how often it was delivered

Nothing here is a commit: what became of the message is decided by its record alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec

from outbox.errors import CorruptRecord
from outbox.message import Message
from outbox.ports import (
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
from outbox.runtime.claims import to_claim

SUBSCRIPTIONS = "/Subscriptions/"
_PREFIX = "letter:"
_SEQUENCE_DIGITS = 20
"""So many that their order as texts is their order as numbers."""


class Letter(msgspec.Struct, frozen=True, omit_defaults=True):
    """A refused message as it is kept."""

    sequence: int
    message: Message
    reason: str
    description: str
    delivery_count: int
    enqueued_ms: int


class Letters:
    """The dead letters that lie in one store."""

    def __init__(self, store: StateStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    async def keep(self, delivery: Delivery, reason: str, description: str, *, claim_check_bytes: int) -> None:
        """Keep a message that is refused; on return it is safe to complete its delivery.

        Raises:
            Refused, OutcomeUnknown: it may not be kept; the delivery must come again.
        """
        message = delivery.message
        if len(message.body) > claim_check_bytes:
            name, data = to_claim(message)
            await self._blobs.write(name, data)
            message = msgspec.structs.replace(message, body=b"", claim=name)
        count = 1 + delivery.delivery_count + delivery.failures
        letter = Letter(delivery.sequence, message, reason, description, count, delivery.enqueued_ms)
        key = _key(delivery.queue, delivery.sequence)
        await self._store.write(
            [Create(key, msgspec.json.encode(letter), tag=Tag("letter"))]
        )  # lost: it is kept already

    async def list(self, queue: str) -> list[Buried]:
        """The dead letters of a queue or subscription that lie here, oldest first."""
        found = []
        async for document in self._store.scan(_partition(queue), prefix=_PREFIX):
            letter = _decoded(document)
            found.append(
                Buried(
                    queue,
                    letter.sequence,
                    letter.message,
                    letter.reason,
                    letter.description,
                    letter.delivery_count,
                    letter.enqueued_ms,
                )
            )
        return found

    async def has(self, queue: str, sequence: int) -> bool:
        """Whether a dead letter lies here."""
        return await self._store.read(_key(queue, sequence)) is not None

    async def resubmit(
        self,
        queue: str,
        sequence: int,
        send: Callable[[Sequence[Output]], Awaitable[None]],
        *,
        now_ms: int,
    ) -> None:
        """Send a dead letter to its queue again, as a new attempt with a new time; copies of it go.

        A crash between the sending and the deleting leaves a letter that may be sent again: the attempt is the same,
        and whichever comes second is a duplicate.

        Raises:
            LookupError: there is no such letter.
        """
        document = await self._find(queue, sequence)
        message = _decoded(document).message
        attempt = message.attempt + 1
        again = msgspec.structs.replace(
            message,
            outbox_id=message.identity,
            message_id=_broker_id(message.identity, sequence, attempt),
            attempt=attempt,
            created_ms=now_ms,
            failures=0,
        )
        copies = [other.sequence for other in await self.list(queue) if _is_copy(other.message, message)]
        await send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])
        for copy in copies:
            await self._delete(await self._store.read(_key(queue, copy)))

    async def discard(self, queue: str, sequence: int) -> None:
        """Delete a dead letter.

        Raises:
            LookupError: there is no such letter, or somebody else has just moved it.
        """
        if not await self._delete(await self._find(queue, sequence)):
            raise LookupError(f"dead letter {sequence} of {queue} was moved by somebody else; list them again")

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


def _key(queue: str, sequence: int) -> DocumentKey:
    return DocumentKey(_partition(queue), f"{_PREFIX}{sequence:0{_SEQUENCE_DIGITS}d}")


def _broker_id(identity: str, sequence: int, attempt: int) -> str:
    """An id that a broker which drops duplicates has not seen, and that a repeated resubmission has again."""
    return f"{identity}~{sequence}-{attempt}" if identity else ""


def _decoded(document: Document) -> Letter:
    try:
        return msgspec.json.decode(document.body, type=Letter)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        where = f"{document.key.partition}/{document.key.id}"
        raise CorruptRecord(f"document {where} is not a dead letter: {error}; who else writes here?") from error


def _is_copy(other: Message, message: Message) -> bool:
    """Whether two letters are of one message; sent again when nothing remembers this one, it would run again."""
    key = (message.identity, message.type, message.body, message.claim)
    return (other.identity, other.type, other.body, other.claim) == key
