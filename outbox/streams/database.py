"""The database of a sink: its cursor's table, and the transactions in which entries take effect.

The table `outbox_cursors` has for each sink the position of the entry that is next.  A transaction moves the cursor, by
an UPDATE whose condition is that it is still where it was read, and then applies entries: of several sinks one wins,
and the others change no row.  So nothing is locked before, and all statements are SQL that SQLite, PostgreSQL, SQL
Server and Oracle take alike.  The first of a transaction begins it, as DB-API 2.0 wants it.

Beside the row of a sink NAME, the row `NAME#log` has the last cell that was read: its index, and in place of an entry a
digest of its identity.  It needs no column of its own, so it fits into a table that is there already; a sink that does
not know of it leaves it, and then it does not fit to the cursor, and says nothing.

The cursor moves first, so an `apply` that commits by itself commits the cursor as well: no entry takes effect twice.
It may take effect in part, so such an `apply` is refused once it has returned: where the connection says that no
transaction is open (those of sqlite3 and psycopg do), and where the cursor is not where the transaction has moved it.

What `apply` raises is the user's and stops the sink, unless its driver says that the database failed meanwhile.
"""

from __future__ import annotations

import asyncio
import atexit
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from inspect import isasyncgen, isawaitable, isgenerator
from queue import SimpleQueue
from threading import Thread, current_thread
from typing import Any, Protocol, TypeVar
from weakref import finalize

import msgspec

from outbox.errors import NotRegistrable, OutcomeUnknown
from outbox.streams.cells import Position
from outbox.streams.register import LastCell
from outbox.streams.row import Entry

TABLE = "outbox_cursors"
SELECT = f"SELECT name, cell, entry FROM {TABLE} WHERE name = ? OR name = ?"
INSERT = f"INSERT INTO {TABLE} (name, cell, entry) VALUES (?, ?, ?)"
UPDATE = f"UPDATE {TABLE} SET cell = ?, entry = ? WHERE name = ? AND cell = ? AND entry = ?"
UPDATE_LAST = f"UPDATE {TABLE} SET cell = ?, entry = ? WHERE name = ?"
CREATE = (
    f"CREATE TABLE {TABLE} (name VARCHAR(200) NOT NULL PRIMARY KEY, "
    "cell DECIMAL(19, 0) NOT NULL, entry DECIMAL(19, 0) NOT NULL)"
)
MARKS = {"qmark": "?", "format": "%s", "pyformat": "%s", "named": ":p{}"}
"""How the parameters of a statement are written, by a driver's `paramstyle`."""
OUTAGES = ("OperationalError", "InterfaceError")
"""The DB-API 2.0 classes of errors that are no statement's mistake; each driver names its own so."""
PSYCOPG_IDLE = 0
"""The `info.transaction_status` of psycopg, 2 and 3, outside of a transaction."""
EXIT_WAIT_S = 5.0
"""How long the end of a process waits for a transaction."""
T = TypeVar("T")


class Cursor(msgspec.Struct, frozen=True, omit_defaults=True):
    """The cursor of a sink, as stored: the position of the next entry, and the last cell that was read."""

    at: Position
    last: LastCell | None = None


class Database(Protocol):
    """The database of a sink; each call is a transaction, and OutcomeUnknown where it failed."""

    async def cursor(self) -> Cursor | None:
        """Where the sink is; None where it has not begun."""

    async def begun(self, at: Position) -> Cursor:
        """Begin at a position, unless another has begun meanwhile; where it begins."""

    async def applied(self, known: Cursor, after: Cursor, entries: Sequence[Entry[Any]]) -> bool:
        """Apply entries and move the cursor; False where another was first."""

    def close(self) -> None:
        """Close all connections."""


class ThreadedDatabase:
    """A table's transactions in a thread of their own, so that nothing else waits for the driver.

    The thread is a daemon: a database that does not answer does not keep its process alive, and what a broken
    connection leaves is rolled back.
    """

    def __init__(self, table: CursorTable) -> None:
        self._table = table
        self._works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._has_thread = False

    async def cursor(self) -> Cursor | None:
        return await self._in_thread(self._table.cursor)

    async def begun(self, at: Position) -> Cursor:
        return await self._in_thread(lambda: self._table.begun(at))

    async def applied(self, known: Cursor, after: Cursor, entries: Sequence[Entry[Any]]) -> bool:
        return await self._in_thread(lambda: self._table.applied(known, after, entries))

    def close(self) -> None:
        self._begin(self._table.disconnect)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.wrap_future(self._begin(partial(self._table.guarded, work)))

    def _begin(self, work: Callable[[], T]) -> Future[T]:
        if not self._has_thread:
            self._has_thread = True
            Thread(target=_work_off, args=(self._works,), name=f"sink {self._table.name}", daemon=True).start()
            finalize(self, self._works.put, None).atexit = False
        ended = Future[T]()
        self._works.put((ended, work))
        return ended


def _work_off(works: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """Do one after the other, up to a None."""
    end = partial(_end, works, current_thread())
    atexit.register(end)
    while (asked := works.get()) is not None:
        ended, work = asked
        if ended.set_running_or_notify_cancel():
            try:
                ended.set_result(work())
            except BaseException as error:
                ended.set_exception(error)
        del asked, ended, work  # an idle thread keeps nothing alive
    atexit.unregister(end)


def _end(works: SimpleQueue[Any], thread: Thread) -> None:
    works.put(None)
    thread.join(EXIT_WAIT_S)


class CursorTable:
    """A sink's cursor in a database, and the connection to that; `create` makes the table where it is missing."""

    def __init__(
        self,
        name: str,
        connect: Callable[[], Any],
        apply: Callable[[Any, Sequence[Entry[Any]]], None],
        *,
        create: bool = False,
    ) -> None:
        self.name = name
        self._connect = connect
        self._apply = apply
        self._create = create
        self._connection: Any = None
        self._style = "qmark"
        self._last = last_row(name)

    def guarded(self, work: Callable[[], T]) -> T:
        """Do something with the connection; what its driver raises breaks it off.

        Raises:
            OutcomeUnknown: the database failed; whether it committed, the cursor says.
        """
        try:
            if self._connection is None:
                self._open()
            return work()
        except Exception as error:
            self.disconnect()
            if isinstance(error, _Raised):
                raise error.__cause__ or error from None
            if isinstance(error, NotRegistrable):
                raise
            raise OutcomeUnknown(f"sink {self.name}: the database failed ({type(error).__name__}: {error})") from error

    def _open(self) -> None:
        connection = self._connection = self._connected()  # so that it is closed where the rest fails
        if isinstance(connection, sqlite3.Connection) and connection.isolation_level is None:
            connection.isolation_level = "IMMEDIATE"  # else no statement begins a transaction
        if commits_by_itself(connection):
            raise NotRegistrable(
                f"sink {self.name}: connect gives a connection that commits each statement by itself, so entries and "
                "cursor would not change together; give one with autocommit=False, or of sqlite3 with an "
                "isolation_level"
            )
        style = paramstyle_of(connection)
        if style not in MARKS:
            raise NotRegistrable(
                f"sink {self.name}: its driver writes parameters as {style!r}; qmark or format, or named"
            )
        self._style = style
        if self._create:
            self._make_table(connection)

    def _make_table(self, connection: Any) -> None:
        """Create the table if it cannot be read; if another creates it meanwhile, it can be read then."""
        try:
            self._select(connection)
        except Exception:
            connection.rollback()
            try:
                self._execute(connection, CREATE)
                connection.commit()
            except Exception as error:
                connection.rollback()
                with suppress(Exception):
                    self._select(connection)
                    return
                raise error

    def _connected(self) -> Any:
        try:
            return self._connect()
        except TypeError as error:  # a mistake in the call of the driver, which another try does not change
            raise NotRegistrable(f"sink {self.name}: connect makes no connection: {error}; correct it") from error

    def disconnect(self) -> None:
        """Close the connection; the next work opens another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.close()

    def _execute(self, connection: Any, statement: str, *values: Any) -> Any:
        mark, parts = MARKS[self._style], statement.split("?")
        marks = [mark.format(number) for number in range(len(values))]
        text = "".join(part + sign for part, sign in zip(parts, [*marks, ""], strict=True))
        cursor = connection.cursor()
        cursor.execute(
            text, {f"p{number}": value for number, value in enumerate(values)} if self._style == "named" else values
        )
        return cursor

    def _select(self, connection: Any) -> Cursor | None:
        fetched = self._execute(connection, SELECT, self.name, self._last)
        rows = (row.values() if isinstance(row, Mapping) else row for row in iter(fetched.fetchone, None))
        found = {str(name): (int(cell), int(entry)) for name, cell, entry in rows}
        if self.name not in found:
            return None
        return Cursor(Position(*found[self.name]), LastCell(*found[self._last]) if self._last in found else None)

    def cursor(self) -> Cursor | None:
        """Where the sink is; None where it has not begun."""
        try:
            found = self._select(self._connection)
        except Exception as error:
            raise OSError(f"{TABLE} cannot be read, give create=True where it is missing: {error}") from error
        self._connection.rollback()
        return found

    def begun(self, at: Position) -> Cursor:
        """Begin at a position, unless another has begun meanwhile; where it begins."""
        refusal: Exception | None = None
        try:
            self._execute(self._connection, INSERT, self.name, at.index, at.offset)
            self._connection.commit()
        except Exception as error:  # a driver's own: another sink may have begun first, which the cursor says
            refusal = error
        self._connection.rollback()
        found = self.cursor()
        if found is None:
            raise OSError(
                f"the cursor cannot be written to {TABLE}; give create=True, or create the table ({refusal})"
            ) from refusal
        return found

    def applied(self, known: Cursor, after: Cursor, entries: Sequence[Entry[Any]]) -> bool:
        """Move the cursor and apply entries, in one transaction; False where another was first.

        Raises:
            NotRegistrable: `apply` ended the transaction, or gave something that is not done yet.
        """
        connection, at, to, last = self._connection, known.at, after.at, after.last
        try:
            moved = self._execute(connection, UPDATE, to.index, to.offset, self.name, at.index, at.offset)
            if moved.rowcount != 1:
                connection.rollback()
                return False
            if last is not None and known.last is None:
                self._execute(connection, INSERT, self._last, last.index, last.mark)
            elif last is not None:
                self._execute(connection, UPDATE_LAST, last.index, last.mark, self._last)
            self._take_effect(connection, to, entries)
            connection.commit()
            return True
        except BaseException:
            with suppress(Exception):
                connection.rollback()
            raise

    def _take_effect(self, connection: Any, after: Position, entries: Sequence[Entry[Any]]) -> None:
        """Call `apply` in a transaction that has moved the cursor, and look whether that is still open."""
        try:
            given: Any = self._apply(connection, entries)
        except Exception as error:
            if has_ended(connection) and self._is_at(connection, after):
                raise NotRegistrable(self._ended("committed, and then raised")) from error
            if is_outage(error):
                raise
            raise _Raised from error
        if isawaitable(given) or isgenerator(given) or isasyncgen(given):
            if hasattr(given, "close"):
                given.close()  # else Python warns that it was never awaited
            raise NotRegistrable(
                f"sink {self.name}: apply returned a {type(given).__name__}, which has applied nothing yet; a sink "
                "calls apply in a thread: give a plain function, without async and yield"
            )
        if has_ended(connection):
            raise NotRegistrable(self._ended("committed or rolled back"))
        if not self._is_at(connection, after):
            raise NotRegistrable(self._ended("rolled back"))

    def _is_at(self, connection: Any, at: Position) -> bool:
        found = self._select(connection)
        return found is not None and found.at == at

    def _ended(self, how: str) -> str:
        return (
            f"sink {self.name}: apply {how}; it must not commit or roll back, because the cursor is in the same "
            "transaction: leave out commit(), rollback(), executescript() and `with connection`, and compare what it "
            f"wrote last with the row of {self.name} in {TABLE}"
        )


def is_outage(error: Exception) -> bool:
    """Whether a driver says that its database failed, and not the statement, which fails again whenever it is tried.

    DB-API 2.0 says it by the class; the OperationalError of sqlite3 is also that of a table which is not there.
    """
    if getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_ERROR:  # extended ones as well
        return False
    return any(each.__name__ in OUTAGES for each in type(error).__mro__)


def last_row(name: str) -> str:
    """The name of the row that has the last cell which a sink has read."""
    return f"{name}#log"


def has_ended(connection: Any) -> bool:
    """Whether a connection says that no transaction is open; False where its driver does not say."""
    if getattr(connection, "in_transaction", None) is False:  # sqlite3
        return True
    return getattr(getattr(connection, "info", None), "transaction_status", None) == PSYCOPG_IDLE


def commits_by_itself(connection: Any) -> bool:
    """Whether a connection says that it commits each statement by itself."""
    if getattr(connection, "autocommit", None) is True:
        return True
    return hasattr(connection, "in_transaction") and getattr(connection, "isolation_level", "") is None  # of sqlite3


def paramstyle_of(connection: Any) -> str:
    """How a connection's driver writes parameters, by its module; that of a wrapped connection makes its cursors."""
    classes = [*type(connection).__mro__, *type(connection.cursor()).__mro__]
    modules = [sys.modules.get(each.__module__.partition(".")[0]) for each in classes]
    return next((style for module in modules if (style := getattr(module, "paramstyle", None))), "qmark")


class _Raised(Exception):
    """The user's function raised, and no outage of the database."""
