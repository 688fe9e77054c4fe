"""One question put to many queues concurrently, because one after the other they take too long.

A look into a queue of Service Bus opens a link, which takes the SDK a second; on a namespace of thirty queues that is a
minute for one command.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

COUNT_MAX = 8
"""How many are asked side by side: each is a connection."""


async def side_by_side(items: Iterable[T], ask: Callable[[T], Awaitable[R]]) -> list[R]:
    """Return the answers for the items, in their order; the first error ends all of it."""
    room = asyncio.Semaphore(COUNT_MAX)

    async def one(item: T) -> R:
        async with room:
            return await ask(item)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(item)) for item in items]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return [task.result() for task in tasks]
