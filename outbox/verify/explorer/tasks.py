"""What an attempt starts beside itself, and how it pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from outbox.runtime.delivery.retrying import Backoff


async def at_once(seconds: float) -> None:
    """A pause between two tries: others may go first whenever a call waits, so it need not last."""
    await asyncio.sleep(0)


BACKOFF = Backoff(at_once, count_max=1)
"""Once at first and once again; whoever gives up sooner gives the message back, and a fresh attempt goes on."""


class Tasks:
    """The tasks that an attempt has started."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(coroutine)
        self._tasks.append(task)
        return task

    async def end(self) -> None:
        """Wait until all have ended, and whatever they started; an error of one is raised."""
        while self._tasks:
            task = self._tasks.pop(0)
            await task
