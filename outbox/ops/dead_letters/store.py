"""The dead letters of bus and store as one list, and the keys that they block."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial

from outbox.app import CLAIM_CHECK_BYTES
from outbox.errors import Refused
from outbox.ops.dead_letters.blocked import blocked_on_store
from outbox.ops.dead_letters.views import (
    TypeNames,
    attempts_of,
    check_edit,
    discarded,
    matches,
    name_of,
    those_of,
    type_names,
    view_of,
    with_body,
)
from outbox.ops.shared.names import discarded_id, full_id
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.values.dead_letters import (
    DeadAttempt,
    DeadLetterView,
    Discard,
    DiscardSome,
    FindDead,
    ListBlocked,
    ListDeadLetters,
    ListDiscarded,
    Moved,
    Restore,
    Resubmit,
    ShowDeadLetter,
)
from outbox.ops.values.requests import BATCH_COUNT_MAX, Answers
from outbox.ports import DeadLetterEntry
from outbox.resubmission import alike, newest
from outbox.runtime.delivery.admission import edit_of
from outbox.runtime.delivery.stored_dead_letters import StoredEntry
from outbox.runtime.start.notes import HANDLER_PREFIX, RETENTION_PREFIX, longest_retention_ms


async def list_dead_letters(at: StoreSite, asked: ListDeadLetters) -> list[DeadLetterView]:
    """A page of them, oldest first; the first page reads, others show its result."""
    queue = await at.named(asked.queue)
    if not asked.after:
        types = await _types(at, queue)
        at.listed = [
            view_of(name_of(dead), dead, types.only)
            for dead in await at.operations.dead_letters(queue)
            if matches(dead, asked.where, types)
        ]
    places = [letter.sequence for letter in at.listed]
    first = places.index(asked.after) + 1 if asked.after in places else 0
    return at.listed[first : first + min(asked.count_max, BATCH_COUNT_MAX)]


async def find_dead(at: StoreSite, asked: FindDead) -> dict[str, list[DeadAttempt]]:
    """Find the dead letters of some ids."""
    found = await at.operations.dead_letters(await at.named(asked.queue))
    return attempts_of(asked.ids, ((name_of(dead), DeadAttempt(dead.sequence, dead.message.attempt)) for dead in found))


async def show_dead_letter(at: StoreSite, asked: ShowDeadLetter) -> DeadLetterView:
    """The one of an id that a resubmission takes, or the one of a number, with its body."""
    queue = await at.named(asked.queue)
    id, found = await _of(at, queue, asked.id)
    dead, only = newest(those_of(queue, id, found, asked.sequence)), (await _types(at, queue)).only
    return await with_body(id, dead, only, at.ports.blobs, is_only=len(found) == 1)


async def resubmit(at: StoreSite, asked: Resubmit) -> Moved:
    """Resubmit an id's newest dead letter, the one of a number, or (None) all; one alone may get another body."""
    queue = await at.named(asked.queue)
    body, edit = check_edit(asked), None
    if asked.id is None:
        return await _resubmit_all(at, queue)
    id, found = await _of(at, queue, asked.id)
    dead = newest(those_of(queue, id, found, asked.sequence))
    if body is not None:
        edit = await edit_of(dead, body, at.ports.blobs, above_bytes=CLAIM_CHECK_BYTES)
    await at.operations.resubmit(queue, dead.sequence, edit=edit)
    return Moved(1, id=id)


async def _resubmit_all(at: StoreSite, queue: str) -> Moved:
    """Resubmit every dead letter that may be; each takes its older copies with it."""
    found = await at.operations.dead_letters(queue)
    moved, left = set[object](), 0
    for dead in reversed(found):
        if dead.message.identity and alike(dead.message) in moved:
            continue
        try:
            await at.operations.resubmit(queue, dead.sequence)
        except (LookupError, Refused):
            left += 1
        else:
            moved.add(alike(dead.message))
    return Moved(len(found) - left, left)


async def discard(at: StoreSite, asked: Discard) -> Moved:
    """Discard those of an id, or the one of a number, or (None) all; for a retention, or for good."""
    queue = await at.named(asked.queue)
    life_s = await _life_s(at, for_good=asked.for_good)
    if asked.id is None:
        every = await at.operations.dead_letters(queue)
        done = await _discarded_of(at, queue, every, life_s)
        return Moved(len(done), len(every) - len(done))
    id, same = await _of(at, queue, asked.id)
    found = those_of(queue, id, same, asked.sequence)
    for dead in found:
        await _discard(at, dead, life_s)
    return discarded(id, [each.sequence for each in found])


async def discard_some(at: StoreSite, asked: DiscardSome) -> Moved:
    """Discard those of these numbers that are free."""
    queue = await at.named(asked.queue)
    wanted, life_s = set(asked.sequences), await _life_s(at, for_good=asked.for_good)
    found = [dead for dead in await at.operations.dead_letters(queue) if dead.sequence in wanted]
    done = await _discarded_of(at, queue, found, life_s)
    return Moved(len(done), len(wanted) - len(done), numbers=sorted(done))


async def _life_s(at: StoreSite, *, for_good: bool) -> float | None:
    """Return for how long discarded dead letters can be restored, in seconds; None: never."""
    return None if for_good else await longest_retention_ms(at.notes(RETENTION_PREFIX)) / 1_000


async def _discard(at: StoreSite, dead: DeadLetterEntry, life_s: float | None) -> None:
    if life_s is None:
        await at.operations.discard_found(dead)
    else:
        await at.operations.set_aside(dead, life_s=life_s)


async def _discarded_of(at: StoreSite, queue: str, found: Sequence[DeadLetterEntry], life_s: float | None) -> set[int]:
    """Discard listed dead letters, the bus's in one pass; return the numbers of the discarded ones."""
    done, by_itself = set[int](), list(found)
    if at.discard_some is not None:
        by_itself = [dead for dead in found if isinstance(dead, StoredEntry)]
        firsts = {
            dead.sequence: partial(at.operations.before_discard, dead, life_s=life_s)
            for dead in found
            if not isinstance(dead, StoredEntry)
        }
        done |= await at.discard_some(queue, firsts) if firsts else set()
    for dead in by_itself:
        with suppress(LookupError, Refused):  # it cannot be moved, or another has moved it
            await _discard(at, dead, life_s)
            done.add(dead.sequence)
    return done


async def list_discarded(at: StoreSite, asked: ListDiscarded) -> list[DeadLetterView]:
    """List the discarded dead letters that can be restored."""
    queue = await at.named(asked.queue)
    only = (await _types(at, queue)).only
    return [view_of(name_of(dead), dead, only) for dead in await at.operations.set_aside_of(queue)]


async def restore(at: StoreSite, asked: Restore) -> Moved:
    """Let those of an id, or (None) all, be dead letters again."""
    queue = await at.named(asked.queue)
    id, kept = asked.id, await at.operations.set_aside_of(queue)
    if id is not None:
        id = discarded_id(queue, id, {name_of(dead) for dead in kept})
        kept = [dead for dead in kept if name_of(dead) == id]
    count = 0
    for dead in kept:
        with nullcontext() if id is not None else suppress(LookupError):  # another has restored it
            await at.operations.restore(queue, dead.sequence)
            count += 1
    return Moved(count) if id is None else Moved(count, id=id)


async def _of(at: StoreSite, queue: str, text: str) -> tuple[str, list[DeadLetterEntry]]:
    """The full id of a text, and its dead letters."""
    dead = await at.operations.dead_letters(queue)
    id = full_id(queue, text, {name_of(one) for one in dead})
    return id, [one for one in dead if name_of(one) == id]


async def _types(at: StoreSite, queue: str) -> TypeNames:
    """The message types of a queue's handlers."""
    return await type_names(queue, at.notes(HANDLER_PREFIX))


ANSWERS: Answers = {
    ListDeadLetters: list_dead_letters,
    FindDead: find_dead,
    ShowDeadLetter: show_dead_letter,
    Resubmit: resubmit,
    Discard: discard,
    DiscardSome: discard_some,
    ListDiscarded: list_discarded,
    Restore: restore,
    ListBlocked: blocked_on_store,
}
