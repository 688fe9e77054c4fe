"""An ordered log: typed entries in cells, appended once under an id, read in order, trimmed behind its readers.

    readings = OrderedLog("readings", engine, type=Reading)
    at = await readings.append(Reading("boiler", 71.5), id="r1")
    async for entry in readings.read(since=at, wait=True): ...

The same name on the same store is the same log in any process.  `writers` and `readers` shard it twice: a writer
appends to rows that no other writer appends to, a reader reads the rows of its share of the entries, by `partition`.
What happens in one row is in `cells`; who may trim it, in `horizon`.
"""

from __future__ import annotations

import inspect
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from types import UnionType
from typing import Any, Generic, TypeVar, overload

from outbox.codec import Upcast
from outbox.errors import NotRegistrable, PoisonMessage, Refused, TooLarge
from outbox.lineage import Key, as_key, field
from outbox.message import ID_BYTES_MAX
from outbox.name_checks import NAMES_SHOWN_MAX
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.callables import check_call
from outbox.streams.cells import Position
from outbox.streams.horizon import UNREAD
from outbox.streams.log_places import POLL_S_MAX, ChangeWait, Place, place_of
from outbox.streams.read_ahead import ReadAhead
from outbox.streams.row import Entry, Row
from outbox.streams.values import ENTRIES_MAX, Values

T = TypeVar("T")

log = logging.getLogger("outbox.streams")

MARGIN = timedelta(minutes=10)
MARGIN_MIN = timedelta(seconds=10)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}").fullmatch


@dataclass(frozen=True, slots=True)
class RowStatus:
    """One row of a log, by `writer` and `reader` number: floor and end as cell indexes, lags in cells."""

    writer: int
    reader: int
    floor: int
    end: int
    readers: dict[str, int]
    writers: dict[str, int]


Since = Position | Awaitable[Position] | None


def is_name(name: str) -> bool:
    """Whether a log or processor may have this name."""
    return isinstance(name, str) and _NAME(name) is not None


def check_name(what: str, name: str) -> str:
    """A name of a log or processor, which becomes a part of partitions and blob names.

    Raises:
        NotRegistrable: it cannot.
    """
    if not is_name(name):
        raise NotRegistrable(
            f"{what} {str(name)[:40]!r}: a name has 1 to 128 letters, digits, `_`, `.` and `-`, and no sign first"
        )
    return name


class OrderedLog(Generic[T]):
    """A log of entries of one type, or of a union of classes.

    `place` is a backend or a `StateStore`; `writers` and `readers` are how many shards of each it has, and `partition`
    gives an entry's key, by which readers share.  How many they are is on record, as the type is, and cannot be
    changed.  `version` and `upcasts` are those of the entries' schema.

    `margin` is how long the tombstones of trimmed cells last.  An append that takes over half of it, however long its
    process is paused, looks at the floor again: what it wrote where cells had been trimmed is taken back and made
    again; a replica's, which another has written meanwhile, is only taken back.  A process that is killed before it
    looks leaves a cell that nobody reads.  A reader that waits looks at least every `poll_s_max` seconds.

    Raises:
        NotRegistrable: the name, the type or the number of shards cannot be used.
    """

    @overload
    def __init__(
        self,
        name: str,
        place: Any,
        *,
        type: type[T],
        version: int = ...,
        upcasts: Mapping[int, Upcast] | None = ...,
        writers: int = ...,
        readers: int = ...,
        partition: Callable[[T], Key] | None = ...,
        margin: timedelta = ...,
        poll_s_max: float = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: OrderedLog[Any],
        name: str,
        place: Any,
        *,
        type: UnionType,
        version: int = ...,
        upcasts: Mapping[int, Upcast] | None = ...,
        writers: int = ...,
        readers: int = ...,
        partition: Callable[[T], Key] | None = ...,
        margin: timedelta = ...,
        poll_s_max: float = ...,
    ) -> None: ...

    def __init__(
        self,
        name: str,
        place: Any,
        *,
        type: Any,
        version: int = 1,
        upcasts: Mapping[int, Upcast] | None = None,
        writers: int = 1,
        readers: int = 1,
        partition: Callable[[T], Key] | None = None,
        margin: timedelta = MARGIN,
        poll_s_max: float = POLL_S_MAX,
    ) -> None:
        self.name = check_name("log", name)
        if any(not isinstance(count, int) or not 1 <= count <= 256 for count in (writers, readers)):
            raise NotRegistrable(f"log {name}: writers={writers!r}, readers={readers!r}: 1 to 256 each")
        if not isinstance(poll_s_max, int | float) or not poll_s_max > 0:
            raise NotRegistrable(f"log {name}: poll_s_max={poll_s_max!r}: give seconds, more than 0")
        if partition is not None:
            check_call(f"log {name}: partition=", partition, "entry")
        if not isinstance(margin, timedelta) or margin < MARGIN_MIN:
            raise NotRegistrable(
                f"log {name}: margin={margin}: an append must end within half of it; give 10 s or more"
            )
        if readers > 1 and partition is None:
            raise NotRegistrable(f"log {name}: readers={readers} needs partition=, which says whose an entry is")
        self.writers = writers
        self.readers = readers
        self.poll_s_max = poll_s_max
        self.place = place_of(place)
        self.values = Values(name, type, version=version, upcasts=upcasts)
        self._partition = partition
        self._margin_s = margin.total_seconds()
        self._rows: dict[tuple[int, int], Row[T]] = {}
        self._has_warned = False
        self._first_writer = LogWriter(self, 0)

    def on(self, place: Place) -> OrderedLog[T]:
        """The same log on another place, or as a process sees it that has just begun."""
        other = copy(self)
        other.place, other._rows, other._first_writer = place, {}, LogWriter(other, 0)
        return other

    def row(self, writer: int, reader: int) -> Row[T]:
        """The row of a writer shard and a reader shard."""
        found = self._rows.get((writer, reader))
        if found is None:
            first = None if writer == reader == 0 else self.row(0, 0)
            shards = f"{self.writers}x{self.readers}"
            found = Row(self.name, self.place, self.values, self._margin_s, writer, reader, shards=shards, first=first)
            self._rows[writer, reader] = found
        return found

    def writer(self, writer: int) -> LogWriter[T]:
        """A writer shard: what appends to rows that no other shard appends to.

        Raises:
            NotRegistrable: there is none of this number.
        """
        if not 0 <= writer < self.writers:
            raise NotRegistrable(f"log {self.name} has writers 0 to {self.writers - 1}, not {writer}")
        return LogWriter(self, writer)

    def reader(self, reader: int) -> LogReader[T]:
        """A reader shard: its share of the entries, of all writers.

        Raises:
            NotRegistrable: there is none of this number.
        """
        if not 0 <= reader < self.readers:
            raise NotRegistrable(f"log {self.name} has readers 0 to {self.readers - 1}, not {reader}")
        return LogReader(self, reader)

    def reader_of(self, value: T) -> int:
        """The reader shard of a value; the same on every machine.

        Raises:
            PoisonMessage: `partition` fails for this value, or gives no key.
        """
        if self._partition is None or self.readers == 1:
            return 0
        try:
            key = as_key(self._partition(value))
        except Exception as error:
            raise PoisonMessage("failed", f"partition= of log {self.name}: {failure_text(error)}") from error
        return int.from_bytes(sha256(field(key)).digest()[:8], "big") % self.readers

    # Appending

    async def append(self, value: T, *, id: str, since: Since = None) -> Position:
        """Append one entry once; where it is.  The same id again gives the position that it has.

        An id is looked for from `since` on; without it from the end as it was when this object was first used, so a
        producer that crashes and begins again, or has several, may append twice: an `Ingest` or a `Processor` does not.

        Raises:
            PoisonMessage: the value cannot be stored.
            Refused: nothing was appended, or the id has other entries.
            OutcomeUnknown: append again, with the same id.
        """
        return await self._only_writer().append(value, id=id, since=since)

    async def extend(self, values: Sequence[T], *, id: str, since: Since = None) -> Position:
        """Append entries as one cell: all or none, and nothing between; where the first is."""
        return await self._only_writer().extend(values, id=id, since=since)

    def _only_writer(self) -> LogWriter[T]:
        if self.writers > 1:
            raise NotRegistrable(f"log {self.name} has {self.writers} writers; append by one of them: .writer(0)")
        return self._first_writer

    # Reading

    async def read(
        self, since: Since | Mapping[int, Position] = None, until: Since = None, *, wait: bool = False
    ) -> AsyncIterator[Entry[T]]:
        """Read entries from `since` (default: the first that is left) to before `until`, or to the end.

        With `wait` it waits for more at the end.

        Raises:
            Trimmed: `since` is below the floor.
        """
        async for entry in self._only_reader().read(since, until, wait=wait):
            yield entry

    def _only_reader(self) -> LogReader[T]:
        if self.readers > 1:
            raise NotRegistrable(f"log {self.name} has {self.readers} readers; read by one of them: .reader(0)")
        return LogReader(self, 0)

    async def first(self) -> Position:
        """The first position that is left."""
        return await self._only_reader().first()

    async def end(self) -> Position:
        """The position behind the last entry."""
        return await self._only_reader().end()

    async def register(self, name: str, at: Since | Mapping[int, Position] = None) -> None:
        """Register a reader that trims wait for, from a position on; again with a later one moves it on.

        Of several writers, a mapping from some of them to positions registers at their rows alone.
        """
        await self._only_reader().register(name, at)

    async def unregister(self, name: str) -> None:
        """Forget a reader or writer for good; trims wait for it no longer, and take the cells it left unread.

        Raises:
            Refused: no row has one of this name.
        """
        rows, known = self.rows(), set[str]()
        for row in rows:
            floor = await row.opened()
            known |= {*floor.readers, *floor.writers}
        if name not in known:
            there = ", ".join(sorted(known)[:NAMES_SHOWN_MAX]) or "none"
            raise Refused(f"log {self.name} has no reader or writer {name!r}; there are: {there}")
        for row in rows:
            await row.horizon.unregister(name)

    async def trim(self, *, min_age: timedelta | None = None) -> int:
        """Trim cells that no registered reader or writer needs and that are older than `min_age`; return their number.

        Without `min_age` a row that no reader is registered at is left whole, with a warning: its first may not have
        begun yet.  An age is a decision, `timedelta(0)` as well, and trims it.
        """
        done = [(row, *await row.trim(min_age)) for row in self.rows()]
        unread = [row.name for row, _, floor in done if min_age is None and not floor.readers]
        if unread and not self._has_warned:
            self._has_warned = True
            rows = f"{unread[0]} and {len(unread) - 1} more rows have" if len(unread) > 1 else f"{unread[0]} has"
            log.warning("%s %s min_age=", rows, UNREAD, extra={"log": self.name, "rows": unread[:NAMES_SHOWN_MAX]})
        return sum(count for _, count, _ in done)

    def rows(self) -> list[Row[T]]:
        """All rows."""
        return [self.row(writer, reader) for writer in range(self.writers) for reader in range(self.readers)]

    async def status(self) -> list[RowStatus]:
        """The floor and the end of each row, and who is how far behind."""
        found = []
        for row in self.rows():
            floor, end = await row.opened(), await row.end()
            found.append(
                RowStatus(
                    row.writer,
                    row.reader,
                    floor.index,
                    end,
                    {name: end - index for name, index in floor.readers.items()},
                    {name: end - index for name, index in floor.writers.items()},
                )
            )
        return found


@dataclass(frozen=True, slots=True)
class LogWriter(Generic[T]):
    """A writer shard of a log."""

    log: OrderedLog[T]
    writer: int

    async def append(self, value: T, *, id: str, since: Since = None) -> Position:
        """Append one entry once; see `OrderedLog.append`."""
        return await self.extend([value], id=id, since=since)

    async def extend(self, values: Sequence[T], *, id: str, since: Since = None) -> Position:
        """Append entries of one reader shard as one cell; see `OrderedLog.extend`.

        Raises:
            Refused: they belong to several, there are none, or the id was given with others.
        """
        log, values = self.log, list(values)
        _check_append(log.name, values, id)
        shares = {log.reader_of(value) for value in values} if log.readers > 1 else {0}
        if len(shares) > 1:
            raise Refused(f"log {log.name}: these entries belong to {len(shares)} readers; append each share by itself")
        at = None if since is None else await _given(since)
        return await log.row(self.writer, shares.pop()).append(values, id, None if at is None else at.index)


@dataclass(frozen=True, slots=True)
class LogReader(Generic[T]):
    """A reader shard of a log; of several writers it takes turns, so a cursor is a position for each."""

    log: OrderedLog[T]
    reader: int

    def rows(self) -> list[Row[T]]:
        """The rows of this share, one for each writer."""
        return [self.log.row(writer, self.reader) for writer in range(self.log.writers)]

    async def read(
        self, since: Since | Mapping[int, Position] = None, until: Since = None, *, wait: bool = False
    ) -> AsyncIterator[Entry[T]]:
        """Read entries; see `OrderedLog.read`.  `since` may be a mapping from writers to positions.

        Raises:
            Trimmed: `since` is below the floor.
            Refused: one position is given, and the log has several writers.
        """
        rows, last, waiting = self.rows(), await _given(until), ChangeWait(self.log.poll_s_max)
        given = None if isinstance(since, Mapping) else await _given(since)
        cursors = await self._cursors(given) | (dict(since) if isinstance(since, Mapping) else {})
        ahead = {row.writer: ReadAhead() for row in rows}
        if last is not None and len(rows) > 1:
            raise Refused(f"log {self.log.name} has {len(rows)} writers; until= is for one")
        while True:
            found = False
            for row in rows:
                at = cursors.get(row.writer, Position(0))
                if last is not None and at >= last:
                    return
                entries, cursors[row.writer] = await ahead[row.writer].entries(row, at, ENTRIES_MAX, last)
                found = found or cursors[row.writer] > at
                for entry in entries:
                    yield entry
            if found:
                waiting.reset()
            elif not wait:
                return
            else:
                seen = [one for row in rows for one in row.seen(cursors.get(row.writer, Position(0)).index)]
                await waiting.wait({self.log.place.store: seen})

    async def _cursors(self, since: Position | None) -> dict[int, Position]:
        rows = self.rows()
        if since is not None and len(rows) > 1:
            raise Refused(
                f"log {self.log.name} has {len(rows)} writers; give since= as a mapping from each to a position"
            )
        return {row.writer: Position(await row.first()) if since is None else since for row in rows}

    async def first(self) -> Position:
        """The first position that is left."""
        return Position(await self._row().first())

    async def end(self) -> Position:
        """The position behind the last entry."""
        return Position(await self._row().end())

    def _row(self) -> Row[T]:
        if self.log.writers > 1:
            raise Refused(f"log {self.log.name} has {self.log.writers} writers, each with an end; see status()")
        return self.log.row(0, self.reader)

    async def register(self, name: str, at: Since | Mapping[int, Position] = None) -> None:
        """Register a reader; see `OrderedLog.register`.

        Raises:
            Refused: the position is beyond the end, or of a writer that there is not.
        """
        rows = self.rows()
        if isinstance(at, Mapping):
            given = {writer: await _given(position) for writer, position in at.items()}
            others = [writer for writer in given if writer not in range(len(rows))]
            if others or not given:
                raise Refused(f"log {self.log.name} has writers 0 to {len(rows) - 1}, and at= names {others or 'none'}")
        else:
            given = dict.fromkeys(range(len(rows)), await _given(at))
        for writer, position in given.items():
            row = rows[writer]
            index = await row.first() if position is None else position.index
            if index > row.cells.end and index > (end := await row.end()):
                raise Refused(
                    f"{row.name} ends at {end}, reader {name!r} cannot stand at {index}; give a position that is there"
                )
            await row.horizon.register(reader=check_name("reader", name), at=index, kind=row.kind)


async def _given(position: Since) -> Position | None:
    found = await position if inspect.isawaitable(position) else position
    if found is not None and (not isinstance(found, Position) or found < Position(0)):
        raise Refused(f"{found!r} is no place in a log; give a Position, such as log.first() or that of an entry")
    return found


def _check_append(name: str, values: Sequence[Any], id: str) -> None:
    if not values:
        raise Refused(f"log {name}: an append without entries; append at least one")
    if len(values) > ENTRIES_MAX:
        raise TooLarge(f"log {name}: {len(values)} entries at once, over {ENTRIES_MAX}; append them in several cells")
    if not isinstance(id, str) or not id:
        raise Refused(
            f"log {name}: id={id!r}: an append has an id, a text that is not empty; a retry gives the same one"
        )
    if not id.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in id):
        raise Refused(f"log {name}: id={id!r} is no text that UTF-8 can hold; give another")
    if len(id.encode()) > ID_BYTES_MAX:
        raise TooLarge(f"log {name}: an id of over {ID_BYTES_MAX} bytes; give a shorter one, a digest for example")
