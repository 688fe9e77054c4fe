"""The engine's queues as a message bus of their own, apart from its documents.

Whatever it hands out has passed the gate.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from outbox.engine.broker import Broker, as_deliveries
from outbox.engine.core import Core
from outbox.engine.entities import Settlement
from outbox.engine.log import records
from outbox.engine.state.queues import Queue
from outbox.ports import Delivery, MessageBus, Output, Settle


class EngineBus:
    """The engine's queues as a message bus."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker

    async def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._broker.send(output.destination, [output.message], due_ms=output.due_ms)
        await self._core.gate()

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        broker = self._broker
        found = broker.queue(queue)
        tasks = broker.take(found, count_max)
        if not tasks and wait_s > 0 and await broker.wait_any([queue], wait_s):
            tasks = broker.take(found, count_max)
        await self._core.gate()
        return [
            replace(d, failures=0, delivery_count=d.delivery_count + d.failures, from_outside=True)
            for d in as_deliveries(tasks)
        ]

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        how = _SETTLEMENTS[settle.how]
        if settle.due_ms and settle.how in ("abandon", "release"):
            await self._reschedule(delivery, settle)
            return
        if settle.how == "dead-letter":
            await self._dead_letter(delivery, settle)
            return
        self._broker.settle(self._broker.token(delivery), how, reason=settle.reason, description=settle.description)
        await self._core.gate()

    async def _reschedule(self, delivery: Delivery, settle: Settle) -> None:
        """Release or abandon a message that is not to be delivered before a time; it keeps its place."""
        queue, failures = self._held(delivery)
        count = failures + (settle.how == "abandon")
        why = settle.description
        self._commit(postponed=[records.Postponed(queue.number, delivery.sequence, settle.due_ms, count, why)])
        await self._core.gate()

    async def _dead_letter(self, delivery: Delivery, settle: Settle) -> None:
        """Dead-letter a message; this delivery of it counts too."""
        queue, failures = self._held(delivery)
        reason, text = settle.reason, settle.description
        self._commit(
            dead_lettered=[records.DeadLettered(queue.number, delivery.sequence, reason, text, failures + 1, False)]
        )
        await self._core.gate()

    def _held(self, delivery: Delivery) -> tuple[Queue, int]:
        """The queue of a delivery that is ours, and its count of failures.

        Raises:
            LockLost: it is not ours any more.
        """
        self._broker.renew(self._broker.token(delivery))
        queue = self._broker.queue(delivery.queue)
        return queue, queue.tasks[delivery.sequence].failures

    def _commit(
        self, *, dead_lettered: Sequence[records.DeadLettered] = (), postponed: Sequence[records.Postponed] = ()
    ) -> None:
        now_ms = self._core.now_ms()
        self._core.do(records.Committed(now_ms, now_ms, {}, {}, [], {}, {}, list(dead_lettered), list(postponed)))
        self._broker.wake()

    async def renew(self, delivery: Delivery) -> int:
        return self._broker.renew(self._broker.token(delivery))


_SETTLEMENTS = {
    "complete": Settlement.COMPLETE,
    "abandon": Settlement.ABANDON,
    "release": Settlement.RELEASE,
    "defer": Settlement.DEFER,
    "dead-letter": Settlement.DEAD_LETTER,
}


_conforms: type[MessageBus] = EngineBus
