"""The last cell that was read, or written: it tells a log from another one of the same name.

A cursor is a place, and says nothing of what lies before it.  So the index and identity of the last cell are kept with
it, and a process that begins reads that cell once.  A cell never gets another identity, so another one there is another
log, or the same one restored.  Where none is there it was trimmed, if it is below the floor and the floor knows the
reader; else the log is another one, or ends before, unless the read was stale: it is looked for again a few times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from outbox.errors import OtherLog
from outbox.streams.cells import Position
from outbox.streams.register import LastCell, Out
from outbox.streams.row import Entry, NotThere, Row

LOOK_COUNT = 8
"""The looks in a row after which a cell counts as missing; with their pauses they take six seconds."""


def last_cell(index: int, id: str) -> LastCell:
    """A cell of this identity as the last one."""
    return LastCell(index, int.from_bytes(sha256(id.encode()).digest()[:4], "big") >> 1)


def lasts_at(
    rows: Mapping[str, Row[Any]], outs: Sequence[Out], ids: Sequence[str], ends: Sequence[int]
) -> dict[str, LastCell]:
    """The last cells of rows, by name, that these outs were written to under these identities, up to these ends."""
    return {
        rows[out.to].name: last_cell(end - 1, id)
        for out, id, end in zip(outs, ids, ends, strict=True)
        if out.to in rows
    }


def last_of(entry: Entry[Any]) -> LastCell:
    """The cell of an entry."""
    return last_cell(entry.position.index, entry.id)


async def check_lasts(
    who: str, lasts: Mapping[str, LastCell], read: Iterable[tuple[Row[Any], Position]], written: Iterable[Row[Any]]
) -> None:
    """Check that the logs `read` up to cursors, and `written`, hold the last cells that `who` knows.

    A cursor that does not fit to its last cell was set, and is taken as it is.

    Raises:
        OtherLog: another cell lies in the place of one.
        NotThere: none does, and none was trimmed, as far as a read can tell.
    """
    looked = {row.name: (row, "where an output goes on") for row in written if row.name in lasts}
    for row, at in read:
        looked.pop(row.name, None)
        if row.name in lasts and lasts[row.name].index == at.before:
            looked[row.name] = row, f"the cursor of {who.replace('/', ' ')}"
    for name, (row, what) in looked.items():
        await _check(row, lasts[name], who, what)


async def _check(row: Row[Any], last: LastCell, who: str, what: str) -> None:
    cell = await row.cells.read(last.index)
    if cell is not None and last_cell(last.index, cell.id) == last:
        return
    known = await row.horizon.read()
    is_trimmed = last.index < row.horizon.index
    # A tombstone without an identity lies where another had expired, and so does a cell that came too late to be read.
    if cell is not None and cell.id and (cell.gone or not is_trimmed):
        raise OtherLog(
            f"{row.name}: {what} is {last.index + 1}, and cell {last.index} is not the one that it was; this is "
            "another log, or one that was restored from an older backup and written to since: give the log that was "
            f"meant, or {who} another name, or restore both from one time"
        )
    if not is_trimmed:
        raise row.ends_before(last.index + 1, what)
    if who not in known.readers and who not in known.writers:
        raise NotThere(
            f"{row.name}: {what} is {last.index + 1}, the cell before was trimmed, and the floor does not know {who}; "
            f"this is another log, or {who} was unregistered: give the log that was meant, or {who} another name"
        )


class Looks:
    """Counts how often in a row a cell was looked for in vain."""

    def __init__(self) -> None:
        self._count = 0

    def found(self) -> None:
        """It was there, or something else was done."""
        self._count = 0

    def failed(self, error: Exception) -> None:
        """Note a failure.

        Raises:
            OtherLog: that it was, or a cell was not there for the last time.
        """
        if isinstance(error, OtherLog):
            raise error
        self._count = self._count + 1 if isinstance(error, NotThere) else 0
        if self._count >= LOOK_COUNT:
            raise OtherLog(str(error)) from error
