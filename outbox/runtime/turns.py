"""Turns: what shares a lane goes one after the other in this process, what does not goes side by side.

For speed only.  Two that work on one state at the same time are kept apart by the commit protocols; here they are kept
from trying in vain.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """The lanes in which somebody is at work or waits."""

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
