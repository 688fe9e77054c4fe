"""Sending to Service Bus: one sender for each destination, used by one caller at a time, in batches.

The SDK's asynchronous sender loses and doubles messages when several tasks use it at once, so there is a lock for each;
opening one takes half a second, so it stays.  A batch goes as one transfer, which is taken whole or not at all.  Those
of one batch share a session, because a partitioned queue takes no others.  A sender that has failed is closed: the next
use opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage
from azure.servicebus.exceptions import MessageSizeExceededError

from outbox.azure.servicebus.links import CLOSE_S, OPEN_S
from outbox.azure.servicebus.messages import to_wire
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.azure.usage import Usage, reason_of
from outbox.errors import OutboxError, OutcomeUnknown, Refused
from outbox.ports import Output

SEND_S = 10.0
SEND_WITHIN_S = 15.0
"""How long at most, when the SDK does not keep its own time."""
BATCH_COUNT_MAX = 100
ENVELOPE_BYTES_MAX = 4_096
"""The SDK fills a batch to the limit and adds an envelope with the first message's properties then."""


class Sending:
    """What is sent to one destination."""

    def __init__(self, namespace: ServiceBusNamespace, destination: str, usage: Usage) -> None:
        self._namespace = namespace
        self._destination = destination
        self._usage = usage
        self._sender: ServiceBusSender | None = None
        self._turn = asyncio.Lock()

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages of one session, or of none, in their order.

        Raises:
            OutcomeUnknown: some of them may have been sent.
            Refused, UnknownDestination: none was.
        """
        async with self._turn:
            is_first = True
            messages = [to_wire(output) for output in outputs]
            try:
                while messages:
                    sender = await self._opened()
                    payload, messages = await self._batch(sender, messages)
                    async with asyncio.timeout(SEND_WITHIN_S):
                        await sender.send_messages(payload, timeout=SEND_S)
                    self._usage.note("send")
                    is_first = False
            except FAILURES as error:
                meant = as_error(error, f"send to {self._destination}", sends=True)
                self._usage.note("send", failed=True, reason=reason_of(meant, error))
                if not isinstance(meant, Refused):
                    await self._drop()  # a refusal came over a link that works
                if is_first or isinstance(meant, OutcomeUnknown):
                    raise meant from error
                raise OutcomeUnknown(f"{meant}; some were sent: send all of them again") from error

    async def _opened(self) -> ServiceBusSender:
        if self._sender is None:
            sender = self._namespace.sender(self._destination)
            try:
                async with asyncio.timeout(OPEN_S):
                    await sender.__aenter__()
            except BaseException:
                with suppress(*FAILURES):
                    await sender.close()
                raise
            self._sender = sender
        return self._sender

    async def _batch(
        self, sender: ServiceBusSender, messages: list[AmqpAnnotatedMessage]
    ) -> tuple[AmqpAnnotatedMessage | ServiceBusMessageBatch, list[AmqpAnnotatedMessage]]:
        """As many messages as go together, and those that are left."""
        if len(messages) == 1:
            return messages[0], []
        limit_bytes = (await sender.create_message_batch()).max_size_in_bytes
        batch = await sender.create_message_batch(limit_bytes - min(ENVELOPE_BYTES_MAX, limit_bytes // 4))
        for count, message in enumerate(messages):
            try:
                if count == BATCH_COUNT_MAX:
                    return batch, messages[count:]
                batch.add_message(message)
            except MessageSizeExceededError:
                return (batch, messages[count:]) if count else (message, messages[1:])
        return batch, []

    async def _drop(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            with suppress(*FAILURES, OutboxError):
                async with asyncio.timeout(CLOSE_S):
                    await sender.close()

    async def close(self) -> None:
        """Close, when what is being sent is."""
        async with self._turn:
            await self._drop()
