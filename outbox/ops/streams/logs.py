"""The ordered logs and registers in a store, for operators: list, read as stored, trim.  No type is needed.

A log is found by the partitions of its rows, each of which has a floor.  An engine has all partitions in memory; Cosmos
DB finds those with a floor or a register by its index of ids, Blob Storage by their names.  How far behind a processor
is, its register says, where that is in the same store.  What other readers and writers have reported lags behind where
they are: a processor reports every 64 steps, and when it is idle, every five seconds.

What a list costs is limited: 100,000 partitions are looked at, and 1,000 rows and 1,000 registers shown, each with
some ten reads.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, Refused
from outbox.ops.shared.on_engine import in_slices
from outbox.ops.shared.on_store import ListedStore
from outbox.ops.values import requests
from outbox.ops.values.requests import Answers
from outbox.ops.values.streams import (
    ListStreams,
    ProcessorView,
    ReadStream,
    Streams,
    StreamTrimmed,
    StreamUnregistered,
    StreamView,
    TrimStream,
    Unregister,
)
from outbox.ops.values.streams import StreamRow as RowView
from outbox.runtime.gather import side_by_side
from outbox.streams.cells import FLOOR, Cell, Position
from outbox.streams.horizon import UNREAD, trimmed
from outbox.streams.log import MARGIN, is_name
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.checkpoint import PIPELINE, PipelineRegister
from outbox.streams.register import REGISTER, Kept, Register, RegisterCell
from outbox.streams.row import Row
from outbox.streams.values import Values

PIECE_BYTES = 64 << 10
ROWS_SHOWN_MAX = 12
LISTED_MAX = 1_000
"""The most rows, and the most registers, of a list."""
PARTITIONS_MAX = 100_000
"""The most partitions that are read for a list."""
_ROW = re.compile(r"log/([^/]+)/(\d{1,3})\.(\d{1,3})(?:/\d+)?").fullmatch
_REGISTERS = ("processor/", "ingest/", PIPELINE)
T = TypeVar("T")

KeptRegister = Kept[Register] | Kept[PipelineRegister] | CorruptRecord | None
Shard = tuple[int, int]
"""A writer shard and a reader shard."""


class StreamEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry as stored, of a schema version; `type` names its type where the log has several."""

    row: str
    position: str
    id: str
    at_ms: int
    value: msgspec.Raw
    type: str = ""
    schema: int = 1


@dataclass(frozen=True, slots=True)
class StreamPlace:
    """Where logs and registers lie: their documents, how partitions are found, and what errors call it.

    `sizes_bytes` gives what the documents of each row take, where that is known.
    """

    place: Place
    listed: ListedStore
    name: str
    sizes_bytes: Callable[[], Awaitable[Mapping[str, int]]] | None = None


def on_engine(engine: Engine, *, measured: bool = False) -> StreamPlace:
    """The logs and registers in an engine; `measured` with what their documents take."""
    found = _EnginePartitions(engine)
    return StreamPlace(place_of(engine), found, "this engine", found.sizes_bytes if measured else None)


def on_store(place: Place, name: str) -> StreamPlace:
    """The logs and registers in a store of its own.

    Raises:
        Refused: its partitions cannot be found.
    """
    if not isinstance(place.store, ListedStore):
        raise Refused(f"{name} cannot list its partitions; ask each log by OrderedLog.status(), read() and trim()")
    return StreamPlace(place, place.store, name)


@dataclass(frozen=True, slots=True)
class _EnginePartitions:
    """The partitions of an engine, which it has in memory."""

    engine: Engine

    async def partitions(self, prefix: str, *, holding: str) -> AsyncIterator[str]:
        for namespace in list(self.engine.state.documents.spaces):
            if namespace.startswith(f"p/{prefix}"):
                yield namespace.removeprefix("p/")

    async def sizes_bytes(self) -> Mapping[str, int]:
        """Return the stored bytes of each row's documents, tombstones too, by the row's partition."""
        found = Counter[str]()
        spaces = self.engine.state.documents.spaces
        async for names in in_slices([name for name in spaces if name.startswith("p/log/")]):
            for name in names:
                row = "/".join(name.split("/", 4)[1:4])
                async for some in in_slices(list(spaces.get(name, {}).values())):
                    found[row] += sum(len(document.value) for document in some)
        return found


# List


async def list_streams(at: StreamPlace, asked: ListStreams | None = None) -> Streams:
    """All logs and registers, up to LISTED_MAX rows and as many registers."""
    shards, has_more = await _shards(at, "log/")
    pairs = sorted((name, shard) for name, found in shards.items() for shard in found)
    sizes = None if at.sizes_bytes is None else await at.sizes_bytes()
    views = await side_by_side(pairs[:LISTED_MAX], lambda pair: _row_view(at, *pair, sizes))
    names, has_more_registers = await registers_in(at)
    kept = await side_by_side(names[:LISTED_MAX], partial(_register, at))
    cursors = {name: _cursors_of(register) for name, register in zip(names, kept, strict=False)}
    logs: dict[str, StreamView] = {}
    lags: dict[str, dict[str, int]] = {}
    for (name, _), (row, type, error) in zip(pairs, views, strict=False):
        known = logs.setdefault(name, StreamView(name, type, []))
        if row is not None:
            place = f"log/{name}/{row.row}"
            here = {who: row.end - reached[place] for who in row.readers if place in (reached := cursors.get(who, {}))}
            row = msgspec.structs.replace(row, readers=row.readers | here)  # by their registers, if those are here
            known.rows.append(row)
            for reader, lag in row.readers.items():
                lags.setdefault(reader, {})[f"{name}/{row.row}"] = lag
        logs[name] = StreamView(name, known.type or type, known.rows, known.error or error)
    found = [_processor(name, each, lags.get(name, {})) for name, each in zip(names, kept, strict=False)]
    is_cut = has_more or has_more_registers or max(len(pairs), len(names)) > LISTED_MAX
    return Streams(list(logs.values()), [each for each in found if each is not None], is_cut)


async def _shards(at: StreamPlace, prefix: str) -> tuple[dict[str, set[Shard]], bool]:
    """List the rows of each log under a prefix, and whether `PARTITIONS_MAX` cut the list."""
    found: dict[str, set[Shard]] = {}
    count = 0
    async for partition in at.listed.partitions(prefix, holding=FLOOR):
        if match := _ROW(partition):
            found.setdefault(match[1], set()).add((int(match[2]), int(match[3])))
        count += 1
        if count >= PARTITIONS_MAX:
            return found, True
    return found, False


async def registers_in(at: StreamPlace, prefixes: Sequence[str] = _REGISTERS) -> tuple[list[str], bool]:
    """List the partitions of registers, and whether `PARTITIONS_MAX` cut the list."""
    names = set[str]()
    for prefix in prefixes:
        async for partition in at.listed.partitions(prefix, holding=REGISTER):
            if partition != prefix:
                names.add(partition)
            if len(names) >= PARTITIONS_MAX:
                return sorted(names), True
    return sorted(names), False


def _row(at: StreamPlace, name: str, shard: Shard, margin_s: float = MARGIN.total_seconds()) -> Row[Any]:
    return Row(name, at.place, Values(name, Any), margin_s, *shard)


async def _row_view(
    at: StreamPlace, name: str, shard: Shard, sizes: Mapping[str, int] | None = None
) -> tuple[RowView | None, str, str]:
    """A row, the type of its entries and an error; one that something else has written into has no view."""
    row = _row(at, name, shard)
    try:
        floor = await row.horizon.read()
        end = await row.cells.find_end(floor.index)
    except CorruptRecord as error:
        return None, "", str(error)
    view = RowView(
        row=_shown(shard),
        floor=floor.index,
        end=end,
        cells=end - floor.index,
        readers={each: end - index for each, index in floor.readers.items()},
        writers={each: end - index for each, index in floor.writers.items()},
        size_bytes=msgspec.UNSET if sizes is None else sizes.get(row.name, 0),
    )
    return view, floor.type, ""


def _shown(shard: Shard) -> str:
    return f"{shard[0]}.{shard[1]}"


async def _register(at: StreamPlace, name: str) -> KeptRegister:
    try:
        if name.startswith(PIPELINE):
            return await RegisterCell(at.place.store, name, PipelineRegister, new_id=str).read()
        return await RegisterCell(at.place.store, name, Register, new_id=str).read()
    except CorruptRecord as error:
        return error


def _cursors_of(kept: KeptRegister) -> dict[str, int]:
    """Return the next cell of each row by a register, of a pipeline's checkpoint; an ingest's reads none."""
    if not isinstance(kept, Kept):
        return {}
    known = kept.register
    if isinstance(known, PipelineRegister):
        return {known.source: known.stands.c.index}
    return {row: known.cursors[key].index for key, row in known.reads.items() if key in known.cursors}


def _processor(name: str, kept: KeptRegister, lag: dict[str, int]) -> ProcessorView | None:
    if kept is None:
        return None
    if isinstance(kept, CorruptRecord):
        return ProcessorView(name, 0, "", 0, 0, lag, str(kept))
    register = kept.register
    if isinstance(register, PipelineRegister):
        stands = register.stands
        return ProcessorView(name, register.serial, f"checkpoint {stands.n}", 0, stands.time, lag)
    phase = "writing" if register.outs else "handling"
    return ProcessorView(name, register.serial, phase, register.failures, register.now, lag)


# Read


async def read_stream(at: StreamPlace, asked: ReadStream) -> AsyncIterator[bytes]:
    """Read the entries of a log, or of one row, as JSON lines in pieces; up to `limit`, 0: all.

    Raises:
        LookupError: there is no such log, or row.
        Refused: `since` is a place in one row, and there are several.
        Trimmed: `since` is below the floor.
    """
    shards = [await _only(at, asked.name, asked.row)] if asked.row else await _found(at, asked.name)
    if asked.since and len(shards) > 1:
        raise Refused(f"log {asked.name} has {len(shards)} rows; say by --row which: {_listed_rows(shards)}")
    piece, size_bytes, count = list[bytes](), 0, 0
    for shard in shards:
        async for line in _lines(_row(at, asked.name, shard), asked.since):
            piece.append(line)
            size_bytes, count = size_bytes + len(line), count + 1
            if size_bytes >= PIECE_BYTES or count == asked.limit:
                yield b"".join(piece)
                piece, size_bytes = [], 0
            if count == asked.limit:
                return
    if piece:
        yield b"".join(piece)


async def _only(at: StreamPlace, name: str, row: str) -> Shard:
    """The row that is asked for; it is found by its floor, without a list.

    Raises:
        LookupError: there is no such log, or row.
    """
    writer, _, reader = row.partition(".")
    shard = int(writer), int(reader)
    if is_name(name):
        horizon = _row(at, name, shard).horizon
        await horizon.read()
        if horizon.version:
            return shard
    raise LookupError(f"log {name} has no row {row}; there are: {_listed_rows(await _found(at, name))}")


async def _found(at: StreamPlace, name: str) -> list[Shard]:
    """The rows of a log, in order.

    Raises:
        LookupError: there is no such log.
        Refused: not all of its partitions were looked at.
    """
    shards, has_more = await _shards(at, f"log/{name}/") if is_name(name) else ({}, False)
    if has_more:
        raise Refused(f"log {name} has over {PARTITIONS_MAX:,} partitions; name a row by --row, or use OrderedLog")
    if name not in shards:
        known, _ = await _shards(at, "log/")
        shown = ", ".join(sorted(known)[:ROWS_SHOWN_MAX]) or "none yet"
        raise LookupError(f"there is no log {name[:80]!r} in {at.name}; there are: {shown}.  Check the spelling")
    return sorted(shards[name])


def _listed_rows(shards: Sequence[Shard]) -> str:
    more = f" and {len(shards) - ROWS_SHOWN_MAX} more" if len(shards) > ROWS_SHOWN_MAX else ""
    return ", ".join(map(_shown, shards[:ROWS_SHOWN_MAX])) + more


async def _lines(row: Row[Any], since: str) -> AsyncIterator[bytes]:
    floor = await row.horizon.read()
    at = parse_position(since) if since else Position(floor.index)
    if at.index < floor.index:
        raise trimmed(row.name, at.index, floor.index)
    end = await row.cells.find_end(floor.index)  # of now, or a busy log would be read for ever
    while at.index < end and (cell := await row.read(at.index)) is not None:
        for offset in range(at.offset, len(cell.v)):
            yield _line(row, Position(at.index, offset), cell)
        at = Position(at.index + 1)


def _line(row: Row[Any], at: Position, cell: Cell) -> bytes:
    kind = cell.types[at.offset] if cell.types else ""
    shown = _shown((row.writer, row.reader))
    entry = StreamEntry(shown, str(at), cell.id, cell.at, cell.v[at.offset], kind, cell.schema)
    return msgspec.json.encode(entry) + b"\n"


def parse_position(text: str) -> Position:
    """A position from `index.offset`, or from an index alone."""
    index, _, offset = text.partition(".")
    return Position(int(index), int(offset or 0))


# Forget a reader or writer


async def unregister_stream(at: StreamPlace, asked: Unregister) -> StreamUnregistered:
    """Forget a reader or writer of a log in all of its rows; how far before the end it was.

    Raises:
        LookupError: there is no such log, or no reader or writer of this name.
    """
    shards = await _found(at, asked.name)
    views = [view for view, _, _ in await side_by_side(shards, partial(_row_view, at, asked.name)) if view]
    behind = {view.row: lag for view in views if (lag := (view.writers | view.readers).get(asked.who)) is not None}
    if not behind:
        known = sorted({who for view in views for who in (*view.readers, *view.writers)})
        there = ", ".join(known[:ROWS_SHOWN_MAX]) or "none"
        raise LookupError(f"log {asked.name} has no reader or writer {asked.who[:80]!r}; there are: {there}")
    for shard in shards:
        if _shown(shard) in behind:
            await _row(at, asked.name, shard).horizon.unregister(asked.who)
    return StreamUnregistered(behind)


# Trim


async def trim_stream(at: StreamPlace, asked: TrimStream) -> StreamTrimmed:
    """Trim every row of a log up to its horizon.

    Raises:
        LookupError: there is no such log.
        Refused: a row has no registered reader, and no age is given: it would be left whole.
    """
    rows = [_row(at, asked.name, shard, asked.margin_s) for shard in await _found(at, asked.name)]
    floors = await side_by_side(rows, lambda row: row.horizon.read())
    for row, floor in zip(rows, floors, strict=True):
        if not floor.readers and asked.min_age_s is None:
            raise Refused(f"{row.name} has {UNREAD} --min-age (0s: all of it)")
    min_age = None if asked.min_age_s is None else asked.min_age
    done = [(row, *await row.trim(min_age)) for row in rows]
    after = {_shown((row.writer, row.reader)): floor.index for row, _, floor in done}
    return StreamTrimmed(sum(count for _, count, _ in done), after)


ANSWERS: Answers = {ListStreams: list_streams, Unregister: unregister_stream, TrimStream: trim_stream}
LINES: requests.Streams = {ReadStream: read_stream}


def placed(
    answers: Mapping[type[T], Callable[[Any, Any], Any]], place: Callable[[Any], StreamPlace]
) -> dict[type[T], Any]:
    """Adapt the answers of a stream place to a site from which `place` gets one."""

    def at(answer: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        return lambda site, asked: answer(place(site), asked)

    return {kind: at(answer) for kind, answer in answers.items()}
