"""The dead letters of a store and a bus, as an operator asks for them: list, show, resubmit, discard, restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from typing import Protocol

from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import Refused
from outbox.ops.dead_letter_views import (
    TypeNames,
    attempts_of,
    discarded,
    matches,
    name_of,
    those_of,
    type_names,
    view_of,
    with_body,
)
from outbox.ops.names import discarded_id, full_id
from outbox.ops.values import BATCH_COUNT_MAX, DeadAttempt, DeadLetterFilter, DeadLetterView, Moved
from outbox.ports import DeadLetterEntry, First, StorePorts
from outbox.resubmission import alike, newest
from outbox.runtime.delivery.edits import edit_of
from outbox.runtime.delivery.stored_dead_letters import StoredEntry
from outbox.runtime.start.handler_names import NOTE_PREFIX, NOTES
from outbox.runtime.start.retention import NOTE_PREFIX as RETENTION_PREFIX
from outbox.runtime.start.retention import longest_retention_ms
from outbox.runtime.store_operations import StoreOperations


class DiscardSome(Protocol):
    """Delete dead letters of the bus by their numbers in one pass, each after its `first` under lock; which it had."""

    async def __call__(self, queue: str, firsts: Mapping[int, First]) -> set[int]: ...


class StoreDeadLetters:
    """The dead letters of bus and store as one list."""

    def __init__(self, ports: StorePorts, operations: StoreOperations, on_the_bus: DiscardSome | None = None) -> None:
        """Take the ports; without `on_the_bus` each dead letter of the bus is discarded by itself."""
        self._on_the_bus = on_the_bus
        self._notes = ports.infrastructure or ports.store
        self._blobs = ports.blobs
        self._operations = operations
        self._listed: list[DeadLetterView] = []
        """The last list, for its further pages."""

    async def page(self, queue: str, *, after: int, count_max: int, where: DeadLetterFilter) -> list[DeadLetterView]:
        """A page of them, oldest first; the first page reads, others show its result."""
        if not after:
            types = await self.types(queue)
            self._listed = [
                view_of(name_of(dead), dead, types.only)
                for dead in await self._operations.dead_letters(queue)
                if matches(dead, where, types)
            ]
        places = [letter.sequence for letter in self._listed]
        first = places.index(after) + 1 if after in places else 0
        return self._listed[first : first + min(count_max, BATCH_COUNT_MAX)]

    async def among(self, queue: str, ids: Sequence[str]) -> dict[str, list[DeadAttempt]]:
        """Those of some ids that are dead letters now."""
        found = await self._operations.dead_letters(queue)
        return attempts_of(ids, ((name_of(dead), DeadAttempt(dead.sequence, dead.message.attempt)) for dead in found))

    async def one(self, queue: str, id: str, *, sequence: int) -> DeadLetterView:
        """The one of an id that a resubmission takes, or the one of a number, with its body."""
        id, found = await self._of(queue, id)
        dead, only = newest(those_of(queue, id, found, sequence)), (await self.types(queue)).only
        return await with_body(id, dead, only, self._blobs, is_only=len(found) == 1)

    async def resubmit(self, queue: str, id: str | None, *, body: bytes | None = None, sequence: int = 0) -> Moved:
        """Run the newest of an id again, or the one of a number, or (None) all; one of them with another body."""
        if id is not None:
            id, found = await self._of(queue, id)
            dead, edit = newest(those_of(queue, id, found, sequence)), None
            if body is not None:
                edit = await edit_of(dead, body, self._blobs, above_bytes=CLAIM_CHECK_BYTES)
            await self._operations.resubmit(queue, dead.sequence, edit=edit)
            return Moved(1, id=id)

        return await self._resubmit_all(queue)

    async def discard(self, queue: str, id: str | None, *, for_good: bool, sequence: int = 0) -> Moved:
        """Discard those of an id, or the one of a number, or (None) all; for a retention, or for good."""
        life_s = await self._life_s(for_good=for_good)
        if id is None:
            every = await self._operations.dead_letters(queue)
            done = await self._discarded_of(queue, every, life_s)
            return Moved(len(done), len(every) - len(done))
        id, same = await self._of(queue, id)
        found = those_of(queue, id, same, sequence)
        for dead in found:
            await self._discard(dead, life_s)
        return discarded(id, [each.sequence for each in found])

    async def discard_some(self, queue: str, sequences: Sequence[int], *, for_good: bool) -> Moved:
        """Discard those of these numbers that are free."""
        wanted, life_s = set(sequences), await self._life_s(for_good=for_good)
        found = [dead for dead in await self._operations.dead_letters(queue) if dead.sequence in wanted]
        done = await self._discarded_of(queue, found, life_s)
        return Moved(len(done), len(wanted) - len(done), numbers=sorted(done))

    async def _life_s(self, *, for_good: bool) -> float | None:
        """For how long what is discarded can be restored; None: not at all."""
        if for_good:
            return None
        return await longest_retention_ms(self._notes.scan(NOTES, prefix=RETENTION_PREFIX)) / 1_000

    async def _discard(self, dead: DeadLetterEntry, life_s: float | None) -> None:
        if life_s is None:
            await self._operations.discard_found(dead)
        else:
            await self._operations.set_aside(dead, life_s=life_s)

    async def _discarded_of(self, queue: str, found: Sequence[DeadLetterEntry], life_s: float | None) -> set[int]:
        """Discard what was listed, that of the bus in one pass; the numbers of those that were free."""
        done, by_itself = set[int](), list(found)
        if self._on_the_bus is not None:
            by_itself = [dead for dead in found if isinstance(dead, StoredEntry)]
            firsts = {
                dead.sequence: partial(self._operations.before_discard, dead, life_s=life_s)
                for dead in found
                if not isinstance(dead, StoredEntry)
            }
            done |= await self._on_the_bus(queue, firsts) if firsts else set()
        for dead in by_itself:
            with suppress(LookupError, Refused):  # it cannot be moved, or another has moved it
                await self._discard(dead, life_s)
                done.add(dead.sequence)
        return done

    async def discarded(self, queue: str) -> list[DeadLetterView]:
        """What was discarded and can be restored."""
        only = (await self.types(queue)).only
        return [view_of(name_of(dead), dead, only) for dead in await self._operations.set_aside_of(queue)]

    async def restore(self, queue: str, id: str | None) -> Moved:
        """Let those of an id, or (None) all, be dead letters again."""
        kept = await self._operations.set_aside_of(queue)
        if id is not None:
            id = discarded_id(queue, id, {name_of(dead) for dead in kept})
            kept = [dead for dead in kept if name_of(dead) == id]
        count = 0
        for dead in kept:
            with nullcontext() if id is not None else suppress(LookupError):  # another has restored it
                await self._operations.restore(queue, dead.sequence)
                count += 1
        return Moved(count) if id is None else Moved(count, id=id)

    async def _resubmit_all(self, queue: str) -> Moved:
        """Resubmit every dead letter that may be; each takes its older copies with it."""
        found = await self._operations.dead_letters(queue)
        moved, left = set[object](), 0
        for dead in reversed(found):
            if dead.message.identity and alike(dead.message) in moved:
                continue
            try:
                await self._operations.resubmit(queue, dead.sequence)
            except (LookupError, Refused):
                left += 1
            else:
                moved.add(alike(dead.message))
        return Moved(len(found) - left, left)

    async def _of(self, queue: str, text: str) -> tuple[str, list[DeadLetterEntry]]:
        """The full id of a text, and its dead letters."""
        dead = await self._operations.dead_letters(queue)
        id = full_id(queue, text, {name_of(one) for one in dead})
        return id, [one for one in dead if name_of(one) == id]

    async def types(self, queue: str) -> TypeNames:
        """The message types of a queue's handlers."""
        return await type_names(queue, self._notes.scan(NOTES, prefix=NOTE_PREFIX))
