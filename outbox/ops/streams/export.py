"""The export of a row of an ordered log to a table, continued where the last one ended.

It asks an admin, so it exports from a folder whose host runs, from one without a host and from Azure alike, and writes
by what Spark jobs write with, `spark_jobs.exporting`: nothing else here knows of those.  Read is up to where the row
ended when it was listed, so an export of a log that is being written to ends.

Every entry follows the one before it: in its cell, or first in the next.  Anything else is refused, because a table of
a log with a hole in it looks as good as any.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from functools import partial

import msgspec

from outbox.errors import CorruptRecord, Refused
from outbox.ops.values.requests import Admin
from outbox.ops.values.streams import ListStreams, ReadStream, StreamExported, StreamRow
from outbox.streams.cells import Position
from spark_jobs.common.places import Place, place_of
from spark_jobs.exporting.files import Files
from spark_jobs.exporting.rows import Entry, Target

FILE_ROWS_MAX = 100_000
FILE_BYTES_MAX = 64 << 20
"""The most rows of a file, and the most bytes of their values; one entry may have more."""
SHOWN_MAX = 12


class Line(msgspec.Struct, frozen=True):
    """An entry as `ReadStream` answers it."""

    position: str
    id: str
    at_ms: int
    value: msgspec.Raw
    type: str = ""
    schema: int = 1


def writer_to(output: str, form: str) -> Callable[[str, str], Target]:
    """The way to write to a place, for a log and a row.

    Raises:
        ModuleNotFoundError: something that comes with an extra is not installed.
        Refused: the address does not tell enough.
    """
    kind: Callable[[Place, str, str], Target] = Files
    if form == "delta":
        from spark_jobs.exporting.delta import DeltaExport  # delta-rs and an SDK take a second

        kind = DeltaExport
    return partial(kind, place_of(output, os.environ))


async def export(admin: Admin, writer: Callable[[str, str], Target], log: str, row: str) -> StreamExported:
    """Write what a row of a log has, and its table has not.

    Raises:
        LookupError: there is no such log, or row.
        Refused: it has several rows, it is trimmed beyond the table's end, or the table is none of this row.
    """
    view = await row_of(admin, log, row)
    target, floor, end = writer(log, view.row), Position(view.floor), Position(view.end)
    begin = at = await asyncio.to_thread(target.reached) or floor
    if at < floor:
        raise hole(log, view.row, at, floor)
    entries = files = 0
    async for held, until in chunks(read(admin, log, view.row, at, end), end):
        while held := [entry for entry in held if entry.position >= at]:
            other = await asyncio.to_thread(target.add, held, at, until)
            if other is None:
                entries, files = entries + len(held), files + 1
            at = other or until
    await asyncio.to_thread(target.sync)
    if at < Position(end.index - 1, 1):
        raise Refused(
            f"log {log}, row {view.row} ends at {end}, and its store shows no entry from {at} on, because a read was "
            "stale; what came before is exported: run the same again"
        )
    return StreamExported(log, view.row, str(begin), str(at), entries, files)


async def row_of(admin: Admin, log: str, row: str) -> StreamRow:
    """The row that is meant, with its floor and its end."""
    found = await admin.ask(ListStreams())
    rows = [each for known in found.logs if known.name == log for each in known.rows]
    wanted = ".".join(str(int(part)) for part in row.split(".")) if row else ""
    meant = [each for each in rows if wanted in ("", each.row)]
    if len(meant) == 1:
        return meant[0]
    if error := next((known.error for known in found.logs if known.name == log), ""):
        raise CorruptRecord(error)
    shown = ", ".join([each.row for each in rows] or [known.name for known in found.logs][:SHOWN_MAX]) or "none"
    if meant:
        raise Refused(f"log {log} has {len(rows)} rows; say by --row which: {shown}")
    cut = ", and more than a list shows" if found.more else ""
    raise LookupError(f"there is no {f'row {row} of ' if rows else ''}log {log[:80]!r}; there are: {shown}{cut}")


async def read(admin: Admin, log: str, row: str, since: Position, end: Position) -> AsyncIterator[Entry]:
    """The entries of a row from one position up to before another.

    Raises:
        Refused: one is missing.
        CorruptRecord: one is no JSON line.
    """
    left = bytearray()
    async for piece in admin.stream(ReadStream(log, row, str(since))):
        left += piece
        if b"\n" not in piece:
            continue
        *lines, left = left.split(b"\n")
        for entry in (entry_of(log, row, line) for line in lines):
            if entry.position >= end:
                return
            if entry.position != since and not (since.offset and entry.position == Position(since.index + 1)):
                raise hole(log, row, since, entry.position)
            yield entry
            since = entry.position.after()


def entry_of(log: str, row: str, line: bytearray) -> Entry:
    """An entry from its line."""
    try:
        told = msgspec.json.decode(line, type=Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        text = f"log {log}, row {row} has an entry that is no JSON of one line ({error}); read it by OrderedLog.read()"
        raise CorruptRecord(text) from error
    index, _, offset = told.position.partition(".")
    return Entry(Position(int(index), int(offset)), told.id, told.at_ms, told.type, told.schema, bytes(told.value))


async def chunks(entries: AsyncIterator[Entry], end: Position) -> AsyncIterator[tuple[list[Entry], Position]]:
    """The entries of one file after the other, with the end of each.

    The last one ends where the row does, if it has the entries of the last cell.
    """
    held, size_bytes = list[Entry](), 0
    async for entry in entries:
        if held and (len(held) == FILE_ROWS_MAX or size_bytes + len(entry.value) > FILE_BYTES_MAX):
            yield held, held[-1].position.after()
            held, size_bytes = [], 0
        held.append(entry)
        size_bytes += len(entry.value)
    if held:
        last = held[-1].position
        yield held, end if last.index == end.index - 1 else last.after()


def hole(log: str, row: str, at: Position, found: Position) -> Refused:
    """The error of entries that are gone before they were exported."""
    return Refused(
        f"log {log}, row {row} is trimmed up to {found}, and the export has it up to {at}: there would be a hole; "
        "export to a new place"
    )
