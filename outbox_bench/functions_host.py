"""A Functions host in miniature: it receives, hands each message to the runtime as a trigger does, and completes it.

The real one receives and settles in a process of its own, so the CPU of a run with this one is that of both.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Self

from azure.functions.servicebus import ServiceBusMessage

from outbox.app import App
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.message import properties_of
from outbox.ports import Backend, Delivery, MessageBus, Settle

WAIT_S = 1.0
STOP_S = 5.0


class FunctionsHost:
    """Invocations of one queue's trigger, at most so many at a time."""

    def __init__(self, app: App, backend: Backend, bus: MessageBus, queue: str, *, concurrency: int) -> None:
        self._processor = Processor(app, backend, FunctionsSettings(lambda: backend))
        self._bus = bus
        self._queue = queue
        self._room = asyncio.Semaphore(concurrency)
        self._concurrency = concurrency
        self._invocations: set[asyncio.Task[None]] = set()
        self._receiving: asyncio.Task[None] | None = None
        self.handled_count = 0
        """Messages that were completed."""

    async def __aenter__(self) -> Self:
        await self._processor.open()
        self._receiving = asyncio.create_task(self._receive())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._receiving is not None:
            self._receiving.cancel()
            await asyncio.gather(self._receiving, return_exceptions=True)
        if self._invocations:
            await asyncio.wait(self._invocations, timeout=STOP_S)
        await self._processor.finish()

    async def _receive(self) -> None:
        while True:
            await self._room.acquire()  # for one at least
            self._room.release()
            count = self._concurrency - len(self._invocations)
            for delivery in await self._bus.receive(self._queue, count_max=max(1, count), wait_s=WAIT_S):
                await self._room.acquire()
                task = asyncio.create_task(self._invoke(delivery))
                self._invocations.add(task)
                task.add_done_callback(self._ended)

    async def _invoke(self, delivery: Delivery) -> None:
        await self._processor.message(self._queue, as_trigger(delivery))
        await self._bus.settle(delivery, Settle("complete"))
        self.handled_count += 1

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._invocations.discard(task)
        self._room.release()
        task.result()


def as_trigger(delivery: Delivery) -> ServiceBusMessage:
    """A message as a trigger gets it."""
    message, properties = delivery.message, dict[str, Any](properties_of(delivery.message))
    return ServiceBusMessage(
        body=message.body,
        trigger_metadata=None,
        application_properties=properties,
        user_properties={},
        message_id=message.message_id,
        sequence_number=delivery.sequence,
        delivery_count=1 + delivery.delivery_count,
        enqueued_time_utc=datetime.fromtimestamp(delivery.enqueued_ms / 1_000, UTC),
    )
