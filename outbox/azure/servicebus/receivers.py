"""Access to internals of the SDK's receiver that a link needs and the SDK offers no call for.

How much it has read ahead, what the broker may still send, which connection it has; giving a message back uncounted.
"""

from __future__ import annotations

from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.aio import ServiceBusReceiver


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
