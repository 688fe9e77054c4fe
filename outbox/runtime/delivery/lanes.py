"""Lanes: the messages of one lane are handled in turn in this process, lanes run side by side.

A lane is a state, or a session of an ordered queue.  Lanes save conflicts, not safety: the commit protocols keep
concurrent attempts on one state apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """The busy lanes, and what waits in each."""

    def __init__(self) -> None:
        self.taken: dict[str, list[T]] = {}

    def enter(self, lane: str) -> None:
        """Take a lane, before the task that handles it begins."""
        self.taken.setdefault(lane, [])

    def wait(self, lane: str, items: Iterable[T]) -> None:
        """Queue items in a busy lane."""
        self.taken[lane].extend(items)

    def next(self, lane: str) -> list[T]:
        """Take out what waits in a lane; the lane stays busy."""
        items, self.taken[lane] = self.taken[lane], []
        return items

    def leave(self, lane: str) -> list[T]:
        """Free a lane; returns what waited in it."""
        return self.taken.pop(lane, [])


class Turns:
    """The lanes of HTTP requests: each request awaits its turn in its own task."""

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[asyncio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def of(self, lane: str | None) -> AsyncIterator[None]:
        """Take a turn in a lane; None is no lane."""
        if lane is None:
            yield
            return
        lock, inside = self._lanes.setdefault(lane, (asyncio.Lock(), []))
        inside.append(None)
        try:
            async with lock:
                yield
        finally:
            inside.pop()
            if not inside:
                del self._lanes[lane]
