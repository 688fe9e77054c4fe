"""The bus under a Functions trigger: it sends for real, and a settlement becomes the result of the invocation.

A Functions host completes what succeeds and abandons what fails, at once and counted.  So a settlement is noted with
the invocation that waits for it: completed is success, abandoned is failure after a pause.  What is to be dead-lettered
is stored (see `StoredDeadLetters`) and then completed.

The host passes a message's system properties beside the body, and the sender's own properties as JSON.  Bodies are
bytes, because the triggers say so (`dataType: BINARY`): of a text body the host would take the JSON members for system
properties, so any sender could choose a message's id, session and delivery count.  Here too no property of the sender
replaces a system property.  The host does not pass the lock's duration; it renews the lock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import azure.functions as func
from msgspec.structs import replace

from outbox.errors import LockLost
from outbox.message import Message, Scalar, message_from_properties
from outbox.ports import Delivery, MessageBus, Output, Settle
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters

_OF_BROKER = frozenset(("DeadLetterReason", "DeadLetterErrorDescription", "Diagnostic-Id"))
_NEVER_YEAR = 9_000
"""An expiry from this year on means none."""


@dataclass(slots=True, eq=False)
class Invocation:
    """One message in hand: how it was settled, if it was, and the end of its handling."""

    delivery: Delivery
    ended: asyncio.Future[None] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    is_done: bool = False
    """Whether it may be completed: what becomes of the message is on record."""
    due_ms: int = 0
    """Until when it may wait before it is abandoned."""

    def end(self) -> None:
        """The runtime has ended with it."""
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """The runtime has failed; the message is redelivered."""
        if not self.ended.done():
            self.ended.set_exception(RuntimeError(f"{type(error).__name__}: {error}"))
            self.ended.exception()  # an invocation that still waits raises it


class TriggerBus:
    """A bus whose deliveries come from a trigger."""

    def __init__(self, bus: MessageBus, dead_letters: StoredDeadLetters) -> None:
        self._bus = bus
        self._dead_letters = dead_letters
        self._invocations: dict[int, Invocation] = {}

    def take(self, invocation: Invocation) -> None:
        """Note an invocation under the lock of its delivery."""
        self._invocations[invocation.delivery.lock] = invocation

    def forget(self, invocation: Invocation) -> None:
        """Forget an invocation that has ended: a later settlement finds its lock lost."""
        self._invocations.pop(invocation.delivery.lock, None)

    def settled(self, deliveries: Sequence[Delivery]) -> None:
        """End the invocations of these deliveries."""
        for delivery in deliveries:
            invocation = self._invocations.get(delivery.lock)
            if invocation is not None:
                invocation.end()

    def fail(self, error: BaseException) -> None:
        """Fail every invocation after a fault of the runtime: which messages it had is unknown."""
        for invocation in self._invocations.values():
            invocation.fail(error)

    # The port

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._bus.send(outputs)

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Nothing: the host receives."""
        await asyncio.sleep(wait_s)
        return []

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        if settle.how == "dead-letter":
            await self._dead_letters.keep(delivery, settle.reason, settle.description)
        invocation = self._invocations.get(delivery.lock)
        if invocation is None:
            raise LockLost(
                f"{delivery.queue}/{delivery.sequence}: its invocation has ended; the message is redelivered"
            )
        invocation.is_done = settle.how in ("complete", "dead-letter")
        invocation.due_ms = settle.due_ms

    async def renew(self, delivery: Delivery) -> int:
        """The host renews."""
        return delivery.locked_until_ms


_conforms: type[MessageBus] = TriggerBus


def to_delivery(source: str, received: func.ServiceBusMessage, *, lock: int, lock_ms: int, now_ms: int) -> Delivery:
    """The delivery of a message that a trigger of `source` has handed over; `lock` is ours to choose."""
    enqueued_ms = _milliseconds(received.enqueued_time_utc)
    return Delivery(
        queue=source,
        sequence=received.sequence_number or 0,
        message=replace(_message(received), time_to_live_ms=_lives_ms(received, enqueued_ms)),
        lock=lock,
        enqueued_ms=enqueued_ms or now_ms,
        locked_until_ms=now_ms + lock_ms,
        delivery_count=max(0, (received.delivery_count or 1) - 1),  # the host counts this one
    )


def _message(received: func.ServiceBusMessage) -> Message:
    properties = {name: value for name, value in _properties(received).items() if name not in _OF_BROKER}
    if not properties.get("correlation-id") and received.correlation_id:
        properties["correlation-id"] = received.correlation_id
    for name, value in (
        ("message-id", received.message_id),
        ("session-id", received.session_id),
        ("reply-to", received.reply_to),
    ):
        properties[name] = str(value) if value else ""
    return message_from_properties(received.get_body(), properties)


def _properties(received: func.ServiceBusMessage) -> dict[str, Scalar]:
    """The sender's own properties, as far as they are simple values."""
    found: Mapping[str, Any] = received.application_properties or received.user_properties or {}
    return {name: value for name, value in found.items() if value is None or isinstance(value, str | int | float)}


def _lives_ms(received: func.ServiceBusMessage, enqueued_ms: int) -> int:
    """How long it lives from its enqueueing; 0 for ever, or not told."""
    expires = received.expires_at_utc
    if expires is None or expires.year >= _NEVER_YEAR or not enqueued_ms:
        return 0
    return max(0, _milliseconds(expires) - enqueued_ms)


def _milliseconds(when: datetime | None) -> int:
    return 0 if when is None else round(when.timestamp() * 1_000)
