"""Sending to Service Bus: one sender for each destination, one transfer at a time of all that waits.

The SDK's asynchronous sender loses and doubles messages when several tasks use it at once, so one task sends what all
callers have put in line; opening a sender takes half a second, so it stays.  While a transfer is under way others queue
up behind it, and leave together in the next: nobody waits for company, and the rate is not one caller's round trip
after the other's.  A transfer is taken whole or not at all.  What shares one shares a session, because a partitioned
queue takes no other batch; of a session nothing is overtaken.

A transfer that fails fails for all callers that have a part in it, and each of them sends its own again, alone: what
one message has broken breaks no other a second time.  A sender that has failed is closed: the next use opens another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessageBatch
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from outbox.azure.servicebus.links import CLOSE_S, OPEN_S
from outbox.azure.servicebus.messages import broker_id, to_wire
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.azure.usage import Usage, reason_of
from outbox.errors import OutboxError, OutcomeUnknown, Refused, TooLarge, Unreachable
from outbox.ports import Output

SEND_S = 10.0
SEND_WITHIN_S = 15.0
"""How long at most, when the SDK does not keep its own time."""
BATCH_COUNT_MAX = 100
"""The messages that are encoded in one go, while nothing else runs; the service takes 4,500."""
ENVELOPE_BYTES_MAX = 4_096
"""The SDK fills a batch to the limit and adds an envelope with the first message's properties then."""


@dataclass(eq=False, slots=True)
class Parcel:
    """The messages of one caller, of one session, that have not left yet, and the future for the answer."""

    session_id: str
    messages: list[AmqpAnnotatedMessage]
    done: asyncio.Future[None]
    is_begun: bool = False
    """Whether some of it was sent."""

    def left(self, count: int) -> None:
        """Note that its next messages have left."""
        self.is_begun = True
        del self.messages[:count]
        if not self.messages and not self.done.done():
            self.done.set_result(None)

    def failed(self, error: OutboxError) -> None:
        """Answer that the rest of it will not be sent."""
        self.messages.clear()
        if self.is_begun and not isinstance(error, OutcomeUnknown):
            whole = OutcomeUnknown(f"{error}; some were sent: send all of them again")
            whole.__cause__, error = error, whole
        if not self.done.done():
            self.done.set_exception(error)


Taken = list[tuple[Parcel, int]]
"""Of which parcels how many messages are in a transfer."""


class Sending:
    """The sending to one destination."""

    def __init__(self, namespace: ServiceBusNamespace, destination: str, usage: Usage) -> None:
        self._namespace = namespace
        self._destination = destination
        self._usage = usage
        self._sender: ServiceBusSender | None = None
        self._line: list[Parcel] = []
        self._alone_count = 0
        """How many parcels have a transfer of their own next, after one that several shared has failed."""
        self._running: asyncio.Task[None] | None = None
        self._is_closing = False

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages of one session, or of none, in their order; a caller that is cancelled breaks nothing off.

        Raises:
            OutcomeUnknown: some of them may have been sent.
            Refused, UnknownDestination: none was.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        session_id = broker_id(outputs[0].message.session_id)
        self._line.append(Parcel(session_id, [to_wire(output) for output in outputs], done))
        if self._running is None:
            self._running = asyncio.create_task(self._run(), name=f"sender to {self._destination}")
        await done

    async def _run(self) -> None:
        """Send the parcels in line, one transfer after the other."""
        try:
            while not self._is_closing:
                self._line = [parcel for parcel in self._line if parcel.messages and not parcel.done.cancelled()]
                if not self._line:
                    return
                await self._transfer()
        finally:
            self._running = None
            for parcel in self._line:
                parcel.failed(OutcomeUnknown(f"send to {self._destination}: its bus was closed"))

    async def _transfer(self) -> None:
        """Send as many messages in line as one transfer takes."""
        try:
            sender = await self._opened()
        except Exception as error:
            await self._failed(self._line, error)  # nobody need wait for as long again
            return
        is_alone = self._alone_count > 0
        self._alone_count -= is_alone
        taken: Taken = [(self._line[0], 1)]
        try:
            payload, taken = await self._packed(sender, is_alone=is_alone)
            async with asyncio.timeout(SEND_WITHIN_S):
                await sender.send_messages(payload, timeout=SEND_S)
        except Exception as error:  # of the SDK, or of a message that it cannot encode: the line goes on
            parcels = [parcel for parcel, _ in taken]
            meant = await self._failed(parcels, error)
            if len(parcels) > 1 and isinstance(meant, OutcomeUnknown | TooLarge):
                self._alone_count = len(parcels)
        else:
            self._usage.note("send")
            for parcel, count in taken:
                parcel.left(count)

    async def _failed(self, parcels: Sequence[Parcel], error: Exception) -> OutboxError:
        """Answer these callers, unless one of several messages may be too large: then they stay in line."""
        what = f"send to {self._destination}"
        meant = as_error(error, what, sends=True)
        self._usage.note("send", failed=True, reason=reason_of(meant, error))
        if not isinstance(meant, Refused) or isinstance(meant, Unreachable):
            await self._drop()  # any other refusal came over a link that works
        for parcel in parcels if len(parcels) == 1 or not isinstance(meant, TooLarge) else ():
            own = as_error(error, what, sends=True)
            own.__cause__ = error
            parcel.failed(own)
        return meant

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

    async def _packed(
        self, sender: ServiceBusSender, *, is_alone: bool
    ) -> tuple[AmqpAnnotatedMessage | ServiceBusMessageBatch, Taken]:
        """The first in line and, of its session, as many behind it as go together, or it alone."""
        first = self._line[0]
        parcels = [first] if is_alone else [one for one in self._line if one.session_id == first.session_id]
        if len(parcels) == 1 and len(first.messages) == 1:
            return first.messages[0], [(first, 1)]
        limit_bytes = (await sender.create_message_batch()).max_size_in_bytes  # a megabyte at most, by the SDK
        batch = await sender.create_message_batch(limit_bytes - min(ENVELOPE_BYTES_MAX, limit_bytes // 4))
        taken: Taken = []
        left_count = BATCH_COUNT_MAX
        for parcel in parcels:
            count = _added(batch, parcel.messages[:left_count])
            if count:
                taken.append((parcel, count))
            left_count -= count
            if count < len(parcel.messages):
                break
        return (batch, taken) if taken else (first.messages[0], [(first, 1)])

    async def _drop(self) -> None:
        sender, self._sender = self._sender, None
        if sender is not None:
            with suppress(*FAILURES, OutboxError):
                async with asyncio.timeout(CLOSE_S):
                    await sender.close()

    async def close(self) -> None:
        """Close, when the transfer that is under way has ended; what waits behind it does not leave."""
        self._is_closing = True
        if self._running is not None:
            await asyncio.wait({self._running})
        await self._drop()


def _added(batch: ServiceBusMessageBatch, messages: Sequence[AmqpAnnotatedMessage]) -> int:
    """Add messages to a batch up to the first that does not fit, or cannot be encoded; how many."""
    for count, message in enumerate(messages):
        try:
            batch.add_message(message)
        except Exception:  # it goes next, alone if need be, and fails alone
            return count
    return len(messages)
