"""The message, independent of any wire format.

A `Message` holds the body's bytes and the properties that the protocols need.  Adapters translate it to and from their
wire.  The property names are the public wire contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NewType

import msgspec

MessageId = NewType("MessageId", str)
"""The identity of a logical message: the same for every copy, redelivery and duplicate."""

PROPERTY_ID = "outbox-id"
PROPERTY_TYPE = "outbox-type"
PROPERTY_CREATED = "outbox-created"
PROPERTY_HOPS = "outbox-hops"
PROPERTY_ATTEMPT = "outbox-attempt"
PROPERTY_CLAIM = "outbox-claim"
PROPERTY_FAILURES = "outbox-failures"
PROPERTY_ERROR = "outbox-error"
PROPERTY_SCHEMA = "outbox-schema"
PROPERTY_REPLACES = "outbox-replaces"
PROPERTY_CORRELATION = "correlation-id"
PROPERTY_CAUSATION = "causation-id"
PROPERTY_TRACEPARENT = "traceparent"

Scalar = str | int | float | bool | None
"""The types of a user's own properties on every supported wire."""

ID_BYTES_MAX = 4_096
"""The longest identity, correlation id, causation id and trace context.

Outputs inherit their input's, the correlation id also in the broker's own property, so four of them and the rest must
stay below the 64 KB of properties that Service Bus allows.
"""

PROPERTIES_BYTES_MAX = 54 << 10
"""The most that a message may carry beside its body, of ours and of its sender's.

A rescheduled copy carries all of it, and a dead letter its reason of up to 8 KB too; so they fit into 64 KB.
"""

SLIGHT_LENGTH_MAX = 512
_PROPERTY_BYTES = 8
"""The bytes of a property beside its name and its text; also the longest number."""


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False, kw_only=True):
    """One message, immutable.

    `outbox_id` is the identity (empty: the sender gave none, `message_id` counts instead), `message_id` the
    broker's id (empty: the same as the identity), `created_ms` milliseconds since 1970 (0: none given),
    `attempt` counts resubmissions after a refusal, `claim` names the blob that holds the real body (claim check).
    `properties` are the sender's own application properties.  `wire` and `wire_body` keep what an AMQP client sent
    byte for byte: the sections before the body, and the body's own sections when it is not plain data.
    """

    body: bytes
    outbox_id: str = ""
    message_id: str = ""
    type: str = ""
    created_ms: int = 0
    correlation_id: str = ""
    causation_id: str = ""
    traceparent: str = ""
    hops: int = 0
    attempt: int = 0
    session_id: str = ""
    reply_to: str = ""
    claim: str = ""
    time_to_live_ms: int = 0
    properties: dict[str, Scalar] | None = None
    wire: bytes = b""
    wire_body: bytes = b""
    failures: int = 0
    """The failure count that a delayed copy carries."""

    @property
    def identity(self) -> str:
        """The identity to deduplicate by: the message's own, else the broker's id, else empty."""
        return self.outbox_id or self.message_id

    @property
    def schema(self) -> int:
        """The schema version of the body: a property among the sender's own, else 1."""
        if self.properties is None:
            return 1
        try:
            found = int(self.properties.get(PROPERTY_SCHEMA) or 1)
        except (ValueError, OverflowError):  # not a number, or not a finite one
            return 1
        return max(1, found)

    @property
    def error(self) -> str:
        """Why a delayed copy waits, a property among the sender's own: the last error of its handler."""
        found = None if self.properties is None else self.properties.get(PROPERTY_ERROR)
        return found if isinstance(found, str) else ""

    @property
    def replaces(self) -> bytes | None:
        """Of an edit the digest of the refused payload that it replaces, a property among the sender's own; else None.

        Only a resubmission is an edit.  One that names no digest is an edit of nothing: empty.
        """
        if not self.attempt or self.properties is None or PROPERTY_REPLACES not in self.properties:
            return None
        try:
            return bytes.fromhex(str(self.properties[PROPERTY_REPLACES]))
        except ValueError:
            return b""

    @property
    def broker_id(self) -> str:
        """The id that a broker's duplicate detection compares."""
        return self.message_id or self.outbox_id


def schema_properties(version: int) -> dict[str, Scalar] | None:
    """The properties with a body's schema version; none for version 1."""
    return {PROPERTY_SCHEMA: version} if version > 1 else None


def with_error(message: Message, error: str) -> Message:
    """The message with another error, or with none."""
    if not error and not message.error:
        return message
    others = {name: value for name, value in (message.properties or {}).items() if name != PROPERTY_ERROR}
    properties = others | ({PROPERTY_ERROR: error} if error else {})
    return msgspec.structs.replace(message, properties=properties or None)


def message_from_properties(body: bytes, properties: Mapping[str, Scalar]) -> Message:
    """The message of a foreign sender's body and application properties; `message-id` is the broker's."""
    own = dict(properties)

    def text(name: str) -> str:
        value = own.pop(name, None)
        return "" if value is None else str(value)

    def number(name: str) -> int:
        value = own.pop(name, None)
        try:
            found = int(value or 0)
        except (ValueError, OverflowError):  # not a number, or not a finite one
            return 0
        return found if abs(found) < 1 << 63 else 0

    return Message(
        body=body,
        outbox_id=text(PROPERTY_ID),
        message_id=text("message-id"),
        type=text(PROPERTY_TYPE),
        created_ms=number(PROPERTY_CREATED),
        correlation_id=text(PROPERTY_CORRELATION),
        causation_id=text(PROPERTY_CAUSATION),
        traceparent=text(PROPERTY_TRACEPARENT),
        hops=max(0, number(PROPERTY_HOPS)),
        attempt=number(PROPERTY_ATTEMPT),
        claim=text(PROPERTY_CLAIM),
        failures=max(0, number(PROPERTY_FAILURES)),
        session_id=text("session-id"),
        reply_to=text("reply-to"),
        properties=own or None,
    )


def properties_of(message: Message) -> dict[str, Scalar]:
    """The application properties of a message on a wire: ours that are set, and the sender's."""
    found: dict[str, Scalar] = dict(message.properties or {})
    for name, value in (
        (PROPERTY_ID, message.identity),
        (PROPERTY_TYPE, message.type),
        (PROPERTY_CREATED, message.created_ms),
        (PROPERTY_CORRELATION, message.correlation_id),
        (PROPERTY_CAUSATION, message.causation_id),
        (PROPERTY_TRACEPARENT, message.traceparent),
        (PROPERTY_HOPS, message.hops),
        (PROPERTY_ATTEMPT, message.attempt),
        (PROPERTY_CLAIM, message.claim),
        (PROPERTY_FAILURES, message.failures),
    ):
        if value:
            found[name] = value
    return found


def is_slight(message: Message) -> bool:
    """Whether a message is obviously within the limits, as most are, and needs no measuring."""
    ids_length = len(message.outbox_id) + len(message.correlation_id) + len(message.causation_id)
    others_length = len(message.traceparent) + len(message.reply_to)
    return message.properties is None and ids_length + others_length <= SLIGHT_LENGTH_MAX


def excess(message: Message) -> str:
    """Why a message's ids and properties exceed the limits, and the cure; empty if they do not."""
    for name, text in (
        ("identity", message.identity),
        ("correlation id", message.correlation_id),
        ("causation id", message.causation_id),
        ("traceparent", message.traceparent),
    ):
        if (size_bytes := _size_bytes(text)) > ID_BYTES_MAX:
            return (
                f"its {name} takes {size_bytes} bytes, over {ID_BYTES_MAX}, and a handler's outputs inherit it; "
                "give a shorter one"
            )
    if (size_bytes := properties_bytes(message)) > PROPERTIES_BYTES_MAX:
        return (
            f"its properties take {size_bytes} bytes, over {PROPERTIES_BYTES_MAX}, so a broker might refuse a copy of "
            "it; put long values into the body"
        )
    return ""


def properties_bytes(message: Message) -> int:
    """About the size of a copy of a message on a wire beside its body: all properties and ids."""
    named = properties_of(message).items()
    texts = (message.correlation_id, message.reply_to, message.session_id, message.broker_id)
    size_bytes = sum(_size_bytes(text) + _PROPERTY_BYTES for text in texts)
    return size_bytes + sum(_size_bytes(name) + _size_bytes(value) + 2 * _PROPERTY_BYTES for name, value in named)


def _size_bytes(value: Scalar) -> int:
    return len(value.encode("utf-8", "surrogatepass")) if isinstance(value, str) else 0
