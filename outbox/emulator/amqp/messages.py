"""AMQP messages to and from `outbox.message.Message`.

Decides which section gives which field, and keeps what a client sent byte for byte, so that whatever has no field of
its own (types of properties, unusual bodies) comes out as it went in.  A message that the runtime made has no such
bytes; its sections are built from its fields.

`wire` may begin with a message-annotations section: the sender's own annotations.  The broker's are added to them on
delivery and never stored.
"""

from __future__ import annotations

from typing import Any, NamedTuple
from uuid import UUID

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import ARGUMENT_ERROR, DECODE_ERROR, OperationFault
from outbox.emulator.amqp.sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    Section,
    read_binary,
    read_fields,
    read_names,
    sections,
)
from outbox.emulator.amqp.types import DecodeError, Described
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
)

BATCH_FORMAT = 0x80013700
BATCH_COUNT_MAX = 5_000
ID_LENGTH_MAX = 128
PROPERTIES_SIZE_MAX_BYTES = 64 * 1024

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
_BROKER_ANNOTATIONS = frozenset(
    ("x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-locked-until", "x-opt-message-state", "x-opt-lock-token")
)
_BODY_CODES = frozenset((DATA, SEQUENCE, VALUE))
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


class Incoming(NamedTuple):
    """A message as it came in and when it becomes due (0: at once)."""

    message: Message
    due_ms: int


def decode_transfer(payload: bytes, message_format: int) -> list[Incoming]:
    """The messages of one transfer: one, or those of a batch.

    Raises: OperationFault.
    """
    try:
        if message_format != BATCH_FORMAT:
            return [decode_message(payload)]
        parts = [read_binary(payload, start, end) for code, start, end in sections(payload) if code == DATA]
        if len(parts) > BATCH_COUNT_MAX:
            raise DecodeError(f"a batch of more than {BATCH_COUNT_MAX} messages")
        incoming = [decode_message(part) for part in parts]
    except DecodeError as error:
        raise OperationFault(DECODE_ERROR, f"the message cannot be read: {error}") from error
    if not incoming:
        raise OperationFault(ARGUMENT_ERROR, "the batch is empty")
    return incoming


def decode_message(data: bytes) -> Incoming:
    """One bare message with its annotations and header.

    Raises: DecodeError, OperationFault.
    """
    properties: list[object] = []
    application: dict[str, object] | None = None
    prefix = body = wire_body = b""
    bodies: list[Section] = []
    due_ms = time_to_live_ms = 0
    for section in sections(data):
        code, start, end = section
        if code == PROPERTIES:
            properties = read_fields(data, start, end)
            prefix += data[start - 3 : end]
        elif code == APPLICATION_PROPERTIES:
            application = read_names(data, start, end)
            prefix += data[start - 3 : end]
        elif code in _BODY_CODES:
            bodies.append(section)
        elif code == HEADER:
            fields, _ = types.decode_fields(data, start, end)
            time_to_live_ms = _time_to_live_ms(fields[2]) if len(fields) > 2 else 0
        elif code == ANNOTATIONS:
            annotations = read_names(data, start, end)
            due_ms = _number(annotations.get(SCHEDULED_TIME))
            prefix = _own_annotations(annotations, data[start - 3 : end]) + prefix
        if len(prefix) > PROPERTIES_SIZE_MAX_BYTES:  # before any more: joining ever longer ones would take long
            break
    if len(bodies) == 1 and bodies[0][0] == DATA:
        body = read_binary(data, bodies[0][1], bodies[0][2])
    else:
        body, wire_body = _decode_body(data, bodies)
    if len(prefix) > PROPERTIES_SIZE_MAX_BYTES:
        raise OperationFault(ARGUMENT_ERROR, f"properties of {len(prefix)} bytes are above {PROPERTIES_SIZE_MAX_BYTES}")
    return Incoming(_build(properties, application, body, wire_body, prefix, time_to_live_ms), due_ms)


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _time_to_live_ms(value: object) -> int:
    if type(value) is int and value == 0:  # what a client makes of less than its unit; it would be for ever here
        raise OperationFault(ARGUMENT_ERROR, "the time to live must be a positive time; leave it out for ever")
    return _number(value)


def text_of(value: object) -> str:
    """A message id, correlation id or group id as text: they may be numbers, uuids or bytes."""
    if type(value) is str:
        return value
    if value is None:
        return ""
    return value.hex() if isinstance(value, bytes) else str(value) if isinstance(value, int | UUID) else ""


def _own_annotations(annotations: dict[str, object], section: bytes) -> bytes:
    """The annotations to keep, as sent unless the sender used names that are the broker's."""
    if not annotations:
        return b""
    if _BROKER_ANNOTATIONS.isdisjoint(annotations):
        return section
    spans = types.field_spans(section, 3)
    names = list(annotations)
    if len(spans) != 2 * len(names):
        raise DecodeError("annotations with the same name twice")
    kept = [
        part
        for index, name in enumerate(names)
        if name not in _BROKER_ANNOTATIONS
        for part in spans[2 * index : 2 * index + 2]
    ]
    return types.described(ANNOTATIONS, types.map_(kept)) if kept else b""


def _decode_body(data: bytes, bodies: list[Section]) -> tuple[bytes, bytes]:
    """The bytes of a body that is not one data section, and its sections as sent."""
    parts = []
    for code, start, end in bodies:
        if code == DATA:
            parts.append(read_binary(data, start, end))
        else:
            value, _ = types.decode(data, start)
            if code == VALUE:
                parts.append(value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b"")
    return b"".join(parts), b"".join([data[start - 3 : end] for _, start, end in bodies])


def _build(
    properties: list[object],
    application: dict[str, object] | None,
    body: bytes,
    wire_body: bytes,
    wire: bytes,
    time_to_live_ms: int,
) -> Message:
    count = len(properties)
    message_id = text_of(properties[0]) if count else ""
    session_id = text_of(properties[10]) if count > 10 else ""
    if len(message_id) > ID_LENGTH_MAX or len(session_id) > ID_LENGTH_MAX:
        raise OperationFault(ARGUMENT_ERROR, f"message id and session id may have {ID_LENGTH_MAX} characters at most")
    fields: dict[str, Any] = {"correlation_id": text_of(properties[5])} if count > 5 else {}
    plain: dict[str, Scalar] | None = None
    if application:
        plain = _sort_properties(application, fields) or None
    return Message(
        body=body,
        message_id=message_id,
        session_id=session_id,
        reply_to=text_of(properties[4]) if count > 4 else "",
        time_to_live_ms=time_to_live_ms,
        properties=plain,
        wire=wire,
        wire_body=wire_body,
        **fields,
    )


def _sort_properties(application: dict[str, object], fields: dict[str, Any]) -> dict[str, Scalar]:
    """Put properties of ours into `fields`; return the sender's own as plain values.

    A property of ours with another type is the sender's own; only a number may come as its digits.  Exact types, and
    bytes, stay in `wire` alone.
    """
    plain: dict[str, Scalar] = {}
    for name, value in application.items():
        known = _KNOWN.get(name)
        if known is not None and known[1] is int and type(value) is str and value.isdecimal() and len(value) < 18:
            value = int(value)  # the Python SDK cannot send an integer beyond 32 bits
        if known is not None and type(value) is known[1] and (type(value) is str or _number(value) == value):
            fields[known[0]] = value
        elif value is None or isinstance(value, str | int | float):
            plain[name] = value
        elif isinstance(value, UUID):
            plain[name] = str(value)
        elif isinstance(value, Described | list | dict):
            raise DecodeError("an application property that is not a simple value")
    return plain
