"""Item scope's way to a commit, watched: what is staged, which state points to it, when it may go.

A state and what is staged for it may lie in two stores, so what a swap means is known only together with what has
been staged: the ledger keeps that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from outbox.ports import Create, Delete, Write
from outbox.stored import STAGED_PREFIX, Record, Staged, StateItem
from outbox.verify.explorer.ops import Finding
from outbox.verify.promises.ledger import Applied, Book, Ledger, Marked

Entries = list[tuple[bytes, Record]]
Judge = Callable[[Entries, StateItem | None, StateItem | None, str], Applied | Finding]


class Staging(msgspec.Struct, frozen=True):
    """The meaning of a write of a staged record: it is there now, or (without a body) gone."""

    tx: str
    body: bytes = b""


class Swap(msgspec.Struct, frozen=True):
    """The meaning of a write that lets a state point to a transaction, or (where `tx` is empty) nowhere any more."""

    state_id: str
    before: bytes
    after: bytes
    tx: str


def staging(write: Write) -> Staging | Marked | None:
    """What a write of a staged record means."""
    tx = write.key.id.removeprefix(STAGED_PREFIX)
    match write:
        case Create():
            return Staging(tx, write.body)
        case Delete():
            return Staging(tx)
    staged = msgspec.json.decode(write.body, type=Staged)
    return Marked((staged.inbox,)) if staged.dispatched else None


def stage(ledger: Ledger, event: Staging) -> Ledger | Finding:
    """A ledger after a staged record has come or gone; it may go only when no state points to it."""
    others = frozenset(pair for pair in ledger.staged if pair[0] != event.tx)
    if event.body:
        return msgspec.structs.replace(ledger, staged=others | {(event.tx, event.body)})
    for state_id, tx in ledger.pointers:
        if tx == event.tx:
            return Finding("StagedVanish", f"transaction {tx} is deleted while {state_id} points to it")
    return msgspec.structs.replace(ledger, staged=others)


def swap(book: Book, ledger: Ledger, event: Swap, judge: Judge) -> Ledger | Finding:
    """A ledger after a state was pointed to a transaction, which is its commit, or nowhere."""
    before, after = (msgspec.json.decode(body, type=StateItem) for body in (event.before, event.after))
    pointers = frozenset(pair for pair in ledger.pointers if pair[0] != event.state_id)
    bodies = dict(ledger.staged)
    if not event.tx:
        body = bodies.get(before.pending)
        inboxes = () if body is None else (msgspec.json.decode(body, type=Staged).inbox,)
        return book.mark(msgspec.structs.replace(ledger, pointers=pointers), Marked(inboxes))
    if before.pending:
        text = f"{event.state_id} points to transaction {before.pending}, and is pointed to another"
        return Finding("NoLost", text)
    body = bodies.get(event.tx)
    if body is None:
        text = f"{event.state_id} points to transaction {event.tx}, which is not staged"
        return Finding("StagedVanish", text)
    staged = msgspec.json.decode(body, type=Staged)
    applied = judge([(staged.inbox, staged.record)], before, after, event.state_id)
    if isinstance(applied, Finding):
        return applied
    committed = book.apply(ledger, applied)
    if isinstance(committed, Finding):
        return committed
    return msgspec.structs.replace(committed, pointers=pointers | {(event.state_id, event.tx)})
