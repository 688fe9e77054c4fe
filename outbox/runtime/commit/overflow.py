"""Overflow: outputs that do not fit into a record lie in a blob, written before the commit that names it.

The blob is named by the transaction and its digest, never by the message, so that attempts which disagree never share
one.  It is deleted only after the record was marked, because until then the record needs it; one of an attempt that
lost is deleted when the state has gone past that attempt and the message's record names another.

What does not fit even so is refused.  So that a refusal always fits, an applied message leaves room for the next one's.

An attempt that spills writes a document first that says which blob it is about to write, for which message, over which
version of the state.  Whatever becomes of the attempt, that document is found by a sweeper, which decides:

    the record is the attempt's own          it landed: the blob goes when the record is marked, not before
    the state is past the attempt's version  it cannot land any more
    another attempt has made the record      it cannot land any more, unless the record is a refusal that this attempt
                                             is a resubmission of
    it is as old as it says, or we would say no write can be in flight for so long

Of one that cannot land the blob goes when no attempt lasts so long: it may not have been written yet.

In item scope the staged record stands for the attempt: while there is one the blob stays.  It is looked for last, by a
read that sees at least what showed that the attempt is over: one made before could have come before it was staged.  A
blob is deleted before the document that names it, so that a crash between the two leaves nothing that nobody knows of.
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
from outbox.runtime.commit.store_io import confirmed, read, write_one
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted
from outbox.runtime.start.plan import Plan
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
        NothingCommitted: they cannot be read now.
        CorruptRecord: they are not what was written.
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
        raise CorruptRecord(f"blob {record.spilled} is not what was written; who else writes to this container?")
    try:
        return msgspec.json.decode(data, type=tuple[Output, ...])
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"blob {record.spilled} does not hold outputs: {error}") from error


class Overflows:
    """The overflow blobs of one store's attempts; `states` is where the states are."""

    def __init__(
        self, plan: Plan, store: StateStore, states: StateStore, blobs: BlobStore, *, now_ms: Callable[[], int]
    ) -> None:
        self._plan = plan
        self._store = store
        self._states = states
        self._blobs = blobs
        self._now_ms = now_ms

    async def announce(self, key: DocumentKey, overflow: Overflow) -> None:
        """Say which blob an attempt is about to write.

        Raises:
            NothingCommitted: it is not known to be said.
        """
        tag = Tag("overflow", (overflow.inbox,), overflow.pending)
        try:
            await write_one(self._store, Create(key, stored.encode(overflow), None, tag))
        except OutcomeUnknown as error:
            raise NothingCommitted from error

    async def collect(self, document: Document, *, is_staged: bool) -> bool:
        """Delete a blob that nothing can need any more, and what announced it; whether that is so.

        Raises:
            NothingCommitted: it cannot be told now.
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
        """Partition scope: whether an attempt has lost, or has landed and its record is marked."""
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
        """Item scope: whether an attempt has been finished, or can neither be staged any more nor is.

        Also what announced it, as it is then.
        """
        found = await read(self._store, processed_key(overflow.state, overflow.inbox))
        if found is not None and stored.decode(found, Record).tx == overflow.pending:
            session = found.session
        elif self._is_past(overflow, 2 * self._plan.attempt_ms_max):
            document = await confirmed(self._store, document)
            session = document.session
        else:
            return document, False
        return document, await read(self._store, staged_key(overflow.state, overflow.pending), session) is None

    def _is_past(self, overflow: Overflow, own_ms: int) -> bool:
        return self._now_ms() - overflow.at_ms > max(overflow.life_ms, own_ms)


async def tell_if_missing(store: StateStore, key: DocumentKey, session: Session, blob: str) -> None:
    """Say that a blob is gone which a document still needs; one that has been marked meanwhile does not name it.

    Raises:
        NothingCommitted: it has been marked meanwhile, or nobody can tell.
    """
    found = await read(store, key, session)
    if found is not None and blob.encode() in found.body:
        await confirmed(store, found)  # what was read may be of the past
        fields = {"document": f"{key.partition}/{key.id}", "blob": blob}
        log.critical(
            "overflow blob of unsent outputs is missing, its key may be blocked; restore the blob", extra=fields
        )


def _has_lost(overflow: Overflow, record: Record | None) -> bool:
    """Whether an attempt loses to this record, which is another's."""
    if record is None:
        return False
    return not record.reason or (overflow.attempt is not None and record.attempt >= overflow.attempt)


def announced(
    blob: str, tx: str, work: Work, version: int, now_ms: int, life_ms: int = 0
) -> tuple[DocumentKey, Overflow]:
    """Where an attempt announces its blob, and what it says; now, for the handler may have taken long."""
    attempt = work.delivery.message.attempt
    overflow = Overflow(tx, blob, work.inbox, work.state_id or "", version, now_ms, attempt, life_ms)
    return overflow_key(record_key(work.state_id, work.inbox).partition, tx), overflow
