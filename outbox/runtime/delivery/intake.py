"""The way of a worker's messages into this process: claimed from their source, and handled in lanes.

A journal claims from all queues together, a bus from one at a time.  The messages of one lane are handled in turn in
this process, lanes run side by side.  A lane is a state, or a session of an ordered queue.  Lanes save conflicts, not
safety: the commit protocols keep concurrent attempts on one state apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Generic, TypeVar

from outbox.errors import OutcomeUnknown, Refused
from outbox.ports import Delivery, Journal, MessageBus, Settle

T = TypeVar("T")


class BusIntake:
    """A bus as an intake; of several queues it waits for the first only."""

    def __init__(self, bus: MessageBus) -> None:
        self._bus = bus

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        for queue in queues[1:]:
            found = await self._bus.receive(queue, count_max=count_max, wait_s=0)
            if found:
                return found
        return await self._bus.receive(queues[0], count_max=count_max, wait_s=wait_s) if queues else []

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        renewed = 0
        for delivery in deliveries:
            with suppress(Refused, OutcomeUnknown):  # a failed renewal must not keep the others from theirs
                await self._bus.renew(delivery)
                renewed += 1
        return renewed

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            with suppress(Refused, OutcomeUnknown):  # else the lock expires
                await self._bus.settle(delivery, Settle("release"))


Intake = Journal | BusIntake
"""Where a worker's messages come from: claim, renew and release."""


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
