"""The states of an engine: all of one instant as lines, and lines written by If-Match."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from heapq import nlargest

import msgspec

from outbox.app import App
from outbox.engine.checks import check_room
from outbox.engine.engine import Engine
from outbox.engine.log.records import DocWrite, Modify
from outbox.engine.state.documents import STATES
from outbox.errors import Refused
from outbox.ops.slices import MOVED_COUNT, in_slices
from outbox.ops.state_lines import Stored, id_in, judged, line_of, value_in
from outbox.ops.state_values import StateLine, StateWrites, StateWritten
from outbox.ops.values import LargeState
from outbox.ports import StateDocument
from outbox.runtime.signs import LARGE_COUNT_MAX, LARGE_STATE_BYTES

_line = msgspec.json.Encoder().encode

OnWritten = Callable[[str, int], None]
"""Called with the id and serial of a state that an operator wrote, for a history."""


async def states_of_engine(engine: Engine, type: str) -> AsyncIterator[bytes]:
    """All states of one instant, or those of one type, as lines in pieces of some hundred."""
    prefix, pages = f"{type}:" if type else "", states_of_one_instant(engine)
    await engine.core.gate()
    async for page in pages:
        lines = [_line(line_of(id, _stored(each))) for id, each in page if each.value and id.startswith(prefix)]
        if lines:
            yield b"\n".join(lines) + b"\n"


def states_of_one_instant(engine: Engine) -> AsyncIterator[list[tuple[str, StateDocument]]]:
    """All states of this instant, by their ids, slice by slice however slow the reader is."""
    states = engine.state.documents.spaces[STATES]
    return in_slices(zip(list(states), list(states.values()), strict=True))  # documents never change


async def large_states_of(engine: Engine) -> list[LargeState]:
    """The largest states, of those that are too large."""
    found: list[LargeState] = []
    async for some in states_of_one_instant(engine):
        large = [LargeState(id, len(each.value)) for id, each in some if len(each.value) > LARGE_STATE_BYTES]
        found = nlargest(LARGE_COUNT_MAX, [*found, *large], key=lambda each: each.size_bytes) if large else found
    return found


async def write_states_of_engine(
    engine: Engine, asked: StateWrites, app: App | None, on_written: OnWritten | None
) -> list[StateWritten]:
    """Write each line by If-Match; what became of each, in their order.

    Raises:
        Throttled: the engine holds all that it may; nothing more was written.
    """
    if not asked.dry_run:
        check_room(engine.state, engine.core.limits)
    done = list[StateWritten]()
    async for some in in_slices(asked.states, MOVED_COUNT):
        done += [_write(engine, line, app, on_written, dry_run=asked.dry_run) for line in some]
    await engine.core.gate()
    return done


def _write(
    engine: Engine, line: StateLine, app: App | None, on_written: OnWritten | None, *, dry_run: bool
) -> StateWritten:
    id = line.id or str(line.key)
    try:
        id, value = id_in(line), value_in(line, app)
        document = engine.documents.read(STATES, id)
        verdict = judged(line, id, value, None if document is None else _stored(document))
        if verdict.outcome != "written" or dry_run:
            return verdict
        version = 0 if document is None else document.version
        change = Modify(documents=[DocWrite(STATES, id, value, version, schema=line.schema)])
        if engine.documents.modify(change) is None:
            return StateWritten("changed", id, "it was changed meanwhile")
    except Refused as error:
        return StateWritten("refused", id, str(error))
    written = engine.documents.read(STATES, id)
    if on_written is not None and written is not None:
        on_written(id, written.serial)
    return verdict


def _stored(document: StateDocument) -> Stored:
    return Stored(str(document.version), document.value, document.schema)
