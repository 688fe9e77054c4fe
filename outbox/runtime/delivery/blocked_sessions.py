"""Sessions blocked by a dead letter, where a handler declares `on_dead_letter="stop_key"`.

Each blocked session has a document.  It is written after the refusal is on record and before the message is
dead-lettered, so that no crash lets a successor overtake.  It is deleted when the dead letter is discarded, or when its
resubmission is applied, before that delivery is completed: until then no successor runs, wherever the bus has put the
resubmission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from hashlib import sha256

import msgspec
from msgspec import UNSET, UnsetType

from outbox import stored
from outbox.app import CLAIM_CHECK_BYTES
from outbox.message import Message
from outbox.ports import (
    BlobStore,
    Create,
    DeadLetterEntry,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    Replace,
    StateStore,
    Tag,
    Won,
)
from outbox.resubmission import resubmission
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.work import Attempt

BLOCKED_SESSIONS, BLOCK = "session:", "stopped"
"""How the partitions of blocked sessions begin, and the id of the document in each."""
Among = Callable[[Sequence[str], str], AsyncIterator[Document]]
"""The documents of an id in some partitions, where a store finds them in one query."""
EDIT_COUNT_MAX = 100
"""How many edits of one dead letter a block remembers."""


class BlockedSession(msgspec.Struct, frozen=True):
    """The message that blocks a session, and whether it was resubmitted.

    `fingerprint` is the digest of its payload, because another message may have used its id; empty: unknown.  `again`
    is the resubmitted message, for hosts that get one message of a session at a time: on the bus the resubmission lies
    behind its successors.  `edits` are the digests of edits of it: a crash may have prevented that one was sent.
    """

    identity: str
    resubmitted: bool = False
    fingerprint: bytes = b""
    again: Message | None = None
    edits: tuple[bytes, ...] | UnsetType = UNSET

    def is_behind(self, message: Message) -> bool:
        """Whether the session is blocked by this very message or a copy; without its body the identity decides."""
        digest = _digest(message)
        is_same = not digest or not self.fingerprint or digest in (self.fingerprint, *(self.edits or ()))
        return is_same and message.identity == self.identity


class BlockedSessions:
    """The blocked sessions of one store."""

    def __init__(self, store: StateStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    async def blocked_behind(self, delivery: Delivery) -> BlockedSession | None:
        """The block on this delivery's session; None where it is free.

        Raises:
            NothingCommitted: the store cannot be read now.
        """
        try:
            return await self.block_of(delivery.queue, delivery.message.session_id)
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def identity_of(self, queue: str, session_id: str) -> str | None:
        """The identity of the dead letter that blocks a session; None: none does."""
        blocked = await self.block_of(queue, session_id)
        return None if blocked is None else blocked.identity

    async def block_of(self, queue: str, session_id: str) -> BlockedSession | None:
        """The block on a session; None where it is free.  A foreign document blocks under no identity.

        It blocks until an operator deletes it.
        """
        found = await self._store.read(_key(queue, session_id))
        return None if found is None else _decoded(found) or BlockedSession("")

    async def identities_of(self, queue: str, session_ids: Iterable[str], among: Among) -> dict[str, str]:
        """The identities of the dead letters that block some of these sessions, by session, in one query."""
        sessions = {_key(queue, session_id).partition: session_id for session_id in session_ids}
        found = {}
        async for document in among(list(sessions), BLOCK):
            blocked = _decoded(document)
            found[sessions[document.key.partition]] = "" if blocked is None else blocked.identity
        return found

    async def block(self, attempt: Attempt) -> None:
        """Block the session of a refused message.

        Raises:
            NothingCommitted: the block is not known to be stored; do not dead-letter the message yet.
        """
        delivery = attempt.work.delivery
        blocked = BlockedSession(delivery.message.identity, fingerprint=_digest(delivery.message))
        key, body = _key(delivery.queue, delivery.message.session_id), stored.encode(blocked)
        tag = Tag("stop", (attempt.work.inbox,))
        try:
            answer = await self._store.write([Create(key, body, tag=tag)])
            if isinstance(answer, Lost) and attempt.is_blocker:  # it was resubmitted, and is refused again
                found = answer.current or await self._store.read(key)
                if found is not None and not _is_superseded(delivery.message, found):
                    await self._store.write([Replace(key, body, found.version, tag=tag)])
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def unblock_after(self, attempt: Attempt) -> None:
        """Unblock a session, because the message that blocked it is applied.

        Raises:
            NothingCommitted: the block is not known to be deleted; do not complete the message yet.
        """
        try:
            await self.unblock(attempt.work.delivery.queue, attempt.work.delivery.message)
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def note_resubmission(
        self, queue: str, dead_letter: DeadLetterEntry, attempt: int, *, edit: Message | None = None
    ) -> None:
        """Note that the message which blocks a session is resubmitted; it stays blocked until that is applied."""
        message = dead_letter.message
        found = await self._store.read(_key(queue, message.session_id))
        blocked = None if found is None else _decoded(found)
        if found is not None and blocked is not None and blocked.is_behind(message):
            again = resubmission(edit or message, attempt=attempt, enqueued_ms=dead_letter.enqueued_ms)
            again = msgspec.structs.replace(again, outbox_id=message.identity)
            edits = blocked.edits
            if edit is not None and (digest := _digest(edit)):
                edits = (*(edits or ()), digest)[-EDIT_COUNT_MAX:]
            again = await check_in(again, self._blobs, above_bytes=CLAIM_CHECK_BYTES)  # a document holds 2 MB
            body = stored.encode(msgspec.structs.replace(blocked, resubmitted=True, again=again, edits=edits))
            await self._store.write([Replace(found.key, body, found.version, tag=Tag("resubmitted"))])

    async def unblock(self, queue: str, message: Message) -> None:
        """Unblock the session of a message, if that message blocks it."""
        found = await self._store.read(_key(queue, message.session_id))
        blocked = None if found is None else _decoded(found)
        by_number = not message.identity  # a message without an identity is known by its sequence number only
        if found is not None and blocked is not None and (by_number or blocked.is_behind(message)):
            await self._store.write([Delete(found.key, found.version, Tag("let-go"))])

    async def unblock_id(self, queue: str, session_id: str, identity: str) -> bool:
        """Unblock a session whose dead letter left by other means; False if this identity does not block it."""
        found = await self._store.read(_key(queue, session_id))
        blocked = None if found is None else _decoded(found)
        if found is None or blocked is None or blocked.identity != identity:
            return False
        return isinstance(await self._store.write([Delete(found.key, found.version, Tag("let-go"))]), Won)


def _decoded(document: Document) -> BlockedSession | None:
    """A block as stored; None: a foreign document."""
    try:
        return msgspec.json.decode(document.body, type=BlockedSession)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _is_superseded(message: Message, document: Document) -> bool:
    """Whether this is a redelivery of an earlier attempt, and a later one was resubmitted already."""
    blocked = _decoded(document)
    return blocked is not None and blocked.again is not None and blocked.again.attempt > message.attempt


def _digest(message: Message) -> bytes:
    """The digest of a payload; empty where the body lies in a blob."""
    if message.claim:
        return b""
    return sha256(message.type.encode("utf-8", "surrogatepass") + b"\0" + message.body).digest()


def _key(queue: str, session_id: str) -> DocumentKey:
    """The place of a session's block, by digest, because a session id may be any text."""
    digest = sha256(f"{len(queue)}:{queue}{session_id}".encode("utf-8", "surrogatepass"))
    return DocumentKey(f"{BLOCKED_SESSIONS}{digest.hexdigest()}", BLOCK)
