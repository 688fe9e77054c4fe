"""Messages to and from what the Service Bus SDK sends and receives.

Properties of ours travel as application properties, sender's own beside them; identity, session and time to live where
the broker looks for them too.  A property of ours with another type is the sender's own; only a number may come as its
digits.  Ids that the broker would not take are replaced by their digests: nothing is decided by the broker's id but
its own duplicate detection, and the identity travels in a property as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any
from uuid import UUID, uuid4

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageBodyType, AmqpMessageHeader, AmqpMessageProperties

from outbox.message import (
    PROPERTY_ATTEMPT,
    PROPERTY_CAUSATION,
    PROPERTY_CLAIM,
    PROPERTY_CORRELATION,
    PROPERTY_CREATED,
    PROPERTY_FAILURES,
    PROPERTY_HOPS,
    PROPERTY_ID,
    PROPERTY_TRACEPARENT,
    PROPERTY_TYPE,
    Message,
    Scalar,
    properties_of,
)
from outbox.ports import Output

BROKER_ID_LENGTH_MAX = 128
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1
TTL_MS_MAX = (1 << 32) - 1

SEQUENCE, ENQUEUED_MS, DUE = b"x-opt-sequence-number", b"x-opt-enqueued-time", b"x-opt-scheduled-enqueue-time"
"""The broker's annotations of a message, and the time that a scheduled one is due, by their wire names."""

_KNOWN: dict[str, tuple[str, type]] = {
    PROPERTY_ID: ("outbox_id", str),
    PROPERTY_TYPE: ("type", str),
    PROPERTY_CREATED: ("created_ms", int),
    PROPERTY_CORRELATION: ("correlation_id", str),
    PROPERTY_CAUSATION: ("causation_id", str),
    PROPERTY_TRACEPARENT: ("traceparent", str),
    PROPERTY_HOPS: ("hops", int),
    PROPERTY_ATTEMPT: ("attempt", int),
    PROPERTY_CLAIM: ("claim", str),
    PROPERTY_FAILURES: ("failures", int),
}
_UNKNOWN = ("", object)
_OF_BROKER = frozenset(("DeadLetterReason", "DeadLetterErrorDescription"))


def to_wire(output: Output) -> AmqpAnnotatedMessage:
    """Encode an output for the SDK, section by section, because its own message class takes each field by itself."""
    message = output.message
    due: dict[Any, Any] | None = {DUE: datetime.fromtimestamp(output.due_ms / 1_000, UTC)} if output.due_ms else None
    return AmqpAnnotatedMessage(
        data_body=message.body,
        application_properties={name: _typed(value) for name, value in properties_of(message).items()},
        properties=AmqpMessageProperties(
            message_id=broker_id(message.broker_id) or str(uuid4()),
            group_id=broker_id(message.session_id) or None,
            correlation_id=message.correlation_id or None,
            reply_to=message.reply_to or None,
        ),
        header=AmqpMessageHeader(time_to_live=min(message.time_to_live_ms, TTL_MS_MAX) or None),
        annotations=due,
    )


def _typed(value: Scalar) -> Any:
    """A property's value; the SDK takes a bare integer for one of 32 bits."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > INT32_MAX:
        return {"TYPE": "LONG", "VALUE": value} if abs(value) <= INT64_MAX else str(value)
    return value


def broker_id(text: str) -> str:
    """An id or session as a broker takes it."""
    return text if len(text) <= BROKER_ID_LENGTH_MAX else sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def from_wire(received: ServiceBusReceivedMessage) -> Message:
    """The message that was received, read from the sections that it came in.

    The SDK's own properties give the same, but each of them looks through all of its section first.
    """
    raw = received.raw_amqp_message
    header, ids = raw.header, raw.properties
    known, own = _sorted(plain(raw.application_properties))
    if ids is not None:
        known.setdefault("correlation_id", as_text(ids.correlation_id))
        known["message_id"], known["session_id"] = as_text(ids.message_id), as_text(ids.group_id)
        known["reply_to"] = as_text(ids.reply_to)
    lives_ms = None if header is None else header.time_to_live
    return Message(body=body_of(received), time_to_live_ms=lives_ms or 0, properties=own or None, **known)


def _sorted(properties: Mapping[str, Scalar]) -> tuple[dict[str, Any], dict[str, Scalar]]:
    """Properties of ours, as the fields that they are, and the sender's own."""
    fields: dict[str, Any] = {}
    own: dict[str, Scalar] = {}
    for name, value in properties.items():
        field, kind = _KNOWN.get(name, _UNKNOWN)
        if kind is int and isinstance(value, str) and value.isdecimal() and len(value) < 18:
            value = int(value)
        if type(value) is kind and (isinstance(value, str) or (isinstance(value, int) and 0 <= value < 1 << 62)):
            fields[field] = value
        elif name not in _OF_BROKER:
            own[name] = value
    return fields, own


def plain(properties: Mapping[Any, Any] | None) -> dict[str, Scalar]:
    """Application properties as simple values; the SDK gives texts as bytes."""
    found: dict[str, Scalar] = {}
    for name, value in (properties or {}).items():
        simple = value.decode(errors="replace") if isinstance(value, bytes) else value
        if isinstance(simple, UUID | datetime):
            simple = str(simple)
        if simple is None or isinstance(simple, str | int | float):
            found[as_text(name)] = simple
    return found


def body_of(received: ServiceBusReceivedMessage) -> bytes:
    """The bytes of a body; of one that is an AMQP value its text, of any other kind nothing."""
    body: Any = received.body
    if received.body_type == AmqpMessageBodyType.DATA:
        return b"".join(body)
    return body.encode() if isinstance(body, str) else body if isinstance(body, bytes) else b""


def as_text(value: object) -> str:
    """An id as text: the SDK gives some as bytes, and senders may give numbers."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)


def milliseconds(when: datetime | None) -> int:
    """Milliseconds since 1970; 0 for no time."""
    return 0 if when is None else round(when.timestamp() * 1_000)
