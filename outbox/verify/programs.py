"""What the processes of an exploration do: a worker of engine scope, handling one batch after the other.

The code that runs is the runtime's own.  An attempt begins with a claim and ends when everything that it began has
ended; what a worker learns for its next attempt is handed on, and lost in a crash.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any

from outbox.ports import BlobStore, Journal
from outbox.runtime.admission import NOT_DONE
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.plan import Plan
from outbox.verify.clients import ExploredBlobs, ExploredJournal
from outbox.verify.trie import Calls

MakeScope = Callable[..., EngineScope]


class EngineWorker:
    """A worker of engine scope that claims up to `batch` messages at a time."""

    def __init__(
        self,
        plan: Plan,
        *,
        journal: int = 0,
        blobs: int | None = None,
        batch: int = 1,
        make: MakeScope = EngineScope,
        name: str = "worker",
    ) -> None:
        self.name = name
        self._plan = plan
        self._journal = journal
        self._blobs = journal if blobs is None else blobs
        self._batch = batch
        self._make = make

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        journal: Journal = ExploredJournal(calls, self._journal)
        blobs: BlobStore = ExploredBlobs(calls, self._blobs)
        tasks = Tasks()
        scope = self._make(
            self._plan,
            journal,
            blobs,
            now_ms=calls.now_ms,
            sleep=lambda _: asyncio.sleep(0),
            spawn=tasks.spawn,
            settled=lambda _: None,
            is_stopping=lambda: False,
        )
        scope._suspending.update(carried or ())  # what a worker has seen of its handlers outlives an attempt
        try:
            deliveries = await journal.claim(self._plan.paths, count_max=self._batch, wait_s=0)
        except NOT_DONE:  # as a worker does: claim again; what was claimed is locked until its lock runs out
            return carried  # type: ignore[no-any-return]  # what was handed on comes back
        await scope.attempt(deliveries)
        await tasks.end()
        return frozenset(scope._suspending) or None


class Tasks:
    """The tasks that an attempt has started."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> object:
        """Start a task."""
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        """Wait until all have ended, and whatever they started; an error of one is raised."""
        while self._tasks:
            task = self._tasks.pop(0)
            await task
