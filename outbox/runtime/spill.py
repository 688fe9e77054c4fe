"""Overflow: outputs that do not fit into a record lie in a blob, written before the commit that names it.

The blob is named by the transaction and its digest, never by the message, so that attempts which disagree never share
one.  It is deleted only after the record was marked, because until then the record needs it; one of an attempt that
lost is deleted when the state has gone past that attempt and the message's record names another.

What does not fit even so is refused.  So that a refusal always fits, an applied message leaves room for the next one's.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from outbox.errors import CorruptRecord, OutcomeUnknown, PoisonMessage, Refused
from outbox.ports import BlobStore, Output
from outbox.runtime.backoff import Again
from outbox.stored import Record

SPILL_BYTES_MAX = 256 << 20

REFUSAL_BYTES_MAX = 8 << 10
"""What a state that is applied leaves free: the record of a refusal, which is written together with the state."""

CODE_LENGTH_MAX = 100


def bytes_for(limit_bytes: int, *records: Record) -> int:
    """How many bytes these records and their state may take: all there are where all of them are refusals."""
    if all(record.reason for record in records):
        return limit_bytes
    return limit_bytes - min(REFUSAL_BYTES_MAX, limit_bytes // 64)


def smaller(record: Record, text: str) -> PoisonMessage:
    """As what a message is refused that does not fit: a refusal is cut to its bare reason, all else is oversize."""
    if record.reason:
        return PoisonMessage(record.reason[:CODE_LENGTH_MAX], "")
    return PoisonMessage("oversize", text)


def spilled(record: Record) -> tuple[Record, str, bytes]:
    """A record without its outputs, and the name and bytes of the blob that takes them."""
    data = msgspec.json.encode(record.outputs)
    name = f"overflow/{record.tx}/{sha256(data).hexdigest()}"
    return msgspec.structs.replace(record, outputs=(), spilled=name), name, data


async def outputs_of(record: Record, blobs: BlobStore) -> tuple[Output, ...] | None:
    """The outputs of a pending record, from wherever they lie; None where their blob is gone: ask the record again.

    Raises:
        Again: they cannot be read now.
        CorruptRecord: they are not what was written.
    """
    if not record.spilled:
        return record.outputs
    try:
        data = await blobs.read(record.spilled, bytes_max=SPILL_BYTES_MAX)
    except (OutcomeUnknown, Refused) as error:
        raise Again from error
    if data is None:
        return None
    if sha256(data).hexdigest() != record.spilled.rpartition("/")[2]:
        raise CorruptRecord(f"blob {record.spilled} is not what was written; who else writes to this container?")
    try:
        return msgspec.json.decode(data, type=tuple[Output, ...])
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"blob {record.spilled} does not hold outputs: {error}") from error
