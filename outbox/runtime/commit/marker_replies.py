"""Extras of a marker, behind its fingerprint: the reply to a request, or the payloads that edits replaced.

So the engine's log has one kind of marker for applied messages; without either it is the fingerprint alone.  A refusal
keeps replaced payloads behind its fingerprint too.  A message of a queue has no reply, and a request is never edited.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from outbox.engine_commit import Marker, Refusal
from outbox.http import Reply
from outbox.lineage import FINGERPRINT_BYTES
from outbox.resubmission import Replaced
from outbox.stored import Record

_REPLACED = b"\xc1"
"""Begins a list of replaced payloads: a byte with which no reply begins, because msgpack never uses it."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Reply).decode
_decode_replaced = msgspec.msgpack.Decoder(tuple[Replaced, ...]).decode


def with_reply(fingerprint: bytes, reply: Reply) -> bytes:
    """The marker of an applied request and its reply."""
    return fingerprint + _encode(reply)


def fingerprint_in(marker: bytes) -> bytes:
    return marker if len(marker) == FINGERPRINT_BYTES else marker[:FINGERPRINT_BYTES]


def with_replaced(fingerprint: bytes, replaced: Sequence[Replaced]) -> bytes:
    """A fingerprint and what edits have replaced; without edits the fingerprint alone."""
    return fingerprint + _REPLACED + _encode(replaced) if replaced else fingerprint


def _replaced_in(fingerprint: bytes) -> tuple[Replaced, ...]:
    rest = fingerprint[FINGERPRINT_BYTES:]
    return _decode_replaced(rest[len(_REPLACED) :]) if rest.startswith(_REPLACED) else ()


def as_record(marker: Marker | None) -> Refusal | Record | None:
    """A marker as a record; that of an applied message has no reason.

    Its attempt is not stored.  Of an edit it is above that of what it replaced, which is all that copies need.
    """
    if marker is None:
        return None
    known = Refusal(marker, "", "") if isinstance(marker, bytes) else marker
    fingerprint, replaced = fingerprint_in(known.fingerprint), _replaced_in(known.fingerprint)
    if not replaced:
        return msgspec.structs.replace(known, fingerprint=fingerprint)
    attempt = max(known.attempt, 1 + replaced[-1].attempt)
    reason, description = known.reason, known.description
    return Record("", fingerprint, 0, reason=reason, description=description, attempt=attempt, replaced=replaced)


def reply_in(marker: bytes) -> Reply | None:
    """The reply in a marker; None for a message of a queue."""
    rest = marker[FINGERPRINT_BYTES:]
    return _decode(rest) if rest and not rest.startswith(_REPLACED) else None
