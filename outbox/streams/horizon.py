"""The floor of a row: who still needs its cells, and trimming up to the horizon.

    <row>   `floor`   {"index", "cleared", "readers": {name: index}, "writers": {name: index}, "type", "shards"}

The horizon is the least index that a registered reader may still read, or a writer walk past to find its own cell.
Readers say where they are; a processor says for each input where its cursor is and for each output where it begins
to look (`since`).  What they say only grows and may lag behind the truth, so a trim takes too little and never too
much.  Registrations and trims change one document, so they meet in one swap.  A row that no reader has registered at is
left whole: its first may not have begun yet.  Only a trim by age takes from it, because an age is a decision.

A trim raises the floor first; then the cells below it become tombstones, from `cleared` on, so that a trim which died
is taken up by the next.  Cells are not deleted: a replica that was paused before a write would find its place free,
create a dead cell anew, and others would walk past that over cells that are gone.  A tombstone outlives every such
replica, because an append past its deadline writes nothing.

A floor also says of which kind its log is.  The first row's is made before that of any other, so a process that
opens the log as one of another kind meets it, though its own row may be new.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import msgspec

from outbox.errors import CorruptRecord, NotRegistrable, OutcomeUnknown, Refused, Trimmed
from outbox.ports import Document, DocumentKey, Session, Tag, Version, Won
from outbox.streams.cells import DECODE_ERRORS, FLOOR, Cells, put

SWAP_COUNT_MAX = 20
"""How often a change of the floor is tried while others change it."""
UNLIMITED = 1 << 60
UNREAD = "no registered reader, and without an age a trim leaves such a row whole; register its readers, or give"
"""The warning about a row that is left whole, and the cure; an age follows."""
CLEARED_MAX = 1_024
"""The most cells that one round of a trim turns into tombstones."""


class Kind(NamedTuple):
    """The kind of a log: the name of its entries' type, and writers times readers, as "2x3"; "" fits any."""

    type: str = ""
    shards: str = ""


ANY_KIND = Kind()


class Floor(msgspec.Struct, frozen=True, omit_defaults=True):
    """A row's floor as stored: cells below `index` are trimmed, those below `cleared` are tombstones or gone.

    `type` and `shards` are those of the log's kind.
    """

    index: int = 0
    cleared: int = 0
    readers: dict[str, int] = {}
    writers: dict[str, int] = {}
    type: str = ""
    shards: str = ""

    def horizon(self, end: int) -> int:
        """The index up to which a trim may go, in a row that ends at `end`."""
        return min([end, *self.readers.values(), *self.writers.values()])


class Horizon:
    """The floor of one row; `first` is that of the log's first row, unless it is this."""

    def __init__(self, cells: Cells, first: Horizon | None = None) -> None:
        self._cells = cells
        self._first = first
        self.key = DocumentKey(cells.row, FLOOR)
        self.index = 0
        """The floor as last read or written."""
        self.version = ""
        """The version of its document then; empty: there was none."""
        self._known: Floor | None = None

    def forget(self) -> None:
        """Forget the floor: the store may be another's by now, or empty."""
        self.index, self.version, self._known = 0, "", None

    async def read(self) -> Floor:
        """The floor.

        Raises:
            CorruptRecord: its document cannot be decoded.
        """
        return await self._read("")

    async def read_again(self) -> Floor | None:
        """The floor of a row that had one; None where it is gone, or the read was stale.

        Then the last floor that was seen stays known, with its version: an empty one under a version that is still
        that of the store would be swapped in for it, without its readers and writers.
        """
        known, version = self._known, self.version
        floor = await self.read()
        if version and not self.version:
            self._known, self.version = known, version
            return None
        return floor

    async def opened(self, kind: Kind) -> Floor:
        """The floor of a log of this kind.

        Raises:
            NotRegistrable: it is of another.
        """
        floor = await self.read()
        check_kind(self._cells.row, floor, kind)
        if self._first is not None and not floor.type:  # nothing says so here yet
            await self._first.opened(kind)
        return floor

    async def _read(self, session: Session) -> Floor:
        document = await self._cells.store.read(self.key, session=session)
        floor = Floor() if document is None else _decoded(document)
        return self._seen(floor, "" if document is None else document.version)

    def _seen(self, floor: Floor, version: Version) -> Floor:
        self.index, self.version, self._known = max(self.index, floor.index), version, floor
        return floor

    async def change(self, change: Callable[[Floor], Floor]) -> Floor:
        """Swap the floor for `change`'s result; `change` may be called several times, so it must depend on its argument
        only.

        Raises:
            Refused: others changed it all the time.
        """
        known, session, is_fresh = self._known, "", False
        for _ in range(SWAP_COUNT_MAX):
            if known is None:
                known, is_fresh = await self._read(session), True
            wanted = change(known)
            if wanted == known and self.version and is_fresh:
                return known
            if wanted == known and self.version:  # what is remembered may be past
                known = None
                continue
            try:
                answer = await self._cells.store.write([put(self.key, wanted, self.version, Tag("floor"))])
            except OutcomeUnknown:  # read what is there: the same change once more changes nothing
                known, session = None, ""
                continue
            if isinstance(answer, Won):
                return self._seen(wanted, answer.versions[0])
            known, session = None, answer.session
        raise Refused(f"the floor of {self._cells.row} is changed by others all the time; try again later")

    async def register(
        self, *, reader: str = "", writer: str = "", at: int, kind: Kind = ANY_KIND, moves: bool = True
    ) -> Floor:
        """Register a reader, or a writer that looks for its cells, from an index on; a later index moves it.

        Unless it `moves`, a registration that is there stays: another replica's register may rest on it.

        Raises:
            Trimmed: the index is below the floor.
            NotRegistrable: the log is of another kind.
        """
        await self._check_first(kind)

        def change(known: Floor) -> Floor:
            name = reader or writer
            names = known.readers if reader else known.writers
            if name not in names and at < known.index:
                raise trimmed(self._cells.row, at, known.index)
            check_kind(self._cells.row, known, kind)
            moved = names | {name: max(at, names.get(name, 0)) if moves else names.get(name, at)}
            return msgspec.structs.replace(_of_kind(known, kind), **{"readers" if reader else "writers": moved})

        return await self.change(change)

    async def make(self, kind: Kind) -> Floor:
        """Say of which kind the log is.

        Raises:
            NotRegistrable: it is of another.
        """
        await self._check_first(kind)

        def change(known: Floor) -> Floor:
            check_kind(self._cells.row, known, kind)
            return _of_kind(known, kind)

        return await self.change(change)

    async def _check_first(self, kind: Kind) -> None:
        """Before a row's floor is made: see that the first row's is of the same kind, or make it."""
        if self._first is not None and kind.type and not (self._known or await self.read()).type:
            await self._first.make(kind)

    async def unregister(self, name: str) -> None:
        """Forget a reader or writer; the floor waits for it no longer."""

        def change(known: Floor) -> Floor:
            readers, writers = dict(known.readers), dict(known.writers)
            readers.pop(name, None)
            writers.pop(name, None)
            return msgspec.structs.replace(known, readers=readers, writers=writers)

        await self.change(change)

    async def trim(
        self, *, older_than_ms: int | None, tombstone_s: float, drop: Callable[[str], Awaitable[None]]
    ) -> tuple[int, Floor]:
        """Raise the floor by up to 1,024 cells, turn the cells below it into tombstones and `drop` their blobs.

        Returns their number, and the new floor.

        With `older_than_ms` it stops at the first cell that is younger, and without registrations at the end; without,
        it takes nothing of a row that no reader has registered at.
        """
        known = await self.read()
        is_used, by_age = bool(known.readers or known.writers), older_than_ms is not None
        # A registered index is at the end or before it, so only a log without one is searched for its end.
        end = UNLIMITED if is_used or not by_age else await self._cells.find_end(known.index)
        upto = min(known.horizon(end), known.cleared + CLEARED_MAX)
        if older_than_ms is not None:
            upto = await self._first_younger(known.index, upto, older_than_ms)
        if upto > known.index and (by_age or known.readers):
            known = await self.change(
                lambda floor: _raised(floor, min(upto, floor.horizon(end))) if by_age or floor.readers else floor
            )
        buried = await self._cells.bury(range(known.cleared, known.index), ttl_s=tombstone_s)
        for cell in buried:
            if cell.blob:
                await drop(cell.blob)
        if known.cleared < known.index:
            known = await self.change(partial(_cleared, known.index))
        return sum(not cell.gone for cell in buried), known

    async def _first_younger(self, index: int, upto: int, older_than_ms: int) -> int:
        while index < upto:
            cell = await self._cells.read(index)
            if cell is None or (not cell.gone and cell.at > older_than_ms):
                break
            index += 1
        return index


def _raised(floor: Floor, index: int) -> Floor:
    return msgspec.structs.replace(floor, index=max(floor.index, index))


def _cleared(index: int, floor: Floor) -> Floor:
    return msgspec.structs.replace(floor, cleared=max(floor.cleared, index))


def _of_kind(floor: Floor, kind: Kind) -> Floor:
    return msgspec.structs.replace(floor, type=floor.type or kind.type, shards=floor.shards or kind.shards)


def check_kind(row: str, known: Floor, kind: Kind) -> None:
    """Check that a log is of this kind.

    Raises:
        NotRegistrable: it is of another.
    """
    if known.type and kind.type and known.type != kind.type:
        raise NotRegistrable(
            f"{row} holds entries of {known.type}, not of {kind.type}; give type={known.type}, or the new log another "
            "name"
        )
    if known.shards and kind.shards and known.shards != kind.shards:
        writers, readers = known.shards.split("x")
        raise NotRegistrable(
            f"{row} is of a log of {known.shards} shards (writers x readers), not {kind.shards}: some entries would be "
            f"read by none; give writers={writers} and readers={readers}, or copy it into a log of another name"
        )


def trimmed(row: str, index: int, floor: int) -> Trimmed:
    """The error of a read below the floor."""
    return Trimmed(
        f"{row}: cell {index} was trimmed, the first that is left is {floor}; read from first()", floor=floor
    )


def _decoded(document: Document) -> Floor:
    try:
        return msgspec.json.decode(document.body, type=Floor)
    except DECODE_ERRORS as error:
        raise CorruptRecord(
            f"{document.key.partition}/{document.key.id} is not the floor of an ordered log ({error}); "
            "restore the document from a backup"
        ) from error
