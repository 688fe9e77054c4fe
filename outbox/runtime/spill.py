"""Overflow: outputs that do not fit into a record lie in a blob, written before the commit that names it.

The blob is named by the transaction and its digest, never by the message, so that attempts which disagree never share
one.  It is deleted only after the record was marked, because until then the record needs it; one of an attempt that
lost is deleted when the state has gone past that attempt and the message's record names another.
"""

from __future__ import annotations

from hashlib import sha256

import msgspec

from outbox.errors import CorruptRecord, OutcomeUnknown, Refused
from outbox.ports import BlobStore, Output
from outbox.runtime.backoff import Again
from outbox.runtime.items import Record

SPILL_BYTES_MAX = 256 << 20


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
