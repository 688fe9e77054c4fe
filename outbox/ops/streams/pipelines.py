"""The pipelines in a store, for operators: how far each is, a key's state as of the checkpoint, an audit.

All of it is read off a pipeline's register, the parts that it names, and its logs where these are in the same store: no
code of the pipeline is needed, and it may run meanwhile.  The audit takes what it compares in such an order that a
pipeline that goes on cannot make a finding, and looks at the register again before it says that something is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from outbox.errors import CorruptRecord, Refused
from outbox.ops.shared.names import parse_key
from outbox.ops.streams import logs
from outbox.ops.streams.logs import LISTED_MAX, ROWS_SHOWN_MAX, StreamPlace, registers_in
from outbox.ops.values.requests import Answers
from outbox.ops.values.streams import (
    AuditPipeline,
    ChainView,
    CheckpointView,
    PipelineAudit,
    PipelineState,
    PipelineView,
    ReadPipelines,
    ReadPipelineState,
)
from outbox.runtime.gather import side_by_side
from outbox.streams.cells import Cell, Cells, Position
from outbox.streams.horizon import Floor, Horizon
from outbox.streams.pipeline.barrier import Names
from outbox.streams.pipeline.checkpoint import (
    PIPELINE,
    Checkpoint,
    Held,
    PartRef,
    PipelineRegister,
    Section,
    lines_of,
    merged,
    sections_of,
)
from outbox.streams.pipeline.figures import figures_of
from outbox.streams.pipeline.replica import read_part
from outbox.streams.pipeline.states import GONE, slot_of, text_of
from outbox.streams.register import RegisterCell
from outbox.streams.values import whole

FINDINGS_MAX = 100
LEFT_OVER_MAX = 1_000
BUNDLES_READ = 16
"""How many bundles of a sink an audit has in memory."""
NOWHERE = Position(-1)
TRIES_MAX = 5
"""How often the parts of a checkpoint are read while others take its place."""


def _cells(at: StreamPlace, row: str) -> Cells:
    return Cells(at.place.store, row, now_ms=at.place.now_ms)


def _sink_row(sink: str) -> str:
    return f"log/{sink}/0.0"


async def _register(at: StreamPlace, name: str) -> PipelineRegister:
    """The register of a pipeline.

    Raises:
        LookupError: there is none of this name.
        CorruptRecord: it cannot be decoded.
    """
    kept = await RegisterCell(at.place.store, f"{PIPELINE}{name}", PipelineRegister, new_id=str).read()
    if kept is None:
        names, _ = await registers_in(at, (PIPELINE,))
        known = ", ".join(each.removeprefix(PIPELINE) for each in names[:ROWS_SHOWN_MAX]) or "none yet"
        raise LookupError(f"there is no pipeline {name[:80]!r} in {at.name}; there are: {known}.  Check the spelling")
    return kept.register


# How far they are


async def read_pipelines(at: StreamPlace, asked: ReadPipelines) -> list[PipelineView]:
    """A pipeline, or all, up to LISTED_MAX.

    Raises:
        LookupError: there is none of this name.
    """
    if asked.name:
        await _register(at, asked.name)
    names = [f"{PIPELINE}{asked.name}"] if asked.name else (await registers_in(at, (PIPELINE,)))[0][:LISTED_MAX]
    return await side_by_side(names, lambda name: _view(at, name.removeprefix(PIPELINE)))


async def _view(at: StreamPlace, name: str) -> PipelineView:
    try:
        register = await _register(at, name)
        sinks = {sink: _cells(at, _sink_row(sink)) for sink in register.stands.sinks}
        figures = await figures_of(register.stands, _cells(at, register.source), sinks)
    except CorruptRecord as error:
        return PipelineView(name, error=str(error))
    return PipelineView(
        name,
        register.serial,
        register.version,
        register.graph,
        register.source,
        _checkpoint(register.stands),
        [_checkpoint(each) for each in register.kept],
        [version for version, _ in register.before],
        figures,
    )


def _checkpoint(known: Checkpoint) -> CheckpointView:
    size_bytes = sum(part.size_bytes for part in known.parts)
    sinks = {name: ChainView(chain.next, str(chain.begin)) for name, chain in known.sinks.items()}
    return CheckpointView(known.n, str(known.c), known.time, known.made, len(known.parts), size_bytes, sinks)


# A key's state


async def read_pipeline_state(at: StreamPlace, asked: ReadPipelineState) -> PipelineState:
    """The state of a key, of the parts of the checkpoint that stands.

    Raises:
        LookupError: there is no such pipeline, or no operator of this name has states.
        CorruptRecord: a part is missing, or not the one that was written.
    """
    stands = (await _register(at, asked.name)).stands
    for _ in range(TRIES_MAX):
        try:
            return await _state(at, stands, asked)
        except CorruptRecord:
            known, stands = stands, (await _register(at, asked.name)).stands
            if stands == known:
                raise
    raise Refused(f"pipeline {asked.name} makes checkpoints faster than their parts can be read; ask again")


async def _state(at: StreamPlace, stands: Checkpoint, asked: ReadPipelineState) -> PipelineState:
    key = parse_key(asked.key, asked.kind)
    place, operators = (asked.operator, slot_of(key)), set[str]()
    found: list[Section] = []
    for part in stands.parts:
        for section in sections_of(await read_part(at.place, part), part):
            operators.add(section.operator)
            if section.place == place:
                found.append(section)
    if operators and asked.operator not in operators:
        known = ", ".join(sorted(operators))
        raise LookupError(f"pipeline {asked.name} has no states of {asked.operator[:80]!r}; there are those of {known}")
    raw = merged(found).states.get(text_of(key)) if found else None
    return PipelineState(stands.n, str(stands.c), msgspec.Raw(GONE) if raw is None else raw)


# An audit


class _Finding(NamedTuple):
    """A fault, and whether it still is one by a later register."""

    text: str
    is_so: Callable[[PipelineRegister], bool] = lambda now: True


async def audit_pipeline(at: StreamPlace, asked: AuditPipeline) -> PipelineAudit:
    """Compare a pipeline's register with its parts, the chains of its sinks and the floors.

    Raises:
        LookupError: there is no such pipeline.
        CorruptRecord: its register cannot be decoded.
    """
    earlier = await _register(at, asked.name)
    listed = getattr(at.place.blobs, "names", None)  # an engine's folder has none, because it has only their digests
    written = None if listed is None else {name async for name in listed(f"{PIPELINE}{asked.name}")}
    rows = {row: Horizon(_cells(at, row)) for row in (earlier.source, *map(_sink_row, earlier.stands.sinks))}
    floors = {row: await horizon.read() for row, horizon in rows.items()}
    register = await _register(at, asked.name)  # behind the floors, which follow it
    found = [_Finding(f"{row} is not here") for row, horizon in rows.items() if not horizon.version]
    found += [*_order_findings(register), *_floor_findings(asked.name, register, floors)]
    found += await _part_findings(at, register)
    ends = {  # not below what the register names: what is missing there is found
        sink: await _cells(at, _sink_row(sink)).find_end(max(floors[_sink_row(sink)].index, chain.next))
        for sink, chain in register.stands.sinks.items()
    }
    source_end = Position(await _cells(at, register.source).find_end(floors[register.source].index))
    for sink, end in ends.items() if not register.release else ():
        found += await _chain_findings(at, Names(asked.name, 0, "", sink), register, end, source_end)
    if found:
        now = await _register(at, asked.name)
        found = [each for each in found if each.is_so(now)]
    left_over = None if written is None else sorted(written - register.blobs() - earlier.blobs())[:LEFT_OVER_MAX]
    bundles = sum(end - register.oldest.sinks[sink].next for sink, end in ends.items())
    texts = [each.text for each in found[:FINDINGS_MAX]]
    return PipelineAudit(asked.name, register.stands.n, len(register.blobs()), bundles, texts, left_over)


def _order_findings(register: PipelineRegister) -> list[_Finding]:
    """Checkpoints that do not follow each other, or whose chains begin behind them."""
    checkpoints = (*register.kept, register.stands)
    found = [
        f"checkpoint {later.n} at {later.c} follows {known.n} at {known.c}"
        for known, later in pairwise(checkpoints)
        if later.n <= known.n or later.c < known.c
    ]
    found += [
        f"checkpoint {each.n} is at {each.c}, and goes on in log {sink} at {chain.begin}: what is between is lost"
        for each in checkpoints
        for sink, chain in each.sinks.items()
        if chain.begin > each.c
    ]
    return [_Finding(text) for text in found]


def _floor_findings(name: str, register: PipelineRegister, floors: Mapping[str, Floor]) -> Iterator[_Finding]:
    """Floors above what the oldest checkpoint needs, or that do not wait for it."""
    oldest = register.oldest
    needs = {register.source: (oldest.c.index, floors[register.source].readers)}
    needs |= {_sink_row(sink): (each.next, floors[_sink_row(sink)].writers) for sink, each in oldest.sinks.items()}
    for row, (needed, registered) in needs.items():
        waits_at = registered.get(f"{PIPELINE}{name}")
        if floors[row].index > needed:
            yield _Finding(
                f"{row} is trimmed up to {floors[row].index}, and checkpoint {oldest.n} needs it from {needed} on"
            )
        if waits_at is None or waits_at > needed:
            at = "not at all" if waits_at is None else f"at {waits_at}"
            yield _Finding(
                f"trims of {row} wait for the pipeline {at}, and checkpoint {oldest.n} needs it from {needed} on"
            )


async def _part_findings(at: StreamPlace, register: PipelineRegister) -> list[_Finding]:
    """Parts that are missing, or not as they were written."""
    found = []
    checkpoints, kinds = (*register.kept, register.stands), dict[PartRef, type[Any]]()
    for each in checkpoints:
        kinds |= dict.fromkeys(each.parts, Section) | dict.fromkeys(each.held, Held)
    for part, kind in kinds.items():
        try:
            for _ in lines_of(await read_part(at.place, part), part, kind):
                pass
        except CorruptRecord as error:
            found.append(_Finding(str(error), partial(_is_named, part.blob)))
    return found


def _is_named(blob: str, now: PipelineRegister) -> bool:
    return blob in now.blobs()


async def _chain_findings(
    at: StreamPlace, names: Names, register: PipelineRegister, end: int, source_end: Position
) -> list[_Finding]:
    """Breaks in the chain of a sink, from the oldest checkpoint on up to `end`."""
    sink, first, found = names.sink, register.oldest.sinks[names.sink], list[_Finding]()
    versions = ((register.version, register.graph), *register.before)
    ours = [names._replace(version=version, graph=graph) for version, graph in versions]
    cells = _cells(at, _sink_row(sink))
    expected: Position | None = first.begin
    begins: dict[int, Position | None] = {}
    for index in range(first.next, end, BUNDLES_READ):
        if len(found) >= FINDINGS_MAX:
            return found
        batch = range(index, min(end, index + BUNDLES_READ))
        for each, cell in zip(batch, await side_by_side(batch, partial(_bundle, at, cells)), strict=True):
            begins[each] = expected
            wrong = _wrong(cell, expected, ours)
            if wrong:
                text = f"bundle {each} of log {sink} {wrong}"
                found.append(_Finding(text, partial(_is_needed, sink, each, register.version)))
            expected = cell.until if isinstance(cell, Cell) else None
    begins[end] = expected
    if expected is not None and expected > source_end:
        found.append(_Finding(f"log {sink} covers its source up to {expected}, which ends at {source_end}"))
    for checkpoint in (*register.kept, register.stands):
        chain = checkpoint.sinks[sink]
        if begins.get(chain.next, NOWHERE) not in (None, chain.begin):
            text = f"checkpoint {checkpoint.n} goes on at bundle {chain.next} of log {sink}, from {chain.begin} on"
            found.append(_Finding(f"{text}, and there is none"))
    return found


def _is_needed(sink: str, index: int, version: int, now: PipelineRegister) -> bool:
    """Whether a register of the same version still needs a bundle."""
    return now.version == version and now.oldest.sinks[sink].next <= index


async def _bundle(at: StreamPlace, cells: Cells, index: int) -> Cell | CorruptRecord | None:
    try:
        cell = await cells.read(index)
        return cell if cell is None or cell.gone else await whole(cell, at.place.blobs, f"{cells.row}/{index}")
    except CorruptRecord as error:
        return error


def _wrong(cell: Cell | CorruptRecord | None, expected: Position | None, ours: Sequence[Names]) -> str:
    """The fault of a cell of a chain that is to begin at a position; empty: none."""
    if not isinstance(cell, Cell):
        return "is missing" if cell is None else f"cannot be read: {cell}"
    begin, until = cell.begin, cell.until
    if cell.gone:
        return "is trimmed"
    if begin is None or until is None or all(cell.id != names.id(begin, until) for names in ours):
        return "is none of this pipeline's: something else writes into the log"
    if until <= begin:
        return f"ends at {until}, and begins at {begin}"
    return "" if expected in (None, begin) else f"begins at {begin}, and the one before it ends at {expected}"


ANSWERS: Answers = {
    **logs.ANSWERS,
    ReadPipelines: read_pipelines,
    ReadPipelineState: read_pipeline_state,
    AuditPipeline: audit_pipeline,
}
"""The answers of a stream place, those on logs as well."""
