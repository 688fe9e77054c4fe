"""AMQP messages to and from `outbox.message.Message`.

Decides which section gives which field, and keeps what a client sent byte for byte, so that whatever has no field of
its own (types of properties, unusual bodies) comes out as it went in.  A message that the runtime made has no such
bytes; its sections are built from its fields.

`wire` may begin with a message-annotations section: the sender's own annotations.  The broker's are added to them on
delivery and never stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple
from uuid import UUID

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import ARGUMENT_ERROR, DECODE_ERROR, OperationFault
from outbox.emulator.amqp.types import DecodeError, Described
from outbox.message import (
    PROPERTY_ATTEMPT,
    PROPERTY_CAUSATION,
    PROPERTY_CLAIM,
    PROPERTY_CORRELATION,
    PROPERTY_CREATED,
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

HEADER, DELIVERY_ANNOTATIONS, ANNOTATIONS, PROPERTIES, APPLICATION_PROPERTIES = range(0x70, 0x75)
DATA, SEQUENCE, VALUE, FOOTER = range(0x75, 0x79)

SCHEDULED_TIME = "x-opt-scheduled-enqueue-time"
_BROKER_ANNOTATIONS = frozenset(
    ("x-opt-enqueued-time", "x-opt-sequence-number", "x-opt-locked-until", "x-opt-message-state", "x-opt-lock-token")
)
_U32 = struct.Struct(">I")


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
        incoming = [decode_message(part) for part in _batch_parts(payload)]
    except DecodeError as error:
        raise OperationFault(DECODE_ERROR, f"the message cannot be read: {error}") from error
    if not incoming:
        raise OperationFault(ARGUMENT_ERROR, "the batch is empty")
    return incoming


def _batch_parts(payload: bytes) -> Iterator[bytes]:
    count = 0
    for code, start, end in sections(payload):
        if code == DATA:
            count += 1
            if count > BATCH_COUNT_MAX:
                raise DecodeError(f"a batch of more than {BATCH_COUNT_MAX} messages")
            yield _binary(payload, start, end)


def sections(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Walk the sections: code, where the value starts, where it ends.

    Raises: DecodeError.
    """
    at, size = 0, len(data)
    while at < size:
        if data[at : at + 2] != b"\x00\x53" or at + 4 > size:
            raise DecodeError(f"no section at byte {at}")
        code, start = data[at + 2], at + 3
        at = _end_of(data, start)
        yield code, start, at


def _end_of(data: bytes, at: int) -> int:
    """Where a section's value ends, without decoding what the size tells."""
    code = data[at]
    if code in (0xB0, 0xD0, 0xD1, 0xB1):
        end = at + 5 + _size32(data, at + 1)
    elif code in (0xA0, 0xC0, 0xC1, 0xA1):
        if at + 2 > len(data):
            raise DecodeError(f"section at byte {at} is cut short")
        end = at + 2 + data[at + 1]
    else:
        _, end = types.decode(data, at)
    if end > len(data):
        raise DecodeError(f"section at byte {at} is cut short")
    return end


def _size32(data: bytes, at: int) -> int:
    if at + 4 > len(data):
        raise DecodeError(f"size at byte {at} is cut short")
    size: int = _U32.unpack_from(data, at)[0]
    return size


def _binary(data: bytes, start: int, end: int) -> bytes:
    code = data[start]
    if code == 0xB0:
        return data[start + 5 : end]
    if code == 0xA0:
        return data[start + 2 : end]
    raise DecodeError(f"data section at byte {start} is not binary")


def decode_message(data: bytes) -> Incoming:
    """One bare message with its annotations and header.

    Raises: DecodeError, OperationFault.
    """
    properties: list[object] = []
    application: dict[str, object] = {}
    wire: list[bytes] = []
    body_spans: list[tuple[int, int, int]] = []
    due_ms = time_to_live_ms = 0
    for code, start, end in sections(data):
        if code == PROPERTIES:
            properties, _ = types.decode_fields(data, start, end)
            wire.append(data[start - 3 : end])
        elif code == APPLICATION_PROPERTIES:
            application = _decode_map(data, start)
            wire.append(data[start - 3 : end])
        elif code in (DATA, SEQUENCE, VALUE):
            body_spans.append((code, start, end))
        elif code == HEADER:
            fields, _ = types.decode_fields(data, start, end)
            time_to_live_ms = _number(fields[2]) if len(fields) > 2 else 0
        elif code == ANNOTATIONS:
            annotations = _decode_map(data, start)
            due_ms = _number(annotations.get(SCHEDULED_TIME))
            wire.insert(0, _own_annotations(annotations, data[start - 3 : end]))
    body, wire_body = _decode_body(data, body_spans)
    prefix = wire[0] if len(wire) == 1 else b"".join(wire)
    if len(prefix) > PROPERTIES_SIZE_MAX_BYTES:
        raise OperationFault(ARGUMENT_ERROR, f"properties of {len(prefix)} bytes are above {PROPERTIES_SIZE_MAX_BYTES}")
    return Incoming(_build(properties, application, body, wire_body, prefix, time_to_live_ms), due_ms)


def _decode_map(data: bytes, start: int) -> dict[str, object]:
    value, _ = types.decode(data, start)
    if not isinstance(value, dict) or any(type(name) is not str for name in value):
        raise DecodeError(f"section at byte {start} is not a map of names")
    return value


def _number(value: object) -> int:
    return value if type(value) is int and 0 <= value < 1 << 62 else 0


def _text(value: object) -> str:
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


def _decode_body(data: bytes, spans: list[tuple[int, int, int]]) -> tuple[bytes, bytes]:
    """The body's bytes and, where it is not one data section, its sections as sent."""
    if len(spans) == 1 and spans[0][0] == DATA:
        return _binary(data, spans[0][1], spans[0][2]), b""
    wire_body = b"".join([data[start - 3 : end] for _, start, end in spans])
    parts = []
    for code, start, end in spans:
        if code == DATA:
            parts.append(_binary(data, start, end))
        else:
            value, _ = types.decode(data, start)
            if code == VALUE:
                parts.append(value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else b"")
    return b"".join(parts), wire_body


def _build(
    properties: list[object],
    application: dict[str, object],
    body: bytes,
    wire_body: bytes,
    wire: bytes,
    time_to_live_ms: int,
) -> Message:
    count = len(properties)
    message_id = _text(properties[0]) if count else ""
    session_id = _text(properties[10]) if count > 10 else ""
    if len(message_id) > ID_LENGTH_MAX or len(session_id) > ID_LENGTH_MAX:
        raise OperationFault(ARGUMENT_ERROR, f"message id and session id may have {ID_LENGTH_MAX} characters at most")
    reply_to = _text(properties[4]) if count > 4 else ""
    correlation_id = _text(properties[5]) if count > 5 else ""
    if not application:
        return Message(
            body=body, message_id=message_id, correlation_id=correlation_id, session_id=session_id, reply_to=reply_to,
            time_to_live_ms=time_to_live_ms, wire=wire, wire_body=wire_body,
        )  # fmt: skip
    return Message(
        body=body,
        outbox_id=_take_text(application, PROPERTY_ID),
        message_id=message_id,
        type=_take_text(application, PROPERTY_TYPE),
        created_ms=_take_number(application, PROPERTY_CREATED),
        correlation_id=_take_text(application, PROPERTY_CORRELATION) or correlation_id,
        causation_id=_take_text(application, PROPERTY_CAUSATION),
        traceparent=_take_text(application, PROPERTY_TRACEPARENT),
        hops=_take_number(application, PROPERTY_HOPS),
        attempt=_take_number(application, PROPERTY_ATTEMPT),
        session_id=session_id,
        reply_to=reply_to,
        claim=_take_text(application, PROPERTY_CLAIM),
        time_to_live_ms=time_to_live_ms,
        properties=_scalars(application),
        wire=wire,
        wire_body=wire_body,
    )


def _take_text(application: dict[str, object], name: str) -> str:
    value = application.get(name)
    if type(value) is not str:
        return ""
    del application[name]
    return value


def _take_number(application: dict[str, object], name: str) -> int:
    value = application.get(name)
    if type(value) is not int or not 0 <= value < 1 << 62:
        return 0
    del application[name]
    return value


def _scalars(application: dict[str, object]) -> dict[str, Scalar] | None:
    """The sender's own properties as plain values; exact types, and bytes, stay in `wire` alone."""
    if not application:
        return None
    plain: dict[str, Scalar] = {}
    for name, value in application.items():
        if value is None or isinstance(value, str | int | float):
            plain[name] = value
        elif isinstance(value, UUID):
            plain[name] = str(value)
        elif isinstance(value, Described | list | dict):
            raise DecodeError("an application property that is not a simple value")
    return plain
