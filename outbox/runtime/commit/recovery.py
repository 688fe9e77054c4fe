"""Recovery: push what a record still holds, for a later message and for a sweeper, and reclaim orphans.

A pending record is marked afterwards; of one with an entry in a dispatch ledger, the entry is closed.

A worker reclaims the staged records of its own lost attempts, once their loss is proven: by a state past the version
that the attempt loaded, with another pointer.  Then its swap can not land any more.  The sweeper finds the rest.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from outbox import stored
from outbox.ports import Delete, Document, DocumentKey, Replace, StateStore, Tag, Version
from outbox.runtime.commit.dispatch_ledger import DispatchLedger, finish_ledger
from outbox.runtime.commit.marks import Marks
from outbox.runtime.commit.overflow import Overflows, unsent_outputs
from outbox.runtime.commit.state_cache import CachedState, cached_state
from outbox.runtime.delivery.retrying import MAY_RETRY, NothingCommitted, read, write_known
from outbox.runtime.store_scope import StoreParts
from outbox.stored import (
    LEDGER_PREFIX,
    OVERFLOW_PREFIX,
    RECORD_PREFIX,
    LedgerItem,
    Record,
    Staged,
    staged_key,
    state_key,
)

PENDING_AFTER_MS = 3_600_000
"""A record of a dispatch ledger whose outputs have not left at this age is kept until they have."""
LOOKED_COUNT_MAX = 10_000
LOOK_AGAIN_MS_MAX = 3_600_000
LEFT_COUNT_MAX = 10_000
"""For how many states staged records are remembered; beyond it the sweeper finds them."""


class Recovery:
    """Finishes the records of one store."""

    def __init__(self, parts: StoreParts, overflows: Overflows, marks: Marks, ledger: DispatchLedger | None) -> None:
        self._parts = parts
        self._overflows = overflows
        self._marks = marks
        self._ledger = ledger
        self._looked: dict[str, tuple[Version, int]] = {}
        """The ledgers that were swept: their versions, and when to look again where that stays."""

    async def finish(self, document: Document, record: Record, inbox: bytes, earlier: tuple[str, ...] = ()) -> None:
        """Push the outputs of a record, unless they have left; then earlier batches of its message can not land.

        Raises:
            NothingCommitted: they could not be pushed now.
        """
        if record.entry:
            if self._ledger is None or not self._ledger.is_closed(record.entry):
                await self._parts.settlement.push(list(record.outputs))
        elif record.pending and not self._marks.is_due(document.key):
            blobs, store = self._parts.ports.blobs, self._parts.records
            outputs = await unsent_outputs(record, blobs, store, document.key, document.session)
            await self._parts.settlement.push(outputs)
            self._marks.add(document.key, document.version, record, inbox)
        if self._ledger is not None:
            self._ledger.close([*earlier, record.entry])

    async def redo(self, document: Document) -> bool | None:
        """Finish a pending record or a ledger, or collect an overflow blob; whether it is done (None: nothing was)."""
        try:
            if document.key.id.startswith(OVERFLOW_PREFIX):
                return await self._overflows.collect(document, is_staged=False)
            if document.key.id.startswith(LEDGER_PREFIX):
                return await self._finish_ledger(document)
            inbox = bytes.fromhex(document.key.id.removeprefix(RECORD_PREFIX))
            await self.finish(document, stored.decode(document, Record), inbox)
        except NothingCommitted:
            return False
        return True

    async def _finish_ledger(self, document: Document) -> bool | None:
        """Push the outputs of a ledger's open entries; an unchanged ledger is read at growing intervals."""
        version, next_ms = self._looked.get(document.key.id, ("", 0))
        now_ms = self._parts.now_ms()
        if version == document.version and now_ms < next_ms:
            return None
        is_finished = await finish_ledger(self._parts.records, document, self._finish_entry)
        if len(self._looked) >= LOOKED_COUNT_MAX:
            self._looked.clear()
        rest_ms = (now_ms - stored.decode(document, LedgerItem).at_ms) // 2
        self._looked[document.key.id] = document.version, now_ms + min(rest_ms, LOOK_AGAIN_MS_MAX)
        return is_finished

    async def _finish_entry(self, document: Document, record: Record) -> None:
        """Push the outputs of a record that no ledger lists as sent; an old one that fails is made pending.

        Raises:
            NothingCommitted: they could not be pushed now.
        """
        try:
            await self._parts.settlement.push(list(record.outputs))
        except NothingCommitted:
            if self._parts.now_ms() - record.at_ms >= PENDING_AFTER_MS:
                pending = msgspec.structs.replace(record, pending=True, entry="")
                write = Replace(document.key, stored.encode(pending), document.version, None, Tag("keep"))
                await write_known(self._parts.records, write)
            raise


class OrphanedStaged:
    """The staged records of one worker that may be orphans."""

    def __init__(self, states: StateStore, infrastructure: StateStore) -> None:
        self._states = states
        self._infrastructure = infrastructure
        self.by_state: dict[str, list[tuple[str, int]]] = {}
        """The transactions staged for each state, and the version that each loaded."""

    def note(self, state_id: str, tx: str, version: int) -> None:
        """Remember a transaction before it is staged."""
        if len(self.by_state) < LEFT_COUNT_MAX:
            self.by_state.setdefault(state_id, []).append((tx, version))

    async def reclaim(self, state_id: str, state: CachedState, *, but: str) -> None:
        """Delete the staged records of lost attempts, for a state past them and without a pointer."""
        left = self.by_state.pop(state_id, [])
        for tx, version in left:
            if tx == but:
                continue
            if version >= state.item.version:
                self.by_state.setdefault(state_id, []).append((tx, version))
                continue
            found = await read(self._infrastructure, staged_key(state_id, tx))
            if found is not None:
                await self.delete(found.key, found.version, tx)

    async def redo(self, document: Document) -> bool:
        """Delete a staged record whose state is past it and points elsewhere; whether it was.

        Raises:
            NothingCommitted: its state cannot be read now.
        """
        staged = stored.decode(document, Staged)
        state = cached_state(await read(self._states, state_key(staged.state)))
        if state.item.version <= staged.version or state.item.pointer == staged.pending:
            return False
        await self.delete(document.key, document.version, staged.pending)
        return True

    async def delete(self, key: DocumentKey, version: Version, tx: str) -> None:
        """Delete an orphaned staged record; if that fails the sweeper finds it."""
        with suppress(*MAY_RETRY):
            await self._infrastructure.write([Delete(key, version, Tag("unstage", (), tx))])
