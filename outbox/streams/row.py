"""One row of a log: appends under ids, reads, the floor and trims, over its cells.

A log has a row for each pair of a writer shard and a reader shard; most have one.

A row notes each id that it walks past, and a process may append to hundreds of rows, so what they remember is bounded
for all of them together (`Recent`).  The newest are kept in two halves: when the newer one is full, the older is
forgotten.  So at least half of what is allowed is remembered, and nothing is searched for the oldest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count, takewhile
from sys import getsizeof
from threading import Lock
from typing import Any, Generic, TypeVar

from outbox.errors import CorruptRecord, DeadlinePassed, NoBlobStore, OutcomeUnknown, Refused, Trimmed
from outbox.ports import NoBlobs
from outbox.streams.cells import Cell, Cells, FoundCell, Position
from outbox.streams.horizon import Floor, Horizon, Kind, trimmed
from outbox.streams.log_places import Place, Seen, settled
from outbox.streams.values import Values, fitted, is_large, whole

T = TypeVar("T")

COUNT_MAX = 100_000
BYTES_MAX = 32 << 20
"""How many ids are remembered at most, and how many bytes they take, of all rows of a process together."""
ENTRY_BYTES = 250
"""The bytes of an id beside its text: its place in a dictionary, its key, and a value."""
_rows = count()
"""The numbers of this process's rows."""


class Recent(Generic[T]):
    """Values by row and id, the newest of all rows of a process."""

    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._count_max = count_max // 2
        self._bytes_max = bytes_max // 2
        self._newer: dict[tuple[int, str], T] = {}
        self._older: dict[tuple[int, str], T] = {}
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def get(self, row: int, id: str) -> T | None:
        """The value of an id; None where there is none, or it is forgotten."""
        key = row, id
        found = self._newer.get(key)
        return self._older.get(key) if found is None else found

    def put(self, row: int, id: str, value: T) -> None:
        """Remember a value."""
        with self._lock:
            self._newer[row, id] = value
            self._bytes += getsizeof(id) + ENTRY_BYTES
            if len(self._newer) >= self._count_max or self._bytes >= self._bytes_max:
                self._older, self._newer, self._bytes = self._newer, {}, 0

    def pop(self, row: int, id: str) -> None:
        """Forget a value."""
        with self._lock:
            self._newer.pop((row, id), None)
            self._older.pop((row, id), None)

    def of(self, row: int) -> list[str]:
        """The ids of a row."""
        with self._lock:
            return list(dict.fromkeys(id for owner, id in (*self._older, *self._newer) if owner == row))


TRIMS_MAX = 10_000
"""How many rounds a trim makes at most, of 1,024 cells each."""
NONE_UNSEEN = range(0)
PASSED_MAX = 4_096
"""How many tombstones are read to find an append of unknown outcome."""
BLOBS_MAX = 4
"""How many large cells are read at once: each may take 64 MB."""
_passed = Recent[int]()
"""Where the cells lie that the rows of this process have walked past, by which they recognise their own appends."""
_unsure = Recent[range]()
"""The appends of this process whose outcome is not known, with the cells that were trimmed unseen since."""
TRIES_MAX = 3
"""How often an append that took too long is made again, before it gives up."""
LATE_MAX = 1_000
"""How many appends whose place was being trimmed a process remembers."""
NONCES_MAX = 1_000
"""How many large appends of unknown outcome a process remembers, to write their blobs again under the same names."""


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """An entry of a log: its position, its value, its append's id and time in milliseconds since 1970.

    The entries of one append share its id; `writer` is the writer shard.
    """

    position: Position
    value: T
    id: str
    at_ms: int
    writer: int = 0


class NotThere(Refused):
    """A cell that was there once is missing: the log is another one, or the read was stale."""


class Row(Generic[T]):
    """One row of a log as this process knows it: its cells, its floor, and the ids met."""

    def __init__(
        self,
        name: str,
        place: Place,
        values: Values,
        margin_s: float,
        writer: int,
        reader: int,
        *,
        shards: str = "",
        first: Row[T] | None = None,
    ) -> None:
        self.writer = writer
        self.reader = reader
        self.place = place
        self.values = values
        self.kind = Kind(values.name, shards)
        self.name = f"log/{name}/{writer}.{reader}"
        self.cells = Cells(place.store, self.name, now_ms=place.now_ms)
        self.horizon: Horizon = Horizon(self.cells, None if first is None else first.horizon)
        self.margin_ms = round(margin_s * 1_000)
        """How long tombstones last, in milliseconds."""
        self._lock = asyncio.Lock()
        self._number = next(_rows)
        self._walked: int | None = None
        """The index up to which this process has walked; None: it has not yet looked for the end."""
        self._late: dict[str, int] = {}
        """Where appends lie that took so long that their place was being trimmed, by id."""
        self._nonces: dict[str, str] = {}
        """The names for the blobs of large appends whose outcome is not known, by id."""
        self._fresh_ms = 0
        """Until when no cell from there on can have been trimmed and have lost its tombstone."""
        self._looked_ms, self._looked_s = 0, 0.0
        """When that was found, by the clock and by one that is never set back."""

    @property
    def until_ms(self) -> int:
        """When an append that begins now must have ended: well before a tombstone that it should meet can be gone."""
        return self.place.now_ms() + self.margin_ms // 2

    # Appending

    async def append(self, values: Sequence[Any], id: str, since: int | None = None) -> Position:
        """Append values as one cell, once."""
        raws, types = self.values.encoded(values)
        made = Cell(id, self.place.now_ms(), len(raws), raws, types, self.values.version)
        put = self._put_large if is_large(made, self.place.store) else self._put
        index, found, cell = await put(made, since)
        is_same = found.gone or (found.v, found.digest, found.types) == (cell.v, cell.digest, cell.types)
        if not is_same and not await self._holds(found, values):
            raise Refused(f"{self.name}: id {id!r} was appended with other entries, at {index}.0; use a new id")
        return Position(index)

    async def _put(self, cell: Cell, since: int | None) -> tuple[int, Cell, Cell]:
        """Where a cell lies, the cell as it lies there, and as it was to be written."""
        await self._lock.acquire()
        try:
            index, found = await (self._append(cell) if since is None else self._append_since(cell, since))
        except BaseException as error:  # cancelled as well: what was on its way may have been written
            if not isinstance(error, Refused):
                _unsure.put(self._number, cell.id, _unsure.get(self._number, cell.id) or NONE_UNSEEN)
            raise
        finally:
            self._lock.release()
        _unsure.pop(self._number, cell.id)
        return index, found, cell

    async def place_cell(
        self, cell: Cell, since: int, *, until_ms: int, passed: Callable[[int, Cell], None] | None = None
    ) -> FoundCell | None:
        """Append a cell at the first free index from `since` on; None where it was taken back.

        Past its deadline a create may find the place of a trimmed cell free, because its tombstone is gone.  Nobody
        reads what lies there, so it is taken back.
        """
        found = await self.cells.append(cell, since, until_ms=until_ms, passed=passed)
        is_late = self.place.now_ms() >= until_ms and not found.cell.gone
        return None if is_late and await self._taken_back(found.at, cell.id) else found

    async def _taken_back(self, index: int, id: str) -> bool:
        """Whether a cell was written where one had been trimmed, and is taken back.

        Raises:
            OutcomeUnknown: its place is being trimmed, so it may have been written before that, or after.
        """
        try:
            floor = await self.horizon.read()  # as it was a moment ago at worst, and a tombstone outlives that
            if index >= floor.index:
                return False
            if index >= floor.cleared:
                self._late[id] = index
                if len(self._late) > LATE_MAX:
                    del self._late[next(iter(self._late))]
                raise OutcomeUnknown(
                    f"{self.name}: the append of {id!r} took too long, and its cell {index} is being trimmed; whether "
                    "it was read is not known: append it again"
                )
            await self.cells.take_back(index, id, ttl_s=self.margin_ms / 1_000)
            self._late.pop(id, None)
            return True
        except Refused as error:
            text = f"{self.name}: whether cell {index}, of {id!r}, lies where it is read is not known: {error}"
            raise OutcomeUnknown(text) from error

    async def _put_large(self, made: Cell, since: int | None) -> tuple[int, Cell, Cell]:
        """The same of a cell whose entries go to a blob.

        The blob is that of this append alone: of this call, and of those that repeat it after an unknown outcome.
        """
        is_repeated, nonce = made.id in self._nonces, self._nonces.pop(made.id, "") or self.place.new_id()
        blob = ""
        try:
            cell = await self.fitted(made, owner=f"{made.id}/{nonce}")
            blob = cell.blob
            index, found, _ = await self._put(cell, since)
        except BaseException as error:
            if is_repeated or not isinstance(error, Refused):  # a cell may name it, or will
                self._nonces[made.id] = nonce
                if len(self._nonces) > NONCES_MAX:
                    del self._nonces[next(iter(self._nonces))]
            elif blob:
                await self._discard(blob)
            raise
        await self.discard_unless_named(cell, found)
        return index, found, cell

    async def discard_unless_named(self, written: Cell, found: Cell) -> None:
        """Delete the blob of an append whose id turned out to be trimmed, or to have another blob."""
        if written.blob and (found.gone or found.blob != written.blob):
            await self._discard(written.blob)

    async def _discard(self, blob: str) -> None:
        """Delete a blob that no cell names; one that stays takes room, and changes nothing."""
        with suppress(OutcomeUnknown, Refused):
            await self.place.blobs.delete(blob)

    async def _holds(self, cell: Cell, values: Sequence[Any]) -> bool:
        """Whether a cell holds these values; of a set the stored order is another in each process."""
        return bool(self.values.decoded(await whole(cell, self.place.blobs, self.name), self.name) == list(values))

    async def _append(self, cell: Cell) -> tuple[int, Cell]:
        start = self._walked
        if start is None or self._is_floor_old():
            start = await self._looked()
        for _ in range(TRIES_MAX):
            await self._pass_trimmed(cell.id)
            known = self._late.get(cell.id, _passed.get(self._number, cell.id))
            if known is not None:
                there = await self.cells.read(known) or Cell(cell.id, gone=True)
                if there.gone and cell.id in self._late:
                    raise Refused(_not_seen(self.name, known, cell.id, "took too long"))
                if there.gone or known >= self.horizon.index or not await self._taken_back(known, cell.id):
                    return known, there
                _passed.pop(self._number, cell.id)
            with suppress(DeadlinePassed):  # nothing was written
                found = await self.place_cell(cell, start, until_ms=self._fresh_ms, passed=self._pass)
                if found is not None:
                    self._pass(found.at, found.cell)
                    await self.cells.raise_hint_if_due(found.walked_count)
                    return found.at, found.cell
            start = await self._looked()
        raise DeadlinePassed(
            f"{self.name}: the append of {cell.id!r} took over {self.margin_ms / 2_000:g} s each time, and nothing of "
            "it is left; append it again, or give the log a greater margin="
        )

    def _pass(self, index: int, cell: Cell) -> None:
        self._walked = index + 1
        _passed.put(self._number, cell.id, index)

    async def _pass_trimmed(self, id: str) -> None:
        """Learn from their tombstones whose cells were trimmed, unseen by this process, since an append without answer.

        Raises:
            Refused: some are gone, so it cannot be known whether the append is among them.
        """
        unseen = _unsure.get(self._number, id) or NONE_UNSEEN
        for index in unseen:
            cell = await self.cells.read(index) if index - unseen.start < PASSED_MAX else None
            if cell is None:
                raise Refused(_not_seen(self.name, unseen.start, id, "had no answer"))
            _passed.put(self._number, cell.id, index)
            if cell.id == id:
                return
        if unseen:
            _unsure.put(self._number, id, NONE_UNSEEN)

    def _is_floor_old(self) -> bool:
        """Whether so much time has passed since the floor was read that it is to be read again."""
        now_ms = self.place.now_ms()
        passed_ms = max(now_ms - self._looked_ms, round((time.monotonic() - self._looked_s) * 1_000))
        return passed_ms >= self.margin_ms // 4 or now_ms < self._looked_ms

    async def _looked(self) -> int:
        """Where this process's next append begins to look; ids of cells before are known, or were before its time."""
        now_ms, now_s = self.place.now_ms(), time.monotonic()
        if self._walked is None:
            self._walked = await self.cells.find_end((await self._made()).index)
        elif await self.horizon.read_again() is None:
            raise Refused(
                f"{self.name}: its floor is gone, so the log was emptied, or this is another store; nothing is written "
                "behind a hole: restore it, or start this process again to begin a new log"
            )
        begin, self._walked = self._walked, max(self._walked, self.horizon.index)  # a read of the floor may be stale
        if begin < self._walked:
            for id in _unsure.of(self._number):
                unseen = _unsure.get(self._number, id) or NONE_UNSEEN
                _unsure.put(self._number, id, range(unseen.start if unseen else begin, self._walked))
        self._fresh_ms = now_ms + self.margin_ms // 2
        self._looked_ms, self._looked_s = now_ms, now_s
        return self._walked

    async def _append_since(self, cell: Cell, since: int) -> tuple[int, Cell]:
        until_ms = self.until_ms
        floor = await self._made()
        if since < floor.index:
            raise trimmed(self.name, since, floor.index)
        await self.check_reaches(since, "since=")
        found = await self.place_cell(cell, since, until_ms=until_ms)
        if found is None:
            raise trimmed(self.name, since, self.horizon.index)
        await self.cells.raise_hint_if_due(found.walked_count)
        return found.at, found.cell

    async def check_reaches(self, index: int, what: str) -> None:
        """Check that an index is at or behind the floor, and that its predecessor is there or was trimmed.

        Behind a hole, and below the floor once its tombstones are gone, a cell would be written that nobody reads.

        Raises:
            Trimmed: it is in front of the floor.
            NotThere: the cell before is not to be seen.
        """
        if not self.horizon.version:  # this process has not seen the floor yet
            if index and (cell := await self.cells.read(index - 1)) is not None and not cell.gone:
                return
            await self.horizon.read()
        if self.horizon.index <= index <= max(self.cells.end, self.horizon.index):
            return
        if index < self.horizon.index:
            raise Trimmed(self._passed(index, what), floor=self.horizon.index)
        if await self.cells.read(index - 1) is not None:
            return
        if (await self.horizon.read()).index < index:
            raise self.ends_before(index, what)

    def ends_before(self, index: int, what: str) -> NotThere:
        """The error of a place whose cell before it is missing."""
        return NotThere(
            f"{self.name}: {what} is {index}, and there is no cell {index - 1}; this is another log, or one "
            "that was restored from an older backup: give the log that was meant, or restore both from one time"
        )

    def _passed(self, index: int, what: str) -> str:
        floor = self.horizon.index
        return (
            f"{self.name}: {what} is {index}, and cells below {floor} were trimmed: a later register has been there, "
            "so this one was restored from an older backup, or is another of the same name; give the processor or "
            f"ingest another name, or, if it was restored, set `since` of this log in its register to {floor} and "
            "`outs` to []: the log has had those"
        )

    def fitted(self, cell: Cell, *, owner: str) -> Awaitable[Cell]:
        """A cell that fits into the store; what does not fit lies in a blob of this append."""
        return fitted(cell, self.place.store, self.place.blobs, self.name, owner)

    async def opened(self) -> Floor:
        """Read the floor.

        Raises:
            NotRegistrable: the log is of another kind.
        """
        return await self.horizon.opened(self.kind)

    async def _made(self) -> Floor:
        """Make the floor before the first append: it names the kind, and trimming a full store needs it there.

        Raises:
            NotRegistrable: the log is of another kind.
        """
        floor = await self.opened()
        return floor if floor.type else await self.horizon.make(self.kind)

    # Reading

    async def read(self, index: int) -> Cell | None:
        """A cell with its entries; None where it is not there yet.

        Raises:
            Trimmed: it is below the floor.
        """
        found = await self.read_on(index, 1)
        return found[0] if found else None

    async def read_on(self, index: int, count: int) -> list[Cell]:
        """Read up to `count` cells concurrently, with their entries, up to the first that is not there yet.

        Raises:
            Trimmed: the first is below the floor.
        """
        cells = await settled([self.cells.read(index + step) for step in range(count)])
        there = list(_good(cells))
        if not there and cells:
            floor = await self.horizon.read()  # after the miss
            if cells[0] is not None or index < floor.index:
                raise trimmed(self.name, index, max(floor.index, index + 1 if cells[0] else 0))
        large = [step for step, cell in enumerate(there) if cell.blob][:BLOBS_MAX]
        bodies = await settled([self._whole(index + step, there[step]) for step in large])
        whole_cells = list(_good(bodies, is_first=large[:1] == [0]))
        for step, cell in zip(large, whole_cells, strict=False):
            there[step] = cell
        return list(takewhile(lambda cell: not cell.blob, there))

    async def _whole(self, index: int, cell: Cell) -> Cell:
        try:
            return await whole(cell, self.place.blobs, f"{self.name}/{index}")
        except CorruptRecord:
            floor = await self.horizon.read()  # a trim may have deleted the blob meanwhile
            if index < floor.index:
                raise trimmed(self.name, index, floor.index) from None
            raise

    def entries(self, index: int, cell: Cell, offset: int = 0) -> list[Entry[T]]:
        """The entries of a cell, from an offset on."""
        values = self.values.decoded(cell, f"{self.name}/{index}")
        return [
            Entry(Position(index, at), value, cell.id, cell.at, self.writer)
            for at, value in enumerate(values)
            if at >= offset
        ]

    def seen(self, index: int) -> list[Seen]:
        """The versions that a reader waiting for a cell has seen of it, and of the floor."""
        return [(self.cells.key(index), ""), (self.horizon.key, self.horizon.version)]

    async def first(self) -> int:
        await self.opened()
        return self.horizon.index  # a read may be stale, and no floor falls

    async def end(self) -> int:
        return await self.cells.find_end(await self.first())

    async def trim(self, min_age: timedelta | None) -> tuple[int, Floor]:
        """Trim up to the horizon, without an age only where a reader is registered; how many cells, and the floor."""
        count = 0
        older_than_ms = None if min_age is None else self.place.now_ms() - round(min_age.total_seconds() * 1_000)
        tombstone_s, drop = self.margin_ms / 1_000, self._drop
        known, before = Floor(), None
        for _ in range(TRIMS_MAX):  # up to where a trim changes nothing
            buried, known = await self.horizon.trim(older_than_ms=older_than_ms, tombstone_s=tombstone_s, drop=drop)
            count += buried
            if known == before:
                break
            before = known
        return count, known

    async def _drop(self, blob: str) -> None:
        """Delete the blob of a trimmed cell; until that is done a tombstone names it.

        Raises:
            NoBlobStore: there is no blob store here, though the log has been written with one.
        """
        if isinstance(self.place.blobs, NoBlobs):
            raise NoBlobStore(
                f"{self.name}: trimmed entries lie in blob {blob}; give the blob store that they were written with "
                "(on the command line --blobs), and trim again"
            )
        await self.place.blobs.delete(blob)


def _not_seen(row: str, index: int, id: str, what: str) -> str:
    return (
        f"{row}: cells from {index} on were trimmed since append {id!r}, which {what}; whether it is among those that "
        "were read cannot be seen any more: ask a reader before you append it under a new id"
    )


def _good(cells: Sequence[Cell | BaseException | None], *, is_first: bool = True) -> Iterator[Cell]:
    """The cells up to the first missing or unreadable one; `is_first`: raise the error of the first."""
    for number, cell in enumerate(cells):
        if isinstance(cell, BaseException):
            if number == 0 and is_first:
                raise cell
            return
        if cell is None or cell.gone:
            return
        yield cell
