"""A sink into PostgreSQL by psycopg, where a server is installed: each entry takes effect once there, too.

The server is this test's own: a folder of its own, reached by a socket in that folder, and no port.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row

from outbox.engine.engine import Engine
from outbox.errors import NotRegistrable
from outbox.streams import Entry, OrderedLog, TransactionalSink

START_S = 60
KILLED_COUNT = 12


def folder_of_programs() -> Path | None:
    """Where initdb and postgres lie; Debian keeps them off PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = installed[-1] if installed else shutil.which("initdb")
    return Path(found).resolve().parent if found else None


PROGRAMS = folder_of_programs()
pytestmark = pytest.mark.skipif(PROGRAMS is None, reason="no PostgreSQL server here: apt-get install postgresql")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """How to connect to a fresh server."""
    assert PROGRAMS is not None
    with tempfile.TemporaryDirectory(prefix="pg-", ignore_cleanup_errors=True) as folder:
        owner = None
        if os.getuid() == 0:  # the server refuses to run as root
            owner = "postgres" if any(user.pw_name == "postgres" for user in pwd.getpwall()) else "nobody"
            shutil.chown(folder, owner)
        data = f"{folder}/data"
        common: dict[str, Any] = {
            "user": owner,
            "check": True,
            "cwd": folder,
            "timeout": START_S,
            "capture_output": True,
        }
        subprocess.run([PROGRAMS / "initdb", "-D", data, "-U", "outbox", "-A", "trust", "--no-sync"], **common)
        started = subprocess.Popen(
            [PROGRAMS / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses="],
            user=owner, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            database = f"host={folder} user=outbox dbname=postgres"
            for _ in range(START_S * 10):
                with suppress(psycopg.OperationalError):
                    psycopg.connect(database).close()
                    break
                assert started.poll() is None, "the server ended"
                time.sleep(0.1)
            yield database
        finally:
            started.terminate()
            started.wait(START_S)


@pytest.fixture
def database(server: str) -> str:
    """The server with a counter that is nothing yet, and no cursor."""
    with psycopg.connect(server) as db:
        db.execute("DROP TABLE IF EXISTS outbox_cursors, counters")
        db.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, n BIGINT, entries BIGINT)")
        db.execute("INSERT INTO counters VALUES ('sum', 0, 0)")
    return server


@pytest.fixture
async def numbers() -> AsyncIterator[OrderedLog[int]]:
    async with Engine.in_memory() as engine:
        yield OrderedLog("numbers", engine, type=int)


def add(db: Any, entries: Sequence[Entry[int]]) -> None:
    db.execute(
        "UPDATE counters SET n = n + %s, entries = entries + %s WHERE name = 'sum'",
        (sum(entry.value for entry in entries), len(entries)),
    )


def counter(database: str) -> tuple[int, int]:
    """The sum of all entries that took effect, and how many they were."""
    with psycopg.connect(database) as db:
        found = db.execute("SELECT n, entries FROM counters").fetchone()
        assert found is not None
        return found[0], found[1]


def sink(log: OrderedLog[int], database: str, apply: Any = add, **options: Any) -> TransactionalSink:
    """A sink `counter`, as a process of its own has it."""
    return TransactionalSink("counter", log, lambda: psycopg.connect(database), apply, create=True, **options)


@pytest.mark.parametrize("round", range(5))
async def test_sinks_that_create_the_table_and_begin_at_once_begin_once(
    numbers: OrderedLog[int], database: str, round: int
) -> None:
    await numbers.append(7, id="a")
    done = await asyncio.gather(*(sink(numbers, database).run_until_idle(seconds=20) for _ in range(6)))
    assert sorted(done) == [0, 0, 0, 0, 0, 1] and counter(database) == (7, 1)


async def test_a_wrapped_connection_is_written_to_as_psycopg_reads(numbers: OrderedLog[int], database: str) -> None:
    class Wrapped:
        """As a pool or a tracer gives it."""

        def __init__(self) -> None:
            self._connection = psycopg.connect(database)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

    await numbers.append(7, id="a")
    assert await TransactionalSink("counter", numbers, Wrapped, add, create=True).run_until_idle() == 1
    assert counter(database) == (7, 1)


async def test_rows_may_be_mappings(numbers: OrderedLog[int], database: str) -> None:
    await numbers.append(7, id="a")
    for _ in range(2):
        into = TransactionalSink(
            "counter", numbers, lambda: psycopg.connect(database, row_factory=dict_row), add, create=True
        )
        await into.run_until_idle(seconds=5)
    assert counter(database) == (7, 1)


@pytest.mark.parametrize("seed", range(3))
async def test_sinks_whose_connections_are_killed_apply_each_entry_once(
    numbers: OrderedLog[int], database: str, seed: int
) -> None:
    """The server ends a connection within a transaction, or between its commit and the next one's begin."""
    chance, killed = random.Random(seed), 0
    for n in range(40):
        await numbers.append(n, id=f"{n}")

    def add_or_die(db: Any, entries: Sequence[Entry[int]]) -> None:
        nonlocal killed
        add(db, entries)
        if killed < KILLED_COUNT and chance.random() < 0.4:
            killed += 1
            with psycopg.connect(database, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))

    one, other = (sink(numbers, database, add_or_die, batch_max=3) for _ in range(2))
    async with asyncio.timeout(60):
        while counter(database)[1] < 40:
            await asyncio.gather(one.run_until_idle(seconds=5), other.run_until_idle(seconds=5), return_exceptions=True)
    assert killed and counter(database) == (780, 40)


async def test_a_connection_that_is_killed_while_apply_is_at_work_is_tried_again(
    numbers: OrderedLog[int], database: str
) -> None:
    killing = iter([True])

    def killed(db: Any, entries: Sequence[Entry[int]]) -> None:
        if next(killing, False):
            with psycopg.connect(database, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s)", (db.info.backend_pid,))
        add(db, entries)

    await numbers.extend([1, 2], id="a")
    assert await sink(numbers, database, killed).run_until_idle(seconds=20) == 1
    assert counter(database) == (3, 2)


async def test_a_wrong_statement_of_apply_is_raised_and_not_tried_again(
    numbers: OrderedLog[int], database: str
) -> None:
    await numbers.append(1, id="a")
    with pytest.raises(psycopg.errors.UndefinedTable):
        await sink(numbers, database, lambda db, entries: db.execute("INSERT INTO nowhere VALUES (1)")).step()


def commits(db: Any, entries: Sequence[Entry[int]]) -> None:
    add(db, entries)
    db.commit()


def rolls_back(db: Any, entries: Sequence[Entry[int]]) -> None:
    add(db, entries)
    db.rollback()


@pytest.mark.parametrize("apply", [commits, rolls_back])
async def test_an_apply_that_ends_the_transaction_is_refused(
    numbers: OrderedLog[int], database: str, apply: Any
) -> None:
    await numbers.extend([1, 2], id="a")
    with pytest.raises(NotRegistrable, match="must not commit or roll back"):
        await sink(numbers, database, apply).step()
    assert counter(database) == ((3, 2) if apply is commits else (0, 0))
    await sink(numbers, database).run_until_idle()
    assert counter(database) == (3, 2)
