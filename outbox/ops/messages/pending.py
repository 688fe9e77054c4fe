"""Pending transactions of a store: outputs that are not known to have left, and how to finish them.

A worker's sweeper finishes them a minute after the commit; the ones that stay cannot be sent.  Finishing one by hand
tries once more now, and returns the cause where it fails.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import suppress

import msgspec

from outbox import stored
from outbox.errors import CorruptRecord, OutboxError, Refused
from outbox.ops.shared.on_store import StoreSite
from outbox.ops.shared.text import age
from outbox.ops.values.messages import Finish, ListPending, PendingFinished, PendingOutput, PendingView
from outbox.ops.values.requests import Answers
from outbox.ports import Document, Output, StateStore, StorePorts
from outbox.runtime.commit.dispatch_ledger import unsent_of
from outbox.runtime.commit.sweeper import GRACE_S, written_ms
from outbox.runtime.scopes import longest_life, plan_without_app, protocols_without_app, stores_of
from outbox.stored import (
    LEDGER_PREFIX,
    OVERFLOW_PREFIX,
    RECORD_PREFIX,
    STAGED_PREFIX,
    STATE,
    Inline,
    LedgerItem,
    Overflow,
    Record,
    Staged,
    StateItem,
    staged_key,
)

PENDING_COUNT_MAX = 1_000
OUTPUTS_SHOWN_MAX = 20


async def list_pending(at: StoreSite, asked: ListPending) -> list[PendingView]:
    """List the pending transactions of the stores, until `PENDING_COUNT_MAX` are found."""
    return await pending_in(at.ports)


async def pending_in(ports: StorePorts) -> list[PendingView]:
    """List the pending transactions of the stores, until `PENDING_COUNT_MAX` are found."""
    now_ms, found = ports.operations.now_ms(), list[PendingView]()
    async for store, document in _unfinished(ports):
        found += [view async for view in _views(store, document, now_ms)]
        if len(found) >= PENDING_COUNT_MAX:
            break
    # A record that a state points to is told of with the state.
    pointed = {view.tx for view in found if view.document.endswith(f"/{STATE}")}
    return [view for view in found if view.tx not in pointed or f"/{STAGED_PREFIX}" not in view.document]


async def finish(at: StoreSite, asked: Finish) -> PendingFinished:
    """Finish what a transaction left (None: everything), if it is older than workers leave it to each other.

    Blobs that were announced are left to workers, which know in which scope they were.

    Raises:
        LookupError: nothing is pending of it.
        Refused: nothing of ours is in the store, or several transactions begin so.
    """
    ports, tx = at.ports, None if asked.tx is None else await _full_tx(at.ports, asked.tx)
    now_ms = ports.operations.now_ms()
    life_ms, margin_ms = await longest_life(ports.infrastructure or ports.store)
    protocols, failed = protocols_without_app(ports, plan_without_app(life_ms, margin_ms))
    finished = young = left = 0
    pointed, troubles = set[str](), list[str]()
    async for store, document in _unfinished(ports):
        its = {view.tx async for view in _views(store, document, now_ms)}
        if (tx is not None and tx not in its) or (document.key.id.startswith(STAGED_PREFIX) and its <= pointed):
            continue
        pointed |= its if document.key.id == STATE else set()
        try:
            if now_ms - written_ms(document) < GRACE_S * 1_000:
                young += 1
            elif document.key.id.startswith(OVERFLOW_PREFIX) or await protocols.of(document).redo(document) is False:
                left += 1
            else:
                finished += 1
        except (OutboxError, msgspec.MsgspecError, ValueError, RecursionError) as error:
            left += 1
            troubles.append(f"{document.key.partition}/{document.key.id}: {error}")
    await protocols.finish()
    for one in failed.take():
        troubles.append(f"{one.destination}: {one.count} not sent ({', '.join(one.ids)}): {one.error}")
    return PendingFinished(finished, young, left, troubles)


async def pending_records(ports: StorePorts) -> AsyncIterator[tuple[str, Record]]:
    """Yield records whose outputs are not known to have left, with their transactions, until `PENDING_COUNT_MAX`."""
    count = 0
    async for store, document in _unfinished(ports):
        with suppress(CorruptRecord):
            async for tx, record in _records(store, document):
                if record is not None:
                    count += 1
                    yield tx, record
        if count >= PENDING_COUNT_MAX:
            return


async def _records(store: StateStore, document: Document) -> AsyncIterator[tuple[str, Record | None]]:
    id = document.key.id
    if id == STATE:
        item = stored.decode(document, StateItem)
        record = item.pending.record if isinstance(item.pending, Inline) else await _staged(store, document, item)
        yield item.pointer, record
    elif id.startswith(RECORD_PREFIX):
        found = stored.decode(document, Record)
        yield found.tx, found
    elif id.startswith(LEDGER_PREFIX):
        async for _, unsent in unsent_of(store, stored.decode(document, LedgerItem)):
            yield unsent.tx, unsent


async def _full_tx(ports: StorePorts, text: str) -> str:
    """The transaction that a text names or begins."""
    if not text:
        raise LookupError("an empty name stands for no transaction; `outbox pending list` shows what is pending")
    known = {view.tx for view in await pending_in(ports)}
    found = {text} & known or {tx for tx in known if tx.startswith(text)}
    if not found:
        raise LookupError(f"nothing is pending of {text!r}; `outbox pending list` shows what is")
    if len(found) > 1:
        raise Refused(f"{len(found)} transactions begin with {text!r}; give more of it")
    return next(iter(found))


async def _unfinished(ports: StorePorts) -> AsyncIterator[tuple[StateStore, Document]]:
    """Yield unfinished documents; staged records come last, if they are still there: they go with their states."""
    staged: list[tuple[StateStore, Document]] = []
    for store in stores_of(ports):
        async for document in store.unfinished():
            if document.key.id.startswith(STAGED_PREFIX):
                staged.append((store, document))
            else:
                yield store, document
    for store, document in staged[:PENDING_COUNT_MAX]:
        if (found := await store.read(document.key)) is not None:
            yield store, found


async def _views(store: StateStore, document: Document, now_ms: int) -> AsyncIterator[PendingView]:
    """Yield a view of each unfinished record in a document; a ledger has several."""
    id = document.key.id
    try:
        if id == STATE:
            item = stored.decode(document, StateItem)
            record = item.pending.record if isinstance(item.pending, Inline) else await _staged(store, document, item)
            yield _of_record(document, record, now_ms, tx=item.pointer)
        elif id.startswith(RECORD_PREFIX):
            yield _of_record(document, stored.decode(document, Record), now_ms)
        elif id.startswith(STAGED_PREFIX):
            staged = stored.decode(document, Staged)
            why = "takes effect if the swap of its state lands, else a sweeper removes it"
            yield _view(document, staged.pending, staged.record.at_ms, now_ms, why, staged.record.outputs)
        elif id.startswith(OVERFLOW_PREFIX):
            overflow = stored.decode(document, Overflow)
            why = f"announces blob {overflow.blob}, which a sweeper removes unless a commit points to it"
            yield _view(document, overflow.pending, overflow.at_ms, now_ms, why)
        elif id.startswith(LEDGER_PREFIX):
            async for unsent, record in unsent_of(store, stored.decode(document, LedgerItem)):
                yield _of_record(unsent, record, now_ms)
        else:
            raise CorruptRecord("no kind of ours")
    except CorruptRecord as error:
        yield _view(document, "", 0, now_ms, f"is not of this framework; check what else writes here: {error}")


async def _staged(store: StateStore, document: Document, item: StateItem) -> Record | None:
    """The record that a state points to; None where it is gone, and only the pointer has to be cleared."""
    found = await store.read(staged_key(document.key.partition, item.pointer), session=item.token)
    return None if found is None else stored.decode(found, Staged).record


def _of_record(document: Document, record: Record | None, now_ms: int, *, tx: str = "") -> PendingView:
    if record is None:
        return _view(document, tx, 0, now_ms, "its outputs have left; the state still points to it")
    outputs = record.outputs
    counted = f"{len(outputs)} output{'' if len(outputs) == 1 else 's'}"
    what = f"outputs in blob {record.spilled}" if record.spilled else counted
    why = f"{what} not known to have left; a worker's sweeper sends them again, a minute after the commit"
    return _view(document, tx or record.tx, record.at_ms, now_ms, why, outputs)


def _view(
    document: Document, tx: str, at_ms: int, now_ms: int, why: str, outputs: Sequence[Output] = ()
) -> PendingView:
    since = f"committed {age(max(0, now_ms - at_ms) / 1_000)} ago: " if at_ms else ""
    shown = [
        PendingOutput(output.message.identity, output.destination, len(output.message.body))
        for output in outputs[:OUTPUTS_SHOWN_MAX]
    ]
    place = f"{document.key.partition}/{document.key.id}"
    return PendingView(tx, place, at_ms / 1_000, since + why, shown, len(outputs) - len(shown))


ANSWERS: Answers = {ListPending: list_pending, Finish: finish}
