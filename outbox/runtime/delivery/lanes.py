"""Lanes: what shares one goes one after the other in this process, what does not goes side by side.

A lane is a state, or a session of an ordered queue.  Lanes are for speed only: two attempts on one state at the same
time are kept apart by the commit protocols; here they are kept from trying in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class Lanes(Generic[T]):
    """The lanes in which something is being handled, and what waits behind it."""

    def __init__(self) -> None:
        self.taken: dict[str, list[T]] = {}

    def enter(self, lane: str) -> None:
        """Take a lane, at once: a task that is to handle what is in it has yet to begin."""
        self.taken.setdefault(lane, [])

    def wait(self, lane: str, items: Iterable[T]) -> None:
        """Put something behind what is being handled in a lane that is taken."""
        self.taken[lane].extend(items)

    def next(self, lane: str) -> list[T]:
        """Take out what waits in a lane; the lane stays taken."""
        items, self.taken[lane] = self.taken[lane], []
        return items

    def leave(self, lane: str) -> list[T]:
        """Free a lane; what waited in it."""
        return self.taken.pop(lane, [])


class Turns:
    """The lanes of requests, which are awaited where they stand: the lanes in which one is at work or waits."""

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
