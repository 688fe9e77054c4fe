"""Overflow: outputs too large for a record, a batch or an item are spilled into a blob before the commit.

The commit names the blob.  Its name has the transaction and its digest, never the message, so that different attempts
never share one.  It is deleted only after the record is marked, because until then the record needs it; the blob of a
lost attempt is deleted once the state is past that attempt and the message's record names another.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256

import msgspec

from outbox import stored
from outbox.errors import CorruptRecord, NoBlobStore, OutcomeUnknown, PoisonMessage, Refused, TooLarge
from outbox.ports import (
    BlobStore,
    Create,
    Delete,
    Document,
    DocumentKey,
    Output,
    Replace,
    Session,
    StateStore,
    Tag,
    Write,
)
from outbox.runtime.commit.state_cache import cached_state
from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.delivery.claim_check import without_blobs
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted, confirmed, read, write_blobs, write_known
from outbox.runtime.start.plan import CompiledApp
from outbox.runtime.store_scope import StoreParts
from outbox.runtime.work import Work
from outbox.stored import (
    Inline,
    Overflow,
    Record,
    Staged,
    StateItem,
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


def room_for(store: StateStore, batch: StoreTransaction) -> int:
    """How many bytes the records of a batch and their state may take; refusals may use the reserve."""
    limit_bytes = store.capabilities.item_bytes_max
    if all(entry.record.reason for entry in batch.entries):
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


class Fitting:
    """Makes what the attempts of one worker write fit its stores."""

    def __init__(self, parts: StoreParts, overflows: Overflows) -> None:
        self._parts = parts
        self._overflows = overflows

    async def batch(self, batch: StoreTransaction, writes: Callable[[], list[Write]]) -> tuple[list[Write], int]:
        """Return the writes of a batch and the bytes left in it, after writing the blobs that they name.

        Raises:
            TooLarge: its only message is too large.
            NoBlobStore: a message needs one.
            NothingCommitted: each message alone is smaller, or a blob may be missing.
        """
        fitted = writes()
        limit = room_for(self._parts.records, batch)
        if size_of(fitted) > limit:
            if len(batch.entries) > 1:
                raise NothingCommitted  # each message alone is smaller
            entry = batch.entries[0]
            if entry.record.outputs:  # in a blob, without an entry of a ledger: its mark deletes the blob
                entry.stored, name, data = spilled(entry.record)
                fitted = writes()
            if size_of(fitted) > limit:
                raise TooLarge(f"{size_of(fitted)} bytes, there is room for {limit}")
            await self._announce(batch, name, data, self._parts.plan.record_life_ms)
        await write_blobs(self._parts.ports.blobs, batch.blobs)
        return fitted, limit - size_of(fitted)

    async def item(self, state_id: str, batch: StoreTransaction) -> StateItem | Staged:
        """Return the next state with its record inside, or the record to stage, after writing their blobs.

        Raises:
            NothingCommitted: neither has room for it, so that the message is refused next; or a blob may be missing.
        """
        work, record = batch.entries[0].attempt.work, batch.entries[0].record
        inline, limit = Inline(work.inbox, record), self._parts.records.capabilities.item_bytes_max
        item, states = msgspec.structs.replace(batch.state_after, pending=inline), self._parts.ports.store
        fitted: StateItem | Staged = item
        is_small = len(stored.encode(inline)) <= min(states.capabilities.inline_bytes_max, limit)
        try:
            if not is_small or len(stored.encode(item)) > room_for(states, batch):
                fitted = Staged(batch.tx, work.inbox, state_id, batch.loaded.item.version, record)
                if len(stored.encode(fitted)) > limit and record.outputs:
                    small, name, data = spilled(record)
                    fitted = msgspec.structs.replace(fitted, record=small)
                    await self._announce(batch, name, data, 2 * self._parts.plan.attempt_ms_max)
                if len(stored.encode(fitted)) > limit:
                    raise TooLarge(f"its record is over the store's {limit} bytes")
            await write_blobs(self._parts.ports.blobs, batch.blobs)
        except (TooLarge, NoBlobStore) as error:
            refuse_unfit(batch, error)
            raise NothingCommitted from error
        return fitted

    def check_state(self, item: StateItem, batch: StoreTransaction) -> None:
        """Check the size of a state that points to a staged record.

        Raises:
            NothingCommitted: it is not, so that the message is refused next.
        """
        if len(body := stored.encode(item)) > (limit := room_for(self._parts.ports.store, batch)):
            refuse_unfit(batch, TooLarge(f"its state takes {len(body)} bytes, there is room for {limit}"))
            raise NothingCommitted

    async def _announce(self, batch: StoreTransaction, name: str, data: bytes, life_ms: int) -> None:
        work, version, now_ms = batch.entries[0].attempt.work, batch.loaded.item.version, self._parts.now_ms()
        await self._overflows.announce(*announced(name, batch.tx, work, version, now_ms, life_ms))
        batch.blobs.append((name, data))


def size_of(writes: Sequence[Write]) -> int:
    """The bytes of the documents that are written."""
    return sum(len(write.body) for write in writes if isinstance(write, Create | Replace))


def refuse_unfit(batch: StoreTransaction, error: Exception, text: str = "") -> None:
    """Refuse the message of a batch over this state after `TooLarge` or `NoBlobStore`; a batch of several is split."""
    if len(batch.entries) > 1:
        return
    entry = batch.entries[0]
    if isinstance(error, TooLarge):
        entry.attempt.refuse_over(batch.loaded.version, smaller(entry.record, f"{text}{error}"))
    elif isinstance(error, NoBlobStore):
        entry.attempt.refuse_over(batch.loaded.version, without_blobs(error))
