"""Replies in markers: what an HTTP request was answered with stands behind the fingerprint of its message.

So the engine's log knows one kind of marker for what was applied; one without a reply is the fingerprint alone.
"""

from __future__ import annotations

import msgspec

from outbox.commits import Marker, Refusal
from outbox.http import Reply
from outbox.lineage import FINGERPRINT_BYTES

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reply).decode


def with_reply(fingerprint: bytes, reply: Reply) -> bytes:
    """The marker of an applied message that was answered."""
    return fingerprint + _encode(reply)


def fingerprint_in(marker: bytes) -> bytes:
    """The fingerprint of an applied message."""
    return marker if len(marker) == FINGERPRINT_BYTES else marker[:FINGERPRINT_BYTES]


def as_record(marker: Marker | None) -> Refusal | None:
    """What a marker tells of its message, as a record does; an applied one has no reason."""
    return Refusal(fingerprint_in(marker), "", "") if isinstance(marker, bytes) else marker


def reply_in(marker: bytes) -> Reply | None:
    """What a message was answered with, None where nobody asked."""
    return _decode(marker[FINGERPRINT_BYTES:]) if len(marker) > FINGERPRINT_BYTES else None
