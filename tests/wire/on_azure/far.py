"""Azure a round trip away, in virtual time: the adapters of Service Bus over an SDK that answers a while later.

The loop's clock leaps to the next timer whenever nothing else is left to do, so a rate counts round trips and nothing
else: what a program computes takes no time.  The SDK's part plays only what its adapters use, and insists on what the
real one needs: a sender serves one task at a time, and a receiver's reads and settlements do not overlap.
"""

from __future__ import annotations

import asyncio
import selectors
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, Self, cast

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageProperties

from outbox.azure.servicebus.messages import SEQUENCE
from outbox.message import Message, properties_of
from outbox.ports import Document, DocumentKey, Lost, Session, StateStore, Won, Write

MESSAGE_BYTES_MAX = 1 << 18


class VirtualTime(asyncio.SelectorEventLoop):
    """A loop whose clock leaps to its next timer."""

    def __init__(self) -> None:
        self._now_s = 0.0
        real = selectors.DefaultSelector()
        select = real.select

        def leap(timeout: float | None = None) -> list[Any]:
            found = select(0)
            if not found and timeout:
                self._now_s += timeout
            return found

        real.select = leap  # type: ignore[method-assign]  # the loop waits by no other call
        super().__init__(real)

    def time(self) -> float:
        """Seconds since its start."""
        return self._now_s


def in_virtual_time(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run something on a loop of its own in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTime) as runner:
        return runner.run(work())


@dataclass(frozen=True)
class Received:
    """A message as the SDK hands it out."""

    raw_amqp_message: AmqpAnnotatedMessage
    sequence_number: int
    locked_until_utc: datetime

    @property
    def body(self) -> Any:
        return self.raw_amqp_message.body

    @property
    def body_type(self) -> AmqpMessageBodyType:
        return AmqpMessageBodyType.DATA


class FarReceiver:
    """A queue's receiver: credit, messages and confirmations take half a round trip each way."""

    def __init__(self, namespace: FarNamespace, prefetch_count: int) -> None:
        self._namespace = namespace
        self._ready: deque[Received] = deque()
        self._reading = 0
        self.settling_count = self.settling_count_max = self.ready_count_max = 0
        self.session: Any = None
        self.settled: list[str] = []
        """How settlements began and ended."""
        link = SimpleNamespace(flow=self._flow, current_link_credit=0)
        queue = SimpleNamespace(qsize=lambda: len(self._ready))
        self._handler = SimpleNamespace(_link=link, _received_messages=queue, _link_credit=prefetch_count + 1)

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Nothing is open."""

    async def _flow(self, link_credit: int) -> None:
        self._handler._link.current_link_credit = link_credit
        asyncio.get_running_loop().call_later(self._namespace.rtt_s, self._deliver)

    def _deliver(self) -> None:
        link = self._handler._link
        while link.current_link_credit and self._namespace.queued:
            self._ready.append(self._namespace.queued.popleft())
            link.current_link_credit -= 1
        self.ready_count_max = max(len(self._ready), self.ready_count_max)

    async def receive_messages(self, count: int, *, max_wait_time: float) -> list[Received]:
        """Up to so many messages, at once what is there."""
        assert not self.settling_count or len(self._ready) >= count, "a read that waits would stall the settlements"
        until_s = asyncio.get_running_loop().time() + max_wait_time
        while len(self._ready) < count and asyncio.get_running_loop().time() < until_s:  # noqa: ASYNC110  # as the SDK
            await asyncio.sleep(self._namespace.rtt_s / 10)
        return [self._ready.popleft() for _ in range(min(count, len(self._ready)))]

    async def complete_message(self, message: Received) -> None:
        """Confirm that a message is done."""
        await self._settle(message)
        self._namespace.completed.append(message.sequence_number)

    async def dead_letter_message(self, message: Received, *, reason: str, error_description: str) -> None:
        """Confirm that a message is refused."""
        await self._settle(message)

    async def _settle(self, message: Received) -> None:
        self.settling_count += 1
        self.settled.append(f"+{message.sequence_number}")
        self.settling_count_max = max(self.settling_count, self.settling_count_max)
        await asyncio.sleep(self._namespace.settle_s())
        self.settling_count -= 1
        self.settled.append(f"-{message.sequence_number}")


class FarSender:
    """A sender: a transfer takes a round trip."""

    def __init__(self, namespace: FarNamespace) -> None:
        self._namespace = namespace
        self._is_busy = False

    async def __aenter__(self) -> Self:
        return self

    async def close(self) -> None:
        """Nothing is open."""

    async def create_message_batch(self, size: int | None = None) -> ServiceBusMessageBatch:
        """A batch as the SDK fills it."""
        return ServiceBusMessageBatch(max_size_in_bytes=size or MESSAGE_BYTES_MAX)

    async def send_messages(self, payload: Any, *, timeout: float) -> None:
        """Send one message or a batch."""
        assert not self._is_busy, "the SDK's sender loses and doubles messages when two tasks use it"
        self._is_busy = True
        await asyncio.sleep(self._namespace.rtt_s)
        self._is_busy = False
        self._namespace.transfers.append(len(payload) if isinstance(payload, ServiceBusMessageBatch) else 1)


class FarNamespace:
    """A namespace with one queue that is received from."""

    def __init__(self, rtt_s: float, *, settle_s: Callable[[], float] | None = None) -> None:
        self.rtt_s = rtt_s
        self.settle_s = settle_s or (lambda: rtt_s)
        self.queued: deque[Received] = deque()
        self.completed: list[int] = []
        self.transfers: list[int] = []
        """How many messages each transfer had."""
        self.receivers: list[FarReceiver] = []

    def put(self, messages: Sequence[Message]) -> None:
        """Put messages into the queue."""
        until = datetime.now(UTC) + timedelta(hours=1)
        for message in messages:
            raw = AmqpAnnotatedMessage(
                data_body=message.body,
                application_properties=dict(properties_of(message)),
                properties=AmqpMessageProperties(message_id=message.outbox_id),
                annotations=cast(Any, {SEQUENCE: len(self.queued) + 1}),
            )
            self.queued.append(Received(raw, len(self.queued) + 1, until))

    def receiver(self, path: str, *, prefetch_count: int) -> FarReceiver:
        """A receiver of the queue."""
        self.receivers.append(FarReceiver(self, prefetch_count))
        return self.receivers[-1]

    def sender(self, destination: str) -> FarSender:
        """A sender to any destination."""
        return FarSender(self)


class FarStore:
    """A store whose every answer takes a round trip."""

    def __init__(self, store: StateStore, rtt_s: float) -> None:
        self._store = store
        self._rtt_s = rtt_s
        self.capabilities = store.capabilities
        self.scan, self.unfinished = store.scan, store.unfinished

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        """Read a document."""
        await asyncio.sleep(self._rtt_s)
        return await self._store.read(key, session=session)

    async def write(self, writes: Sequence[Write]) -> Won | Lost:
        """Write documents together."""
        await asyncio.sleep(self._rtt_s)
        return await self._store.write(writes)
