"""Replies in markers: the reply to an HTTP request follows the fingerprint of its message.

So the engine's log has one kind of marker for applied messages; without a reply it is the fingerprint alone.
"""

from __future__ import annotations

import msgspec

from outbox.engine_commit import Marker, Refusal
from outbox.http import Reply
from outbox.lineage import FINGERPRINT_BYTES

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reply).decode


def with_reply(fingerprint: bytes, reply: Reply) -> bytes:
    """The marker of an applied request and its reply."""
    return fingerprint + _encode(reply)


def fingerprint_in(marker: bytes) -> bytes:
    return marker if len(marker) == FINGERPRINT_BYTES else marker[:FINGERPRINT_BYTES]


def as_record(marker: Marker | None) -> Refusal | None:
    """A marker as a record; that of an applied message has no reason."""
    return Refusal(fingerprint_in(marker), "", "") if isinstance(marker, bytes) else marker


def reply_in(marker: bytes) -> Reply | None:
    """The reply in a marker; None for a message of a queue."""
    return _decode(marker[FINGERPRINT_BYTES:]) if len(marker) > FINGERPRINT_BYTES else None
