"""Keys that stand still behind a dead letter, where their handler's policy is `stop_key`.

A document says so for each session; it is written when the refusal is on record and before the message is
dead-lettered, so that no crash lets a successor by.  It goes when the dead letter is discarded, or when it was
resubmitted and is applied, and before that delivery is completed: nothing of the session goes ahead of it meanwhile,
wherever the bus has put it.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from outbox import stored
from outbox.app import CLAIM_CHECK_BYTES
from outbox.deliveries import resubmission
from outbox.message import Message
from outbox.ports import (
    BlobStore,
    Buried,
    Create,
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
from outbox.runtime.delivery.claim_check import check_in
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.work import Attempt


class BlockedSession(msgspec.Struct, frozen=True):
    """Which message its session stands still behind, and whether that is on its way again.

    `fingerprint` is the digest of its payload, because another may have come under its id; empty: it is not known.
    `again` is the message as it was resubmitted, for those who are given one message of a session at a time: the bus
    has put it behind its successors.
    """

    identity: str
    resubmitted: bool = False
    fingerprint: bytes = b""
    again: Message | None = None

    def is_behind(self, message: Message) -> bool:
        """Whether this is the message, or a copy of it; of one whose body is not at hand the identity tells."""
        digest = _digest(message)
        is_same = not digest or not self.fingerprint or digest == self.fingerprint
        return is_same and message.identity == self.identity


class BlockedSessions:
    """The sessions that stand still, in one store."""

    def __init__(self, store: StateStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs

    async def blocked_behind(self, delivery: Delivery) -> BlockedSession | None:
        """The message behind which the session of this one stands still; None: it goes on.

        Raises:
            NothingCommitted: it cannot be told now.
        """
        try:
            found = await self._store.read(_key(delivery.queue, delivery.message.session_id))
        except MAY_RETRY as error:
            raise NothingCommitted from error
        if found is None:
            return None
        return _decoded(found) or BlockedSession("")  # not ours: it blocks everything until an operator has looked

    async def stop(self, attempt: Attempt) -> None:
        """Let the session of a refused message stand still.

        Raises:
            NothingCommitted: it is not known to; the message must not be dead-lettered yet.
        """
        delivery = attempt.work.delivery
        stop = BlockedSession(delivery.message.identity, fingerprint=_digest(delivery.message))
        key, body = _key(delivery.queue, delivery.message.session_id), stored.encode(stop)
        tag = Tag("stop", (attempt.work.inbox,))
        try:
            answer = await self._store.write([Create(key, body, tag=tag)])
            if isinstance(answer, Lost) and attempt.is_blocker:  # it was resubmitted, and is refused again
                found = answer.current or await self._store.read(key)
                if found is not None and not _comes_again(found, delivery.message):
                    await self._store.write([Replace(key, body, found.version, tag=tag)])
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def unblock_after(self, attempt: Attempt) -> None:
        """Let a session go on, because the message that it stood still behind is applied.

        Raises:
            NothingCommitted: it is not known to; the message must not be completed yet.
        """
        try:
            await self.unblock(attempt.work.delivery.queue, attempt.work.delivery.message)
        except MAY_RETRY as error:
            raise NothingCommitted from error

    async def resubmitted(self, queue: str, letter: Buried, attempt: int) -> None:
        """Note that the message which a session stands still behind is about to come again; the session stays."""
        message = letter.message
        found = await self._store.read(_key(queue, message.session_id))
        stop = None if found is None else _decoded(found)
        if found is not None and stop is not None and stop.is_behind(message):
            again = resubmission(message, attempt=attempt, enqueued_ms=letter.enqueued_ms)
            again = msgspec.structs.replace(again, outbox_id=message.identity)
            again = await check_in(again, self._blobs, above_bytes=CLAIM_CHECK_BYTES)  # a document holds 2 MB
            body = stored.encode(msgspec.structs.replace(stop, resubmitted=True, again=again))
            await self._store.write([Replace(found.key, body, found.version, tag=Tag("resubmitted"))])

    async def unblock(self, queue: str, message: Message) -> None:
        """Let the session of a message go on, if it is this one that it stands still behind."""
        found = await self._store.read(_key(queue, message.session_id))
        if found is None:
            return
        stop = _decoded(found)
        if stop is not None and (not message.identity or stop.is_behind(message)):  # some have their number only
            await self._store.write([Delete(found.key, found.version, Tag("let-go"))])

    async def unblock_id(self, queue: str, session_id: str, identity: str) -> bool:
        """Let a session go on whose dead letter left by other means; whether it stood still behind this identity."""
        found = await self._store.read(_key(queue, session_id))
        stop = None if found is None else _decoded(found)
        if found is None or stop is None or stop.identity != identity:
            return False
        return isinstance(await self._store.write([Delete(found.key, found.version, Tag("let-go"))]), Won)


def _decoded(document: Document) -> BlockedSession | None:
    """A stop as it lies there; None: somebody else wrote it."""
    try:
        return msgspec.json.decode(document.body, type=BlockedSession)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _comes_again(document: Document, message: Message) -> bool:
    """Whether a later attempt at a message was resubmitted already, and this is an earlier one that came once more."""
    stop = _decoded(document)
    return stop is not None and stop.again is not None and stop.again.attempt > message.attempt


def _digest(message: Message) -> bytes:
    """The digest of a payload; empty where the body lies elsewhere."""
    if message.claim:
        return b""
    return sha256(message.type.encode("utf-8", "surrogatepass") + b"\0" + message.body).digest()


def _key(queue: str, session_id: str) -> DocumentKey:
    """Where a session's stop lies; a session id may be anything."""
    digest = sha256(f"{len(queue)}:{queue}{session_id}".encode("utf-8", "surrogatepass"))
    return DocumentKey(f"session:{digest.hexdigest()}", "stopped")
