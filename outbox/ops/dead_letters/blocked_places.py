"""Where blocked keys are found: in the sessions of an engine's queues, or in a store by the keys that the bus shows."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from outbox.engine.engine import Engine
from outbox.engine.entities import dead_letter_path
from outbox.engine.state.queues import Queue
from outbox.engine.state.session_order import Session, SessionOrder
from outbox.ops.dead_letters.blocked import page_of, place_of
from outbox.ops.shared.on_engine import EngineSite
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.shared.slices import MOVED_COUNT, in_slices
from outbox.ops.shared.tasks import identity_of
from outbox.ops.values.dead_letters import BlockedKey, BlockedPage, ListBlocked
from outbox.ops.values.kinds import BATCH_COUNT_MAX
from outbox.ports import DeadLetterEntry, HeldMessage
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.gather import side_by_side

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
    """How many messages of a session there are that are due: those that nobody has, and those in hand."""
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
