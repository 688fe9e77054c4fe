"""Fitting: outputs too large for a batch or an item are spilled into a blob, which is announced first.

What is too large even so is refused, by the next attempt over the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from outbox import stored
from outbox.errors import NoBlobStore, TooLarge
from outbox.ports import Create, Replace, StateStore, Write
from outbox.runtime.commit import overflow
from outbox.runtime.commit.overflow import Overflows, announced
from outbox.runtime.commit.store_io import write_blobs
from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.delivery.claim_check import without_blobs
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.store_protocol import StoreParts
from outbox.stored import Inline, Staged, StateItem


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
        limit = bytes_for(self._parts.records, batch)
        if size_of(fitted) > limit:
            if len(batch.entries) > 1:
                raise NothingCommitted  # each message alone is smaller
            entry = batch.entries[0]
            if entry.record.outputs:  # in a blob, without an entry of a ledger: its mark deletes the blob
                entry.stored, name, data = overflow.spilled(entry.record)
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
            if not is_small or len(stored.encode(item)) > bytes_for(states, batch):
                fitted = Staged(batch.tx, work.inbox, state_id, batch.loaded.item.version, record)
                if len(stored.encode(fitted)) > limit and record.outputs:
                    small, name, data = overflow.spilled(record)
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
        if len(body := stored.encode(item)) > (limit := bytes_for(self._parts.ports.store, batch)):
            refuse_unfit(batch, TooLarge(f"its state takes {len(body)} bytes, there is room for {limit}"))
            raise NothingCommitted

    async def _announce(self, batch: StoreTransaction, name: str, data: bytes, life_ms: int) -> None:
        work, version, now_ms = batch.entries[0].attempt.work, batch.loaded.item.version, self._parts.now_ms()
        await self._overflows.announce(*announced(name, batch.tx, work, version, now_ms, life_ms))
        batch.blobs.append((name, data))


def bytes_for(store: StateStore, batch: StoreTransaction) -> int:
    """How many bytes the records of a batch and their state may take."""
    return overflow.bytes_for(store.capabilities.item_bytes_max, *(entry.record for entry in batch.entries))


def size_of(writes: Sequence[Write]) -> int:
    """The bytes of the documents that are written."""
    return sum(len(write.body) for write in writes if isinstance(write, Create | Replace))


def refuse_unfit(batch: StoreTransaction, error: Exception, text: str = "") -> None:
    """Refuse the message of a batch over this state after `TooLarge` or `NoBlobStore`; a batch of several is split."""
    if len(batch.entries) > 1:
        return
    entry = batch.entries[0]
    if isinstance(error, TooLarge):
        entry.attempt.refuse_over(batch.loaded.version, overflow.smaller(entry.record, f"{text}{error}"))
    elif isinstance(error, NoBlobStore):
        entry.attempt.refuse_over(batch.loaded.version, without_blobs(error))
