"""Service Bus messages as the host's trigger hands them to a function: the body, and what is known beside it.

What the .NET extension puts beside a body is put here, under the same names; `TimeToLive`, `LockedUntil` and the like
are not among it.  A binding without `dataType: BINARY` gets its body as text, and if that is a JSON object its members
then stand where the properties of the same name stood, in whatever case: whoever can send can choose a message's id.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from azure.servicebus import ServiceBusReceivedMessage
from azure.servicebus.amqp import AmqpMessageBodyType

from tools.local_functions.wire import TypedData

_NEVER = "9999-12-31T23:59:59.9999999+00:00"


def to_trigger(message: ServiceBusReceivedMessage, *, binary: bool) -> tuple[TypedData, dict[str, TypedData]]:
    """The value and the metadata that a function is started with."""
    body = _body(message)
    metadata = {name: data for name, data in _metadata(message).items() if data is not None}
    if binary:
        return TypedData(bytes=body), metadata
    text = body.decode(errors="replace")
    return TypedData(string=text), _merged(metadata, text)


def _merged(metadata: dict[str, TypedData], text: str) -> dict[str, TypedData]:
    """Metadata with a body's JSON members over it, as the host does."""
    try:
        members = json.loads(text)
    except ValueError:
        return metadata
    if not isinstance(members, dict):
        return metadata
    names: dict[str, str] = {name.lower(): name for name in metadata}
    for name, value in members.items():
        known: str = names.get(name.lower()) or name
        metadata[known] = TypedData(string=value if isinstance(value, str) else json.dumps(value))
    return metadata


def _metadata(message: ServiceBusReceivedMessage) -> dict[str, TypedData | None]:
    given = (message.application_properties or {}).items()
    simple = type(None), bool, int, float
    properties = json.dumps({_text(name): v if isinstance(v, simple) else _text(v) for name, v in given})
    enqueued, expires = _time(message.enqueued_time_utc), _time(message.expires_at_utc) or _NEVER
    return {
        "DeliveryCount": TypedData(json=str(1 + (message.delivery_count or 0))),
        "DeadLetterSource": _string(message.dead_letter_source),
        "LockToken": _string(message.lock_token),
        "ExpiresAtUtc": TypedData(json=json.dumps(expires)),
        "ExpiresAt": TypedData(json=json.dumps(expires)),
        "EnqueuedTimeUtc": TypedData(json=json.dumps(enqueued)) if enqueued else None,
        "EnqueuedTime": TypedData(json=json.dumps(enqueued)) if enqueued else None,
        "MessageId": _string(message.message_id),
        "ContentType": _string(message.content_type),
        "ReplyTo": _string(message.reply_to),
        "SequenceNumber": TypedData(json=str(message.sequence_number)),
        "To": _string(message.to),
        "Subject": _string(message.subject),
        "Label": _string(message.subject),
        "CorrelationId": _string(message.correlation_id),
        "ApplicationProperties": TypedData(json=properties),
        "UserProperties": TypedData(json=properties),
        "SessionId": _string(message.session_id),
        "ReplyToSessionId": _string(message.reply_to_session_id),
        "PartitionKey": _string(message.partition_key),
    }


def _body(message: ServiceBusReceivedMessage) -> bytes:
    body: Any = message.body
    if message.body_type == AmqpMessageBodyType.DATA:
        return b"".join(body)
    return body.encode() if isinstance(body, str) else bytes(body or b"")


def _string(value: object) -> TypedData | None:
    return None if value is None else TypedData(string=_text(value))


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _time(when: datetime | None) -> str | None:
    return None if when is None else when.astimezone(UTC).isoformat()


def timer_data() -> TypedData:
    """What a timer's function is started with."""
    return TypedData(json=json.dumps({"IsPastDue": False, "ScheduleStatus": {}, "Schedule": {}}))
