"""The ordered logs and registers in an engine, for operators: list, read as stored, trim.  No type is needed.

A log is found by its partitions, so only those whose documents are in this engine are.  What its readers and writers
have reported lags behind where they are: a processor reports every 64 steps, and when it has nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, Refused
from outbox.ops.values import ProcessorView, Streams, StreamTrimmed, StreamView, TrimRequest
from outbox.ops.values import StreamRow as RowView
from outbox.streams.cells import Cell, Position
from outbox.streams.horizon import trimmed
from outbox.streams.log import MARGIN, Row
from outbox.streams.places import place_of
from outbox.streams.register import RegisterCell
from outbox.streams.values import Values

PIECE_BYTES = 64 << 10
ROWS_SHOWN_MAX = 12
_ROW = re.compile(r"p/log/([^/]+)/(\d{1,3})\.(\d{1,3})(?:/\d+)?").fullmatch
_REGISTER = re.compile(r"p/((?:processor|ingest)/.+)").fullmatch


class StreamEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """An entry as stored; `type` names its type where the log has several."""

    row: str
    position: str
    id: str
    at_ms: int
    value: msgspec.Raw
    type: str = ""


# List


async def list_streams(engine: Engine, *, measured: bool) -> Streams:
    """All logs and registers; `measured` with what their documents take."""
    logs = [await _log(engine, name, found, measured) for name, found in sorted(_logs(engine).items())]
    lags: dict[str, dict[str, int]] = {}
    for log in logs:
        for row in log.rows:
            for reader, lag in row.readers.items():
                lags.setdefault(reader, {})[f"{log.name}/{row.row}"] = lag
    names = sorted(match[1] for namespace in engine.state.documents.spaces if (match := _REGISTER(namespace)))
    found = [await _register(engine, name, lags.get(name, {})) for name in names]
    return Streams(logs, [each for each in found if each is not None])


def _logs(engine: Engine) -> dict[str, set[tuple[int, int]]]:
    """The rows of each log."""
    found: dict[str, set[tuple[int, int]]] = {}
    for namespace in engine.state.documents.spaces:
        if match := _ROW(namespace):
            found.setdefault(match[1], set()).add((int(match[2]), int(match[3])))
    return found


def _row(engine: Engine, name: str, shard: tuple[int, int], margin_s: float = MARGIN.total_seconds()) -> Row[Any]:
    return Row(name, place_of(engine), Values(name, Any), margin_s, *shard)


async def _log(engine: Engine, name: str, shards: set[tuple[int, int]], measured: bool) -> StreamView:
    """A log; one that something else has written into is shown with what is wrong."""
    rows, type = list[RowView](), ""
    try:
        for shard in sorted(shards):
            row = _row(engine, name, shard)
            floor = await row.horizon.read()
            end = await row.cells.find_end(floor.index)
            type = type or floor.type
            rows.append(
                RowView(
                    row=_shown(shard),
                    floor=floor.index,
                    end=end,
                    cells=end - floor.index,
                    readers={each: end - at for each, at in floor.readers.items()},
                    writers={each: end - at for each, at in floor.writers.items()},
                    size_bytes=_size_bytes(engine, row.name) if measured else msgspec.UNSET,
                )
            )
    except CorruptRecord as error:
        return StreamView(name, type, rows, str(error))
    return StreamView(name, type, rows)


def _shown(shard: tuple[int, int]) -> str:
    return f"{shard[0]}.{shard[1]}"


def _size_bytes(engine: Engine, row: str) -> int:
    """What the documents of a row take, tombstones too."""
    spaces = engine.state.documents.spaces
    names = [name for name in spaces if name == f"p/{row}" or name.startswith(f"p/{row}/")]
    return sum(len(document.value) for name in names for document in spaces[name].values())


async def _register(engine: Engine, name: str, lag: dict[str, int]) -> ProcessorView | None:
    try:
        kept = await RegisterCell(engine.store(), name, new_id=str).read()
    except CorruptRecord as error:
        return ProcessorView(name, 0, "", 0, 0, lag, str(error))
    if kept is None:
        return None
    register = kept.register
    phase = "writing" if register.outs else "handling"
    return ProcessorView(name, register.serial, phase, register.failures, register.now, lag)


# Read


async def read_stream(engine: Engine, name: str, *, row: str, since: str, limit: int) -> AsyncIterator[bytes]:
    """The entries of a log, or of one of its rows, as JSON lines in pieces; up to `limit`, 0: to the end.

    Raises:
        LookupError: there is no such log, or row.
        Refused: `since` is a place in one row, and there are several.
        Trimmed: `since` is below the floor.
    """
    shards = sorted(_found(engine, name))
    if row:
        shards = [shard for shard in shards if _shown(shard) == row]
        if not shards:
            raise LookupError(f"log {name} has no row {row}; there are: {_listed_rows(_found(engine, name))}")
    if since and len(shards) > 1:
        raise Refused(f"log {name} has {len(shards)} rows; say by --row which: {_listed_rows(shards)}")
    piece, size_bytes, count = list[bytes](), 0, 0
    for shard in shards:
        async for line in _lines(_row(engine, name, shard), since):
            piece.append(line)
            size_bytes, count = size_bytes + len(line), count + 1
            if size_bytes >= PIECE_BYTES or count == limit:
                yield b"".join(piece)
                piece, size_bytes = [], 0
            if count == limit:
                return
    if piece:
        yield b"".join(piece)


def _found(engine: Engine, name: str) -> set[tuple[int, int]]:
    known = _logs(engine)
    if name not in known:
        shown = ", ".join(sorted(known)[:ROWS_SHOWN_MAX]) or "none yet"
        raise LookupError(f"there is no log {name[:80]!r} in this engine; there are: {shown}.  Check the spelling")
    return known[name]


def _listed_rows(shards: Sequence[tuple[int, int]] | set[tuple[int, int]]) -> str:
    more = f" and {len(shards) - ROWS_SHOWN_MAX} more" if len(shards) > ROWS_SHOWN_MAX else ""
    return ", ".join(map(_shown, sorted(shards)[:ROWS_SHOWN_MAX])) + more


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
    return msgspec.json.encode(StreamEntry(shown, str(at), cell.id, cell.at, cell.v[at.offset], kind)) + b"\n"


def parse_position(text: str) -> Position:
    """A position from `index.offset`, or from an index alone."""
    index, _, offset = text.partition(".")
    return Position(int(index), int(offset or 0))


# Trim


async def trim_stream(engine: Engine, asked: TrimRequest) -> StreamTrimmed:
    """Trim every row of a log up to its horizon.

    Raises:
        LookupError: there is no such log.
        Refused: a row has no registered reader, and no age is given: nothing would be left.
    """
    rows = [_row(engine, asked.name, shard, asked.margin_s) for shard in sorted(_found(engine, asked.name))]
    floors = [await row.horizon.read() for row in rows]
    for row, floor in zip(rows, floors, strict=True):
        if not floor.readers and asked.min_age_s is None:
            raise Refused(
                f"{row.name} has no registered reader, so a trim would leave nothing that no writer needs; register "
                "its readers, or give --min-age (0s: all of it)"
            )
    min_age = None if asked.min_age_s is None else asked.min_age
    count = sum([await row.trim(min_age) for row in rows])
    after = {_shown((row.writer, row.reader)): (await row.horizon.read()).index for row in rows}
    return StreamTrimmed(count, after)
