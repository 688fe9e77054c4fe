"""Entries of a log into any database, or into documents of a store: each has its effect once.

    sink = TransactionalSink("counter", crossings, lambda: sqlite3.connect("counters.db"), count, create=True)
    async with sink.run(): ...

Theory of operation: the cursor lies where the effect goes, and both change in one transaction, if the cursor is still
the one that was read.  Several sinks of one name may run at once: one commits, the others find that the cursor has
moved.  Whether a commit took effect whose outcome is not known, the cursor says.  The cell is read before the cursor
moves past it; a cell that is not there yet moves nothing.

Cursor and log lie in two places, and each may be restored, deleted or mistaken for another.  The floor has the sink's
registration, so where those two do not fit the sink stops and says so:

    no cursor, and registered behind the first cell that is left     the cursor was lost with what took effect
    a cursor below the floor                                         it was restored, and cells were trimmed since
    a cursor behind the end: no cell before it                       it is of another log, or the log was restored
    another cell before it than the last that was read               the same

Source: the counter in a database of "Heterogeneous concurrent exactly-once", without its cursor that moves first.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from inspect import isasyncgen, isawaitable
from typing import Any, Protocol

import msgspec

from outbox.errors import CorruptRecord, NotRegistrable, OtherLog, OutcomeUnknown, Refused, Trimmed
from outbox.generators import yields
from outbox.ports import DocumentKey, StateStore, Tag, Version, Won, Write
from outbox.streams.callables import check_call, is_async, unless_cancelled
from outbox.streams.cells import DECODE_ERRORS, Position, is_current, put
from outbox.streams.database import TABLE, Cursor, CursorTable, Database, ThreadedDatabase, last_row
from outbox.streams.log import LogReader, OrderedLog, check_name
from outbox.streams.log_places import POLL_S_MAX, ChangeWait, place_of
from outbox.streams.processor import (
    ERRORS_SAID,
    FINAL,
    PAUSE_S_FIRST,
    PAUSE_S_MAX,
    Errors,
    check_pace,
    goes_on,
    raise_from,
    started,
)
from outbox.streams.read_ahead import BYTES_MAX, ReadAhead
from outbox.streams.register import LastCell, check_lasts, last_of
from outbox.streams.replica import REPORT_EVERY, Progress
from outbox.streams.row import Entry, NotThere, Row

log = logging.getLogger("outbox.streams")

LOG_LOSSES_EVERY = 10

BATCH_MAX = 1_000
LOOK_COUNT = 3
"""How many steps look for a lost cursor in a store, with a pause between, before a sink stops."""


class Sink(Protocol):
    """A sink, which does one step after the other."""

    name: str
    row: Row[Any]
    reached: Position

    async def step(self) -> Progress:
        """Take the next entries, if there are any."""

    def close(self) -> None:
        """Close its connections, if it has any."""


def only_row(name: str, given: OrderedLog[Any] | LogReader[Any]) -> Row[Any]:
    """The one row that a sink reads.

    Raises:
        NotRegistrable: the log has several.
    """
    reader = given.reader(0) if isinstance(given, OrderedLog) and given.readers == 1 else given
    if not isinstance(reader, LogReader) or reader.log.writers > 1:
        raise NotRegistrable(
            f"sink {name} reads one row of cells: give a log with one writer and one reader, or .reader(n) of one with "
            "one writer; merge several by a Processor first"
        )
    return reader.rows()[0]


async def enter(row: Row[Any], name: str) -> tuple[Position, Position]:
    """Register a sink at the floor; where it is registered, and the first position that is left."""
    floor = await row.horizon.register(reader=f"sink/{name}", at=await row.first(), kind=row.kind, moves=False)
    return Position(floor.readers[f"sink/{name}"]), Position(floor.index)


def check_apply(name: str, apply: Callable[..., Any], *given: str, may_wait: bool) -> None:
    """Look whether a function can be called with these arguments, and whether a call applies anything.

    Raises:
        NotRegistrable: it cannot, or only makes something that does when it is awaited or gone through.
    """
    if yields(apply):
        raise NotRegistrable(f"sink {name}: apply is a generator function, so a call does nothing; leave out yield")
    if not may_wait and is_async(apply):
        raise NotRegistrable(
            f"sink {name}: apply is an async function, so a call does nothing; it is called in a thread of the sink's "
            "own, where it may block: give a plain function"
        )
    check_call(f"sink {name}: apply", apply, *given)


class Following:
    """The row of a sink, followed from its cursor on.

    `cursor` names the cursor, `setting` says how it is set; `look_count` is how many steps look in vain for one that
    was there: reads of a store may be stale.
    """

    def __init__(
        self, name: str, row: Row[Any], *, cursor: str, setting: Callable[[Position], str], look_count: int = 1
    ) -> None:
        self._name = name
        self._row = row
        self._cursor = cursor
        self._setting = setting
        self._look_count = self._looks_left = look_count
        self._is_on_the_row = False
        self._ahead = ReadAhead()

    async def begin(self, again: Callable[[], Awaitable[Position | None]]) -> Position:
        """Where a sink without a cursor begins; `again` looks for the cursor once more.

        Raises:
            NotRegistrable: it has been further on, so its cursor was lost.
            Refused: the same, unless reads were stale.
        """
        at, first = await enter(self._row, self._name)
        if at <= first:
            return at
        found = await again()  # another sink of the name may have begun meanwhile
        self._looks_left -= found is None
        if found is None and self._looks_left > 0:
            raise Refused(f"sink {self._name}: there is no {self._cursor}, and there was one; it looks again")
        if found is None:
            raise NotRegistrable(
                f"sink {self._name}: {self._row.name} has it registered at {at}, and there is no {self._cursor}: that "
                "was lost, or another sink has this name; restore it with what took effect, or give this sink another "
                f'name, or `await log.unregister("sink/{self._name}")` to begin at {first}, the first that is left'
            )
        return found

    async def next(self, known: Cursor, count_max: int) -> tuple[list[Entry[Any]], Cursor]:
        """Read up to `count_max` entries from the cursor on, and the cursor behind them.

        Raises:
            Trimmed: the cursor is below the floor.
            OtherLog: another cell than the last that was read lies in its place.
            NotThere: the cursor is behind the end, unless a read was stale.
        """
        self._looks_left, at = self._look_count, known.at
        if not self._is_on_the_row and known.last is not None:
            await self._check_last(at, known.last)
        try:
            entries, after = await self._read(at, count_max)
        except Trimmed as error:
            left = Position(error.floor)
            raise Trimmed(
                f"sink {self._name}: its cursor is at {at}, and cells of {self._row.name} were trimmed, the first that "
                f"is left is {left.index}; what lies from {at} to before {left} is lost to it: restore a newer "
                f"{self._cursor} with what took effect, or set {self._setting(left)} to go on without that",
                floor=error.floor,
            ) from error
        if not self._is_on_the_row:
            if after == at:
                await self._check(at)
            self._is_on_the_row = True
        return entries, Cursor(after, last_of(entries[-1]) if entries else known.last)

    async def _check_last(self, at: Position, last: LastCell) -> None:
        """Look whether the row is the one that was read: it may be that of another log of its name."""
        try:
            await check_lasts(f"sink/{self._name}", {self._row.name: last}, [(self._row, at)], ())
        except (OtherLog, NotThere) as error:
            await self._check(at)
            raise type(error)(f"sink {self._name}: {error}; {self._anew(await self._row.first())}") from error

    def _anew(self, first: int) -> str:
        """The instruction to make a sink go on in a log that was restored, or is read in another's place."""
        return f"or, to go on in this log, set {self._setting(Position(first))}; a later position does as well"

    async def _read(self, at: Position, count_max: int) -> tuple[list[Entry[Any]], Position]:
        """Read up to `count_max` entries, read after read, while all of a read's cells exist and are small."""
        found, after = await self._ahead.entries(self._row, at, count_max)
        size_bytes = self._ahead.size_bytes
        while len(found) < count_max and self._ahead.count > 1 and 2 * size_bytes <= BYTES_MAX:
            more, after = await self._ahead.entries(self._row, after, count_max - len(found))
            size_bytes += self._ahead.size_bytes
            found += more
        return found, after

    async def _check(self, at: Position) -> None:
        """Look whether a cursor, whose cell is not there, is at the end: the cell before it was there once."""
        before = at.before
        if before < self._row.cells.end or await self._row.cells.read(before) is not None:
            return
        first = await self._row.first()
        if before < first:
            return
        raise NotThere(
            f"sink {self._name}: its cursor is at {at}, and {self._row.name} ends before, without cell {before}; "
            f"if this is another log than before, give the sink another name; {self._anew(first)}"
        )


class SinkLoop:
    """Runs a sink: steps, waits, and reports at the floor how far it is."""

    def __init__(self, sink: Sink, poll_s_max: float, *, until_s: float = math.inf) -> None:
        """Take the parts; no pause after an error goes beyond `until_s` of the monotonic clock."""
        self._sink = sink
        self._waiting = ChangeWait(poll_s_max)
        self.errors = Errors(f"sink {sink.name}", until_s)
        self._losses_in_a_row = 0
        self._unreported = 0

    async def turn(self, *, pauses: bool = True) -> Progress:
        """One step, and what it asks for."""
        sink = self._sink
        try:
            progress = await sink.step()
        except FINAL:
            raise
        except (Refused, OutcomeUnknown) as error:
            self.errors.failed(error)
            fields = {"sink": sink.name, "error": str(error)}
            log.warning("sink %s failed; it tries again: %s", sink.name, error, extra=fields)
            await self.errors.pause()
            return Progress.LOST
        self.errors.ended()
        if progress is Progress.LOST:
            await self._pause_after_loss()
            return progress
        self._losses_in_a_row = 0
        self._unreported += progress is Progress.WON
        if self._unreported >= REPORT_EVERY or (self._unreported and progress is Progress.IDLE):
            self._unreported = 0
            with suppress(Refused, OutcomeUnknown):
                await sink.row.horizon.register(reader=f"sink/{sink.name}", at=sink.reached.index)
        if progress is Progress.WON:
            self._waiting.reset()
        elif progress is Progress.IDLE and pauses:
            await self._waiting.wait({sink.row.place.store: sink.row.seen(max(sink.reached.index, sink.row.cells.end))})
        return progress

    async def _pause_after_loss(self) -> None:
        """Let others go first, for longer each time: a write whose condition does not hold may never win."""
        self._losses_in_a_row += 1
        if self._losses_in_a_row % LOG_LOSSES_EVERY == 0:
            name, count = self._sink.name, self._losses_in_a_row
            fields = {"sink": name, "losses": count}
            text = "sink %s has lost %d times in a row: a write of its apply has a condition that does not hold"
            log.warning(text, name, count, extra=fields)
        again = self._losses_in_a_row - 1
        await asyncio.sleep(min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(again - 1, 10)) if again else 0)

    async def for_ever(self) -> None:
        while goes_on():
            await self.turn()

    def check(self) -> None:
        """Raise what the last turns failed with, if that were several in a row."""
        if self.errors.last is not None and self.errors.count >= ERRORS_SAID:
            raise self.errors.last


@asynccontextmanager
async def running(sink: Sink, poll_s_max: float) -> AsyncIterator[None]:
    """Run a sink until the context ends; then raise the error that stopped it, or that it keeps failing with."""
    loop = SinkLoop(sink, poll_s_max)
    task = started(loop.for_ever(), f"sink {sink.name}")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        sink.close()
    raise_from(task)
    loop.check()


async def drained(sink: Sink, poll_s_max: float, seconds: float) -> int:
    """Run a sink until there is nothing left, or `seconds` have passed; how many transactions it made."""
    count, until_s = 0, time.monotonic() + seconds
    loop = SinkLoop(sink, poll_s_max, until_s=until_s)
    try:
        while time.monotonic() < until_s and (progress := await loop.turn(pauses=False)) is not Progress.IDLE:
            count += progress is Progress.WON
    finally:
        sink.close()
    if loop.errors.last is not None and not count:
        raise loop.errors.last
    loop.check()
    return count


class TransactionalSink:
    """Applies entries in a database's own transactions, beside a cursor in the table `outbox_cursors`.

    `connect` makes a connection of any DB-API 2.0 driver, in a thread of the sink's own; `apply(connection, entries)`
    changes what it likes and must not commit.  `create` makes the table where it is missing.

    Raises:
        NotRegistrable: the log has several writers or readers.
    """

    def __init__(
        self,
        name: str,
        log: OrderedLog[Any] | LogReader[Any],
        connect: Callable[[], Any],
        apply: Callable[[Any, Sequence[Entry[Any]]], None],
        *,
        create: bool = False,
        batch_max: int = BATCH_MAX,
        poll_s_max: float = POLL_S_MAX,
    ) -> None:
        self._poll_s_max = poll_s_max
        check_apply(check_name("sink", name), apply, "connection", "entries", may_wait=False)
        check_pace(f"sink {name}", batch_max, poll_s_max=poll_s_max)
        if hasattr(connect, "cursor"):  # some can be called
            raise NotRegistrable(f"sink {name}: connect is a connection; give a function that makes one")
        check_call(f"sink {name}: connect", connect)
        self._database = ThreadedDatabase(CursorTable(name, connect, apply, create=create))
        self._steps = DatabaseSteps(name, only_row(name, log), self._database, batch_max)

    def run(self) -> Any:
        """Run until the context ends, and raise then what stopped it, or what it fails with again and again."""
        return running(self._steps, self._poll_s_max)

    async def run_until_idle(self, *, seconds: float = 50.0) -> int:
        """Apply all entries, or as many as it can in `seconds`, and return the number of transactions.

        Raises:
            OutcomeUnknown, Refused: database or log failed up to the end, and again and again, or nothing was done.
        """
        return await drained(self._steps, self._poll_s_max, seconds)

    async def step(self) -> Progress:
        """Apply the next entries in one transaction, if there are any.

        Raises:
            OutcomeUnknown: the database failed; whether it committed, the cursor says at the next step.
        """
        return await self._steps.step()

    def close(self) -> None:
        """Close the connection."""
        self._steps.close()


class DatabaseSteps:
    """The steps of a sink into a database."""

    def __init__(self, name: str, row: Row[Any], database: Database, batch_max: int) -> None:
        self.name = name
        self.row = row
        self.reached = Position(0)
        self._database = database
        self._batch_max = batch_max
        self._following = Following(name, row, cursor=f"row of {name} in {TABLE}", setting=lambda at: setting(name, at))

    async def step(self) -> Progress:
        """Apply the next entries, if there are any."""
        known = await self._database.cursor()
        if known is None:
            known = await self._database.begun(await self._following.begin(self._position))
        try:
            entries, after = await self._following.next(known, self._batch_max)
        except Trimmed:  # another sink of the name may have gone on, and let that be trimmed
            if await self._database.cursor() == known:
                raise
            return Progress.LOST
        if not entries:
            self.reached = after.at
            return Progress.IDLE
        if not await self._database.applied(known, after, entries):
            return Progress.LOST
        self.reached = after.at
        return Progress.WON

    async def _position(self) -> Position | None:
        found = await self._database.cursor()
        return None if found is None else found.at

    def close(self) -> None:
        """Let go of the connection."""
        self._database.close()


def setting(name: str, at: Position) -> str:
    """The SQL that sets a cursor in a database and deletes the row of its last cell."""
    place = f"('{name}', {at.index}, {at.offset})"
    return f"(name, cell, entry) in {TABLE} to {place} and delete its row '{last_row(name)}'"


class StoreSink:
    """Writes documents of one partition of a store, beside the cursor and in one batch with it.

    `apply(entries)`, sync or async, gives the writes for these entries, in `partition`; where one of their conditions
    does not hold, it is asked again.

    Raises:
        NotRegistrable: the store writes one document at a time, or the log has several writers or readers.
    """

    def __init__(
        self,
        name: str,
        log: OrderedLog[Any] | LogReader[Any],
        store: Any,
        *,
        partition: str,
        apply: Callable[[Sequence[Entry[Any]]], Any],
        batch_max: int = 64,
        poll_s_max: float = POLL_S_MAX,
    ) -> None:
        self.name = check_name("sink", name)
        self.row = only_row(name, log)
        self.reached = Position(0)
        self._store: StateStore = place_of(store).store
        if self._store.capabilities.atomic_scope != "partition":
            raise NotRegistrable(
                f"sink {name}: documents and the cursor are written together, and this store writes one at a time; "
                "give a store of partition scope"
            )
        self.key = DocumentKey(partition, f"sink:{name}")
        check_apply(name, apply, "entries", may_wait=True)
        check_pace(f"sink {name}", batch_max, poll_s_max=poll_s_max)
        self._following = Following(
            name,
            self.row,
            cursor=f"document {partition}/{self.key.id}",
            setting=lambda at: f"{partition}/{self.key.id} to {msgspec.json.encode(Cursor(at)).decode()}",
            look_count=LOOK_COUNT,
        )
        self._apply = apply
        self._batch_max = batch_max
        self._poll_s_max = poll_s_max

    def run(self) -> Any:
        """Run until the context ends, and raise then what stopped it, or what it fails with again and again."""
        return running(self, self._poll_s_max)

    async def run_until_idle(self, *, seconds: float = 50.0) -> int:
        """Write all entries, or as many as it can in `seconds`, and return the number of batches.

        Raises:
            OutcomeUnknown, Refused: a store failed up to the end, and again and again, or nothing was done.
        """
        return await drained(self, self._poll_s_max, seconds)

    def close(self) -> None:
        """Nothing is open."""

    async def step(self) -> Progress:
        """Write the next entries' documents in one batch, if there are any.

        Raises:
            Refused, OutcomeUnknown: the store failed; whether it wrote, the cursor says at the next step.
        """
        known, version = await self._cursor() or (Cursor(await self._following.begin(self._position)), "")
        try:
            entries, after = await self._following.next(known, self._batch_max)
        except Trimmed:  # another sink of the name may have gone on, and let that be trimmed
            if await self._is_current(known.at, version):
                raise
            return Progress.LOST
        if not entries:
            self.reached = after.at
            return Progress.IDLE
        given = self._apply(entries)
        if isawaitable(given):
            with unless_cancelled():
                given = await given
        if given is None or isasyncgen(given):
            raise NotRegistrable(f"sink {self.name}: apply gave {type(given).__name__}; give a list of writes, or []")
        writes: list[Write] = list(given)
        if any(write.key.partition != self.key.partition or write.key == self.key for write in writes):
            raise NotRegistrable(f"sink {self.name}: a write leaves partition {self.key.partition!r}, or is its cursor")
        answer = await self._store.write([put(self.key, after, version, Tag("sink")), *writes])
        if not isinstance(answer, Won):
            return Progress.LOST
        self.reached = after.at
        return Progress.WON

    async def _is_current(self, at: Position, version: Version) -> bool:
        """Whether nobody has moved the cursor since; where there was none it is made, because a read may be stale."""
        if version:
            return await is_current(self._store, self.key, version)
        try:
            return isinstance(await self._store.write([put(self.key, Cursor(at), "", Tag("sink"))]), Won)
        except OutcomeUnknown:
            return False

    async def _position(self) -> Position | None:
        found = await self._cursor()
        return None if found is None else found[0].at

    async def _cursor(self) -> tuple[Cursor, Version] | None:
        document = await self._store.read(self.key)
        if document is None:
            return None
        try:
            return msgspec.json.decode(document.body, type=Cursor), document.version
        except DECODE_ERRORS as error:
            raise CorruptRecord(f"{self.key.partition}/{self.key.id} is no cursor of a sink ({error})") from error
