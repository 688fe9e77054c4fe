"""One receiving link of Service Bus: its messages read ahead, its messages out under lock, and their settlement.

*Theory of operation.*  The SDK's receiver must not be cancelled in the middle of a frame and hands out a batch only
after waiting for more.  So a task of the link's own, the pump, reads as long as messages are wanted: the next one,
then for a moment what comes right behind it; a caller takes what is there.  A caller that is cancelled leaves
the pump alone.  A read that is cancelled loses nothing only while the SDK has nothing in hand and grants no credit, so
the pump takes what was read ahead, and grants credit, outside of the reads that may be cancelled.

A read holds the socket for a fifth of a second if nothing comes, and a settlement has to read its confirmation.
So settlements queue up for a task that makes all that wait at the same time, which costs one round trip (those of a
session one after the other), and the pump stands aside: its waiting read is cancelled, which the SDK does itself
whenever a read runs out of time, and goes on when no settlement is left.  What the settlements read besides, the pump
takes up meanwhile.

A link that fails is dead: its messages are redelivered when their locks run out.  The SDK closes a receiver's
connection when a call fails and opens another one in the next, under the messages that are out; but a delivery's number
means another message there, and of two settlements under one number the SDK forgets that one waits.  So no call is made
of a receiver whose connection is not the one that it began with.

Of the SDK's receiver a link needs internals for which there is no call: how much it has read ahead, what the broker may
still send, which connection it has; giving a message back uncounted.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple, Self, TypeVar

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus._pyamqp.error import AMQPException
from azure.servicebus.aio import ServiceBusReceiver

from outbox.azure.servicebus.messages import milliseconds
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.errors import LockLost, OutboxError, OutcomeUnknown
from outbox.log_throttle import LogThrottle
from outbox.ports import Settle

log = logging.getLogger("outbox.servicebus")

T = TypeVar("T")


class Call(NamedTuple):
    """A call of the SDK that waits for its turn, what it is for, and where its answer goes."""

    make: Callable[[], Awaitable[Any]]
    what: str
    done: asyncio.Future[Any]
    is_alone: bool
    """Whether no other may be in flight with it."""


OPEN_S = 30.0
SETTLE_S = 20.0
TOGETHER_COUNT_MAX = 64
"""The settlements in flight at once; at twice as many the SDK stalls for a quarter of a second."""
CLOSE_S = 5.0
TEXT_LENGTH_MAX = 4_096
LINGER_S = 0.002
"""How long the pump waits for more behind a message, so that what has arrived already is one batch."""
AHEAD_COUNT = 33
"""How many messages the broker may send ahead at first; their locks run while they wait here."""
AHEAD_COUNT_MAX = 256
"""How many it may send ahead at most, where as many are handled at once."""
TELL_LATE_EVERY_MS = 60_000
SLICE_S = 0.2
"""How long the pump waits for a message before it looks whether one is still wanted."""

TOO_LATE = (
    "a message was dropped, its lock was over before it was handled; the broker delivers it again and counts that: let "
    "the lock last longer, or set this machine's clock, which may be ahead"
)


class Link:
    """A receiver that is open, and its pump."""

    def __init__(
        self,
        path: str,
        receiver: ServiceBusReceiver,
        *,
        arrived: Callable[[], None],
        now_ms: Callable[[], int],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take a receiver that is open; `arrived` is called when something has changed."""
        self.path = path
        self.receiver = receiver
        self.ready: deque[ServiceBusReceivedMessage] = deque()
        self._late = LogThrottle(TELL_LATE_EVERY_MS, now_ms)
        self.out_count = 0
        """How many messages are out under lock."""
        self.error: OutboxError | None = None
        """Why it is dead."""
        self.is_spent = False
        """Whether a message was abandoned, so that messages of its session read ahead may overtake it."""
        self.used_s = self.opened_s = monotonic_s()
        self._renewed_ms = now_ms()
        self._arrived = arrived
        self._now_ms = now_ms
        self._monotonic_s = monotonic_s
        self._wanted_count = 0
        self._ahead_count = AHEAD_COUNT
        self._want = asyncio.Event()
        self._closing = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None
        self._reading: asyncio.Task[list[ServiceBusReceivedMessage]] | None = None
        self._quiet = asyncio.Event()
        """Whether no settlement is under way."""
        self._quiet.set()
        self._stirred = asyncio.Event()
        """Whether a settlement has ended since the pump last looked."""
        self._whole = asyncio.Event()
        self._whole.set()
        self._calls: deque[Call] = deque()
        self._calling: asyncio.Task[None] | None = None
        self._handler = handler_of(receiver)

    @classmethod
    async def open(
        cls, path: str, receiver: ServiceBusReceiver, *, arrived: Callable[[], None], now_ms: Callable[[], int]
    ) -> Self:
        """Open a receiver; it may take half a second.

        Raises:
            OutboxError: it cannot be opened.
        """
        try:
            async with asyncio.timeout(OPEN_S):
                await receiver.__aenter__()
        except FAILURES as error:
            with suppress(*FAILURES):
                await receiver.close()
            raise as_error(error, f"receiver of {path}") from error
        return cls(path, receiver, arrived=arrived, now_ms=now_ms)

    @property
    def session_id(self) -> str:
        """The session that it is of, if any."""
        session: Any = self.receiver.session  # None without one, though its type does not say so
        return "" if session is None else str(session.session_id)

    def locked_until(self, message: ServiceBusReceivedMessage) -> datetime | None:
        """Until when a message is ours."""
        session: Any = self.receiver.session
        return message.locked_until_utc if session is None else session.locked_until_utc

    def expire(self) -> bool:
        """Whether the session's lock has run out; then the link is dead, and its messages out are redelivered."""
        session: Any = self.receiver.session
        until_ms = 0 if session is None else milliseconds(session.locked_until_utc)
        if self.error is None and 0 < until_ms <= self._now_ms():
            self._die(LockLost(f"the lock of {self.path}, session {self.session_id}, ran out"))
        return 0 < until_ms <= self._now_ms()

    # Receiving

    def want(self, count: int) -> None:
        """Let the pump read until `count` messages are ready."""
        self._wanted_count = max(count, 0)
        if not self.session_id:  # of a session few are handled at once
            self._ahead_count = max(self._ahead_count, min(count, AHEAD_COUNT_MAX))
        if self._pump is None and self.error is None and not self._closing.is_set():
            self._pump = asyncio.create_task(self._read(), name=f"receiver of {self.path}")
        if self._wanted_count > len(self.ready):
            self._want.set()
        else:
            self._want.clear()

    async def _read(self) -> None:
        while not (self._closing.is_set() or self._is_dead()):
            await self._want.wait()
            if self._closing.is_set():
                return
            self._stirred.clear()
            try:
                if self._quiet.is_set():
                    await self._gather()
                elif not await self._take_up():  # what settlements have read besides
                    await self._stirred.wait()
            except FAILURES as error:
                self._die(as_error(error, f"receive from {self.path}"))
                return
            if len(self.ready) >= self._wanted_count:
                self._want.clear()

    async def _gather(self) -> None:
        """Read what the SDK has read ahead or else the next message, and what comes right behind it."""
        await grant(self.receiver, self._ahead_count)
        if not await self._take_up() and self._quiet.is_set():
            self._add(await self._found(self._hear(1)))
        count = min(self._wanted_count - len(self.ready), credit_of(self.receiver))  # behind that a read would grant
        if self.ready and count > 0 and self._quiet.is_set():
            self._whole.clear()
            try:
                self._add(await self._found(self._hear(count), LINGER_S))
                await self._take_up()
            finally:
                self._whole.set()

    async def _hear(self, count: int) -> list[ServiceBusReceivedMessage]:
        """Read the socket until `count` messages have come; a read that is cancelled leaves fewer with the SDK."""
        # The SDK would take what it has buffered in hand, and drop it if it is cancelled.
        return [] if buffered_count(self.receiver) else await self._receive(count)

    async def _receive(self, count: int) -> list[ServiceBusReceivedMessage]:
        return [] if self._is_dead() else await self.receiver.receive_messages(count, max_wait_time=SLICE_S)

    async def _take_up(self) -> bool:
        """Take wanted messages that the SDK has read ahead, because it does not read for them; False without any."""
        count = min(self._wanted_count - len(self.ready), buffered_count(self.receiver))
        if count > 0:
            self._add(await self._found(self._receive(count)))
        return count > 0

    async def _found(
        self, read: Coroutine[Any, Any, list[ServiceBusReceivedMessage]], within_s: float | None = None
    ) -> list[ServiceBusReceivedMessage]:
        """Await a read in a task of its own, which stands aside for settlements and when its time is over."""
        self._reading = asyncio.create_task(read)
        await asyncio.wait({self._reading}, timeout=within_s)
        await self._stand_aside()
        return [] if self._reading.cancelled() else self._reading.result()

    def _add(self, found: list[ServiceBusReceivedMessage]) -> None:
        if found:
            self.ready.extend(found)
            self.used_s = self._monotonic_s()
            self._arrived()

    async def gathered(self) -> None:
        """Wait for what comes right behind a message that is ready."""
        await self._whole.wait()

    async def _stand_aside(self) -> None:
        """Stop the read of the socket."""
        reading = self._reading
        while reading is not None and not reading.done():
            reading.cancel()
            await asyncio.wait({reading}, timeout=LINGER_S)  # what comes at that moment has it go on instead

    def take(self, count: int) -> list[ServiceBusReceivedMessage]:
        """Take up to `count` messages that are ready and still locked; they count as out."""
        taken: list[ServiceBusReceivedMessage] = []
        while self.ready and len(taken) < count:
            message = self.ready.popleft()
            until = self.locked_until(message)
            if until is None or milliseconds(until) > self._now_ms():
                taken.append(message)
            elif self._late.is_due(""):
                log.warning(TOO_LATE, extra={"queue": self.path, "sequence": message.sequence_number})
        self.out_count += len(taken)
        return taken

    def _is_dead(self) -> bool:
        """Whether it has failed, or the SDK has closed its connection."""
        if self.error is None and handler_of(self.receiver) is not self._handler:
            self._die(OutcomeUnknown(f"the connection of {self.path} was closed"))
        return self.error is not None

    def _die(self, error: OutboxError) -> None:
        self.error = error
        self.ready.clear()
        self._arrived()

    # Settling

    async def settle(self, message: ServiceBusReceivedMessage, settle: Settle) -> None:
        """Settle a message that is out.

        Raises:
            LockLost: it is not ours any more.
            OutcomeUnknown: it may have been done.
        """
        what = f"{settle.how} of {self.path}/{message.sequence_number}"
        self.is_spent = self.is_spent or settle.how in ("abandon", "release")
        is_alone = bool(self.session_id)  # in their order
        try:
            await self._in_turn(lambda: self._settle(message, settle), what, is_alone=is_alone)
        finally:
            self.out_count -= 1
            self._ended()

    def forget(self) -> None:
        """Count a message as out no more, though it is not settled: it is redelivered, and nothing may overtake it."""
        self.is_spent = True
        self.out_count -= 1
        self._ended()

    def _ended(self) -> None:
        self.used_s = self._monotonic_s()
        self._arrived()  # a session goes on

    async def renew(self, message: ServiceBusReceivedMessage) -> int:
        """Extend the lock of a message, or of the session; its new end in milliseconds since 1970.

        Raises:
            LockLost: it is not ours any more.
            OutcomeUnknown: it may have been done.
        """
        what = f"renewal of {self.path}/{message.sequence_number}"
        return await self._in_turn(lambda: self._renew(message), what, is_alone=True)

    async def _renew(self, message: ServiceBusReceivedMessage) -> int:
        session: Any = self.receiver.session
        if session is None:
            return milliseconds(await self.receiver.renew_message_lock(message))
        left_ms = milliseconds(session.locked_until_utc) - self._now_ms()
        if left_ms <= 0 or self._now_ms() - self._renewed_ms > left_ms / 8:  # else another message had it renewed
            await session.renew_lock()
            self._renewed_ms = self._now_ms()
        return milliseconds(session.locked_until_utc)

    async def _settle(self, message: ServiceBusReceivedMessage, settle: Settle) -> None:
        match settle.how:
            case "complete":
                await self.receiver.complete_message(message)
            case "abandon":
                await self.receiver.abandon_message(message)
            case "defer":
                await self.receiver.defer_message(message)
            case "dead-letter":
                reason, description = cut(settle.reason), cut(settle.description)
                await self.receiver.dead_letter_message(message, reason=reason, error_description=description)
            case "release":
                await release(self.receiver, message)

    async def _in_turn(self, make: Callable[[], Awaitable[T]], what: str, *, is_alone: bool) -> T:
        """Have the SDK called in turn; the caller may be cancelled, the call may not."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.append(Call(make, what, done, is_alone))
        if self._calling is None:
            self._quiet.clear()
            self._calling = asyncio.create_task(self._call(), name=f"settlements of {self.path}")
        return await done

    async def _call(self) -> None:
        """Make the calls that wait, those together that may be, while no read is under way."""
        try:
            await self._stand_aside()
            while self._calls:
                if self._wanted_count > len(self.ready):
                    with suppress(*FAILURES):  # the settlements will say so
                        await grant(self.receiver, self._ahead_count)
                with suppress(TimeoutError):  # what was broken off has its answer
                    await self._make(self._next_calls())
                if not self._calls:
                    await asyncio.sleep(0)  # a caller that has its answer may have the next call at hand
        finally:
            self._calling = None
            self._quiet.set()
            self._stirred.set()
            while self._calls:
                call = self._calls.popleft()
                if not call.done.done():
                    call.done.set_exception(OutcomeUnknown(f"{call.what}: its link was closed"))

    def _next_calls(self) -> list[Call]:
        """The first call in line, with those right behind it that may be in flight at the same time."""
        calls = [self._calls.popleft()]
        while self._calls and len(calls) < TOGETHER_COUNT_MAX and not (calls[-1].is_alone or self._calls[0].is_alone):
            calls.append(self._calls.popleft())
        return calls

    async def _make(self, calls: Sequence[Call]) -> None:
        """Make calls at the same time, which are asked for in their order."""
        async with asyncio.timeout(SETTLE_S) as limit:
            await asyncio.gather(*(answer(call.done, self._called(call.make, call.what, limit)) for call in calls))

    async def _called(self, call: Callable[[], Awaitable[T]], what: str, limit: asyncio.Timeout) -> T:
        if self._is_dead():
            raise LockLost(f"{what}: its link is gone ({self.error}); the message is redelivered")
        try:
            return await call()
        except asyncio.CancelledError:
            if not limit.expired():
                raise
            late = TimeoutError()
            raise self._meant(late, what) from late
        except FAILURES as error:
            raise self._meant(error, what) from error
        finally:
            self._stirred.set()

    def _meant(self, error: BaseException, what: str) -> OutboxError:
        meant = as_error(error, what, settles=True)
        is_broken = isinstance(error, TimeoutError | AMQPException | RuntimeError | LookupError)
        if is_broken or handler_of(self.receiver) is not self._handler:
            self._die(meant)  # it was interrupted in the middle of whatever it did, or its connection is gone
        return meant

    # Closing

    async def close(self) -> None:
        """Release the messages read ahead, and close."""
        self._closing.set()
        self._want.set()
        self._stirred.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(*filter(None, (self._pump, self._calling)), return_exceptions=True)
        try:
            while self.ready and self.error is None:
                with suppress(OutboxError, *FAILURES):
                    await self._in_turn(partial(release, self.receiver, self.ready.popleft()), "release", is_alone=True)
        finally:
            with suppress(*FAILURES):
                async with asyncio.timeout(CLOSE_S):
                    await self.receiver.close()


async def answer(done: asyncio.Future[T], work: Coroutine[Any, Any, T]) -> None:
    """Do something, and give its result to the caller, if that still waits."""
    try:
        result = await work
    except BaseException as error:
        is_usual = isinstance(error, Exception)
        if not done.done():
            done.set_exception(error if is_usual else OutcomeUnknown("broken off; its link was closed"))
        if not is_usual:
            raise
    else:
        if not done.done():
            done.set_result(result)


def cut(text: str) -> str:
    """A text as the properties of a dead letter may hold it."""
    return text if len(text) <= TEXT_LENGTH_MAX else text[: TEXT_LENGTH_MAX - 3] + "..."


def handler_of(receiver: ServiceBusReceiver) -> object:
    """The object of a receiver's open connection; None where it was closed."""
    handler: object = receiver._handler
    return handler


def buffered_count(receiver: ServiceBusReceiver) -> int:
    """The number of messages that the SDK has read ahead and hands out at once, without a further read."""
    handler: Any = receiver._handler
    return 0 if handler is None else int(handler._received_messages.qsize())


def credit_of(receiver: ServiceBusReceiver) -> int:
    """How many messages the broker may still send."""
    handler: Any = receiver._handler
    return 0 if handler is None or handler._link is None else int(handler._link.current_link_credit)


async def grant(receiver: ServiceBusReceiver, count: int) -> None:
    """Let the broker send up to `count` messages in all, once less than half are here or under way.

    The SDK grants its own number as it begins to read, where it may be sent nothing any more: so every so many messages
    come a round trip late.  And it takes that as done at once: a read that is cancelled just then would keep the broker
    silent for as long as the link lives.
    """
    handler: Any = receiver._handler
    is_open = handler is not None and handler._link is not None
    ahead_count = buffered_count(receiver)
    if is_open and credit_of(receiver) + ahead_count <= count // 2:
        await handler._link.flow(link_credit=count - ahead_count)


async def release(receiver: ServiceBusReceiver, message: ServiceBusReceivedMessage) -> None:
    """Give a message back uncounted, as the SDK, without a call for it, gives back messages read ahead.

    It goes past what the SDK translates: an AMQPException comes as it is.
    """
    await receiver._handler.settle_messages_async(message._delivery_id, message._delivery_tag, "released")
