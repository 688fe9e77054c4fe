"""The bus under a Functions trigger: it sends for real, and a settlement becomes the result of the invocation.

A Functions host completes what succeeds and abandons what fails, at once and counted.  So a settlement is noted with
the invocation that waits for it: completed is success, abandoned is failure after a pause.  What is to be dead-lettered
is stored (see `StoredDeadLetters`) and then completed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from outbox.errors import LockLost
from outbox.ports import Delivery, MessageBus, Output, Settle
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters


@dataclass(slots=True, eq=False)
class Invocation:
    """One message in hand: how it was settled, if it was, and the end of its handling."""

    delivery: Delivery
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_done: bool = False
    """Whether it may be completed: what becomes of the message is on record."""
    due_ms: int = 0
    """Until when it may wait before it is abandoned."""

    def end(self) -> None:
        """The runtime has ended with it."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """The runtime has failed; the message is redelivered."""
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            self.ended.exception()  # an invocation that still waits raises it


class TriggerBus:
    """A bus whose deliveries come from a trigger."""

    def __init__(self, bus: MessageBus, dead_letters: StoredDeadLetters) -> None:
        self._bus = bus
        self._dead_letters = dead_letters
        self._invocations: dict[int, Invocation] = {}

    def take(self, invocation: Invocation) -> None:
        """Note an invocation under the lock of its delivery."""
        self._invocations[invocation.delivery.lock] = invocation

    def forget(self, invocation: Invocation) -> None:
        """Forget an invocation that has ended: a later settlement finds its lock lost."""
        self._invocations.pop(invocation.delivery.lock, None)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """End the invocations of these deliveries."""
        for delivery in deliveries:
            invocation = self._invocations.get(delivery.lock)
            if invocation is not None:
                invocation.end()

    def fail(self, error: BaseException) -> None:
        """Fail every invocation after a fault of the runtime: which messages it had is unknown."""
        for invocation in self._invocations.values():
            invocation.fail(error)

    # The port

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._bus.send(outputs)

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Nothing: the host receives."""
        await asyncio.sleep(wait_s)
        return []

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        if settle.how == "dead-letter":
            await self._dead_letters.keep(delivery, settle.reason, settle.description)
        invocation = self._invocations.get(delivery.lock)
        if invocation is None:
            raise LockLost(
                f"{delivery.queue}/{delivery.sequence}: its invocation has ended; the message is redelivered"
            )
        invocation.is_done = settle.how in ("complete", "dead-letter")
        invocation.due_ms = settle.due_ms

    async def renew(self, delivery: Delivery) -> int:
        """The host renews."""
        return delivery.locked_until_ms


_conforms: type[MessageBus] = TriggerBus
