"""Keys that stand still behind a dead letter, where their handler's policy is `stop_key`.

A document says so for each session; it is written when the refusal is on record and before the message is
dead-lettered, so that no crash lets a successor by.  It goes when the dead letter is discarded, or when it was
resubmitted and is applied, and before that delivery is completed: nothing of the session goes ahead of it meanwhile,
wherever the bus has put it.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256

import msgspec

from outbox.message import Message
from outbox.ports import Create, Delete, DocumentKey, Lost, Replace, StateStore, Tag
from outbox.runtime import items
from outbox.runtime.admission import NOT_DONE
from outbox.runtime.backoff import Again
from outbox.runtime.step import Work


class Stop(msgspec.Struct, frozen=True):
    """Which message its session stands still behind, and whether that is on its way again."""

    identity: str
    resubmitted: bool = False


class Stops:
    """The sessions that stand still, in one store."""

    def __init__(self, store: StateStore) -> None:
        self._store = store

    async def stopped_behind(self, work: Work) -> Stop | None:
        """The message behind which the session of this one stands still; None: it goes on.

        Raises:
            Again: it cannot be told now.
        """
        delivery = work.delivery
        try:
            found = await self._store.read(_key(delivery.queue, delivery.message))
        except NOT_DONE as error:
            raise Again from error
        if found is None:
            return None
        try:
            return msgspec.json.decode(found.body, type=Stop)
        except msgspec.MsgspecError:
            return Stop("")  # somebody else wrote it: it stops everything until somebody has looked

    async def stop(self, work: Work) -> None:
        """Let the session of a refused message stand still.

        Raises:
            Again: it is not known to; the message must not be dead-lettered yet.
        """
        delivery = work.delivery
        key, body = _key(delivery.queue, delivery.message), items.encode(Stop(delivery.message.identity))
        tag = Tag("stop", (work.inbox,))
        try:
            answer = await self._store.write([Create(key, body, tag=tag)])
            if isinstance(answer, Lost) and work.is_stopper:  # it was resubmitted, and is refused again
                found = answer.current or await self._store.read(key)
                if found is not None:
                    await self._store.write([Replace(key, body, found.version, tag=tag)])
        except NOT_DONE as error:
            raise Again from error

    async def went_on(self, work: Work) -> None:
        """Let a session go on, because the message that it stood still behind is applied.

        Raises:
            Again: it is not known to; the message must not be completed yet.
        """
        try:
            await self.let_go(work.delivery.queue, work.delivery.message)
        except NOT_DONE as error:
            raise Again from error

    async def resubmitted(self, queue: str, message: Message) -> None:
        """Note that the message which a session stands still behind is about to come again; the session stays."""
        if not message.identity:  # it has its sequence number only, and comes under another
            await self.let_go(queue, message)
            return
        found = await self._store.read(_key(queue, message))
        with suppress(msgspec.MsgspecError):
            if found is not None and msgspec.json.decode(found.body, type=Stop).identity == message.identity:
                body = items.encode(Stop(message.identity, resubmitted=True))
                await self._store.write([Replace(found.key, body, found.version, tag=Tag("resubmitted"))])

    async def let_go(self, queue: str, message: Message) -> None:
        """Let the session of a message go on, if it is this one that it stands still behind."""
        found = await self._store.read(_key(queue, message))
        if found is None:
            return
        with suppress(msgspec.MsgspecError):
            stop = msgspec.json.decode(found.body, type=Stop)
            if not message.identity or stop.identity == message.identity:  # some have their sequence number only
                await self._store.write([Delete(found.key, found.version, Tag("let-go"))])


def _key(queue: str, message: Message) -> DocumentKey:
    """Where a session's stop lies; a session id may be anything."""
    digest = sha256(f"{len(queue)}:{queue}{message.session_id}".encode("utf-8", "surrogatepass"))
    return DocumentKey(f"session:{digest.hexdigest()}", "stopped")
