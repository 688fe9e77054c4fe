"""A received message as a row of the ledger.

The identity is the message's own, else the broker's id, else its place in the queue, which redelivery does not change.
A body that is no UTF-8 text stays as it came, in `raw`: a ledger refuses nothing, its readers may.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any

import pyarrow as pa
from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from outbox.message import (
    PROPERTY_CAUSATION,
    PROPERTY_CORRELATION,
    PROPERTY_CREATED,
    PROPERTY_ID,
    PROPERTY_TRACEPARENT,
    PROPERTY_TYPE,
)

ROW = pa.schema(
    [
        ("message_id", pa.string()),
        ("type", pa.string()),
        ("correlation_id", pa.string()),
        ("causation_id", pa.string()),
        ("traceparent", pa.string()),
        ("created_ms", pa.int64()),
        ("enqueued_ms", pa.int64()),
        ("sequence_number", pa.int64()),
        ("delivery_count", pa.int64()),
        ("session_id", pa.string()),
        ("body", pa.string()),
        ("raw", pa.binary()),
        ("properties", pa.string()),
        ("fingerprint", pa.string()),
    ]
)
"""`properties` is a JSON object of the properties without a column, `fingerprint` digests type and body."""

_COLUMNS = frozenset(
    (PROPERTY_ID, PROPERTY_TYPE, PROPERTY_CREATED, PROPERTY_CORRELATION, PROPERTY_CAUSATION, PROPERTY_TRACEPARENT)
)


def as_row(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The row of a message."""
    properties = properties_of(message)
    body = body_of(message)
    kind = text(properties.get(PROPERTY_TYPE, ""))
    return {
        "message_id": identity_of(message, properties),
        "type": kind,
        "correlation_id": cause_of(message, properties),
        "causation_id": text(properties.get(PROPERTY_CAUSATION)),
        "traceparent": text(properties.get(PROPERTY_TRACEPARENT)),
        "created_ms": created_ms(properties.get(PROPERTY_CREATED)),
        "enqueued_ms": milliseconds(message.enqueued_time_utc),
        "sequence_number": message.sequence_number or 0,
        "delivery_count": message.delivery_count or 0,
        "session_id": text(message.session_id),
        **body_columns(body),
        "properties": others(properties),
        "fingerprint": sha256(b"%d:%b%b" % (len(kind), kind.encode(), body)).hexdigest()[:32],
    }


def properties_of(message: ServiceBusReceivedMessage) -> dict[str, Any]:
    """The application's properties; the SDK gives their names as bytes."""
    return {text(name): value for name, value in (message.application_properties or {}).items()}


def cause_of(message: ServiceBusReceivedMessage, properties: Mapping[str, Any]) -> str:
    """The identity of the first message of its chain: its correlation id, else its own."""
    cause = text(properties.get(PROPERTY_CORRELATION)) or text(message.correlation_id)
    return cause or identity_of(message, properties)


def identity_of(message: ServiceBusReceivedMessage, properties: Mapping[str, Any]) -> str:
    """The message's own identity, else the broker's id, else its place in the queue."""
    own = text(properties.get(PROPERTY_ID)) or text(message.message_id)
    return own or f"sequence-number:{message.sequence_number or 0}"


def body_of(message: ServiceBusReceivedMessage) -> bytes:
    """The body's bytes; a body that is an AMQP value is its text, any other kind is written as JSON."""
    body: Any = message.body
    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(body)
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode()
    whole = body if message.body_type == AmqpMessageBodyType.VALUE else list(body)
    return json.dumps(whole, default=text, sort_keys=True).encode()


def body_columns(body: bytes) -> dict[str, str | bytes | None]:
    """`body` for text, `raw` for anything else."""
    try:
        return {"body": body.decode(), "raw": None}
    except UnicodeDecodeError:
        return {"body": None, "raw": body}


def others(properties: dict[str, Any]) -> str | None:
    """The properties that have no column of their own."""
    rest = {name: value for name, value in properties.items() if name not in _COLUMNS}
    return json.dumps(rest, default=text, sort_keys=True) if rest else None


def created_ms(value: object) -> int | None:
    """The creation time that the sender gave, if it is one."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62 else None


def milliseconds(when: datetime | None) -> int | None:
    """Milliseconds since 1970."""
    return None if when is None else round(when.timestamp() * 1000)


def text(value: object) -> str:
    """A property as text; the SDK gives texts as bytes."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return "" if value is None else str(value)
