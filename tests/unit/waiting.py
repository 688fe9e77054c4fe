"""Waiting for what no event tells of: a thread, a store or a counter says nothing of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import isawaitable
from typing import Any


async def until(holds: Callable[[], Any], *, within_s: float = 30.0) -> Any:
    """Ask again and again, of a coroutine its result, until the answer is true; that answer."""
    async with asyncio.timeout(within_s):
        while not (found := await answer if isawaitable(answer := holds()) else answer):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    return found
