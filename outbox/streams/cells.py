"""One row of cells: append once under an identity, read, find the end.

A row is documents with consecutive indexes and no hole: every cell below the end exists, or existed and was trimmed.
A cell is created once and never changed; trimming turns it into a tombstone, which keeps its place and its identity
until no writer can try that place any more.  A page of 1,024 cells is a partition.

    <row>/<index >> 10>   <index>   a cell: {"id", "at", "count", "v"}, or its tombstone: {"id", "gone"}
    <row>                 `hint`    {"end"}: where to begin looking for the end; wrong is slow, never false
    <row>                 `floor`   see `horizon`

Theory of operation: a writer gives the identity of its cell and `since`, an index at or behind which that
identity must lie if it was ever written.  It creates its cell at the first index from there on that is free.  A create
that loses says that the index is taken: by the same identity, so it is done, or by another, so the next index is next.
Nothing else moves it on: a lost reply, or a cell that is "not there" again after a lost create (a stale read), is
another try at the same index.  So two replicas, a crashed writer that begins again and a request that lands late meet
at the same free index, and one of them wins.

Source: lock-free queues over compare-and-swap ("Heterogeneous concurrent exactly-once"), without its reservation of
indexes and with identities in place of equal values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from outbox.errors import CorruptRecord, DeadlinePassed, OutcomeUnknown, Refused
from outbox.ports import Create, Document, DocumentKey, Lost, Replace, Session, StateStore, Tag, Version, Won, Write

PAGE_BITS = 10
HINT, FLOOR = "hint", "floor"
HINT_EVERY = 64
WALKED_MAX = 16
"""The cells that a writer walks before the hint is raised; otherwise it is raised every `HINT_EVERY` cells."""
MISS_COUNT_MAX = 10
"""How often a cell may be missing after a create that lost, before the append gives up."""
BURY_COUNT_MAX = 20
DECODE_ERRORS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """A place in a log: the indexes of a cell and an entry in it, from 0; prints as `index.offset`."""

    index: int
    offset: int = 0

    def __str__(self) -> str:
        return f"{self.index}.{self.offset}"

    def after(self) -> Position:
        """The place behind this entry."""
        return Position(self.index, self.offset + 1)

    @property
    def before(self) -> int:
        """The index of the cell of the entry before this place; -1 at the first."""
        return self.index if self.offset else self.index - 1


class Cell(msgspec.Struct, frozen=True, omit_defaults=True):
    """A cell as stored: who wrote it, when (milliseconds since 1970), and its entries, or the blob that has them.

    `types` names each entry's type where the log has several; `schema` is the entries' schema version.  A pipeline's
    bundle says which positions of its source it covers: from `begin` on, up to before `until`.
    """

    id: str
    at: int = 0
    count: int = 0
    v: list[msgspec.Raw] = []
    types: list[str] = []
    schema: int = 1
    blob: str = ""
    digest: str = ""
    gone: bool = False
    begin: Position | None = msgspec.field(default=None, name="from")
    until: Position | None = None


NOTHING = Cell("")
"""In place of a cell of which nothing is known; nobody's, so who walks by goes on."""


class Hint(msgspec.Struct, frozen=True):
    """An index at or before the end."""

    end: int


class FoundCell(NamedTuple):
    """Where an append's cell lies, the cell as it lies there, and how many cells were walked past."""

    at: int
    cell: Cell
    walked_count: int


def decode_cell(document: Document) -> Cell:
    """A document as a cell.

    Raises:
        CorruptRecord: it is not one.
    """
    try:
        cell = msgspec.json.decode(document.body, type=Cell)
        if cell.gone or cell.blob or (cell.count == len(cell.v) > 0 and len(cell.types) in (0, cell.count)):
            return cell
        error: object = f"it says {cell.count} entries and holds {len(cell.v)}"
    except DECODE_ERRORS as found:
        error = found
    raise CorruptRecord(
        f"{document.key.partition}/{document.key.id} is not a cell of an ordered log ({error}); something else writes "
        "into this log's partitions: find it, and restore the document from a backup"
    )


class Cells:
    """A row of cells on a store.

    `until_ms` of an append is a time of `now_ms` after which it must not write: a tombstone that it should have met
    may be gone by then.
    """

    def __init__(self, store: StateStore, row: str, *, now_ms: Callable[[], int]) -> None:
        self.store = store
        self.row = row
        self.end = 0
        """An index below which all cells are known to exist."""
        self._now_ms = now_ms
        self._hinted = 0

    def forget(self) -> None:
        """Forget where the end is known to be: the store may be another's by now, or empty."""
        self.end = self._hinted = 0

    def key(self, index: int) -> DocumentKey:
        """Where a cell lies."""
        return DocumentKey(f"{self.row}/{index >> PAGE_BITS}", f"{index:010}")

    async def read(self, index: int, *, session: Session = "") -> Cell | None:
        """A cell or its tombstone; None where the store has neither.

        Raises:
            CorruptRecord: the document is neither.
        """
        document = await self.store.read(self.key(index), session=session)
        return None if document is None else self._seen(index, decode_cell(document))

    def _seen(self, index: int, cell: Cell) -> Cell:
        self.end = max(self.end, index + 1)
        return cell

    async def append(
        self, cell: Cell, since: int, *, until_ms: int, passed: Callable[[int, Cell], None] | None = None
    ) -> FoundCell:
        """Write a cell once, at the first free index from `since` on; `passed` learns of the others on the way.

        `since` must not be behind the end: there is no hole in a row.

        Raises:
            DeadlinePassed: `until_ms` is past, and nothing was written.
            OutcomeUnknown, Refused: the store failed; append again, with the same identity and `since`.
        """
        index, session, is_looked_for, misses, is_unsure = since, "", since < self.end, 0, False
        while True:
            try:
                there = await self.read(index, session=session) if is_looked_for else None
                if there is None:
                    misses += is_looked_for
                    self._check(cell, until_ms, misses)
                    there, session = await self._create(index, cell)
            except Refused as error:
                if not is_unsure:
                    raise
                text = f"the append of {cell.id} to {self.row} had no answer, and then: {error}; append it again later"
                raise OutcomeUnknown(text) from error
            if there is None:
                is_looked_for = True  # taken, or not known to be: look, and create again at this very index
                is_unsure = is_unsure or not session
            elif there.id == cell.id:
                return FoundCell(index, there, index - since)
            else:
                if passed is not None:
                    passed(index, there)
                index, session, misses = index + 1, "", 0
                is_looked_for = index < self.end

    async def _create(self, index: int, cell: Cell) -> tuple[Cell | None, Session]:
        """Create a cell and return the one that lies there, or None and a token to read it with."""
        try:
            answer = await self.store.write(
                [Create(self.key(index), msgspec.json.encode(cell), tag=Tag("append", (), cell.id))]
            )
        except OutcomeUnknown:
            return None, ""
        if isinstance(answer, Won):
            return self._seen(index, cell), ""
        if answer.current is not None:
            return self._seen(index, decode_cell(answer.current)), ""
        return None, answer.session

    def _check(self, cell: Cell, until_ms: int, misses: int) -> None:
        if self._now_ms() >= until_ms:
            raise DeadlinePassed(
                f"the append of {cell.id} to {self.row} took too long and wrote nothing more; begin again"
            )
        if misses > MISS_COUNT_MAX:
            raise OutcomeUnknown(f"a cell of {self.row} exists and is not found; append {cell.id} again later")

    # The end

    async def find_end(self, at_least: int) -> int:
        """The first free index, at or behind `at_least`, which must not be behind it.

        It is an earlier one where reads are stale.  Gallops and bisects: there are no holes, so a cell that is missing
        bounds the end.
        """
        low = max(at_least, self.end, (await self._read_hint())[0])
        if await self.read(low) is None:
            return low
        reach = 1
        while await self.read(low + reach) is not None:
            low, reach = low + reach, 2 * reach
        missing = low + reach
        while missing - low > 1:
            middle = (low + missing) // 2
            if await self.read(middle) is None:
                missing = middle
            else:
                low = middle
        return missing

    async def _read_hint(self) -> tuple[int, Version]:
        document = await self.store.read(DocumentKey(self.row, HINT))
        if document is None:
            return 0, ""
        with suppress(*DECODE_ERRORS):
            return msgspec.json.decode(document.body, type=Hint).end, document.version
        return 0, document.version

    async def raise_hint_if_due(self, walked_count: int) -> None:
        """Raise the hint to the known end, now and then; whether that works makes no difference."""
        if self.end - self._hinted < HINT_EVERY and walked_count < WALKED_MAX:
            return
        self._hinted = self.end
        with suppress(OutcomeUnknown, Refused):
            end, version = await self._read_hint()
            if end < self.end:
                await self.store.write([put(DocumentKey(self.row, HINT), Hint(self.end), version, Tag("hint"))])

    # Trimming

    async def bury(self, indexes: Sequence[int], *, ttl_s: float) -> list[Cell]:
        """Turn cells into tombstones that expire after `ttl_s`; the cells and tombstones as they were.

        As many in one write as the store takes.  A tombstone names its cell's blob until that is deleted.
        """
        count_max = (
            self.store.capabilities.batch_count_max if self.store.capabilities.atomic_scope == "partition" else 1
        )
        buried: list[Cell] = []
        todo = list(indexes)
        while todo:
            page = todo[0] >> PAGE_BITS
            batch = [index for index in todo[:count_max] if index >> PAGE_BITS == page]
            todo = todo[len(batch) :]
            buried += await self._bury(batch, ttl_s)
        return buried

    async def _bury(self, indexes: Sequence[int], ttl_s: float) -> list[Cell]:
        session = ""
        for _ in range(BURY_COUNT_MAX):
            documents = [await self.store.read(self.key(index), session=session) for index in indexes]
            cells = [(document, decode_cell(document)) for document in documents if document is not None]
            writes: list[Write] = [
                Replace(document.key, tombstone_of(cell), document.version, ttl_s, Tag("bury", (), cell.id))
                for document, cell in cells
                if not cell.gone
            ]
            writes += [  # its tombstone is gone, or the read was stale: then this loses
                Create(self.key(index), tombstone_of(NOTHING), ttl_s, Tag("bury"))
                for index, document in zip(indexes, documents, strict=True)
                if document is None
            ]
            answer = await self.store.write(writes) if writes else None
            if not isinstance(answer, Lost):
                return [cell for _, cell in cells]
            session = answer.session
        raise Refused(f"cells of {self.row} are trimmed by others all the time; try again later")

    async def take_back(self, index: int, id: str, *, ttl_s: float) -> None:
        """Put nobody's tombstone in place of a cell that was written where no reader comes any more."""
        session = ""
        for _ in range(BURY_COUNT_MAX):
            document = await self.store.read(self.key(index), session=session)
            if document is None:
                continue  # the read was stale
            if decode_cell(document).id != id:
                return
            tombstone = tombstone_of(NOTHING)
            answer = await self.store.write([Replace(document.key, tombstone, document.version, ttl_s, Tag("bury"))])
            if isinstance(answer, Won):
                return
            session = answer.session
        raise Refused(f"cell {index} of {self.row} is not found, or changed by others all the time; try again later")


async def is_current(store: StateStore, key: DocumentKey, version: Version) -> bool:
    """Whether a document still has a version: by a write of what it holds, because a read may be stale.

    False also where that write has no answer.
    """
    document = await store.read(key)
    if document is None or document.version != version:
        return False
    try:
        answer = await store.write([Replace(key, document.body, version, tag=Tag("current"))])
    except OutcomeUnknown:
        return False
    return isinstance(answer, Won)


def tombstone_of(cell: Cell) -> bytes:
    """The tombstone of a trimmed cell: its identity, and its blob that is to be deleted."""
    return msgspec.json.encode(Cell(cell.id, gone=True, blob=cell.blob))


def put(key: DocumentKey, body: msgspec.Struct, version: Version, tag: Tag) -> Create | Replace:
    """Write a document that still has a version; empty: that is absent."""
    data = msgspec.json.encode(body)
    return Replace(key, data, version, tag=tag) if version else Create(key, data, tag=tag)
