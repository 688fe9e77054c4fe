"""The source of a worker's messages: a journal claims from all queues together, a bus from one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from outbox.errors import OutcomeUnknown, Refused
from outbox.ports import Delivery, MessageBus, Settle


class Intake(Protocol):
    """Claim, renew and release: the verbs that a journal and a bus share."""

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count_max` messages of these queues, locked."""

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        """Renew the locks that are still held; how many were."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release the deliveries whose locks are still held."""


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
