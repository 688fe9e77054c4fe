"""Messages of a Functions trigger as deliveries.

The host passes system properties beside the body, and the sender's own properties as JSON.  Bodies are bytes, because
the triggers say so (`dataType: BINARY`): of a text body the host would take the JSON members for system properties, so
any sender could choose a message's id, session and delivery count.  Here too no property of the sender replaces a
system property.  The host does not pass the lock's duration; it renews the lock.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import azure.functions as func
from msgspec.structs import replace

from outbox.message import Message, Scalar, message_from_properties
from outbox.ports import Delivery

_OF_BROKER = frozenset(("DeadLetterReason", "DeadLetterErrorDescription", "Diagnostic-Id"))
_NEVER_YEAR = 9_000
"""An expiry from this year on means none."""


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
