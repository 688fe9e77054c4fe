"""Peeks at the messages of Service Bus, and its dead letters: listed, sent again, thrown away.

The SDK looks through a receiver, and opens one first.  A queue that is ordered by session has none for all sessions,
and the one of a session cannot be opened while a worker has it.  The service itself needs no receiver for a look: there
it is asked as the SDK asks for the names of sessions, over a link for requests alone.  A look locks nothing.

A dead letter can be looked at by its number but not fetched by it: to take one, those before it are locked and given
back afterwards.  So there is a limit to how far down one can be found.  Of a subscription's dead letter the topic gets
another copy, because a subscription cannot be sent to alone: its other subscriptions get it a second time under its
identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Literal
from uuid import uuid4

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus._common.constants import (
    MGMT_REQUEST_FROM_SEQUENCE_NUMBER,
    MGMT_REQUEST_MAX_MESSAGE_COUNT,
    MGMT_REQUEST_SESSION_ID,
    REQUEST_RESPONSE_PEEK_OPERATION,
)
from azure.servicebus._common.mgmt_handlers import peek_op
from azure.servicebus.aio import ServiceBusReceiver
from msgspec.structs import replace

from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.azure.servicebus.links import CLOSE_S, OPEN_S, SETTLE_S, release
from outbox.azure.servicebus.messages import from_wire, milliseconds
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.errors import Refused
from outbox.message import Message
from outbox.ports import SUBSCRIPTIONS, DeadLetterEntry, First, HeldMessage, Output
from outbox.resubmission import identified, is_copy, next_attempt, resubmission

DEAD_LETTER_COUNT_MAX = 10_000
LOOK_S = 0.5
"""How long a dead letter may take to come before there are no more."""
PAGE_COUNT = 200
LOOK_COUNT_MAX = 2_000
"""The number of messages that are searched for the wanted ones."""
_STATUS: dict[ServiceBusMessageState, Literal["scheduled", "deferred"]] = {
    ServiceBusMessageState.SCHEDULED: "scheduled",
    ServiceBusMessageState.DEFERRED: "deferred",
}
Page = Callable[[int], Awaitable[Sequence[ServiceBusReceivedMessage]]]
"""Messages from a sequence number on, in order."""


class ServiceBusDeadLetters:
    """The dead letters of a namespace."""

    def __init__(self, namespace: ServiceBusNamespace, bus: ServiceBusBus) -> None:
        self._namespace = namespace
        self._bus = bus

    async def list(self, path: str) -> list[DeadLetterEntry]:
        """The dead letters of a queue or subscription, oldest first; at most `DEAD_LETTER_COUNT_MAX`."""
        found: list[DeadLetterEntry] = []
        async with self._open(path) as receiver:
            after = 1
            while len(found) < DEAD_LETTER_COUNT_MAX:
                count = min(PAGE_COUNT, DEAD_LETTER_COUNT_MAX - len(found))
                page = await receiver.peek_messages(count, sequence_number=after, timeout=SETTLE_S)
                if not page:
                    break
                found += [as_entry(path, message) for message in page]
                after = found[-1].sequence + 1
        return found

    async def resubmit(
        self, path: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        """Send a dead letter, or its edit, to its queue as a new attempt with its first time; copies go.

        It is this `attempt` at least.  With the dead letter under lock `first` is done.

        Raises:
            LookupError: there is no such dead letter, or it is locked.
        """
        async with self._taken(path, sequence) as (receiver, letter, others):
            message = as_entry(path, letter).message
            copies = [other for other in others if is_copy(as_entry(path, other).message, message)]
            attempt = max(attempt, next_attempt(message, [from_wire(copy) for copy in copies]))
            enqueued_ms = milliseconds(letter.enqueued_time_utc)
            again = replace(
                resubmission(edit or message, attempt=attempt, enqueued_ms=enqueued_ms),
                outbox_id=message.identity,
                message_id=f"{message.identity}~{uuid4().hex}",  # a broker that drops duplicates has seen the other
            )
            if first is not None:
                await first()
            await self._bus.send([Output(path.partition(SUBSCRIPTIONS)[0], 0, again)])
            for copy in [letter, *copies]:
                await receiver.complete_message(copy)

    async def discard(self, path: str, sequence: int, *, first: First | None = None) -> None:
        """Delete a dead letter; `first` is done with it under lock.

        Raises:
            LookupError: there is no such dead letter, or it is locked.
        """
        async with self._taken(path, sequence) as (receiver, letter, _):
            if first is not None:
                await first()
            await receiver.complete_message(letter)

    async def discard_some(self, path: str, firsts: Mapping[int, First]) -> set[int]:
        """Delete the dead letters of these numbers in one pass, each after its `first` under lock; which were there.

        Those between them are locked as they come, and given back once, at the end.
        """
        done, held, left = set[int](), list[ServiceBusReceivedMessage](), set(firsts)
        async with self._open(path) as receiver:
            try:
                while left and len(held) - len(done) < LOOK_COUNT_MAX:
                    page = await receiver.receive_messages(PAGE_COUNT, max_wait_time=LOOK_S)
                    held += page
                    for letter in page:
                        number = letter.sequence_number or 0
                        if number in left:
                            left.discard(number)
                            await firsts[number]()
                            await receiver.complete_message(letter)
                            done.add(number)
                    if not page:
                        break
            finally:
                await _given_back(receiver, held)
        return done

    @asynccontextmanager
    async def _taken(
        self, path: str, sequence: int
    ) -> AsyncIterator[tuple[ServiceBusReceiver, ServiceBusReceivedMessage, Sequence[ServiceBusReceivedMessage]]]:
        """Lock a dead letter, with others locked beside it, and release all that are not settled."""
        async with self._open(path) as receiver:
            held: list[ServiceBusReceivedMessage] = []
            try:
                while len(held) < LOOK_COUNT_MAX:
                    some = await receiver.receive_messages(PAGE_COUNT, max_wait_time=LOOK_S)
                    held += some
                    if not some:
                        break
                found = [message for message in held if message.sequence_number == sequence]
                if not found:
                    more = f"; only the first {LOOK_COUNT_MAX} were looked at" if len(held) >= LOOK_COUNT_MAX else ""
                    raise LookupError(f"{path} has no dead letter {sequence} that is free{more}; list them again")
                yield receiver, found[0], [message for message in held if message is not found[0]]
            finally:
                await _given_back(receiver, held)

    @asynccontextmanager
    async def _open(self, path: str) -> AsyncIterator[ServiceBusReceiver]:
        receiver = self._namespace.dead_letters(path)
        try:
            async with asyncio.timeout(OPEN_S):
                await receiver.__aenter__()
            yield receiver
        except (LookupError, Refused):
            raise
        except FAILURES as error:
            raise as_error(error, f"dead letters of {path}", settles=True) from error
        finally:
            with suppress(*FAILURES):
                async with asyncio.timeout(CLOSE_S):
                    await receiver.close()


async def _given_back(receiver: ServiceBusReceiver, held: Sequence[ServiceBusReceivedMessage]) -> None:
    """Release the locked messages that are not settled."""
    for message in held:
        with suppress(*FAILURES):
            if not message._settled:
                await release(receiver, message)


def as_entry(path: str, letter: ServiceBusReceivedMessage) -> DeadLetterEntry:
    """A dead letter as the SDK shows it; it is taken to have the number that its message had."""
    message = from_wire(letter)
    found = DeadLetterEntry(
        queue=path,
        sequence=letter.sequence_number or 0,
        message=message,
        reason=letter.dead_letter_reason or "",
        description=letter.dead_letter_error_description or "",
        delivery_count=(letter.delivery_count or 0) + message.failures,
        enqueued_ms=milliseconds(letter.enqueued_time_utc),
    )
    return identified(found)


async def peek(
    namespace: ServiceBusNamespace,
    path: str,
    *,
    after: int,
    count: int,
    session: str,
    is_wanted: Callable[[HeldMessage], bool],
    page_count: int = PAGE_COUNT,
    look_count_max: int = LOOK_COUNT_MAX,
) -> tuple[list[HeldMessage], int]:
    """Messages that are wanted, and the number to look on after: 0 where there is nothing more."""
    wanted = partial(_wanted, after=after, count=count, is_wanted=is_wanted, look_count_max=look_count_max)
    if not session:
        receiver = namespace.peeker(path)
        try:
            async with asyncio.timeout(OPEN_S):
                await receiver.__aenter__()
            return await wanted(
                lambda number: receiver.peek_messages(page_count, sequence_number=number, timeout=SETTLE_S)
            )
        except FAILURES as error:
            if "session" not in str(error).lower():
                raise as_error(error, f"messages of {path}") from error
        finally:
            await _closed(receiver)
    browser = namespace.browser(path)
    try:
        return await wanted(partial(_asked, browser, namespace.peeker(path), session, page_count))
    except FAILURES as error:
        raise as_error(error, f"messages of {path}") from error
    finally:
        await _closed(browser)


async def _wanted(
    page: Page, *, after: int, count: int, is_wanted: Callable[[HeldMessage], bool], look_count_max: int
) -> tuple[list[HeldMessage], int]:
    found: list[HeldMessage] = []
    looked = 0
    while looked < look_count_max:
        messages = await page(after + 1)
        for held in map(as_held, messages):
            after = held.sequence
            if is_wanted(held):
                found.append(held)
            if len(found) == count:
                return found, after
        if not messages:
            return found, 0
        looked += len(messages)
    return found, after


async def _asked(
    browser: Any, receiver: Any, session: str, page_count: int, number: int
) -> Sequence[ServiceBusReceivedMessage]:
    """Ask for a page over a request link; `receiver`, never opened, is where the SDK notes the last message."""
    amqp = browser._amqp_transport
    asked: dict[Any, Any] = {
        MGMT_REQUEST_FROM_SEQUENCE_NUMBER: amqp.AMQP_LONG_VALUE(number),
        MGMT_REQUEST_MAX_MESSAGE_COUNT: page_count,
    }
    if session:
        asked[MGMT_REQUEST_SESSION_ID] = session
    answer = partial(peek_op, receiver=receiver, amqp_transport=amqp)
    async with asyncio.timeout(OPEN_S):  # the first one opens the link
        found: Sequence[ServiceBusReceivedMessage] = await browser._mgmt_request_response_with_retry(
            REQUEST_RESPONSE_PEEK_OPERATION, asked, answer, keep_alive_associated_link=False, timeout=SETTLE_S
        )
    return found


async def _closed(link: Any) -> None:
    with suppress(*FAILURES):
        async with asyncio.timeout(CLOSE_S):
            await link.close()


def as_held(peeked: ServiceBusReceivedMessage) -> HeldMessage:
    """A message as the SDK shows it to a look."""
    message = from_wire(peeked)
    return HeldMessage(
        sequence=peeked.sequence_number or 0,
        message=message,
        status=_STATUS.get(peeked.state, "active"),
        enqueued_ms=milliseconds(peeked.enqueued_time_utc),
        due_ms=milliseconds(peeked.scheduled_enqueue_time_utc),
        delivery_count=peeked.delivery_count or 0,
        failures=message.failures,
        error=message.error,
    )
