"""Keys that a dead letter blocks (`on_dead_letter="stop_key"`): which, by what, and how to let them go on.

A key goes on when the dead letter that blocks it is discarded, or resubmitted and applied.  Which of the two is for the
operator to say: nothing else unblocks a key here, so that no successor runs by mistake.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import Literal

import msgspec

from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import Session, SessionOrder
from outbox.errors import Refused
from outbox.ops.shared.names import begins, listed
from outbox.ops.shared.on_engine import MOVED_COUNT, EngineSite, in_slices
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.shared.tasks import identity_of
from outbox.ops.values.dead_letters import BlockedKey, BlockedPage, Discard, ListBlocked, Moved, Resubmit
from outbox.ops.values.requests import BATCH_COUNT_MAX, Admin
from outbox.ports import DeadLetterEntry, HeldMessage
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.gather import side_by_side

By = Literal["discard", "resubmit"]


class Unblocked(msgspec.Struct, frozen=True):
    """An unblocked key, its dead letter, how that was moved, and how many messages waited behind it."""

    queue: str
    key: str
    id: str
    by: By
    waiting: int


async def unblock(admin: Admin, queue: str, text: str, by: By) -> Unblocked:
    """Discard or resubmit the dead letter that blocks a key, or the one blocked key with this prefix.

    Raises:
        LookupError: no such key is blocked in this queue.
        Refused: several have this prefix; or what blocks it is not there to be moved.
    """
    keys = await every_blocked(admin, queue)
    names = {each.key for each in keys}
    found = {text} & names or {key for key in names if begins(text, key)}
    if not found:
        raise LookupError(f"no key {text!r} of {queue} is blocked; blocked are: {listed(names)}")
    if len(found) > 1:
        raise Refused(f"{len(found)} blocked keys of {queue} begin with {text!r}: {listed(found)}; give more of it")
    key = next(each for each in keys if each.key in found)
    if not key.is_there:
        raise Refused(f"{queue}, key {key.key!r}: {key.why}")
    move = Discard if by == "discard" else Resubmit
    moved: Moved = await admin.ask(move(queue, key.id, sequence=key.sequence))  # another key may have one of its id
    assert moved.count, "a dead letter is moved, or that raises"
    return Unblocked(queue, key.key, key.id, by, key.waiting)


async def every_blocked(admin: Admin, queue: str = "") -> list[BlockedKey]:
    """All blocked keys of a queue, or of all, page by page."""
    found: list[BlockedKey] = []
    asked = ListBlocked(queue)
    while True:
        page = await admin.ask(asked)
        found += page.keys
        if not page.more:
            return found
        asked = ListBlocked(queue, page.more)


def page_of(keys: Sequence[BlockedKey], asked: ListBlocked) -> BlockedPage:
    """A page in the order of queues and keys; `after` is where the last one ended."""
    ordered = sorted(keys, key=place_of)
    rest = [each for each in ordered if not asked.after or place_of(each) > asked.after]
    shown = rest[: asked.count]
    return BlockedPage(shown, place_of(shown[-1]) if len(rest) > len(shown) else "")


def place_of(key: BlockedKey) -> str:
    """Where a key stands in the list."""
    return f"{key.queue}\0{key.key}"


KEYS_LOOKED_UP_MAX = 2_000
"""For how many keys of a queue the store is asked whether they are blocked: each costs a read."""
RESUBMITTED = "it was resubmitted, and the key goes on when that is applied"
GONE = "its dead letter is gone; if it was settled by other means, Client.discard(queue, id, key=) lets the key go on"


# On an engine


async def blocked_on_engine(at: EngineSite, asked: ListBlocked) -> BlockedPage:
    """A page of the blocked keys of a queue, or of all, in the order of queues and keys."""
    engine = at.engine
    paths = [at.named(asked.queue)] if asked.queue else sorted(engine.topology.queues)
    after_queue, _, after_key = asked.after.partition("\0")
    found: list[BlockedKey] = []
    for path in paths:
        queue = engine.state.paths.get(path)
        if path < after_queue or queue is None or not isinstance(queue.order, SessionOrder):
            continue
        start = bisect_right(queue.order.blocked, after_key) if asked.after and path == after_queue else 0
        keys = queue.order.blocked[start : start + asked.count + 1 - len(found)]
        async for some in in_slices(keys, MOVED_COUNT):
            blocked = [session for key in some if (session := queue.order.sessions.get(key)) and session.blocked_by]
            found += [await _blocked_key(engine, queue, session) for session in blocked]
    shown = found[: asked.count]
    await engine.core.gate()
    return BlockedPage(shown, place_of(shown[-1]) if len(found) > len(shown) else "")


async def _blocked_key(engine: Engine, queue: Queue, session: Session) -> BlockedKey:
    letter = engine.broker.queue(dead_letter_path(queue.path)).tasks.get(min(session.blocked_by, default=0))
    return BlockedKey(
        queue=queue.path,
        key=session.id,
        id="" if letter is None else identity_of(queue.path, letter),
        since=0 if letter is None else letter.enqueued_ms / 1_000,
        waiting=await _waiting_in(queue, session),
        reason="" if letter is None else letter.reason,
        why=GONE if letter is None else _first_line(letter.description),
        is_there=letter is not None,
        sequence=0 if letter is None else letter.sequence,
    )


async def _waiting_in(queue: Queue, session: Session) -> int:
    """Count the due messages of a session, ready or claimed."""
    count, find = 0, queue.tasks.get
    async for some in in_slices({*session.ready, *session.claimed}):
        tasks = [task for sequence in some if (task := find(sequence)) is not None]
        count += sum(task.message.session_id == session.id for task in tasks)
    return count


def _first_line(text: str) -> str:
    return text.partition("\n")[0][:300]


# On a store and a bus


async def blocked_on_store(at: StoreSite, asked: ListBlocked) -> BlockedPage:
    """The blocked keys among those of dead letters and of the first messages of each queue."""
    queues, blocks = await at.queues(asked.queue), BlockedSessions(at.infrastructure, at.ports.blobs)
    found: list[BlockedKey] = []

    async def look(queue: str) -> tuple[list[DeadLetterEntry], list[HeldMessage]]:
        letters = await at.operations.dead_letters(queue)
        held, _ = await at.peek(
            queue, after=0, count=BATCH_COUNT_MAX, session="", is_wanted=lambda each: bool(each.message.session_id)
        )
        return letters, held

    for queue, (letters, held) in zip(queues, await side_by_side(queues, look), strict=True):
        waiting = Counter(each.message.session_id for each in held)
        keys = dict.fromkeys([letter.message.session_id for letter in letters] + list(waiting))
        for key in list(filter(None, keys))[:KEYS_LOOKED_UP_MAX]:
            block = await blocks.block_of(queue, key)
            if block is None:
                continue
            its = [each for each in letters if each.message.session_id == key]
            letter = next((each for each in its if block.is_behind(each.message)), None)
            gone = RESUBMITTED if block.resubmitted else GONE
            found.append(
                BlockedKey(
                    queue=queue,
                    key=key,
                    id=block.identity,
                    since=0 if letter is None else letter.enqueued_ms / 1_000,
                    waiting=waiting[key],
                    reason="" if letter is None else letter.reason,
                    why=gone if letter is None else _first_line(letter.description),
                    is_there=letter is not None,
                    sequence=0 if letter is None else letter.sequence,
                )
            )
    return page_of(found, asked)
