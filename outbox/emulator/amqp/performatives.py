"""The nine performatives and the SASL frames: fields by name on the way in, bytes on the way out.

Decides which fields each performative has, which types they must be and which may be missing; anything else is a
fault of the peer.  On the way out trailing nulls are never elided, because Service Bus clients index the fields.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import DECODE_ERROR, ConnectionFault
from outbox.emulator.amqp.frames import Frame
from outbox.emulator.amqp.types import FALSE, NULL, TRUE, DecodeError, Described, list_, string, symbol, uint, ulong

OPEN, BEGIN, ATTACH, FLOW, TRANSFER, DISPOSITION, DETACH, END, CLOSE = range(0x10, 0x19)
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)
RECEIVED, ACCEPTED, REJECTED, RELEASED, MODIFIED = range(0x23, 0x28)
ERROR, SOURCE, TARGET = 0x1D, 0x28, 0x29

_FIELD_COUNTS = {
    OPEN: 10, BEGIN: 8, ATTACH: 14, FLOW: 11, TRANSFER: 11, DISPOSITION: 6, DETACH: 3, END: 1, CLOSE: 1,
    SASL_INIT: 3, SASL_RESPONSE: 1,
}  # fmt: skip

_ACCEPTED_FRAME = struct.Struct(">I2sH6ssBIBI6s")


class Outcome(NamedTuple):
    """How a delivery ended, as the peer said it: a descriptor code and its fields."""

    code: int
    fields: list[object]


def decode_performative(source: Frame) -> tuple[int, list[object], int]:
    """Code, fields (padded with None to their full number) and the position behind the performative.

    Raises: ConnectionFault.
    """
    data, at = source.data, source.start
    try:
        if data[at : at + 2] == b"\x00\x53":
            code, at = data[at + 2], at + 3
        else:
            code, at = _descriptor(data, at)
        fields, at = types.decode_fields(data, at, source.end)
    except (DecodeError, IndexError) as error:
        raise ConnectionFault(DECODE_ERROR, f"performative cannot be read: {error}") from error
    count = _FIELD_COUNTS.get(code)
    if count is None:
        raise ConnectionFault(DECODE_ERROR, f"performative 0x{code:02x} is not expected from a client")
    if len(fields) > count:
        raise ConnectionFault(DECODE_ERROR, f"performative 0x{code:02x} with {len(fields)} fields")
    if len(fields) < count:
        fields.extend([None] * (count - len(fields)))
    return code, fields, at


def _descriptor(data: bytes, at: int) -> tuple[int, int]:
    if data[at] != 0:
        raise DecodeError("it is not a described type")
    value, at = types.decode(data, at + 1)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DecodeError("its descriptor is not a number")
    return value, at


def as_uint(value: object, name: str, default: int | None = None) -> int:
    """A field that must be a number of at most 32 bits.

    Raises: ConnectionFault.
    """
    if value is None and default is not None:
        return default
    if type(value) is not int or not 0 <= value < 2**32:
        raise ConnectionFault(DECODE_ERROR, f"field {name} must be a uint")
    return value


def as_bool(value: object, name: str) -> bool:
    if value is None:
        return False
    if type(value) is not bool:
        raise ConnectionFault(DECODE_ERROR, f"field {name} must be a boolean")
    return value


def as_text(value: object, name: str) -> str:
    if type(value) is not str:
        raise ConnectionFault(DECODE_ERROR, f"field {name} must be a string")
    return value


def as_map(value: object, name: str) -> dict[object, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConnectionFault(DECODE_ERROR, f"field {name} must be a map")
    return value


def as_terminus(value: object, name: str) -> list[object] | None:
    """The fields of a source or target, padded; None where there is none."""
    if value is None:
        return None
    if not isinstance(value, Described) or not isinstance(value.value, list):
        raise ConnectionFault(DECODE_ERROR, f"field {name} must be a {name}")
    return value.value + [None] * max(0, 11 - len(value.value))


def as_outcome(value: object) -> Outcome | None:
    """A delivery state; None where there is none.

    Raises: ConnectionFault.
    """
    if value is None:
        return None
    if not isinstance(value, Described) or type(value.descriptor) is not int or not isinstance(value.value, list):
        raise ConnectionFault(DECODE_ERROR, "field state must be a delivery state")
    return Outcome(value.descriptor, value.value)


def as_error(value: object) -> tuple[str, str, dict[object, object]]:
    """Condition, description and info of an error; empty where there is none."""
    if not isinstance(value, Described) or not isinstance(value.value, list):
        return "", "", {}
    condition, description, info = ([*value.value, None, None, None])[:3]
    return (
        condition if isinstance(condition, str) else "",
        description if isinstance(description, str) else "",
        info if isinstance(info, dict) else {},
    )


def performative(code: int, *fields: bytes) -> bytes:
    return types.described(code, list_(fields))


def error(condition: str, description: str) -> bytes:
    """An error with all of its three fields; clients read the third without asking whether it is there."""
    return performative(ERROR, symbol(condition), string(description), NULL)


def open_(container_id: str, *, frame_size_max_bytes: int, channel_max: int) -> bytes:
    return performative(
        OPEN, string(container_id), NULL, uint(frame_size_max_bytes), types.ushort(channel_max), NULL, NULL, NULL,
        NULL, NULL, NULL,
    )  # fmt: skip


def begin(remote_channel: int, *, window: int, handle_max: int) -> bytes:
    return performative(
        BEGIN, types.ushort(remote_channel), uint(0), uint(window), uint(window), uint(handle_max), NULL, NULL, NULL
    )


def flow(
    *,
    next_incoming_id: int,
    window: int,
    next_outgoing_id: int,
    handle: bytes = NULL,
    delivery_count: bytes = NULL,
    credit: bytes = NULL,
    drain: bool = False,
) -> bytes:
    return performative(
        FLOW, uint(next_incoming_id), uint(window), uint(next_outgoing_id), uint(window), handle, delivery_count,
        credit, NULL, TRUE if drain else FALSE, FALSE, NULL,
    )  # fmt: skip


def attach(
    name: str, handle: int, *, sender: bool, snd_settle_mode: int, rcv_settle_mode: int, source: bytes, target: bytes,
    message_size_max_bytes: int, properties: bytes,
) -> bytes:  # fmt: skip
    """The answer to an attach; `sender` says that this side sends."""
    return performative(
        ATTACH, string(name), uint(handle), FALSE if sender else TRUE, types.ubyte(snd_settle_mode),
        types.ubyte(rcv_settle_mode), source, target, NULL, FALSE, uint(0) if sender else NULL,
        ulong(message_size_max_bytes), NULL, NULL, properties,
    )  # fmt: skip


def detach(handle: int, *, closed: bool, fault: bytes = NULL) -> bytes:
    return performative(DETACH, uint(handle), TRUE if closed else FALSE, fault)


def end(fault: bytes = NULL) -> bytes:
    return performative(END, fault)


def close(fault: bytes = NULL) -> bytes:
    return performative(CLOSE, fault)


def accepted_frame(channel: int, *, receiver: bool, first: int, last: int) -> bytes:
    """A whole disposition frame: settled, accepted.  The most frequent answer, so in one pack."""
    return _ACCEPTED_FRAME.pack(
        31, b"\x02\x00", channel, b"\x00\x53\x15\xc0\x12\x06", TRUE if receiver else FALSE, 0x70, first, 0x70, last,
        b"\x41\x00\x53\x24\x45\x42",
    )  # fmt: skip


def disposition(*, receiver: bool, first: int, last: int, state: bytes) -> bytes:
    """A settled disposition with a state."""
    return performative(DISPOSITION, TRUE if receiver else FALSE, uint(first), uint(last), TRUE, state, FALSE)


def outcome_state(code: int) -> bytes:
    """An outcome without fields of its own, as Service Bus echoes it."""
    fields = {REJECTED: (NULL,), MODIFIED: (NULL, NULL, NULL)}
    return performative(code, *fields.get(code, ()))


def rejected(condition: str, description: str) -> bytes:
    return performative(REJECTED, error(condition, description))


def sasl_mechanisms(*names: str) -> bytes:
    items = [b"\x00\x00\x00" + bytes((len(name),)) + name.encode() for name in names]
    return performative(SASL_MECHANISMS, types.array(0xB3, items))


def sasl_outcome(code: int) -> bytes:
    return performative(SASL_OUTCOME, types.ubyte(code), NULL)
