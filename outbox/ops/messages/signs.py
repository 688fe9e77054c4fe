"""The health of an application over a store and a bus: its workers' signs of life, and waiting times.

It costs a query for the signs of all processes and one for all blocked keys, and a look into each queue that holds
messages: a link and a request or two.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

from outbox.errors import OutboxError
from outbox.ops.shared.on_store import Counts, ListedStore, WaitingSince
from outbox.ops.values.status import LargeState, Signs, WorkerSign
from outbox.ports import StateStore
from outbox.runtime.delivery.blocked_sessions import BLOCK, BLOCKED_SESSIONS
from outbox.runtime.gather import side_by_side
from outbox.runtime.shell import ALIVE_S, LARGE_COUNT_MAX, Sign, signs_in
from outbox.runtime.start.notes import HANDLER_PREFIX, NOTES, handlers_in

OLDEST_QUEUES_MAX = 100
"""Into how many queues a look for the oldest messages goes."""
BLOCKED_COUNT_MAX = 1_000


async def signs_on_store(store: StateStore, now_ms: int, counts: Counts, waiting: WaitingSince | None) -> Signs:
    """Look at one document for each process, one for each blocked key, and once into each queue that holds any."""
    found = [each for each in await signs_in(store) if now_ms - each.at_ms <= ALIVE_S * 1_000]
    large = Counter[str]()
    for sign in found:
        large |= Counter(sign.large)
    handled = {handler.source async for _, handler in handlers_in(store.scan(NOTES, prefix=HANDLER_PREFIX))}
    attended = {path.casefold() for sign in found for path in sign.queues}
    return Signs(
        [LargeState(id, size) for id, size in large.most_common(LARGE_COUNT_MAX)],
        {} if waiting is None else await _oldest(now_ms, counts, waiting),
        await _blocked_count(store),
        [_as_worker(sign, now_ms) for sign in found],
        sorted(path for path in handled if path.casefold() not in attended),
    )


async def _oldest(now_ms: int, counts: Counts, waiting: WaitingSince) -> dict[str, float]:
    """How long the oldest message of each queue has waited, of at most OLDEST_QUEUES_MAX that hold any.

    What may not be counted, or looked at, is left out; `status` says why.
    """

    async def look(path: str) -> int | None:
        with suppress(OutboxError):
            return await waiting(path)
        return None

    try:
        paths = [path for path, counted in sorted((await counts()).items()) if counted.active][:OLDEST_QUEUES_MAX]
    except OutboxError:
        return {}
    times = await side_by_side(paths, look)
    return {
        path: max(0, now_ms - since_ms) / 1_000
        for path, since_ms in zip(paths, times, strict=True)
        if since_ms is not None
    }


async def _blocked_count(store: StateStore) -> int:
    """How many sessions a dead letter blocks, at most BLOCKED_COUNT_MAX; 0 where the store cannot list them."""
    count = 0
    if isinstance(store, ListedStore):
        async for _ in store.partitions(BLOCKED_SESSIONS, holding=BLOCK):
            count += 1
            if count >= BLOCKED_COUNT_MAX:
                break
    return count


def _as_worker(sign: Sign, now_ms: int) -> WorkerSign:
    newer = {path: max(0, now_ms - at_ms) / 1_000 for path, at_ms in sign.newer_ms.items()}
    return WorkerSign(sign.app, sign.process, list(sign.queues), sign.started_ms / 1_000, sign.at_ms / 1_000, newer)
