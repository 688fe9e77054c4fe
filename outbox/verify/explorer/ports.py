"""The ports as a program under exploration sees them: every call is issued to `Calls`, and answered by a model."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from functools import partial
from hashlib import sha256

import msgspec

from outbox.message import Message
from outbox.ports import (
    SUBSCRIPTIONS,
    BlobStore,
    Commit,
    Conflict,
    DeadLetterEntry,
    Delivery,
    Document,
    DocumentKey,
    First,
    Journal,
    LedgerStore,
    Lost,
    Marker,
    MessageBus,
    Output,
    Session,
    Settle,
    StateDocument,
    StoreCapabilities,
    Version,
    Won,
    Write,
)
from outbox.resubmission import is_copy, next_attempt, resubmission
from outbox.verify.explorer.run import Calls


class ExploredJournal:
    """A journal whose answers are chosen; from `until_ms` on (0: never) it hands out nothing.

    Where it is `gated`, a commit is written and then synced, as two steps.
    """

    def __init__(self, calls: Calls, resource: int, *, until_ms: int = 0, gated: bool = False) -> None:
        self._call = partial(calls, resource)
        self._until_ms = until_ms
        self._gated = gated

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        return list(await self._call("claim", tuple(queues), count_max, self._until_ms))

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        documents, seen = await self._call("load", tuple(states), tuple(markers))
        return dict(documents), dict(seen)  # the caller may change them

    async def commit(self, commit: Commit) -> Conflict | None:
        conflict: Conflict | None = await self._call("commit", commit)
        if self._gated and conflict is None:
            await self.durable()
        return conflict

    async def durable(self) -> None:
        await self._call("durable")

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return int(await self._call("renew", tuple(deliveries)))

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._call("release", tuple(deliveries))


class ExploredStore:
    """A state store whose answers are chosen."""

    def __init__(
        self,
        calls: Calls,
        resource: int,
        capabilities: StoreCapabilities,
        *,
        seen: str = "",
    ) -> None:
        self._call = partial(calls, resource)
        self.capabilities = capabilities
        self.seen = seen
        """The store as `unfinished` last found it; it waits until that has changed."""
        self.found_count = 0
        """How many documents that were."""

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found: Document | None = await self._call("read", key, session)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        outcome: Won | Lost = await self._call("write", tuple(operations))
        return outcome

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        for document in await self._call("scan", partition, prefix):
            yield document

    async def unfinished(self) -> AsyncIterator[Document]:
        found: tuple[Document, ...]
        found, self.seen = await self._call("unfinished", self.seen)
        self.found_count = len(found)
        for document in found:
            yield document

    async def changed(self, seen: Sequence[tuple[DocumentKey, Version]], *, wait_s: float) -> None:
        """Wait until one of these documents has another version; of none, for ever."""
        await self._call("changed", tuple(seen))

    async def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        for document in await self._call("unsent", first, before):
            yield document


class ExploredBus:
    """A message bus whose answers are chosen."""

    def __init__(self, calls: Calls, resource: int) -> None:
        self._call = partial(calls, resource)

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._call("send", tuple(outputs))

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        return list(await self._call("receive", queue, count_max))

    async def receive_any(self, queues: Sequence[str], count_max: int, until_ms: int = 0) -> Sequence[Delivery]:
        """From whichever queue has something: what receivers of all of them would get, until then (0: for ever)."""
        return list(await self._call("receive-any", tuple(queues), count_max, until_ms))

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        await self._call("settle", delivery, settle)

    async def renew(self, delivery: Delivery) -> int:
        return int(await self._call("renew", delivery))


class ExploredOperations:
    """The operations of an operator on a bus: a resubmission sends a message, then removes the dead letter."""

    def __init__(self, calls: Calls, resource: int) -> None:
        self._call = partial(calls, resource)
        self.now_ms = calls.now_ms

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._call("send", tuple(outputs))

    async def dead_letters(self, queue: str) -> list[DeadLetterEntry]:
        return list(await self._call("dead-letters", queue))

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        dead = await self.dead_letters(queue)
        found = next((each for each in dead if each.sequence == sequence), None)
        if found is None:
            raise LookupError(f"{queue} has no dead letter {sequence}")
        message = found.message
        copies = [other for other in dead if is_copy(other.message, message)]
        attempt = max(attempt, next_attempt(message, [copy.message for copy in copies]))
        which = "" if edit is None else f"-{sha256(edit.body).hexdigest()[:8]}"
        again = msgspec.structs.replace(
            resubmission(edit or message, attempt=attempt, enqueued_ms=found.enqueued_ms),
            outbox_id=message.identity,
            message_id=f"{message.identity}~{attempt}{which}",
        )
        if first is not None:
            await first()
        await self.send([Output(queue.partition(SUBSCRIPTIONS)[0], 0, again)])
        await self._call("take-dead-letters", queue, tuple(copy.sequence for copy in copies))

    async def discard(self, queue: str, sequence: int, *, first: First | None = None) -> None:
        if all(dead.sequence != sequence for dead in await self.dead_letters(queue)):
            raise LookupError(f"{queue} has no dead letter {sequence}")
        if first is not None:
            await first()
        await self._call("take-dead-letters", queue, (sequence,))


class ExploredBlobs:
    """A blob store whose answers are chosen."""

    def __init__(self, calls: Calls, resource: int) -> None:
        self._call = partial(calls, resource)

    async def write(self, name: str, data: bytes) -> bool:
        return bool(await self._call("write", name, data))

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        found: bytes | None = await self._call("read", name, bytes_max)
        return found

    async def delete(self, name: str) -> None:
        await self._call("delete", name)


_journal: type[Journal] = ExploredJournal
_store: type[LedgerStore] = ExploredStore
_bus: type[MessageBus] = ExploredBus
_blobs: type[BlobStore] = ExploredBlobs
