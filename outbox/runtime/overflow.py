"""Blobs of outputs that did not fit: announced before they are written, and deleted when nothing can need them.

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

from outbox import stored
from outbox.errors import OutcomeUnknown
from outbox.ports import BlobStore, Create, Delete, Document, DocumentKey, Session, StateStore, Tag
from outbox.runtime.access import confirmed, read, write_one
from outbox.runtime.backoff import NOT_DONE, Again
from outbox.runtime.cache import held
from outbox.runtime.plan import Plan
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
            Again: it is not known to be said.
        """
        tag = Tag("overflow", (overflow.inbox,), overflow.pending)
        try:
            await write_one(self._store, Create(key, stored.encode(overflow), None, tag))
        except OutcomeUnknown as error:
            raise Again from error

    async def collect(self, document: Document, *, is_staged: bool) -> bool:
        """Delete a blob that nothing can need any more, and what announced it; whether that is so.

        Raises:
            Again: it cannot be told now.
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
        except NOT_DONE as error:
            raise Again from error
        with suppress(*NOT_DONE):
            tag = Tag("collect", (overflow.inbox,), overflow.pending)
            await self._store.write([Delete(document.key, document.version, tag)])
        return True

    async def _is_free(self, overflow: Overflow) -> bool:
        """Partition scope: whether an attempt has lost, or has landed and its record is marked."""
        state = held(await read(self._states, state_key(overflow.state)) if overflow.state else None)
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
        Again: it has been marked meanwhile, or nobody can tell.
    """
    found = await read(store, key, session)
    if found is not None and blob.encode() in found.body:
        await confirmed(store, found)  # what was read may be of the past
        fields = {"document": f"{key.partition}/{key.id}", "blob": blob}
        log.critical(
            "outputs that are still to leave are missing, their key may stand still; restore the blob", extra=fields
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
