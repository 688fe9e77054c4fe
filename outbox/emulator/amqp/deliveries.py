"""Encoding of the broker's frames: messages with its header, annotations and changes, and replies to requests.

The reverse of `messages`.  A delivery is the sender's own bytes behind sections that are the broker's: delivery count,
enqueued time, sequence number, lock.  Their layout never changes, so a delivery costs one pack and one join.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from uuid import UUID

import msgspec

from outbox.emulator.amqp import types
from outbox.emulator.amqp.errors import ARGUMENT_ERROR, OperationFault
from outbox.emulator.amqp.messages import SCHEDULED_TIME, decode_message
from outbox.emulator.amqp.sections import (
    ANNOTATIONS,
    APPLICATION_PROPERTIES,
    HEADER,
    PROPERTIES,
    VALUE,
    sections,
)
from outbox.emulator.amqp.types import (
    NULL,
    DecodeError,
    binary,
    described,
    list_,
    long_,
    map_,
    scalar,
    string,
    symbol,
    timestamp,
)
from outbox.engine.entities import DEAD_LETTER_SUFFIX
from outbox.engine.state.tasks import Claim, Task
from outbox.message import (
    PROPERTY_ATTEMPT,
    PROPERTY_CAUSATION,
    PROPERTY_CLAIM,
    PROPERTY_CORRELATION,
    PROPERTY_CREATED,
    PROPERTY_ERROR,
    PROPERTY_FAILURES,
    PROPERTY_HOPS,
    PROPERTY_ID,
    PROPERTY_REPLACES,
    PROPERTY_TRACEPARENT,
    PROPERTY_TYPE,
    Message,
)

DEAD_LETTER_REASON = "DeadLetterReason"
DEAD_LETTER_DESCRIPTION = "DeadLetterErrorDescription"
ACTIVE, DEFERRED, SCHEDULED = 0, 1, 2
_STATES = {"active": ACTIVE, "locked": ACTIVE, "deferred": DEFERRED, "scheduled": SCHEDULED}

_HEAD = b"\x00\x53\x70\xc0\x0a\x05\x40\x40\x40\x40\x70"
_LOCKED_BY = b"\x00\x53\x71\xc1\x24\x02\xa3\x10x-opt-lock-token\x98"
"""Delivery annotations: the lock token, as a UUID."""
_UNLOCKED = b"\x00\x53\x71\xc1\x01\x00"
_ENQUEUED = b"\xa3\x13x-opt-enqueued-time\x83"
_SEQUENCE = b"\xa3\x15x-opt-sequence-number\x81"
_LOCKED = b"\xa3\x12x-opt-locked-until\x83"
_ITEMS_BYTES = sum(map(len, (_ENQUEUED, _SEQUENCE, _LOCKED))) + 3 * 8
_ANNOTATIONS = b"\x00\x53\x72\xc1" + bytes((_ITEMS_BYTES + 1, 6))
_BROKER = struct.Struct(f">{len(_ANNOTATIONS) + len(_ENQUEUED)}sq{len(_SEQUENCE)}sq{len(_LOCKED)}sq")
_ANNOTATIONS_ENQUEUED = _ANNOTATIONS + _ENQUEUED
_ERROR = PROPERTY_ERROR.encode()
_ANNOTATIONS_CODE = b"\x00\x53\x72"


def encode_delivery(claim: Claim, *, state: int = ACTIVE, settled: bool = False) -> bytes:
    """A claimed message as it goes to a receiver; one that is settled by that has no lock.

    As from the service the state stands there only where it is another than active.
    """
    message, token = claim.message, claim.token
    lock = _UNLOCKED if settled else _LOCKED_BY + token[3::-1] + token[5:3:-1] + token[7:5:-1] + token[8:]
    wire = _sections_of(message, claim.reason, claim.description)
    if state or settled or claim.expires_ms or message.time_to_live_ms or wire.startswith(_ANNOTATIONS_CODE):
        own, wire = _split_annotations(wire)
        head = _header(claim, claim.delivery_count)
        until_ms = 0 if settled else claim.locked_until_ms
        broker = _annotations(own, claim.enqueued_ms, claim.sequence, state or None, until_ms)
    else:
        head = _HEAD + claim.delivery_count.to_bytes(4, "big")
        broker = _BROKER.pack(
            _ANNOTATIONS_ENQUEUED, claim.enqueued_ms, _SEQUENCE, claim.sequence, _LOCKED, claim.locked_until_ms,
        )  # fmt: skip
    return head + lock + broker + wire + (message.wire_body or _data(message.body))


def encode_peeked(task: Task) -> bytes:
    """A message as a peek shows it: without a lock, with its state, of which a lock is no part."""
    message = task.message
    is_dead = task.path.endswith(DEAD_LETTER_SUFFIX)  # in a queue the description says why it was put back
    own, wire = _split_annotations(_sections_of(message, task.reason, task.description if is_dead else ""))
    if task.due_ms and not any(types.decode(key)[0] == SCHEDULED_TIME for key in own[::2]):
        own = [*own, symbol(SCHEDULED_TIME), timestamp(task.due_ms)]
    state = DEFERRED if task.set_aside is True else _STATES[task.state]
    broker = _header(task, task.delivery_count + task.failures) + _annotations(
        own, task.enqueued_ms, task.sequence, state
    )
    return broker + wire + (message.wire_body or _data(message.body))


def _data(body: bytes) -> bytes:
    size = len(body)
    if size < 256:
        return b"\x00\x53\x75\xa0" + bytes((size,)) + body
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + body


def _header(item: Claim | Task, delivery_count: int) -> bytes:
    """The header, with the time to live that holds: a queue may shorten the sender's."""
    lives_ms = max(item.expires_ms - item.enqueued_ms, 0) if item.expires_ms else item.message.time_to_live_ms
    ttl = types.uint(min(lives_ms, 0xFFFFFFFF)) if item.expires_ms or lives_ms else NULL
    return described(HEADER, list_((NULL, NULL, ttl, NULL, types.uint(delivery_count))))


def _split_annotations(wire: bytes) -> tuple[list[bytes], bytes]:
    """The sender's own annotations (keys and values in turn) and the sections behind them."""
    if not wire.startswith(_ANNOTATIONS_CODE):
        return [], wire
    _, start, end = sections(wire)[0]
    return types.field_spans(wire, start), wire[end:]


def _annotations(
    own: list[bytes], enqueued_ms: int, sequence: int, state: int | None, locked_until_ms: int = 0
) -> bytes:
    items = [
        symbol("x-opt-enqueued-time"), timestamp(enqueued_ms),
        symbol("x-opt-sequence-number"), long_(sequence),
    ]  # fmt: skip
    if state is not None:
        items += [symbol("x-opt-message-state"), types.int_(state)]
    if locked_until_ms:
        items += [symbol("x-opt-locked-until"), timestamp(locked_until_ms)]
    return described(ANNOTATIONS, map_(items + own))


def with_properties(wire: bytes, added: dict[bytes, bytes]) -> bytes:
    """Set application properties in sections that a client sent."""
    parts: list[bytes] = []
    pairs: list[bytes] = []
    for code, start, end in sections(wire):
        if code == APPLICATION_PROPERTIES:
            pairs = types.field_spans(wire, start)
        else:
            parts.append(wire[start - 3 : end])
    kept = [part for at in range(0, len(pairs), 2) if pairs[at] not in added for part in pairs[at : at + 2]]
    for name, value in added.items():
        kept += (name, value)
    return b"".join(parts) + described(APPLICATION_PROPERTIES, map_(kept))


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


def _sections_of(message: Message, reason: str, description: str) -> bytes:
    """The sections before the body, with what the broker has learned since the message was sent."""
    wire = message.wire or encode_sections(message)
    added: dict[bytes, bytes] = {}
    if message.attempt and message.wire:  # resubmitted: the stored bytes still name the earlier attempt
        added = {
            string(PROPERTY_ATTEMPT): long_(message.attempt),
            string(PROPERTY_CREATED): long_(message.created_ms),
            string(PROPERTY_HOPS): long_(message.hops),
            string(PROPERTY_FAILURES): long_(message.failures),
        }
        if message.replaces:  # edited: so does what they say of the body
            added |= {
                string(PROPERTY_REPLACES): string(message.replaces.hex()),
                string(PROPERTY_CLAIM): string(message.claim),
            }
    elif message.failures and message.wire:  # a delayed copy of what a client sent
        added[string(PROPERTY_FAILURES)] = long_(message.failures)
    if message.wire and (message.error or _ERROR in message.wire):
        added[string(PROPERTY_ERROR)] = string(message.error)
    if reason or description:
        added[string(DEAD_LETTER_REASON)] = string(reason)
        added[string(DEAD_LETTER_DESCRIPTION)] = string(description)
    return with_properties(wire, added) if added else wire


def encode_sections(message: Message) -> bytes:
    """Properties and application properties of a message that no AMQP client sent."""
    items: list[bytes] = []
    for name, text in (
        (PROPERTY_ID, message.outbox_id), (PROPERTY_TYPE, message.type), (PROPERTY_CORRELATION, message.correlation_id),
        (PROPERTY_CAUSATION, message.causation_id), (PROPERTY_TRACEPARENT, message.traceparent),
        (PROPERTY_CLAIM, message.claim),
    ):  # fmt: skip
        if text:
            items += (string(name), string(text))
    for name, number in (
        (PROPERTY_CREATED, message.created_ms), (PROPERTY_HOPS, message.hops), (PROPERTY_ATTEMPT, message.attempt),
        (PROPERTY_FAILURES, message.failures),
    ):  # fmt: skip
        if number:
            items += (string(name), long_(number))
    for name, value in (message.properties or {}).items():
        items += (string(name), scalar(value))
    fields = [
        string(text) if text else NULL
        for text in (
            message.broker_id, "", "", "", message.reply_to, message.correlation_id, "", "", "", "", message.session_id
        )
    ]  # fmt: skip
    named = described(PROPERTIES, list_([*fields, NULL, NULL]))
    return named + described(APPLICATION_PROPERTIES, map_(items)) if items else named


def encode_reply(correlation_id: bytes, properties: list[bytes], value: bytes) -> bytes:
    """The answer to a request: its id as the peer typed it, a status, and a value as the body."""
    fields = [NULL] * 13
    fields[5] = correlation_id
    return (
        described(PROPERTIES, list_(fields))
        + described(APPLICATION_PROPERTIES, map_(properties))
        + described(VALUE, value)
    )


def encode_wrapped(encoded: bytes, lock_token: bytes | None = None) -> bytes:
    """An encoded message as management replies carry it: in a map, with its lock token if it has one."""
    lock = [] if lock_token is None else [string("lock-token"), lock_token]
    return map_([*lock, string("message"), binary(encoded)])
