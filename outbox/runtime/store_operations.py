"""Operations over a store and a bus: states from the one, queues from the other.

Dead letters are in both: on the bus, or in the store after delivery by a host that cannot dead-letter.  A separate
container of states holds nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec

from outbox import stored
from outbox.errors import Refused
from outbox.message import Message
from outbox.ports import (
    SUBSCRIPTIONS,
    Create,
    DeadLetterEntry,
    Document,
    DocumentKey,
    First,
    Operations,
    Output,
    Ports,
    Replace,
    StateDocument,
    StateStore,
    StorePorts,
    Tag,
    Version,
    Won,
)
from outbox.resubmission import check_resubmittable, is_copy, next_attempt
from outbox.runtime.commit.dispatch_ledger import unsent_of
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters, StoredEntry
from outbox.runtime.scopes import stores_of
from outbox.stored import LEDGER_PREFIX, LedgerItem, state_key


def operations_over(ports: Ports | StorePorts) -> Operations:
    return ports.operations if isinstance(ports, Ports) else StoreOperations(ports)


class StoreOperations:
    """The operations of a backend of partition or item scope."""

    def __init__(self, ports: StorePorts) -> None:
        self._states = ports.store
        self._infrastructure = ports.infrastructure or ports.store
        self._stores = stores_of(ports)
        self._bus = ports.operations
        self._blocked = BlockedSessions(self._infrastructure, ports.blobs)
        self._dead_letters = StoredDeadLetters(self._infrastructure, ports.blobs)
        self._discarded = StoredDeadLetters(self._infrastructure, ports.blobs, discarded=True)
        self.now_ms = ports.operations.now_ms
        self.set_aside_of = self._discarded.list
        """The discarded dead letters of a queue that can be restored, in their order."""
        self.unblock = self._blocked.unblock_id

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        await self._bus.declare(queues, topics)  # blocked sessions are documents of the store here

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._bus.send(outputs)

    async def state(self, id: str) -> StateDocument | None:
        item = cached_state(await self._states.read(state_key(id))).item
        if item.is_tombstone:
            return None
        return StateDocument(bytes(item.value), item.version, item.schema, item.version)

    async def dead_letters(self, queue: str) -> list[DeadLetterEntry]:
        found = [*await self._bus.dead_letters(queue), *await self._dead_letters.list(queue)]
        return sorted(found, key=lambda dead: (dead.enqueued_ms, dead.sequence))

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        found = await self.dead_letters(queue)
        dead = next((each for each in found if each.sequence == sequence), None)
        if dead is None:
            raise LookupError(f"{queue} has no dead letter {sequence} that is free; list them again")
        check_resubmittable(f"{queue}/{dead.message.identity or sequence}", dead.reason, dead.description)
        if edit is not None and SUBSCRIPTIONS in queue:
            topic = queue.partition(SUBSCRIPTIONS)[0]
            raise Refused(
                f"{queue} is a subscription, and an edit would reach the topic's other ones too, where the message was "
                "handled as it is; resubmit it as it is once its handler takes it, or discard it and send the "
                f"corrected message to {topic} under a new id, which the other subscriptions handle as well"
            )
        attempt = max(attempt, next_attempt(dead.message, [other.message for other in found]))

        async def note() -> None:
            if first is not None:
                await first()
            if dead.message.session_id:
                await self._blocked.note_resubmission(queue, dead, attempt, edit=edit)  # unblocked when it is applied

        is_stored = isinstance(dead, StoredEntry)
        if is_stored:
            await note()
            await self._dead_letters.resubmit(queue, sequence, self._bus.send, attempt=attempt, edit=edit)
        else:
            await self._bus.resubmit(queue, sequence, attempt=attempt, edit=edit, first=note)
        await self._drop_copies(dead, [each for each in found if isinstance(each, StoredEntry) is not is_stored])

    async def _drop_copies(self, dead: DeadLetterEntry, others: Sequence[DeadLetterEntry]) -> None:
        """Delete the copies of a resubmitted dead letter that lie elsewhere, as they were listed.

        A crash before leaves them: resubmitted, such a one is an attempt that is on record already, or the next one.
        """
        for other in others:
            if not is_copy(other.message, dead.message):
                continue
            if isinstance(other, StoredEntry):
                await self._dead_letters.delete(other)
                continue
            with suppress(LookupError):  # another has it, or has moved it
                await self._bus.discard(other.queue, other.sequence)

    async def discard(self, queue: str, sequence: int, *, first: First | None = None) -> None:
        found = await self.dead_letters(queue)
        dead = next((each for each in found if each.sequence == sequence), None)
        await (self._bus.discard(queue, sequence) if dead is None else self.discard_found(dead, first=first))

    async def discard_found(self, dead: DeadLetterEntry, *, first: First | None = None) -> None:
        """Delete a dead letter that was listed; LookupError where it is gone, or was restored meanwhile.

        One of the bus is in hand before anything else is done: another client may have it, and then nothing is.
        """

        async def unblock() -> None:
            if first is not None:
                await first()
            if dead.message.session_id:
                await self._blocked.unblock(dead.queue, dead.message)  # else nothing could unblock its key

        if not isinstance(dead, StoredEntry):
            await self._bus.discard(dead.queue, dead.sequence, first=unblock)
            return
        await unblock()
        if not await self._dead_letters.delete(dead):
            raise LookupError(f"dead letter {dead.sequence} of {dead.queue} was moved meanwhile; list them again")

    async def before_discard(self, dead: DeadLetterEntry, *, life_s: float | None) -> None:
        """Keep a dead letter of the bus for `life_s` (None: do not) and unblock its key, before it is deleted."""
        if life_s is not None:
            await self._discarded.put(dead, anew=True, ttl_s=life_s)
        if dead.message.session_id:
            await self._blocked.unblock(dead.queue, dead.message)

    async def set_aside(self, dead: DeadLetterEntry, *, life_s: float) -> None:
        """Discard a listed dead letter, and keep it for `life_s` to be restored; LookupError where it is gone.

        In a store it goes as it was listed, so before it was kept: where a restore has written it since, it stays.  A
        crash in between leaves both: the dead letter is still there to be discarded, and was kept already.
        """
        await self.discard_found(dead, first=partial(self._discarded.put, dead, ttl_s=life_s, anew=True))

    async def restore(self, queue: str, sequence: int) -> None:
        """Let a discarded dead letter be one again, from now on in the store; it blocks no key again.

        It is written anew, also where a discard was broken off and left it: another discard then does not delete it.
        A crash in between leaves both: restored once more it is the same dead letter.

        Raises:
            LookupError: nothing was discarded under that number, or its time is over.
        """
        kept = await self._discarded.read(queue, sequence)
        if kept is None:
            raise LookupError(f"{queue} has no discarded dead letter {sequence} any more; list them again")
        await self._dead_letters.put(kept, anew=True)
        await self._discarded.delete(kept)  # else it was discarded again, or another has restored it

    async def is_idle(self, queues: Sequence[str]) -> bool:
        return await self._bus.is_idle(queues)

    async def is_drained(self, queues: Sequence[str]) -> bool:
        for queue in queues:
            if await self._dead_letters.list(queue):
                return False
        return not await may_be_sent_to(queues, *self._stores) and await self._bus.is_drained(queues)

    async def note(self, name: str) -> Document | None:
        return await self._infrastructure.read(DocumentKey("notes", name))

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        key, tag = DocumentKey("notes", name), Tag("note")
        write = Replace(key, body, version, tag=tag) if version else Create(key, body, tag=tag)
        return isinstance(await self._infrastructure.write([write]), Won)


# Outputs that are not pushed yet


class _Outputs(msgspec.Struct):
    """The outputs of a record, or of a staged one; `spilled` ones are not read."""

    outputs: tuple[Output, ...] = ()
    spilled: str = ""
    record: _Outputs | None = None
    pending: _Outputs | str | bool = ""


async def may_be_sent_to(sources: Collection[str], *stores: StateStore) -> bool:
    """Whether a pending document may hold outputs for one of these queues or subscriptions."""
    destinations = {source.partition(SUBSCRIPTIONS)[0] for source in sources}
    for store in stores:
        async for document in store.unfinished():
            if _holds(document, destinations):
                return True
            if document.key.id.startswith(LEDGER_PREFIX):
                async for unsent, _ in unsent_of(store, stored.decode(document, LedgerItem)):
                    if _holds(unsent, destinations):
                        return True
    return False


def _holds(document: Document, destinations: Collection[str]) -> bool:
    try:
        found = msgspec.json.decode(document.body, type=_Outputs)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False  # a foreign document; nothing is pushed from it
    inline = found.pending if isinstance(found.pending, _Outputs) else found
    record = inline.record or found
    return bool(record.spilled) or any(output.destination in destinations for output in record.outputs)


_operations: type[Operations] = StoreOperations
