"""Sinks: each entry has its effect once in another database, or in documents of a store."""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.engine.engine import Engine
from outbox.errors import CorruptRecord, NotRegistrable, OutcomeUnknown, Refused, Trimmed
from outbox.ports import Create, Delete, DocumentKey, Replace, Write
from outbox.streams import Entry, OrderedLog, Position, StoreSink, TransactionalSink
from outbox.streams.processor import ERRORS_SAID
from outbox.streams.register import last_cell
from outbox.streams.sinks import LOOK_COUNT, SinkLoop
from tests.unit.streams.making import ANY_AGE, Counting, fill, made, put_raw
from tests.unit.waiting import until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A database with a counter."""
    path = tmp_path / "counters.db"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER, entries INTEGER)")
    db.execute("INSERT INTO counters VALUES ('sum', 0, 0)")
    db.commit()
    db.close()
    return path


def add(db: sqlite3.Connection, entries: Sequence[Entry[int]]) -> None:
    db.execute(
        "UPDATE counters SET n = n + ?, entries = entries + ? WHERE name = 'sum'",
        (sum(entry.value for entry in entries), len(entries)),
    )


def counter(path: Path) -> tuple[int, int]:
    """The sum of all entries that took effect, and how many they were."""
    db = sqlite3.connect(path)
    try:
        found: tuple[int, int] = db.execute("SELECT n, entries FROM counters").fetchone()
        return found
    finally:
        db.close()


def sink(log: OrderedLog[int], path: Path, connection: Any = sqlite3.Connection, **options: Any) -> TransactionalSink:
    """A sink `counter`, as a process of its own has it."""
    defaults = {"apply": add, "create": True}
    known = {**defaults, **options}
    return TransactionalSink("counter", log, lambda: sqlite3.connect(path, factory=connection), **known)


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until something is logged, beside what runs."""
    await until(lambda: text in caplog.text)


async def test_a_sink_that_stops_says_so_at_once(engine: Engine, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(db: sqlite3.Connection, entries: Sequence[Entry[int]]) -> None:
        raise ValueError("a passing trouble")

    log = made("numbers", engine, int)
    await fill(log, 1)
    with pytest.raises(ValueError, match="passing"):
        async with sink(log, file, apply=fail).run():
            await logged(caplog, "sink counter stopped for good: ValueError: a passing trouble")


async def test_a_sink_whose_writes_never_win_leaves_the_others_their_turns(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.streams.sinks.LOG_LOSSES_EVERY", 4)
    there = DocumentKey("sums", "there")
    await engine.store().write([Create(there, b"{}")])
    log = made("numbers", engine, int)
    await fill(log, 1)
    stuck = StoreSink("stuck", log, engine, partition="sums", apply=lambda entries: [Create(there, b"{}")])
    async with stuck.run():
        await logged(caplog, "sink stuck has lost 4 times in a row")


async def test_losses_with_a_win_between_are_not_in_a_row(
    engine: Engine, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.streams.sinks.LOG_LOSSES_EVERY", 2)
    there, tried = DocumentKey("sums", "there"), list[int]()
    await engine.store().write([Create(there, b"{}")])
    log = made("numbers", engine, int)
    await fill(log, 1, 2, 3)

    def apply(entries: Sequence[Entry[int]]) -> list[Write]:
        tried.append(entries[0].value)
        return [Create(there, b"{}")] if tried.count(tried[-1]) == 1 else []

    assert await StoreSink("slow", log, engine, partition="sums", apply=apply, batch_max=1).run_until_idle() == 3
    assert tried == [1, 1, 2, 2, 3, 3] and "in a row" not in caplog.text


@pytest.mark.parametrize(
    ("option", "given", "cure"),
    [
        *(("batch_max", given, "1 to 1000") for given in (0, -1, 1_001, "x", 1.5, None)),
        *(("poll_s_max", given, "seconds, more than 0") for given in (0, -1, "x")),
    ],
)
def test_how_many_entries_a_sink_takes_and_how_often_it_looks_are_numbers(
    engine: Engine, file: Path, option: Any, given: Any, cure: str
) -> None:
    for make in (partial(sink, made("numbers", engine, int), file), partial(store_sink, engine)):
        with pytest.raises(NotRegistrable, match=f"sink counter: {option}={given!r}: {cure}"):
            make(**{option: given})


# In a database's own transactions


async def test_each_entry_takes_effect_once(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await log.extend([1, 2, 3], id="a")
    await fill(log, 4, 5)
    assert await sink(log, file).run_until_idle() == 1
    assert await sink(log, file).run_until_idle() == 0
    await log.append(6, id="six")
    await sink(log, file).run_until_idle()
    assert counter(file) == (21, 6)


async def test_a_database_that_stays_away_does_not_hold_a_run_for_ever(engine: Engine, tmp_path: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1)
    async with asyncio.timeout(10):
        with pytest.raises(OutcomeUnknown, match="unable to open database file"):
            await sink(log, tmp_path / "no folder" / "counters.db").run_until_idle(seconds=0.1)


async def test_a_sink_that_fails_all_the_time_says_so_when_its_run_ends(engine: Engine, file: Path) -> None:
    tried, tries, loop = asyncio.Event(), iter([False] * ERRORS_SAID), asyncio.get_running_loop()

    def connect() -> sqlite3.Connection:
        if next(tries, True):
            loop.call_soon_threadsafe(tried.set)
        raise sqlite3.OperationalError("no route to the database")

    log = made("numbers", engine, int)
    await fill(log, 1)
    with pytest.raises(OutcomeUnknown, match="no route to the database"):
        async with asyncio.timeout(10), TransactionalSink("counter", log, connect, add).run():
            await tried.wait()


@pytest.mark.parametrize("batch_max", [1, 2, 5])
async def test_a_transaction_takes_at_most_batch_max_entries_also_of_one_cell(
    engine: Engine, file: Path, batch_max: int
) -> None:
    log = made("numbers", engine, int)
    await log.extend([1, 2, 3, 4, 5], id="a")
    await fill(log, 6, 7)
    assert await sink(log, file, batch_max=batch_max).run_until_idle() == -(-7 // batch_max)
    assert counter(file) == (28, 7)


async def test_sinks_at_once_apply_each_entry_once(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(30))
    calls = [sink(made("numbers", engine, int), file, batch_max=2).run_until_idle() for _ in range(3)]
    assert sum(await asyncio.gather(*calls)) == 15
    assert counter(file) == (435, 30)


async def test_a_sink_that_runs_applies_what_comes_and_goes_on_where_it_ended(engine: Engine, file: Path) -> None:
    log, applied, loop = made("numbers", engine, int), asyncio.Event(), asyncio.get_running_loop()

    def apply(db: Any, entries: Sequence[Entry[int]]) -> None:
        add(db, entries)
        loop.call_soon_threadsafe(applied.set)

    for n in range(3):
        applied.clear()
        async with sink(log, file, apply=apply).run(), asyncio.timeout(10):
            await log.append(n, id=f"{n}")
            await applied.wait()
        await sink(log, file).run_until_idle()
    assert counter(file) == (3, 3)


async def test_a_sink_that_has_ended_leaves_no_connection_and_no_thread(engine: Engine, file: Path) -> None:
    open_count = 0

    class Connection(sqlite3.Connection):
        def __init__(self, *options: Any, **named: Any) -> None:
            nonlocal open_count
            super().__init__(*options, **named)
            open_count += 1

        def close(self) -> None:
            nonlocal open_count
            super().close()
            open_count -= 1

    before, log = {*threading.enumerate()}, made("numbers", engine, int)
    await fill(log, 1)
    async with sink(log, file, Connection).run():
        await until(lambda: counter(file)[1] == 1)
        [own] = [thread for thread in threading.enumerate() if thread not in before and thread.name == "sink counter"]
        assert open_count == 1
    await until(lambda: not open_count)
    await until(lambda: gc.collect() >= 0 and not own.is_alive())


async def test_the_floor_learns_every_so_many_steps_where_a_busy_sink_is(
    engine: Engine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.streams.sinks.REPORT_EVERY", 2)
    log, seen = made("numbers", engine, int), list[int]()
    await fill(log, *range(6))
    loop = SinkLoop(sink(log, file, batch_max=1)._steps, 1.0)
    for _ in range(5):
        await loop.turn()
        seen += (await loop._sink.row.horizon.read()).readers.values()
    assert seen == [0, 2, 2, 4, 4]


class CommitsAndFails(sqlite3.Connection):
    """A connection that is lost as it commits: every third commit takes effect and says that it did not."""

    commits = 0
    takes_effect = True

    def commit(self) -> None:
        CommitsAndFails.commits += 1
        if CommitsAndFails.commits % 3:
            return super().commit()
        if self.takes_effect:
            super().commit()
        raise sqlite3.OperationalError("the connection was lost")


class FailsToCommit(CommitsAndFails):
    """A connection whose every third commit is lost before it takes effect."""

    takes_effect = False


@pytest.mark.parametrize("connection", [CommitsAndFails, FailsToCommit])
async def test_a_commit_whose_outcome_is_unknown_is_decided_by_the_cursor(
    engine: Engine, file: Path, connection: Any
) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(8))
    CommitsAndFails.commits = unknown = 0
    unsure = sink(log, file, connection, batch_max=2)
    for _ in range(20):
        try:
            await unsure.step()
        except OutcomeUnknown:
            unknown += 1
    assert unknown >= 2
    assert counter(file) == (28, 8)


async def test_a_database_that_fails_is_tried_again(
    engine: Engine, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log, tries = made("numbers", engine, int), iter([True, False, False])

    def connect() -> sqlite3.Connection:
        if next(tries, False):
            raise sqlite3.OperationalError("no route to the database")
        return sqlite3.connect(file)

    await fill(log, 1, 2)
    await TransactionalSink("counter", log, connect, add, create=True).run_until_idle()
    assert counter(file) == (3, 2)
    [record] = [vars(each) for each in caplog.records if each.levelno == logging.WARNING]
    assert record["sink"] == "counter" and "no route to the database" in record["error"]


async def test_what_apply_raises_is_raised_and_nothing_took_effect(engine: Engine, file: Path) -> None:
    def fails(db: Any, entries: Sequence[Entry[int]]) -> None:
        add(db, entries)
        raise ZeroDivisionError("a mistake")

    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    with pytest.raises(ZeroDivisionError, match="a mistake"):
        await sink(log, file, apply=fails).run_until_idle()
    with pytest.raises(ZeroDivisionError):
        async with sink(log, file, apply=fails).run():
            await asyncio.sleep(0.1)
    assert counter(file) == (0, 0)
    await sink(log, file).run_until_idle()
    assert counter(file) == (3, 2)


async def test_a_database_that_fails_while_apply_is_at_work_is_tried_again(engine: Engine, file: Path) -> None:
    failing = iter([sqlite3.OperationalError("it was closed"), sqlite3.InterfaceError("it is closed")])

    def loses(db: sqlite3.Connection, entries: Sequence[Entry[int]]) -> None:
        add(db, entries)
        for error in failing:
            raise error

    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    assert await sink(log, file, apply=loses).run_until_idle() == 1
    assert counter(file) == (3, 2)


async def test_a_database_that_is_locked_while_apply_is_at_work_is_raised_and_is_no_end(
    engine: Engine, file: Path, tmp_path: Path
) -> None:
    other = sqlite3.connect(tmp_path / "other.db")
    other.executescript("CREATE TABLE taken (n INT); BEGIN IMMEDIATE")

    def apply(db: sqlite3.Connection, entries: Sequence[Entry[int]]) -> None:
        add(db, entries)
        with closing(sqlite3.connect(tmp_path / "other.db", timeout=0)) as beside:
            beside.execute("INSERT INTO taken VALUES (1)")

    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    with pytest.raises(OutcomeUnknown, match="database is locked"):
        await sink(log, file, apply=apply).run_until_idle(seconds=0.1)
    assert counter(file) == (0, 0)
    other.close()
    await sink(log, file, apply=apply).run_until_idle()
    assert counter(file) == (3, 2)


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("INSERT INTO counter VALUES (1)", "no such table: counter"),
        ("SELECT n FROM counters ORDER BY n COLLATE german", "no such collation sequence: german"),
    ],
)
async def test_a_wrong_statement_of_apply_is_raised_and_not_tried_again(
    engine: Engine, file: Path, statement: str, reason: str
) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1)
    with pytest.raises(sqlite3.OperationalError, match=reason):
        await sink(log, file, apply=lambda db, entries: db.execute(statement)).step()


async def test_a_missing_table_is_named_with_the_cure(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1)
    with pytest.raises(OutcomeUnknown, match="outbox_cursors cannot be read, give create=True where it is missing"):
        await sink(log, file, create=False).step()
    await sink(log, file).step()
    await sink(log, file, create=False).run_until_idle()
    assert counter(file) == (1, 1)


async def test_a_table_that_cannot_be_written_is_named_with_the_cure(engine: Engine, file: Path) -> None:
    db = sqlite3.connect(file)
    db.execute("CREATE VIEW outbox_cursors AS SELECT 'other' AS name, 0 AS cell, 0 AS entry")
    db.commit()
    db.close()
    log = made("numbers", engine, int)
    await fill(log, 1)
    with pytest.raises(OutcomeUnknown, match="give create=True, or create the table"):
        await sink(log, file, create=False).step()


def change(path: Path, statement: str) -> None:
    """Change a database behind a sink's back."""
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()


async def test_a_cursor_that_was_deleted_is_missed_and_begins_again_once_unregistered(
    engine: Engine, file: Path
) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    await sink(log, file).run_until_idle()
    change(file, "DELETE FROM outbox_cursors")
    with pytest.raises(NotRegistrable, match=r'restore it .* `await log.unregister\("sink/counter"\)` to begin at 0.0'):
        await sink(log, file).run_until_idle()
    assert counter(file) == (3, 2)
    await log.unregister("sink/counter")
    await sink(log, file).run_until_idle()
    assert counter(file) == (6, 4)


async def test_a_cursor_that_was_deleted_begins_at_the_first_that_is_left(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    await sink(log, file).run_until_idle()
    change(file, "DELETE FROM outbox_cursors")
    await log.trim()
    await log.append(5, id="five")
    await sink(log, file).run_until_idle()
    assert counter(file) == (8, 3), "where it stands by the floor"


async def test_a_cursor_below_the_floor_names_what_is_lost_and_the_row(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2, 3)
    await sink(log, file).run_until_idle()
    await log.trim()
    change(file, "UPDATE outbox_cursors SET cell = 1")
    with pytest.raises(Trimmed, match=r"from 1.0 to before 3.0 is lost .* outbox_cursors to \('counter', 3, 0\)"):
        await sink(log, file).run_until_idle()
    change(file, "UPDATE outbox_cursors SET cell = 3")
    await log.append(5, id="five")
    await sink(log, file).run_until_idle()
    assert counter(file) == (11, 4)


async def test_a_cursor_behind_the_end_says_so(engine: Engine, file: Path) -> None:
    log, other = made("numbers", engine, int), made("other", engine, int)
    await fill(log, 1, 2, 3)
    await fill(other, 1)
    await sink(log, file).run_until_idle()
    for there in (other, made("empty", engine, int)):
        with pytest.raises(Refused, match=r"ends before, without cell 2.* give the sink another name"):
            await sink(there, file).step()
    await log.trim()
    await sink(log, file).run_until_idle()
    assert counter(file) == (6, 3)


# What apply must not do


async def later(db: Any, entries: Sequence[Entry[int]]) -> None:
    add(db, entries)


def one_by_one(db: Any, entries: Sequence[Entry[int]]) -> Any:
    add(db, entries)
    yield


async def each_later(db: Any, entries: Sequence[Entry[int]]) -> Any:
    add(db, entries)
    yield


class Called:
    """What can be called, and is async."""

    async def __call__(self, db: Any, entries: Sequence[Entry[int]]) -> None:
        add(db, entries)


@pytest.mark.parametrize("apply", [later, one_by_one, each_later, Called(), partial(later)])
async def test_a_function_whose_call_does_nothing_is_refused(engine: Engine, file: Path, apply: Any) -> None:
    with pytest.raises(NotRegistrable, match="so a call does nothing"):
        sink(made("numbers", engine, int), file, apply=apply)


@pytest.mark.parametrize("function", [later, one_by_one, each_later])
async def test_what_is_not_done_yet_moves_no_cursor(engine: Engine, file: Path, function: Any) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    with pytest.raises(NotRegistrable, match="which has applied nothing yet"):
        await sink(log, file, apply=lambda db, entries: function(db, entries)).run_until_idle()
    await sink(log, file).run_until_idle()
    assert counter(file) == (3, 2)


def commits(db: Any, entries: Sequence[Entry[int]]) -> None:
    with db:
        add(db, entries)


def runs_a_script(db: Any, entries: Sequence[Entry[int]]) -> None:
    add(db, entries)
    db.executescript("SELECT 1;")


def commits_and_raises(db: Any, entries: Sequence[Entry[int]]) -> None:
    commits(db, entries)
    raise ZeroDivisionError


@pytest.mark.parametrize("apply", [commits, runs_a_script, commits_and_raises])
async def test_an_apply_that_commits_is_refused_and_doubles_nothing(engine: Engine, file: Path, apply: Any) -> None:
    log = made("numbers", engine, int)
    await fill(log, *range(12))
    calls = [sink(made("numbers", engine, int), file, apply=apply, batch_max=3).run_until_idle() for _ in range(3)]
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(error, NotRegistrable) and "must not commit or roll back" in str(error)
    await sink(log, file).run_until_idle()
    assert counter(file) == (66, 12)


def rolls_back(db: Any, entries: Sequence[Entry[int]]) -> None:
    add(db, entries)
    db.rollback()


def begins_anew(db: Any, entries: Sequence[Entry[int]]) -> None:
    db.rollback()
    db.execute("BEGIN")
    add(db, entries)


@pytest.mark.parametrize("apply", [rolls_back, begins_anew])
async def test_an_apply_that_rolls_back_is_refused_and_moves_no_cursor(engine: Engine, file: Path, apply: Any) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    with pytest.raises(NotRegistrable, match="must not commit or roll back"):
        await sink(log, file, apply=apply).run_until_idle()
    await sink(log, file).run_until_idle()
    assert counter(file) == (3, 2)


async def test_a_connection_that_commits_each_statement_is_refused(engine: Engine) -> None:
    class Commits:
        autocommit = True

    log = made("numbers", engine, int)
    with pytest.raises(NotRegistrable, match="autocommit=False"):
        await TransactionalSink("counter", log, Commits, add, create=True).step()


async def test_a_connection_of_a_derived_class_is_its_drivers(engine: Engine, file: Path) -> None:
    class Traced(sqlite3.Connection):
        pass

    log = made("numbers", engine, int)
    await fill(log, 1)
    await asyncio.wait_for(sink(log, file, Traced).run_until_idle(), 5)
    assert counter(file) == (1, 1)


async def test_a_driver_with_other_parameters_is_refused_and_not_tried_for_ever(
    engine: Engine, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "paramstyle", "numeric")
    log = made("numbers", engine, int)
    with pytest.raises(NotRegistrable, match="'numeric'; qmark or format"):
        await asyncio.wait_for(sink(log, file).run_until_idle(), 5)


async def test_a_trim_waits_for_a_sink(engine: Engine, file: Path) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2, 3)
    slow = sink(log, file, batch_max=1)
    await slow.step()
    assert await log.trim() == 0
    await slow.run_until_idle()
    assert await log.trim() == 3


async def test_what_has_no_single_row_is_refused_with_the_cure(engine: Engine, file: Path) -> None:
    two = made("two", engine, int, writers=2)
    wide = made("wide", engine, int, readers=2, partition=lambda value: value + 1)
    for log in (two, wide):
        with pytest.raises(NotRegistrable, match=r"\.reader\(n\) of one with one writer; merge several by a Processor"):
            sink(log, file)
    await wide.append(1, id="a")
    await TransactionalSink(
        "counter", wide.reader(wide.reader_of(1)), lambda: sqlite3.connect(file), add, create=True
    ).run_until_idle()
    assert counter(file) == (1, 1)


@pytest.mark.parametrize("seed", range(10))
async def test_sinks_killed_at_any_time_apply_each_entry_once(engine: Engine, file: Path, seed: int) -> None:
    chance = random.Random(seed)
    await fill(made("numbers", engine, int), *range(12))
    for _ in range(6):
        task = asyncio.create_task(sink(made("numbers", engine, int), file, batch_max=2).run_until_idle())
        await asyncio.sleep(chance.random() * 0.004)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await sink(made("numbers", engine, int), file).run_until_idle()
    assert counter(file) == (66, 12)


# Into documents of a store

KEY = DocumentKey("counters", "sum")


def documents(engine: Engine) -> Callable[[Sequence[Entry[int]]], Any]:
    """The write that adds entries to a document."""

    async def apply(entries: Sequence[Entry[int]]) -> list[Write]:
        found = await engine.store().read(KEY)
        n = sum(entry.value for entry in entries)
        if found is None:
            return [Create(KEY, b"%d" % n)]
        return [Replace(KEY, b"%d" % (int(found.body) + n), found.version)]

    return apply


async def stored(engine: Engine) -> int:
    found = await engine.store().read(KEY)
    return 0 if found is None else int(found.body)


def store_sink(engine: Engine, **options: Any) -> StoreSink:
    defaults: dict[str, Any] = {"partition": "counters", "apply": documents(engine), "batch_max": 3}
    return StoreSink("counter", made("numbers", engine, int), engine, **{**defaults, **options})


async def test_documents_and_cursor_are_one_write(engine: Engine) -> None:
    store = Counting(engine.store())
    await fill(made("numbers", engine, int), *range(8))
    into = StoreSink(
        "counter", made("numbers", engine, int), store, partition="counters", apply=documents(engine), batch_max=3
    )
    assert await into.run_until_idle() == 3
    assert sum(store.writes.values()) == 3
    assert await store_sink(engine).run_until_idle() == 0
    assert await stored(engine) == 28


async def test_store_sinks_at_once_write_each_entry_once(engine: Engine) -> None:
    await fill(made("numbers", engine, int), *range(30))
    await asyncio.gather(*(store_sink(engine).run_until_idle() for _ in range(4)))
    assert await stored(engine) == 435


async def test_entries_without_documents_move_the_cursor(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1, 2)
    await store_sink(engine, apply=lambda entries: []).run_until_idle()
    await store_sink(engine).run_until_idle()
    assert await stored(engine) == 0
    cursor = await engine.store().read(DocumentKey("counters", "sink:counter"))
    assert cursor is not None
    assert msgspec.json.decode(cursor.body) == {"at": [2, 0], "last": [1, last_cell(1, "numbers-1").mark]}


async def test_a_write_that_leaves_the_partition_is_refused(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1)
    for key in (DocumentKey("elsewhere", "a"), DocumentKey("counters", "sink:counter")):
        with pytest.raises(NotRegistrable, match="leaves partition 'counters', or is its cursor"):
            await store_sink(engine, apply=lambda entries, key=key: [Create(key, b"1")]).step()


async def test_a_store_of_item_scope_is_refused_with_the_cure(engine: Engine) -> None:
    with pytest.raises(NotRegistrable, match="give a store of partition scope"):
        StoreSink("c", made("n", engine, int), NarrowEngine(engine, "item"), partition="p", apply=documents(engine))


async def test_a_cursor_that_is_none_is_named(engine: Engine) -> None:
    await fill(made("numbers", engine, int), 1)
    await put_raw(engine.store(), "counters", "sink:counter", b"[1]")
    with pytest.raises(CorruptRecord, match="counters/sink:counter is no cursor"):
        await store_sink(engine).step()


async def test_a_sink_behind_the_floor_says_so(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2, 3)
    await store_sink(engine, batch_max=1).step()
    await log.unregister("sink/counter")
    await log.trim(min_age=ANY_AGE)
    with pytest.raises(Refused, match="the first that is left is 3"):
        await store_sink(engine).step()
    assert await log.first() == Position(3)


async def test_a_store_cursor_that_was_lost_is_missed_after_some_looks(engine: Engine) -> None:
    log = made("numbers", engine, int)
    await fill(log, 1, 2)
    await store_sink(engine).run_until_idle()
    key = DocumentKey("counters", "sink:counter")
    found = await engine.store().read(key)
    assert found is not None
    await engine.store().write([Delete(key, found.version)])
    again = store_sink(engine)
    for _ in range(LOOK_COUNT - 1):
        with pytest.raises(Refused, match="it looks again"):
            await again.step()
    with pytest.raises(NotRegistrable, match="no document counters/sink:counter"):
        await again.step()
    assert await stored(engine) == 3


async def test_a_store_cursor_behind_the_end_says_so(engine: Engine) -> None:
    await put_raw(engine.store(), "counters", "sink:counter", b'{"at":[4,0]}')
    await fill(made("numbers", engine, int), 1)
    with pytest.raises(Refused, match=r'set counters/sink:counter to {"at":\[0,0\]}'):
        await store_sink(engine).step()


async def test_a_generator_of_writes_is_refused(engine: Engine) -> None:
    with pytest.raises(NotRegistrable, match="leave out yield"):
        store_sink(engine, apply=one_by_one)
