"""Peeks at the messages of a queue or subscription of Service Bus; they lock nothing.

The SDK looks through a receiver, and opens one first.  A queue that is ordered by session has none for all sessions,
and the one of a session cannot be opened while a worker has it.  The service itself needs no receiver for a look: there
it is asked as the SDK asks for the names of sessions, over a link for requests alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from azure.servicebus import ServiceBusMessageState, ServiceBusReceivedMessage
from azure.servicebus._common.constants import (
    MGMT_REQUEST_FROM_SEQUENCE_NUMBER,
    MGMT_REQUEST_MAX_MESSAGE_COUNT,
    MGMT_REQUEST_SESSION_ID,
    REQUEST_RESPONSE_PEEK_OPERATION,
)
from azure.servicebus._common.mgmt_handlers import peek_op

from outbox.azure.servicebus.links import CLOSE_S, OPEN_S, SETTLE_S
from outbox.azure.servicebus.messages import from_wire, milliseconds
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.ports import HeldMessage

PAGE_COUNT = 200
LOOK_COUNT_MAX = 2_000
"""The number of messages that are searched for the wanted ones."""

_STATUS: dict[ServiceBusMessageState, Literal["scheduled", "deferred"]] = {
    ServiceBusMessageState.SCHEDULED: "scheduled",
    ServiceBusMessageState.DEFERRED: "deferred",
}

Page = Callable[[int], Awaitable[Sequence[ServiceBusReceivedMessage]]]
"""Messages from a sequence number on, in order."""


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
