"""The states of a store: as lines, as they are read, and lines written by If-Match.

A store has no single instant: each state is as it was when it was read.  A write is conditional on the document's ETag,
so it never meets a state that a worker has changed since; and a state whose last transaction is not finished is left,
because its document holds what a worker still needs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from heapq import nsmallest
from typing import NoReturn

import msgspec

from outbox import stored
from outbox.errors import CorruptRecord, OutcomeUnknown, Refused
from outbox.lineage import state_id
from outbox.ops.shared.names import listed, parse_key
from outbox.ops.shared.on_store import ListedStore, StoreSite
from outbox.ops.states.lines import Beginning, Stored, entry_of, id_in, judged, line_of, value_in
from outbox.ops.values.requests import BATCH_COUNT_MAX, Answers, Streams
from outbox.ops.values.states import (
    Export,
    ListStates,
    ReadState,
    ReadStates,
    StateEntry,
    StateLine,
    StatesPage,
    StateWritten,
    WriteStates,
)
from outbox.ports import Create, Document, Lost, Replace, StateStore, Tag
from outbox.runtime.start.notes import HANDLER_PREFIX, states_of
from outbox.stored import STATE, StateItem, state_in, state_key

READ_COUNT = 16
"""How many states are read at once."""
_line = msgspec.json.Encoder().encode


async def read_states(at: StoreSite, asked: ReadStates) -> AsyncIterator[bytes]:
    """All states, or those of one type, as lines in pieces.

    Raises:
        LookupError: no state and no handler has this type.
        Refused: the store cannot list its states.
        CorruptRecord: a document is no state.
    """
    store = at.ports.store
    if asked.type:
        await _check_type(at, asked.type)
    ids: list[str] = []
    async for partition in _listed(store).partitions(f"{asked.type}:" if asked.type else "", holding=STATE):
        ids.append(partition)
        if len(ids) == READ_COUNT:
            yield await _page(store, ids)
            ids = []
    if ids:
        yield await _page(store, ids)


async def list_states(at: StoreSite, asked: ListStates) -> StatesPage:
    """List states in the order of their ids. A page costs one pass over the ids of its type, and a read of each state.

    Deleted states are left out, so a page may be short although others follow.

    Raises:
        Refused: the beginning of a key is none, or the store cannot list its states.
        LookupError: no state and no handler has this type.
    """
    if asked.type:
        await _check_type(at, asked.type)
    store, wanted, found = _listed(at.ports.store), Beginning(asked), list[str]()
    async for id in store.partitions(wanted.prefix, holding=STATE):
        if wanted.has(id):
            found.append(id)
        if len(found) > 2 * BATCH_COUNT_MAX:
            found = nsmallest(asked.count + 1, found)
    found = nsmallest(asked.count + 1, found)
    shown, entries = found[: asked.count], list[StateEntry]()
    for start in range(0, len(shown), READ_COUNT):
        some = shown[start : start + READ_COUNT]
        items = [state_in(each) for each in await asyncio.gather(*(at.ports.store.read(state_key(id)) for id in some))]
        stored = [(id, _stored(item)) for id, item in zip(some, items, strict=True)]
        entries += [entry_of(id, each) for id, each in stored if each.value]
    return StatesPage(entries, shown[-1] if len(found) > asked.count else "")


def _listed(store: StateStore) -> ListedStore:
    """The store as one that lists.

    Raises:
        Refused: it cannot list its states.
    """
    if not isinstance(store, ListedStore):
        raise Refused("this store cannot list its states; name a key, `outbox state TYPE KEY`, or query the container")
    return store


async def _page(store: StateStore, ids: Sequence[str]) -> bytes:
    found = await asyncio.gather(*(store.read(state_key(id)) for id in ids))
    items = [(id, state_in(document)) for id, document in zip(ids, found, strict=True) if document is not None]
    return b"".join(_line(line_of(id, _stored(item))) + b"\n" for id, item in items if not item.is_tombstone)


async def write_states(at: StoreSite, asked: WriteStates) -> list[StateWritten]:
    """Write each line by If-Match; what became of each, in their order.

    Raises:
        OutcomeUnknown, Throttled: the store does not answer; lines before this one may be written.
    """
    for type in sorted({line.type for line in asked.states}):
        await _check_type(at, type)
    now_ms = at.operations.now_ms()
    return [await _write(at.ports.store, line, now_ms, dry_run=asked.dry_run) for line in asked.states]


async def _write(store: StateStore, line: StateLine, now_ms: int, *, dry_run: bool) -> StateWritten:
    id = line.id or str(line.key)
    try:
        id, value = id_in(line), value_in(line, None)
        document = await store.read(state_key(id))
        item = state_in(document)
        verdict = judged(line, id, value, None if document is None else _stored(item))
        if verdict.outcome == "written" and item.pending:
            return StateWritten("refused", id, "its last transaction is not finished; `outbox pending finish` it first")
        if verdict.outcome != "written" or dry_run:
            return verdict
        after = StateItem(msgspec.Raw(value), line.schema, item.version + 1, now_ms, token=item.token)
        return await _put(store, document, id, after, verdict)
    except (Refused, CorruptRecord) as error:
        return StateWritten("refused", id, str(error))


async def _put(
    store: StateStore, document: Document | None, id: str, after: StateItem, verdict: StateWritten
) -> StateWritten:
    key, body, tag = state_key(id), stored.encode(after), Tag("state-put")
    write = Create(key, body, tag=tag) if document is None else Replace(key, body, document.version, tag=tag)
    try:
        answer = await store.write([write])
    except OutcomeUnknown:
        found = state_in(await store.read(key))
        if (found.version, bytes(found.value), found.at_ms) == (after.version, bytes(after.value), after.at_ms):
            return verdict
        raise
    return StateWritten("changed", id, "it was changed meanwhile") if isinstance(answer, Lost) else verdict


def _stored(item: StateItem) -> Stored:
    return Stored(str(item.version), b"" if item.is_tombstone else bytes(item.value), item.schema)


async def read_state(at: StoreSite, asked: ReadState) -> bytes | None:
    found = await at.operations.state(state_id(asked.type, parse_key(asked.key, asked.kind)))
    if found is None:
        await _check_type(at, asked.type)
    return found.value if found is not None and found.value else None


async def _check_type(at: StoreSite, type: str) -> None:
    """Check that a handler has a state of this type, where any is registered."""
    known = await states_of(at.notes(HANDLER_PREFIX))
    if known and type not in known:
        raise LookupError(f"no state is of type {type[:80]!r}; there are: {listed(known)}.  Check the spelling")


def export(at: StoreSite, asked: Export) -> NoReturn:
    """Refuse it.

    Raises:
        Refused: always.
    """
    raise Refused(
        "export works on an engine's folder, by --data; a store apart from its bus has no single instant; query the "
        "container"
    )


ANSWERS: Answers = {ListStates: list_states, ReadState: read_state, WriteStates: write_states}
LINES: Streams = {Export: export, ReadStates: read_states}
