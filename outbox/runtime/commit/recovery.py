"""Recovery: push what a record still holds, for a message that follows it and for a sweeper.

A pending record is marked afterwards; of one with an entry in a dispatch ledger, the entry is closed.
"""

from __future__ import annotations

import msgspec

from outbox import stored
from outbox.ports import Document, Replace, Tag, Version
from outbox.runtime.commit.dispatch_ledger import DispatchLedger, finish_ledger
from outbox.runtime.commit.marks import Marks
from outbox.runtime.commit.overflow import Overflows, unsent_outputs
from outbox.runtime.commit.store_io import write_known
from outbox.runtime.delivery.retrying import NothingCommitted
from outbox.runtime.store_protocol import StoreParts
from outbox.stored import LEDGER_PREFIX, OVERFLOW_PREFIX, RECORD_PREFIX, LedgerItem, Record

PENDING_AFTER_MS = 3_600_000
"""A record of a dispatch ledger whose outputs have not left at this age is kept until they have."""
LOOKED_COUNT_MAX = 10_000
LOOK_AGAIN_MS_MAX = 3_600_000


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
