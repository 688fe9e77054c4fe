"""The shell round the attempts of one process: its tasks, its sweeps and its last marks.

The same for a worker, an HTTP entry, a Functions host and a harness.  Nothing here is for safety: the next redelivery,
or a sweeper, finishes what a process leaves undone.

*Signs of life.*  Once a minute, a process that works over a store and a bus reports on itself, in a document of the
process's own, which expires some minutes after its last sign.  It costs a write a minute, off the path of every
message, and nothing waits for it: a sign that fails is left out.  Whoever asks what is wrong reads all of them at once
(`signs_in`); on an engine the host answers instead.
"""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

import msgspec

from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ports import Create, DocumentKey, Replace, StateStore, StorePorts, Tag, Version, Won
from outbox.runtime.commit.state_cache import StateCache
from outbox.runtime.commit.sweeper import GRACE_S, Swept, sweep
from outbox.runtime.counts import Counts, Depth
from outbox.runtime.delivery.settlement import FailedPushes
from outbox.runtime.gather import side_by_side
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreProtocol, StoreScope

log = logging.getLogger("outbox.worker")

FINISH_WITHIN_S = 5.0
"""How long a stopping process may write its last marks; the sweeper finds the rest."""
MARK_AFTER_S = 0.2
"""How long a mark waits for others of its partition."""
SWEEP_EVERY_S = 30.0
SIGN_AFTER_S = 5.0
"""How long after its start a worker gives its first sign."""
SIGN_EVERY_S = 60.0
SPARE_S = 1.0
"""By how much a worker waits longer, so that a sign is due when it looks."""
SIGN_TTL_S = 300.0
ALIVE_S = 180.0
"""Whose last sign is older than this is not taken to be alive."""
SIGNS_MAX = 1_000
PLACE = "workers"
"""The partition of all signs."""
LARGE_STATE_BYTES = 64 << 10
LARGE_COUNT_MAX = 10


class Tasks:
    """The tasks of one process; `ended` is called with each after its end."""

    def __init__(self, name: str, *, ended: Callable[[asyncio.Task[None]], None] | None = None) -> None:
        self._name = name
        self._on_end = ended
        self.running: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None], what: str = "messages") -> asyncio.Task[None]:
        """Start a task, and hold a reference until it ends."""
        task = asyncio.create_task(coroutine, name=f"{self._name} {what}")
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if self._on_end is not None:
            self._on_end(task)

    async def wait(self, within_s: float) -> None:
        """Wait until no task runs, later ones included, for at most `within_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.running:
                    await asyncio.wait(list(self.running))

    async def drain(self, within_s: float) -> None:
        """Wait for the running tasks, then cancel the rest."""
        if self.running:
            await asyncio.wait(self.running, timeout=within_s)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel the running tasks, and wait for their end."""
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@runtime_checkable
class WaitingQueues(Protocol):
    """A bus that knows since when the oldest message of a queue waits."""

    async def waiting_since_ms(self, queue: str) -> int | None:
        """The time in milliseconds since 1970; None: none waits."""


class Recovery:
    """Finishes pending documents of some stores, after crashes of this process or any other.

    With each sweep it looks how long the oldest messages of `queues` have waited, where `operations` know that.
    """

    def __init__(
        self,
        protocol: StoreProtocol,
        stores: Sequence[StateStore],
        failed_pushes: FailedPushes,
        *,
        now_ms: Callable[[], int],
        counts: Counts,
        operations: object = None,
        queues: Sequence[str] = (),
    ) -> None:
        self._protocol = protocol
        self._waiting: WaitingQueues | None = operations if isinstance(operations, WaitingQueues) else None
        self._queues = queues
        self._stores = stores
        self._failed_pushes = failed_pushes
        self._now_ms = now_ms
        self._counts = counts
        self._start = 0

    async def sweep(self, *, grace_s: float = GRACE_S) -> Swept:
        """Sweep once, from where the last sweep was cut off.

        Raises:
            Refused, OutcomeUnknown: a store cannot be read.
        """
        log_failed_pushes(self._failed_pushes)
        now_ms, start = self._now_ms, self._start
        swept = await sweep(self._protocol, *self._stores, now_ms=now_ms, grace_s=grace_s, start=start)
        self._start = swept.next_start
        unfinished_count = swept.seen_count - swept.idle_count
        self._counts.swept(swept.finished_count, unfinished_count - swept.finished_count, swept.oldest_s)
        if unfinished_count or swept.finished_count:
            fields = {"unfinished": unfinished_count, "finished": swept.finished_count, "oldest_s": swept.oldest_s}
            log.info("swept", extra=fields)
        await self._look()
        return swept

    async def _look(self) -> None:
        """Note how long messages have waited; a queue whose look fails is left out, because metrics fail nothing."""
        if self._waiting is not None:
            await side_by_side(self._queues, partial(self._look_into, self._waiting))

    async def _look_into(self, waiting: WaitingQueues, queue: str) -> None:
        try:
            since_ms = await waiting.waiting_since_ms(queue)
        except Exception as error:  # whatever a bus or its SDK raises: sweeps go on
            self._counts.depths.pop(queue, None)
            log.debug("a queue cannot be looked at", extra={"queue": queue, "error": str(error)})
            return
        waited_ms = 0 if since_ms is None else max(0, self._now_ms() - since_ms)
        self._counts.depths[queue] = Depth(waited_ms / 1_000)

    async def sweep_for_ever(self) -> None:
        """Sweep every 30 s on average; the jitter keeps workers apart."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S * (0.5 + random.random()))
            try:
                await self.sweep()
            except (Refused, OutcomeUnknown) as error:
                log.warning("sweep failed", extra={"error": str(error)})

    async def finish(self) -> None:
        """Write the last marks and log lines, before the process stops."""
        await finish(self._protocol)
        log_failed_pushes(self._failed_pushes)


async def finish(protocol: StoreProtocol) -> None:
    """Write the last marks, within a few seconds."""
    with suppress(TimeoutError, OutboxError):
        async with asyncio.timeout(FINISH_WITHIN_S):
            await protocol.finish()


def log_failed_pushes(failed_pushes: FailedPushes) -> None:
    """Log the failed pushes since the last call; they stay pending and are pushed again."""
    for failed in failed_pushes.take():
        fields = {"destination": failed.destination, "count": failed.count, "ids": failed.ids}
        log.warning("outputs cannot be sent", extra={**fields, "error": failed.error})


class Sign(msgspec.Struct, frozen=True):
    """A sign of life, as stored: whose it is, what it takes from, and what it has seen.

    `newer_ms` says of each queue when a message was last put back because a newer build wrote its schema or its
    state's; `large` are states over LARGE_STATE_BYTES that the process has in its cache.
    """

    app: str
    process: str
    started_ms: int
    at_ms: int
    queues: tuple[str, ...]
    newer_ms: Mapping[str, int] = {}
    large: Mapping[str, int] = {}


Large = Callable[[int, int], Mapping[str, int]]
"""A lookup of the largest cached states: over the first number of bytes, at most the second in number."""


class SignsOfLife:
    """The signs of one process."""

    def __init__(
        self,
        app: str,
        queues: Sequence[str],
        store: StateStore,
        *,
        now_ms: Callable[[], int],
        counts: Counts,
        large: Large,
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        self._app = app
        self._queues = tuple(queues)
        self._store = store
        self._now_ms = now_ms
        self._counts = counts
        self._large = large
        self._new_id = new_id
        self._started_ms = now_ms()
        self._process = f"{socket.gethostname()}/{new_id()[:8]}"
        self._last_ms = self._started_ms - round((SIGN_EVERY_S - SIGN_AFTER_S + SPARE_S) * 1_000)
        self._key: DocumentKey | None = None
        self._version: Version = ""

    @property
    def is_due(self) -> bool:
        """Whether the last sign is old enough for another one."""
        return self._now_ms() - self._last_ms >= SIGN_EVERY_S * 1_000

    async def give(self) -> None:
        """Give a sign, if one is due, by one request at most."""
        if not self.is_due:
            return
        self._last_ms = self._now_ms()
        key, self._key = self._key, None  # of whatever comes of this write, only a success is gone on from
        body = msgspec.json.encode(self._sign())
        try:
            if key is None:
                key = DocumentKey(PLACE, f"alive:{self._new_id()}")
                write: Create | Replace = Create(key, body, ttl_s=SIGN_TTL_S, tag=Tag("sign"))
            else:
                write = Replace(key, body, self._version, ttl_s=SIGN_TTL_S, tag=Tag("sign"))
            answer = await self._store.write([write])
        except Exception as error:  # whatever a store or its SDK raises: messages go on
            log.debug("a sign of life was not written", extra={"error": str(error)})
            return
        if isinstance(answer, Won):
            self._key, self._version = key, answer.versions[0]

    async def give_for_ever(self) -> None:
        """Give a sign a minute, the first when a start that fails has failed."""
        await asyncio.sleep(SIGN_AFTER_S)
        while True:
            await self.give()
            await asyncio.sleep(SIGN_EVERY_S + SPARE_S)

    def _sign(self) -> Sign:
        newer = {path: found.newer_ms for path, found in self._counts.sources.items() if found.newer_ms}
        large = self._large(LARGE_STATE_BYTES, LARGE_COUNT_MAX)
        return Sign(self._app, self._process, self._started_ms, self._last_ms, self._queues, newer, large)


def signs_over(app: str, queues: Sequence[str], ports: StorePorts, scope: StoreScope, counts: Counts) -> SignsOfLife:
    """The signs of a process that handles messages of these queues."""
    store, protocol = ports.infrastructure or ports.store, scope.protocol
    cache = protocol.cache if isinstance(protocol, PartitionScope | ItemScope) else StateCache()
    return SignsOfLife(app, queues, store, now_ms=operations_over(ports).now_ms, counts=counts, large=cache.largest)


async def signs_in(store: StateStore) -> list[Sign]:
    """The newest sign of each process that has given one lately, at most SIGNS_MAX documents of them."""
    found: dict[str, Sign] = {}
    count = 0
    async for document in store.scan(PLACE, prefix="alive:"):
        try:
            sign = msgspec.json.decode(document.body, type=Sign)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue  # of a newer build, or foreign: a sign says nothing that anybody relies on
        if (known := found.get(sign.process)) is None or known.at_ms < sign.at_ms:
            found[sign.process] = sign
        count += 1
        if count >= SIGNS_MAX:
            break
    return list(found.values())
