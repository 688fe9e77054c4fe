"""The broker's changes to a message: an id where it has none, and properties that a receiver sets.

The bytes that a client sent stay as they are but for that.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

import msgspec

from outbox.emulator.amqp import types
from outbox.emulator.amqp.deliveries import encode_sections, with_properties
from outbox.emulator.amqp.errors import ARGUMENT_ERROR, OperationFault
from outbox.emulator.amqp.messages import decode_message
from outbox.emulator.amqp.sections import ANNOTATIONS, PROPERTIES, sections
from outbox.emulator.amqp.types import DecodeError, described, list_, string
from outbox.message import Message


def with_message_id(message: Message, message_id: str) -> Message:
    """A message that a client sent without an id, under one."""
    wire, ahead, behind = message.wire, b"", b""
    fields = [string(message_id)]
    for code, start, end in sections(wire):
        if code == PROPERTIES:
            fields += types.field_spans(wire, start)[1:]
        elif code == ANNOTATIONS:
            ahead += wire[start - 3 : end]
        else:
            behind += wire[start - 3 : end]
    wire = ahead + described(PROPERTIES, list_(fields)) + behind
    return msgspec.structs.replace(message, message_id=message_id, wire=wire)


def with_changes(message: Message, given: Mapping[object, object]) -> Message:
    """A message whose application properties a receiver sets while it gives it back.

    Raises: OperationFault for what is no property, or too much of them.
    """
    wire = message.wire or encode_sections(message)
    try:
        added = {string(_name(name)): _value(value) for name, value in given.items()}
        wire = with_properties(wire, added)
        properties = decode_message(wire).message.properties
    except (ValueError, DecodeError) as error:
        raise OperationFault(ARGUMENT_ERROR, f"the properties to modify cannot be taken: {error}") from error
    return msgspec.structs.replace(message, wire=wire, properties=properties)


def _name(name: object) -> str:
    if isinstance(name, str) and name:
        return name
    raise ValueError(f"{str(name)[:40]!r} is no name")


def _value(value: object) -> bytes:
    if isinstance(value, UUID):
        return types.uuid_(value)
    if value is None or isinstance(value, str | int | float | bytes):
        return types.scalar(value)
    raise ValueError(f"{str(value)[:40]!r} is no simple value")
