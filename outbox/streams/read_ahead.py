"""Reading on in a row: many cells at once where there are many, one where the next is waited for.

On a store that is a round trip away a reader that takes one cell after the other has as many cells a second as there
are round trips in it.  How many are read at once doubles while all of them are there, up to what is wanted and to what
fits into memory; behind the end it is one again, so an idle reader asks for one cell, and at most as many reads are in
vain as were not.
"""

from __future__ import annotations

from typing import TypeVar

from outbox.streams.cells import Cell, Position
from outbox.streams.row import Entry, Row

T = TypeVar("T")

CELLS_MAX = 64
BYTES_MAX = 8 << 20
"""The bytes of entries that are read together, if the next ones are as large as the last."""
ENTRIES_FIRST, ENTRIES_MAX = 16, 1_024
OUTPUTS_WANTED, FRAME_MS_MAX = 512, 50
"""The outputs of a frame from which on more entries are not cheaper, and how long others may wait."""


class FrameRoom:
    """How many entries of a backlog go through a pipeline at once: what comes behind them waits so long.

    Behind a full frame that put out little the next has twice as many, because what is written together costs one
    flush.
    """

    def __init__(self, count: int | None) -> None:
        """Take a count that stays, or none."""
        self.count, self._most = (count, count) if count else (ENTRIES_FIRST, ENTRIES_MAX)

    def adapt(self, count: int, output_count: int, took_ms: int) -> None:
        """Take more or fewer the next time, by the outputs of `count` entries now, and how long they took."""
        is_much = output_count > OUTPUTS_WANTED or took_ms > FRAME_MS_MAX
        if is_much or count < self.count // 2:
            self.count = max(self.count // 2, min(ENTRIES_FIRST, self._most))
        elif count == self.count and 2 * took_ms <= FRAME_MS_MAX:
            self.count = min(2 * self.count, self._most)


class ReadAhead:
    """How many cells of one row are read at once."""

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self.size_bytes = 0
        """The bytes of the entries in the cells last read."""

    async def entries(
        self, row: Row[T], at: Position, room: int, until: Position | None = None
    ) -> tuple[list[Entry[T]], Position]:
        """Read up to `room` entries from a position on, none at `until` or beyond, and the position behind them.

        None: the next is not there yet.

        Raises:
            Trimmed: the first is below the floor.
        """
        count = min(self.count, room)
        if until is not None:
            count = min(count, until.index - at.index + (until.offset > 0))
        cells = await row.read_on(at.index, count)
        self._adapt(cells, count, room)
        found: list[Entry[T]] = []
        for cell in cells:
            more = row.entries(at.index, cell, at.offset)[: room - len(found)]
            if until is not None and at.index == until.index:
                more = [entry for entry in more if entry.position < until]
            found += more
            offset = at.offset + len(more)
            at = Position(at.index, offset) if offset < cell.count else Position(at.index + 1)
            if at.offset or len(found) == room or at == until:
                break
        return found, at

    def _adapt(self, cells: list[Cell], count: int, room: int) -> None:
        """Read more or fewer cells the next time, by the result of reading `count` cells now."""
        entry_count = sum(cell.count for cell in cells)
        self.size_bytes = size_bytes = sum(len(memoryview(raw)) for cell in cells for raw in cell.v)
        if len(cells) < count:
            self.count = 1
        elif entry_count > room or size_bytes > BYTES_MAX:
            self.count = max(1, count // 2)
        elif 2 * entry_count <= room and 2 * size_bytes <= BYTES_MAX:
            self.count = min(2 * count, CELLS_MAX)
