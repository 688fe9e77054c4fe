"""What runs round the attempts of one process: its tasks, its sweeps and its last marks.

The same for a worker, an HTTP entry, a Functions host and a harness.  Nothing here is for safety: what a process leaves
undone is found by the next delivery of its message, or by a sweeper.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any

from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ports import StateStore
from outbox.runtime.commit.sweeper import GRACE_S, Swept, sweep
from outbox.runtime.delivery.settlement import FailedPushes
from outbox.runtime.store_protocol import StoreProtocol

log = logging.getLogger("outbox.worker")

FINISH_WITHIN_S = 5.0
"""How long a process that stops takes at most for its last marks; the sweeper finds what is left."""
MARK_AFTER_S = 0.2
"""How long what has left waits to be marked, for others of its partition to be marked with it."""
SWEEP_EVERY_S = 30.0


class Tasks:
    """The tasks of one process; `ended` is called with each that has ended."""

    def __init__(self, name: str, *, ended: Callable[[asyncio.Task[None]], None] | None = None) -> None:
        self._name = name
        self._on_end = ended
        self.running: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None], what: str = "messages") -> asyncio.Task[None]:
        """Start a task, and keep it until it has ended."""
        task = asyncio.create_task(coroutine, name=f"{self._name} {what}")
        self.running.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if self._on_end is not None:
            self._on_end(task)

    async def wait(self, within_s: float) -> None:
        """Wait until no task runs, those that others start meanwhile included; no longer than `within_s`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self.running:
                    await asyncio.wait(list(self.running))

    async def drain(self, within_s: float) -> None:
        """Let what runs end for so long, and cancel the rest."""
        if self.running:
            await asyncio.wait(self.running, timeout=within_s)
        await self.cancel()

    async def cancel(self) -> None:
        """Cancel what runs, and wait until it has ended."""
        running = list(self.running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class Recovery:
    """Finishes what crashes have left in some stores, of this process or of any other."""

    def __init__(
        self, protocol: StoreProtocol, stores: Sequence[StateStore], unsent: FailedPushes, *, now_ms: Callable[[], int]
    ) -> None:
        self._protocol = protocol
        self._stores = stores
        self._unsent = unsent
        self._now_ms = now_ms
        self._start = 0

    async def sweep(self, *, grace_s: float = GRACE_S) -> Swept:
        """Go once through what is unfinished, behind where the last sweep was cut off.

        Raises:
            Refused, OutcomeUnknown: a store cannot be asked.
        """
        log_unsent(self._unsent)
        now_ms, start = self._now_ms, self._start
        swept = await sweep(self._protocol, *self._stores, now_ms=now_ms, grace_s=grace_s, start=start)
        self._start = swept.next_start
        if swept.seen_count:
            fields = {"unfinished": swept.seen_count, "finished": swept.finished_count, "oldest_s": swept.oldest_s}
            log.info("swept", extra=fields)
        return swept

    async def sweep_for_ever(self) -> None:
        """Sweep now and then; workers that started together drift apart."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S * (0.5 + random.random()))
            try:
                await self.sweep()
            except (Refused, OutcomeUnknown) as error:
                log.warning("sweep failed", extra={"error": str(error)})

    async def finish(self) -> None:
        """Mark what has left, before the process stops."""
        await finish(self._protocol)
        log_unsent(self._unsent)


async def finish(protocol: StoreProtocol) -> None:
    """Mark what has left, within a few seconds."""
    with suppress(TimeoutError, OutboxError):
        async with asyncio.timeout(FINISH_WITHIN_S):
            await protocol.finish()


def log_unsent(unsent: FailedPushes) -> None:
    """Log which outputs could not be sent since the last time; they stay pending and are sent again."""
    for failed in unsent.take():
        fields = {"destination": failed.destination, "count": failed.count, "ids": failed.ids}
        log.warning("outputs cannot be sent", extra={**fields, "error": failed.error})
