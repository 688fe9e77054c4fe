"""Overflow: outputs too large for a record are spilled into a blob, written before the commit that names it.

The blob is named by the transaction and its digest, never by the message, so that different attempts never share one.
It is deleted only after the record is marked, because until then the record needs it; the blob of a lost attempt is
deleted once the state is past that attempt and the message's record names another.

Outputs too large even so are refused.  An applied message leaves room in the state's partition write for a refusal, so
that the next message's refusal always fits.

An attempt that spills first writes an announcement: the blob, the message, the loaded version of the state.  A sweeper
finds the announcement and decides:

    the record is the attempt's own          it landed: delete the blob once the record is marked
    the state is past the attempt's version  it cannot land any more
    another attempt made the record          it cannot land any more, unless it resubmits the refusal on record
    it is older than its own or our limit    no write can be in flight for so long

The blob of an attempt that cannot land is deleted only after the longest attempt: it may not have been written yet.

In item scope the staged record stands for the attempt: while it exists the blob stays.  It is read last, at least as
fresh as the proof that the attempt is over: an earlier read could have missed a later stage.  The blob is deleted
before its announcement, so that a crash between the two leaves no unknown blob.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import msgspec

from outbox import stored
from outbox.errors import CorruptRecord, OutcomeUnknown, PoisonMessage, Refused
from outbox.ports import BlobStore, Create, Delete, Document, DocumentKey, Output, Session, StateStore, Tag
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.commit.store_io import confirmed, read, write_known
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.work import Work
from outbox.stored import (
    Overflow,
    Record,
    overflow_key,
    processed_key,
    record_key,
    staged_key,
    state_key,
)

log = logging.getLogger("outbox.overflow")

SPILL_BYTES_MAX = 256 << 20

REFUSAL_BYTES_MAX = 8 << 10
"""The bytes that an applied state leaves free, for the record of a refusal is written with the state."""

CODE_LENGTH_MAX = 100


def bytes_for(limit_bytes: int, *records: Record) -> int:
    """How many bytes these records and their state may take; refusals may use the reserve."""
    if all(record.reason for record in records):
        return limit_bytes
    return limit_bytes - min(REFUSAL_BYTES_MAX, limit_bytes // 64)


def smaller(record: Record, text: str) -> PoisonMessage:
    """The refusal of a message that does not fit: a refusal shrinks to its bare reason, others are `oversize`."""
    if record.reason:
        return PoisonMessage(record.reason[:CODE_LENGTH_MAX], "")
    return PoisonMessage("oversize", text)


def spilled(record: Record) -> tuple[Record, str, bytes]:
    """A record without its outputs, and the name and bytes of their blob."""
    data = msgspec.json.encode(record.outputs)
    name = f"overflow/{record.tx}/{sha256(data).hexdigest()}"
    return msgspec.structs.replace(record, outputs=(), spilled=name), name, data


async def outputs_of(record: Record, blobs: BlobStore) -> tuple[Output, ...] | None:
    """Read the outputs of a pending record; None: their blob is gone, so read the record again.

    Raises:
        NothingCommitted: the blob cannot be read now.
        CorruptRecord: the blob was changed.
    """
    if not record.spilled:
        return record.outputs
    try:
        data = await blobs.read(record.spilled, bytes_max=SPILL_BYTES_MAX)
    except (OutcomeUnknown, Refused) as error:
        raise NothingCommitted from error
    if data is None:
        return None
    if sha256(data).hexdigest() != record.spilled.rpartition("/")[2]:
        raise CorruptRecord(f"blob {record.spilled} was changed; who else writes to this container?")
    try:
        return msgspec.json.decode(data, type=tuple[Output, ...])
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"blob {record.spilled} does not hold outputs: {error}") from error


async def unsent_outputs(
    record: Record, blobs: BlobStore, store: StateStore, key: DocumentKey, session: Session
) -> tuple[Output, ...]:
    """The outputs of a pending record in the document of this `key`; a blob that is missing is logged.

    Raises:
        NothingCommitted: they cannot be read now, or the document was marked meanwhile: read it again.
    """
    outputs = await outputs_of(record, blobs)
    if outputs is None:
        await log_missing_blob(store, key, session, record.spilled)
        raise NothingCommitted
    return outputs


class Overflows:
    """The overflow blobs of one store's attempts; `states` is the store of the states."""

    def __init__(
        self, plan: CompiledApp, store: StateStore, states: StateStore, blobs: BlobStore, *, now_ms: Callable[[], int]
    ) -> None:
        self._plan = plan
        self._store = store
        self._states = states
        self._blobs = blobs
        self._now_ms = now_ms

    async def announce(self, key: DocumentKey, overflow: Overflow) -> None:
        """Write the announcement of a blob, before the blob.

        Raises:
            NothingCommitted: the announcement is not known to exist.
        """
        tag = Tag("overflow", (overflow.inbox,), overflow.pending)
        await write_known(self._store, Create(key, stored.encode(overflow), None, tag))

    async def collect(self, document: Document, *, is_staged: bool) -> bool:
        """Delete an unneeded blob and its announcement; whether it was unneeded.

        Raises:
            NothingCommitted: a store cannot be read, or the blob cannot be deleted, now.
        """
        overflow = stored.decode(document, Overflow)
        if is_staged:
            document, is_free = await self._unstaged(document, overflow)
        else:
            is_free = await self._is_free(overflow)
        if not is_free:
            return False
        try:
            await self._blobs.delete(overflow.blob)
        except MAY_RETRY as error:
            raise NothingCommitted from error
        with suppress(*MAY_RETRY):
            tag = Tag("collect", (overflow.inbox,), overflow.pending)
            await self._store.write([Delete(document.key, document.version, tag)])
        return True

    async def _is_free(self, overflow: Overflow) -> bool:
        """Partition scope: whether the attempt has lost, or has landed and its record is marked."""
        state = cached_state(await read(self._states, state_key(overflow.state)) if overflow.state else None)
        found = await read(self._store, record_key(overflow.state or None, overflow.inbox), state.session)
        record = None if found is None else stored.decode(found, Record)
        if record is not None and record.tx == overflow.pending:
            return not record.pending
        has_lost = state.item.version > overflow.version if overflow.state else False
        if has_lost or _has_lost(overflow, record):
            return self._now_ms() - overflow.at_ms > 2 * self._plan.attempt_ms_max
        return self._is_past(overflow, self._plan.record_life_ms)

    async def _unstaged(self, document: Document, overflow: Overflow) -> tuple[Document, bool]:
        """Item scope: whether the attempt is finished, or is not staged and can not be any more.

        Also its announcement, as read last.
        """
        staged = staged_key(overflow.state, overflow.pending)
        found = await read(self._store, processed_key(overflow.state, overflow.inbox))
        if found is not None and stored.decode(found, Record).tx == overflow.pending:
            session = found.session
        elif self._is_past(overflow, 2 * self._plan.attempt_ms_max) and await read(self._store, staged) is None:
            document = await confirmed(self._store, document)  # that read may have been stale
            session = document.session
        else:
            return document, False
        return document, await read(self._store, staged, session) is None

    def _is_past(self, overflow: Overflow, own_ms: int) -> bool:
        return self._now_ms() - overflow.at_ms > max(overflow.life_ms, own_ms)


async def log_missing_blob(store: StateStore, key: DocumentKey, session: Session, blob: str) -> None:
    """Log a missing blob, if the document still names it; a document marked meanwhile does not.

    Raises:
        NothingCommitted: the document has changed, or the outcome is unknown.
    """
    found = await read(store, key, session)
    if found is not None and blob.encode() in found.body:
        await confirmed(store, found)  # the read may have been stale
        fields = {"document": f"{key.partition}/{key.id}", "blob": blob}
        log.critical(
            "overflow blob of unsent outputs is missing, its key may be blocked; restore the blob", extra=fields
        )


def _has_lost(overflow: Overflow, record: Record | None) -> bool:
    """Whether an attempt loses to this record of another."""
    if record is None:
        return False
    return not record.reason or (overflow.attempt is not None and record.attempt >= overflow.attempt)


def announced(
    blob: str, tx: str, work: Work, version: int, now_ms: int, life_ms: int = 0
) -> tuple[DocumentKey, Overflow]:
    """The key and content of an announcement, as of now: the handler may have taken long."""
    attempt = work.delivery.message.attempt
    overflow = Overflow(tx, blob, work.inbox, work.state_id or "", version, now_ms, attempt, life_ms)
    return overflow_key(record_key(work.state_id, work.inbox).partition, tx), overflow
