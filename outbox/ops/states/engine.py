"""States on an engine: one, all of one instant as lines, and lines written by If-Match."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from heapq import nsmallest
from typing import Any

import msgspec

from outbox.engine.core import check_room
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.errors import Refused
from outbox.lineage import state_id
from outbox.ops.shared.names import listed, parse_key
from outbox.ops.shared.on_engine import MOVED_COUNT, EngineSite, in_slices, states_of_one_instant
from outbox.ops.states.lines import Beginning, Stored, entry_of, id_in, judged, line_of, value_in
from outbox.ops.values.requests import Answers, Streams
from outbox.ops.values.states import (
    Export,
    ListStates,
    ReadState,
    ReadStates,
    StateLine,
    StatesPage,
    StateWritten,
    WriteStates,
)
from outbox.ports import StateDocument
from outbox.runtime.start.notes import HANDLER_PREFIX, states_of

_line = msgspec.json.Encoder().encode


class ExportedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of an export. For a key too long to be stored in clear `key` is None, and `id` names the state."""

    state: str
    key: str | int | None
    value: msgspec.Raw
    id: str = ""


async def read_state(at: EngineSite, asked: ReadState) -> bytes | None:
    """Read the JSON of a state.

    Raises:
        Refused: the key is not of its kind.
        LookupError: no state and no handler has this type.
    """
    found = at.engine.documents.read(STATES, state_id(asked.type, parse_key(asked.key, asked.kind)))
    await at.engine.core.gate()
    if found is None:
        await _check_types(at, {asked.type})
    return found.value if found is not None and found.value else None


def export(at: EngineSite, asked: Export) -> AsyncIterator[bytes]:
    def exported(id: str, stored: Stored) -> ExportedState:
        line = line_of(id, stored)
        return ExportedState(line.type, line.key, line.value, line.id)

    return _lines(at, asked.type, exported)


def read_states(at: EngineSite, asked: ReadStates) -> AsyncIterator[bytes]:
    return _lines(at, asked.type, line_of)


async def _lines(at: EngineSite, type: str, line_of: Callable[[str, Stored], Any]) -> AsyncIterator[bytes]:
    """All states of one instant, or those of one type, as lines in pieces."""
    if type:
        await _check_types(at, {type})
    prefix, pages = f"{type}:" if type else "", states_of_one_instant(at.engine)
    await at.engine.core.gate()
    async for page in pages:
        lines = [_line(line_of(id, _stored(each))) for id, each in page if each.value and id.startswith(prefix)]
        if lines:
            yield b"\n".join(lines) + b"\n"


async def list_states(at: EngineSite, asked: ListStates) -> StatesPage:
    """List states in the order of their ids; a page reads all ids, slice by slice.

    Raises:
        Refused: the beginning of a key is none.
        LookupError: no state and no handler has this type.
    """
    if asked.type:
        await _check_types(at, {asked.type})
    wanted, states, found = Beginning(asked), at.engine.state.documents.spaces[STATES], list[str]()
    async for some in in_slices(list(states)):
        there = [id for id in some if wanted.has(id) and (kept := states.get(id)) is not None and kept.value]
        found = nsmallest(asked.count + 1, [*found, *there])
    shown = found[: asked.count]
    stored = [(id, _stored(kept)) for id in shown if (kept := states.get(id)) is not None and kept.value]
    await at.engine.core.gate()
    return StatesPage([entry_of(*each) for each in stored], shown[-1] if len(found) > asked.count else "")


async def write_states(at: EngineSite, asked: WriteStates) -> list[StateWritten]:
    """Write each line by If-Match; what became of each, in their order.

    Raises:
        Throttled: the engine holds all that it may; nothing more was written.
    """
    await _check_types(at, {line.type for line in asked.states}, or_there_is_none=True)
    if not asked.dry_run:
        check_room(at.engine.state, at.engine.core.limits)
    done = list[StateWritten]()
    async for some in in_slices(asked.states, MOVED_COUNT):
        done += [_write(at, line, dry_run=asked.dry_run) for line in some]
    await at.engine.core.gate()
    return done


async def _check_types(at: EngineSite, types: set[str], *, or_there_is_none: bool = False) -> None:
    """Check that states or handlers have these types, so that a misspelt one does not look empty.

    With `or_there_is_none` any will do where no type is known at all.
    """
    known = await states_of(at.notes(HANDLER_PREFIX))
    known |= set() if at.app is None else at.app.states().keys()
    if types <= known:
        return
    async for some in in_slices(list(at.engine.state.documents.spaces[STATES])):
        known.update([id.rpartition(":")[0] for id in some])  # a key's own colons are escaped in an id
        if types <= known:
            return
    if known or not or_there_is_none:
        unknown, there = sorted(types - known)[0][:80], listed(known)
        raise LookupError(f"no state is of type {unknown!r}; there are: {there}.  Check the spelling")


def _write(at: EngineSite, line: StateLine, *, dry_run: bool) -> StateWritten:
    id = line.id or str(line.key)
    try:
        id, value = id_in(line), value_in(line, at.app)
        document = at.engine.documents.read(STATES, id)
        verdict = judged(line, id, value, None if document is None else _stored(document))
        if verdict.outcome != "written" or dry_run:
            return verdict
        version = 0 if document is None else document.version
        change = Modify(documents=[DocWrite(STATES, id, value, version, schema=line.schema)])
        if at.engine.documents.modify(change) is None:
            return StateWritten("changed", id, "it was changed meanwhile")
    except Refused as error:
        return StateWritten("refused", id, str(error))
    written = at.engine.documents.read(STATES, id)
    if at.on_written is not None and written is not None:
        at.on_written(id, written.serial)
    return verdict


def _stored(document: StateDocument) -> Stored:
    return Stored(str(document.version), document.value, document.schema)


ANSWERS: Answers = {ListStates: list_states, ReadState: read_state, WriteStates: write_states}
LINES: Streams = {Export: export, ReadStates: read_states}
