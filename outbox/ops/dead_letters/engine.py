"""Dead letters on an engine, and the keys that they block: list, show, resubmit, discard, restore."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from outbox.app import CLAIM_CHECK_BYTES
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.tasks import Task
from outbox.errors import Refused
from outbox.ops.dead_letters.blocked import blocked_on_engine
from outbox.ops.dead_letters.views import (
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
from outbox.ops.shared.on_engine import MOVED_COUNT, EngineSite, Named, first_of, in_slices, is_there, tasks_of
from outbox.ops.shared.tasks import entry_of, identity_of, letters_of
from outbox.ops.values.dead_letters import (
    ANY_DEAD_LETTER,
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
from outbox.resubmission import alike, identified, newest
from outbox.runtime.delivery.admission import edit_of
from outbox.runtime.start.notes import HANDLER_PREFIX, RETENTION_PREFIX, longest_retention_ms
from outbox.runtime.start.plan import compile_app


async def list_dead_letters(at: EngineSite, asked: ListDeadLetters) -> list[DeadLetterView]:
    queue, where = at.named(asked.queue), asked.where
    types = await type_names(queue, at.notes(HANDLER_PREFIX))

    def is_wanted(task: Task) -> bool:
        return matches(entry_of(queue, task), where, types)

    wanted = None if where == ANY_DEAD_LETTER else is_wanted
    letters = at.engine.broker.queue(dead_letter_path(queue))
    views = list[DeadLetterView]()
    async for some in in_slices(
        await first_of(letters, asked.after, min(asked.count_max, BATCH_COUNT_MAX), wanted), MOVED_COUNT
    ):
        views += [view_of(identity_of(queue, task), entry_of(queue, task), types.only) for task in some]
    await at.engine.core.gate()
    return views


async def find_dead(at: EngineSite, asked: FindDead) -> dict[str, list[DeadAttempt]]:
    queue = at.named(asked.queue)
    found = {}
    async for some in in_slices(dict.fromkeys(asked.ids)):
        found.update({id: letters_of(at.engine.broker.queue(dead_letter_path(queue)), id) for id in some})
    await at.engine.core.gate()
    return {
        id: [DeadAttempt(task.sequence, task.message.attempt) for task in tasks] for id, tasks in found.items() if tasks
    }


async def show_dead_letter(at: EngineSite, asked: ShowDeadLetter) -> DeadLetterView:
    """Show the dead letter that a resubmission would take.

    Raises:
        LookupError: there is none.
        Refused: several ids have this prefix, or the body lies in a blob that is gone.
    """
    queue = at.named(asked.queue)
    id, same = await _of(at, queue, asked.id)
    dead = newest(those_of(queue, id, same, asked.sequence))
    only = await at.only_type(queue)
    await at.engine.core.gate()
    return await with_body(id, entry_of(queue, dead), only, at.engine.blobs, is_only=len(same) == 1)


async def resubmit(at: EngineSite, asked: Resubmit) -> Moved:
    """Run the newest of an id again, or all of a queue.

    Raises:
        LookupError: there is none, or a receiver has it.
        Refused: the named one was too old, or an edit of it would be refused.
    """
    queue = at.named(asked.queue)
    if asked.id is None:
        check_edit(asked)
        return await _move_all(at, queue, at.engine.dead_letters.resubmit, is_resubmission=True)
    id, same = await _of(at, queue, asked.id)
    dead = newest(those_of(queue, id, same, asked.sequence))
    edit = None
    if (body := check_edit(asked)) is not None:
        plan = None if at.app is None else compile_app(at.app)
        entry = identified(entry_of(queue, dead))
        edit = await edit_of(entry, body, at.engine.blobs, above_bytes=CLAIM_CHECK_BYTES, plan=plan)
    at.engine.dead_letters.resubmit(queue, dead.sequence, edit=edit)
    await at.engine.core.gate()
    return Moved(1, id=id)


async def discard(at: EngineSite, asked: Discard) -> Moved:
    """Discard dead letters of an id, or all of a queue; restorable for the longest retention, unless for good.

    Raises:
        LookupError: there is none, or a receiver has it.
    """
    queue, move = at.named(asked.queue), await _discard(at, for_good=asked.for_good)
    if asked.id is None:
        return await _move_all(at, queue, move, is_resubmission=False)
    id, same = await _of(at, queue, asked.id)
    found = those_of(queue, id, same, asked.sequence)
    for task in found:
        move(queue, task.sequence)
    await at.engine.core.gate()
    return discarded(id, [each.sequence for each in found])


async def _discard(at: EngineSite, *, for_good: bool) -> Callable[[str, int], None]:
    """Return the function that discards a dead letter by queue and number."""
    if for_good:
        return at.engine.dead_letters.discard
    until_ms = at.engine.now_ms() + await longest_retention_ms(at.notes(RETENTION_PREFIX))
    return partial(at.engine.dead_letters.set_aside, until_ms=until_ms)


async def discard_some(at: EngineSite, asked: DiscardSome) -> Moved:
    queue, move, done = at.named(asked.queue), await _discard(at, for_good=asked.for_good), list[int]()
    async for some in in_slices(dict.fromkeys(asked.sequences), MOVED_COUNT):
        for number in some:
            with suppress(LookupError):  # it is gone, or a receiver has it
                move(queue, number)
                done.append(number)
    await at.engine.core.gate()
    return Moved(len(done), len(set(asked.sequences)) - len(done), numbers=done)


async def list_discarded(at: EngineSite, asked: ListDiscarded) -> list[DeadLetterView]:
    queue = at.named(asked.queue)
    only, views = await at.only_type(queue), list[DeadLetterView]()
    async for some in in_slices(at.engine.dead_letters.set_aside_of(queue), MOVED_COUNT):
        views += [view_of(name_of(dead), dead, only) for dead in some]
    await at.engine.core.gate()
    return views


async def restore(at: EngineSite, asked: Restore) -> Moved:
    """Restore discarded dead letters of an id, or all of a queue.

    Raises:
        LookupError: nothing was, or its time is over.
    """
    queue = at.named(asked.queue)
    id = asked.id
    named, numbers, count = Named[int](id or ""), list[int](), 0
    async for some in in_slices(at.engine.dead_letters.set_aside_of(queue), MOVED_COUNT):
        numbers += [dead.sequence for dead in some]
        for dead in some if id is not None else ():
            named.see(name_of(dead), dead.sequence)
    if id is not None:
        id = discarded_id(queue, id, named.ids)
        numbers = named.of(id)
    async for few in in_slices(numbers, MOVED_COUNT):
        for number in few:
            with suppress(LookupError):  # its time ended meanwhile
                at.engine.dead_letters.restore(queue, number)
                count += 1
    await at.engine.core.gate()
    return Moved(count) if id is None else Moved(count, id=id)


async def _move_all(at: EngineSite, queue: str, move: Callable[[str, int], None], *, is_resubmission: bool) -> Moved:
    """Move every dead letter that may be moved, the newest first: a resubmission takes its older copies with it."""
    letters, tasks = at.engine.broker.queue(dead_letter_path(queue)), list[Task]()
    async for some in tasks_of(letters):
        tasks += some
    there, moved, count, left = letters.tasks, set[object](), len(tasks), 0
    while tasks:
        some = [tasks.pop() for _ in tasks[-MOVED_COUNT:]]  # and freed with their slice, not all at the end
        for task in some:
            has_copies = len(letters_of(letters, task.message.identity)) > 1
            if is_resubmission and task.message.identity and alike(task.message) in moved:
                left += task.sequence in there  # a receiver has it
                continue
            try:
                move(queue, task.sequence)
            except (LookupError, Refused):  # refused; or a receiver has it, or settled it between two batches
                left += 1
            else:
                moved.update([alike(task.message)] if has_copies else [])
        await asyncio.sleep(0)
    await at.engine.core.gate()
    return Moved(count - left, left)


async def _of(at: EngineSite, queue: str, text: str) -> tuple[str, list[Task]]:
    """The full id of a text, and its dead letters, oldest first."""
    letters = at.engine.broker.queue(dead_letter_path(queue))
    if same := letters_of(letters, text):
        return text, same
    named = Named[Task](text)
    async for some in tasks_of(letters):
        for task in some:
            named.see(identity_of(queue, task), task)
    id = full_id(queue, text, named.ids)
    same = [task for task in named.of(id) if is_there(letters, task)]
    return (id, same) if same else (full_id(queue, text, set()), [])


ANSWERS: Answers = {
    ListDeadLetters: list_dead_letters,
    FindDead: find_dead,
    ShowDeadLetter: show_dead_letter,
    Resubmit: resubmit,
    Discard: discard,
    DiscardSome: discard_some,
    ListDiscarded: list_discarded,
    Restore: restore,
    ListBlocked: blocked_on_engine,
}
