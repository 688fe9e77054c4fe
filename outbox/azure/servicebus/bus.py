"""Service Bus as a message bus, over the real asynchronous SDK.

*Theory of operation.*  Links stay open: a sender for each destination, a receiver for each queue or session.  What was
received is remembered with the link that it came by, since only that can settle it, under a number that is the
delivery's lock; a number that is not known (any more) is a lost lock.  Nothing that the SDK does is cancelled half way:
it would leave the link in the middle of a frame.

A message that is abandoned *until a time* waits here, under its lock, and so does its session: Service Bus cannot delay
an abandoned message, and a copy would overtake.  Should this process die, it is redelivered when its lock runs out.

*Sending.*  The SDK's asynchronous sender loses and doubles messages when several tasks use it at once, so one task
sends what all callers have put in line; opening a sender takes half a second, so it stays.  While a transfer is under
way others queue up behind it, and leave together in the next: nobody waits for company, and the rate is not one
caller's round trip after the other's.  A transfer is taken whole or not at all.  What shares one shares a session,
because a partitioned queue takes no other batch; of a session nothing is overtaken.

A transfer that fails fails for all callers that have a part in it, and each of them sends its own again, alone: what
one message has broken breaks no other a second time.  A sender that has failed is closed: the next use opens another.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass

from azure.servicebus import ServiceBusMessageBatch, ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusSender
from azure.servicebus.amqp import AmqpAnnotatedMessage

from outbox.azure.servicebus.links import CLOSE_S, OPEN_S, Link
from outbox.azure.servicebus.messages import ENQUEUED_MS, SEQUENCE, broker_id, from_wire, milliseconds, to_wire
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.azure.servicebus.sources import SESSION_COUNT_MAX, PlainSource, SessionSource, Source, Tasks
from outbox.azure.usage import Usage, reason_of
from outbox.errors import LockLost, OutboxError, OutcomeUnknown, Refused, TooLarge, UnknownDestination, Unreachable
from outbox.ports import Delivery, MessageBus, Output, Settle

DELAY_S_MAX = 300.0
"""How long an abandoned message may wait here under its lock; after that it is redelivered early."""
GIVE_UP_S = 1.0
"""The part of a lock left for another try to extend it; with less, a delayed message is redelivered early."""
LOCKED_COUNT_MAX = 20_000
"""How many messages may be out; the oldest of more have long lost their locks."""

log = logging.getLogger("outbox.servicebus")
SEND_S = 10.0
SEND_WITHIN_S = 15.0
"""How long at most, when the SDK does not keep its own time."""
BATCH_COUNT_MAX = 100
"""The messages that are encoded in one go, while nothing else runs; the service takes 4,500."""
ENVELOPE_BYTES_MAX = 4_096
"""The SDK fills a batch to the limit and adds an envelope with the first message's properties then."""


def wall_ms() -> int:
    """Milliseconds since 1970."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class LockedMessage:
    """A message that is out: its link, what the SDK settles, and until when it is ours."""

    link: Link
    message: ServiceBusReceivedMessage
    until_ms: int


class ServiceBusBus:
    """The queues and topics of a namespace."""

    def __init__(
        self,
        namespace: ServiceBusNamespace,
        *,
        ordered: Collection[str] = (),
        session_count_max: int = SESSION_COUNT_MAX,
        usage: Usage | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """Take a namespace; the queues `ordered` require sessions."""
        self.usage = Usage() if usage is None else usage
        self._namespace = namespace
        self._ordered = set(ordered)
        self._session_count_max = session_count_max
        self._now_ms = now_ms
        self._numbers = itertools.count(1)
        self._locked: dict[int, LockedMessage] = {}
        self._sending: dict[str, Sending] = {}
        self._sources: dict[str, Source] = {}
        self._tasks = Tasks()
        self._closing = asyncio.Event()

    def order(self, queues: Collection[str]) -> None:
        """Know that these queues require sessions."""
        self._ordered.update(queues)

    # Sending

    async def send(self, outputs: Sequence[Output]) -> None:
        groups: dict[tuple[str, str], list[Output]] = {}
        for output in outputs:
            groups.setdefault((output.destination, broker_id(output.message.session_id)), []).append(output)
        sends = [self._sent(destination, group) for (destination, _), group in groups.items()]
        if len(sends) == 1:
            await sends[0]
            return
        errors = [error for error in await asyncio.gather(*sends, return_exceptions=True) if error is not None]
        for error in errors:
            if not isinstance(error, Refused | UnknownDestination):
                raise error
        if len(errors) == len(sends):
            raise errors[0]
        if errors:
            raise OutcomeUnknown(f"{errors[0]}; others were sent: send all of them again") from errors[0]

    async def _sent(self, destination: str, outputs: Sequence[Output]) -> None:
        if destination not in self._sending:
            self._sending[destination] = Sending(self._namespace, destination, self.usage)
        await self._sending[destination].send(outputs)

    # Receiving

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        try:
            taken = await self._source(queue).receive(count_max, wait_s)
        except OutboxError as error:
            self._failed("receive", error)
            raise
        if taken is None:
            return []
        self.usage.note("receive")
        link, messages = taken
        return [self._delivery(queue, link, message) for message in messages]

    def _source(self, queue: str) -> Source:
        found = self._sources.get(queue)
        if found is None:
            if queue in self._ordered:
                found = SessionSource(
                    self._namespace, queue, now_ms=self._now_ms, session_count_max=self._session_count_max
                )
            else:
                found = PlainSource(self._namespace, queue, now_ms=self._now_ms)
            self._sources[queue] = found
        return found

    def _delivery(self, queue: str, link: Link, message: ServiceBusReceivedMessage) -> Delivery:
        lock, until_ms = next(self._numbers), milliseconds(link.locked_until(message))
        if len(self._locked) >= LOCKED_COUNT_MAX:
            self._locked.pop(next(iter(self._locked))).link.forget()
        self._locked[lock] = LockedMessage(link, message, until_ms)
        raw = message.raw_amqp_message
        annotations, header = raw.annotations or {}, raw.header
        return Delivery(
            queue=queue,
            sequence=annotations.get(SEQUENCE) or 0,
            message=from_wire(message),
            lock=lock,
            enqueued_ms=annotations.get(ENQUEUED_MS) or 0,
            locked_until_ms=until_ms,
            delivery_count=0 if header is None else header.delivery_count or 0,
        )

    # Settling

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        locked = self._locked.pop(delivery.lock, None)
        if locked is None:
            raise self._lost(delivery)
        delay_s = min(DELAY_S_MAX, (settle.due_ms - self._now_ms()) / 1_000) if settle.due_ms else 0.0
        if settle.how in ("abandon", "release") and delay_s > 0 and not self._closing.is_set():
            self._tasks.start(self._settle_later(locked, settle, delay_s))
            return
        try:
            await locked.link.settle(locked.message, settle)
        except OutboxError as error:
            self._failed(settle.how, error)
            raise
        self.usage.note(settle.how)

    async def _settle_later(self, locked: LockedMessage, settle: Settle, delay_s: float) -> None:
        """Keep a message under its lock for `delay_s`, then settle it; unsettled, its key would hang."""
        await self._wait(locked, self._now_ms() + delay_s * 1_000)
        try:
            await locked.link.settle(locked.message, settle)
        except OutboxError as error:
            self._failed(settle.how, error)
            log.warning(
                "a delayed message was not abandoned; it is redelivered when its lock runs out",
                extra=_fields(locked, error),
            )
        else:
            self.usage.note(settle.how)

    async def _wait(self, locked: LockedMessage, due_ms: float) -> None:
        """Wait until a time, or for as long as the lock can be kept."""
        while not self._closing.is_set() and (left_s := (due_ms - self._now_ms()) / 1_000) > 0:
            lock_s = max(1.0, (locked.until_ms - self._now_ms()) / 1_000)
            try:
                async with asyncio.timeout(min(left_s, lock_s / 2)):
                    await self._closing.wait()
            except TimeoutError:
                if left_s > lock_s / 2 and not await self._extended(locked):
                    return

    async def _extended(self, locked: LockedMessage) -> bool:
        """Extend the lock of a delayed message; False where there is no use in another try."""
        try:
            locked.until_ms = await locked.link.renew(locked.message)
        except OutboxError as error:
            self._failed("renew", error)
            if not isinstance(error, LockLost) and locked.until_ms - self._now_ms() > GIVE_UP_S * 1_000:
                return True
            log.warning(
                "the lock of a delayed message is not renewed; it is redelivered early", extra=_fields(locked, error)
            )
            return False
        return True

    async def renew(self, delivery: Delivery) -> int:
        locked = self._locked.get(delivery.lock)
        if locked is None:
            raise self._lost(delivery)
        try:
            locked.until_ms = await locked.link.renew(locked.message)
        except OutboxError as error:
            self._failed("renew", error)
            raise
        self.usage.note("renew")
        return locked.until_ms

    def _failed(self, kind: str, error: OutboxError) -> None:
        self.usage.note(kind, failed=True, reason=reason_of(error, error.__cause__ or error))

    def _lost(self, delivery: Delivery) -> LockLost:
        return LockLost(f"{delivery.queue}/{delivery.sequence} is not locked here; it was settled, or is redelivered")

    # Closing

    async def close(self) -> None:
        """Await the work under way, abandon delayed messages, release the ones read ahead, and close the links.

        What is out stays locked until it is settled elsewhere or its lock runs out; settle it before.
        """
        self._closing.set()
        await self._tasks.close()
        sources, self._sources = self._sources, {}
        sending, self._sending = self._sending, {}
        await asyncio.gather(
            *(source.close() for source in sources.values()), *(one.close() for one in sending.values())
        )
        self._locked.clear()
        self._closing = asyncio.Event()


def _fields(locked: LockedMessage, error: OutboxError) -> dict[str, object]:
    return {"path": locked.link.path, "sequence": locked.message.sequence_number, "error": str(error)}


_conforms: type[MessageBus] = ServiceBusBus


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
