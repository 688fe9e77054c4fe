"""What a sink sends to a database: plain SQL, in the style of any driver, and a table that two create at once."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable, OutcomeUnknown
from outbox.streams import Entry, OrderedLog, TransactionalSink
from tests.unit.streams.making import fill, made

NOT_EVERYWHERE = re.compile(
    r"FOR UPDATE|IF NOT EXISTS|LIMIT|BIGINT|ON CONFLICT|RETURNING|BEGIN|MERGE|;|\bTEXT\b|AUTOINCREMENT", re.IGNORECASE
)
"""What one of SQLite, PostgreSQL, SQL Server and Oracle does not take, or takes otherwise."""


class Cursor:
    """A cursor of another driver, whose parameters are written otherwise than those of SQLite below it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._cursor = connection.db.cursor()
        self.rowcount = -1

    def execute(self, statement: str, values: Any = ()) -> Cursor:
        found = NOT_EVERYWHERE.search(statement)
        if found:
            raise RuntimeError(f"42000: Incorrect syntax near {found.group()!r}")
        self._connection.sent.append(statement)
        self._cursor.execute(self._connection.written(statement), values)
        self.rowcount = self._cursor.rowcount
        return self

    def fetchone(self) -> Any:
        return self._cursor.fetchone()


class Connection:
    """A connection to SQLite that looks like one of another driver."""

    def __init__(self, path: Path, written: Callable[[str], str] = str) -> None:
        self.db = sqlite3.connect(path)
        self.written = written
        self.sent: list[str] = SENT

    def cursor(self) -> Cursor:
        return Cursor(self)

    def commit(self) -> None:
        self.db.commit()

    def rollback(self) -> None:
        self.db.rollback()

    def close(self) -> None:
        self.db.close()


SENT: list[str] = []
"""All statements that were sent in a test."""


@pytest.fixture
async def log() -> AsyncIterator[OrderedLog[int]]:
    async with Engine.in_memory() as engine:
        yield made("numbers", engine, int)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a table for what was applied, and no cursors."""
    SENT.clear()
    path = tmp_path / "applied.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE applied (n INT)")
    return path


def applied(path: Path) -> list[int]:
    """What was applied, in order."""
    with sqlite3.connect(path) as db:
        return [n for (n,) in db.execute("SELECT n FROM applied ORDER BY rowid")]


def note(connection: Any, entries: Sequence[Entry[int]]) -> None:
    """Write down what is applied."""
    db = getattr(connection, "db", connection)
    db.executemany("INSERT INTO applied VALUES (?)", [(entry.value,) for entry in entries])


STYLES: dict[str, Callable[[str], str]] = {
    "qmark": str,
    "format": lambda statement: statement.replace("%s", "?"),
    "pyformat": lambda statement: statement.replace("%s", "?"),
    "named": str,
}


@pytest.mark.parametrize("style", STYLES)
async def test_all_statements_are_plain_sql_in_the_style_of_the_driver(
    log: OrderedLog[int], file: Path, style: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = ModuleType("another_driver")
    driver.paramstyle = style  # type: ignore[attr-defined]  # which every driver has
    monkeypatch.setitem(sys.modules, "another_driver", driver)
    monkeypatch.setattr(Connection, "__module__", "another_driver")
    await fill(log, 1, 2, 3)

    def sink() -> TransactionalSink:
        return TransactionalSink("s", log, lambda: Connection(file, STYLES[style]), note, create=True, batch_max=2)

    assert await sink().run_until_idle() == 2
    await log.append(4, id="four")
    assert await sink().run_until_idle() == 1
    assert applied(file) == [1, 2, 3, 4]
    assert {statement.split()[0] for statement in SENT} == {"CREATE", "SELECT", "INSERT", "UPDATE"}


async def test_a_wrapped_connection_is_that_of_the_driver_which_makes_its_cursors(
    log: OrderedLog[int], file: Path
) -> None:
    class Wrapped:
        """As a pool or a tracer gives it."""

        def __init__(self) -> None:
            self._connection = sqlite3.connect(file)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    await fill(log, 1, 2)
    sinks = [TransactionalSink("s", log, Wrapped, note, create=True, batch_max=1) for _ in range(2)]
    assert sum(await asyncio.gather(*(each.run_until_idle() for each in sinks))) == 2
    assert applied(file) == [1, 2]


async def test_a_wrapped_connection_that_begins_no_transaction_is_refused(log: OrderedLog[int], file: Path) -> None:
    class Wrapped:
        def __init__(self) -> None:
            self._connection = sqlite3.connect(file, isolation_level=None)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    with pytest.raises(NotRegistrable, match="commits each statement by itself"):
        await TransactionalSink("s", log, Wrapped, note, create=True).step()


async def test_a_connection_of_sqlite_that_begins_no_transaction_by_itself_is_made_to(
    log: OrderedLog[int], file: Path
) -> None:
    def fails(connection: Any, entries: Sequence[Entry[int]]) -> None:
        note(connection, entries)
        raise ZeroDivisionError

    await fill(log, 1, 2)
    connect = lambda: sqlite3.connect(file, isolation_level=None)  # noqa: E731  # two sinks share it
    with pytest.raises(ZeroDivisionError):
        await TransactionalSink("s", log, connect, fails, create=True).step()
    assert applied(file) == []
    await TransactionalSink("s", log, connect, note, create=True).run_until_idle()
    assert applied(file) == [1, 2]


async def test_a_table_that_another_creates_at_the_same_time_is_used(log: OrderedLog[int], file: Path) -> None:
    class Late(sqlite3.Connection):
        """A connection that creates its table when another has just done so."""

        def cursor(self, *given: Any) -> Any:
            connection = self

            class Creates(sqlite3.Cursor):
                def execute(self, statement: str, *values: Any) -> Any:
                    if statement.startswith("CREATE") and connection.others:
                        connection.others.pop()()
                    return super().execute(statement, *values)

            return super().cursor(Creates)

        others: ClassVar[list[Callable[[], None]]] = []

    def create() -> None:
        with sqlite3.connect(file) as other:
            other.execute("CREATE TABLE outbox_cursors (name VARCHAR(200) PRIMARY KEY, cell BIGINT, entry BIGINT)")

    Late.others = [create]
    await fill(log, 1)
    sink = TransactionalSink("s", log, lambda: sqlite3.connect(file, factory=Late), note, create=True)
    assert await sink.run_until_idle() == 1
    assert applied(file) == [1] and not Late.others


async def test_rows_may_be_mappings(log: OrderedLog[int], file: Path) -> None:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(file)
        connection.row_factory = lambda cursor, row: {
            column[0].upper(): value for column, value in zip(cursor.description, row, strict=True)
        }
        return connection

    await fill(log, 1, 2)
    assert await TransactionalSink("counter", log, connect, note, create=True).run_until_idle(seconds=5) == 1
    await log.append(3, id="three")
    await TransactionalSink("counter", log, connect, note, create=True).run_until_idle(seconds=5)
    assert applied(file) == [1, 2, 3]


async def test_a_connection_that_fails_as_it_is_opened_is_closed(log: OrderedLog[int], file: Path) -> None:
    class Closing(Connection):
        is_open = True

        def rollback(self) -> None:
            raise OSError("the network is down")

        def close(self) -> None:
            self.is_open = False
            super().close()

    opened: list[Closing] = []

    def connect() -> Connection:
        opened.append(Closing(file))
        return opened[-1]

    with pytest.raises(OutcomeUnknown, match="the network is down"):
        await TransactionalSink("counter", log, connect, note, create=True).step()
    assert [each.is_open for each in opened] == [False]


async def test_a_table_that_cannot_be_created_is_named_with_what_the_database_says(
    log: OrderedLog[int], file: Path
) -> None:
    connect = lambda: sqlite3.connect(f"file:{file}?mode=ro", uri=True)  # noqa: E731  # nothing can be written
    with pytest.raises(OutcomeUnknown, match="readonly database"):
        await TransactionalSink("s", log, connect, note, create=True).step()
