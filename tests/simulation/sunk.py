"""Sinks to explore: entries of a log into a database, or into documents of a store, by several processes at once.

The database is SQLite itself: a model's state is what its tables hold, and each transaction of a sink runs the SQL of
production on a database that is made from it.  Whatever is applied is written down in the order of its taking effect,
so that in every world it can be compared with the cursor beside it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from outbox.errors import OtherLog, Trimmed
from outbox.ports import Create, DocumentKey, Replace, Write
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.streams import Entry, OrderedLog, StoreSink
from outbox.streams.cells import Position
from outbox.streams.database import Cursor, CursorTable
from outbox.streams.log_places import ChangeWait, Place
from outbox.streams.replica import Progress
from outbox.streams.row import Row
from outbox.streams.sinks import DatabaseSteps, Sink, enter, only_row
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import NO_LOCKS, Event, Finding, Locks, Model, Op, Outcome, Reach
from outbox.verify.explorer.run import Calls, Program, done
from outbox.verify.explorer.search import Limits, Report, search
from outbox.verify.explorer.streams import Given, Stores, StreamScenario
from tests.simulation.stream_programs import Producer, Trimmer
from tests.simulation.streamed import Number

SINK, PARTITION = "counter", "counters"
EFFECTS = DocumentKey(PARTITION, "effects")
DATABASE = 1
"""The place of the database among the resources, behind the one store."""


class Tables(NamedTuple):
    """What a database holds: the sink's cursor, the numbers that were applied, in order, and the last cell it read."""

    cursor: tuple[int, int] | None = None
    applied: tuple[int, ...] = ()
    last: tuple[int, int] | None = None


class DatabaseModel:
    """A database as pure functions over what its tables hold."""

    name = "database"

    def initial(self) -> Tables:
        return Tables()

    def reach(self, verb: str) -> Reach:
        return "read" if verb == "cursor" else "write"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: Tables, op: Op) -> bool:
        return op.verb == "applied" and state.cursor is not None and Position(*state.cursor) > op.args[0].at

    def outcomes(self, state: Tables, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        connection = self._holding(state)
        table = CursorTable(SINK, lambda: connection, note, create=True)
        result = table.guarded(lambda: getattr(table, op.verb)(*op.args))
        return [Outcome(f"-> {result}", self._held(connection), result)]

    @staticmethod
    def _holding(state: Tables) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:")
        connection.execute("CREATE TABLE applied (n INTEGER NOT NULL)")
        connection.executemany("INSERT INTO applied VALUES (?)", [(n,) for n in state.applied])
        if state.cursor is not None:
            connection.execute("CREATE TABLE outbox_cursors (name VARCHAR(200) PRIMARY KEY, cell BIGINT, entry BIGINT)")
            connection.execute("INSERT INTO outbox_cursors VALUES (?, ?, ?)", (SINK, *state.cursor))
            if state.last is not None:
                connection.execute("INSERT INTO outbox_cursors VALUES (?, ?, ?)", (f"{SINK}#log", *state.last))
        connection.commit()
        return connection

    @staticmethod
    def _held(connection: sqlite3.Connection) -> Tables:
        found = {name: tuple(at) for name, *at in connection.execute("SELECT name, cell, entry FROM outbox_cursors")}
        applied = tuple(n for (n,) in connection.execute("SELECT n FROM applied ORDER BY rowid"))
        return Tables(found.get(SINK), applied, found.get(f"{SINK}#log"))

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: Tables, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: Tables, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: Tables, now_ms: int) -> tuple[int, ...]:
        return ()

    def describe(self, op: Op) -> str:
        return f"{op.verb} {', '.join(map(str, op.args[:2]))}"

    def show(self, state: Tables, now_ms: int) -> list[str]:
        return [f"{state}"]


def note(connection: Any, entries: Sequence[Entry[Number]]) -> None:
    """Write down what takes effect."""
    connection.executemany("INSERT INTO applied VALUES (?)", [(entry.value.n,) for entry in entries])


class ExploredDatabase:
    """A database whose answers are chosen."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def cursor(self) -> Cursor | None:
        found: Cursor | None = await self._calls(DATABASE, "cursor")
        return found

    async def begun(self, at: Position) -> Cursor:
        found: Cursor = await self._calls(DATABASE, "begun", at)
        return found

    async def applied(self, known: Cursor, after: Cursor, entries: Sequence[Entry[Any]]) -> bool:
        won: bool = await self._calls(DATABASE, "applied", known, after, tuple(entries))
        return won

    def close(self) -> None:
        """Nothing is open."""


MakeSink = Callable[[Calls, OrderedLog[Number], Place, int], Sink]


def into_a_database(calls: Calls, log: OrderedLog[Number], place: Place, batch_max: int) -> Sink:
    """The steps of a `TransactionalSink`."""
    return DatabaseSteps(SINK, only_row(SINK, log), ExploredDatabase(calls), batch_max)


def into_documents(calls: Calls, log: OrderedLog[Number], place: Place, batch_max: int) -> Sink:
    """A `StoreSink` that appends to one document."""

    async def apply(entries: Sequence[Entry[Number]]) -> list[Write]:
        known = await place.store.read(EFFECTS)
        applied = [] if known is None else msgspec.json.decode(known.body, type=list[int])
        body = msgspec.json.encode([*applied, *(entry.value.n for entry in entries)])
        return [Create(EFFECTS, body) if known is None else Replace(EFFECTS, body, known.version)]

    return StoreSink(SINK, log, place, partition=PARTITION, apply=apply, batch_max=batch_max)


@dataclass(frozen=True)
class Sinking:
    """A process that runs a sink; it keeps nothing from one step to the next, and may tell the floor where it is."""

    log: OrderedLog[Number]
    at: Stores
    make: MakeSink
    batch_max: int
    reports: bool = False
    name: str = "sink"

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        place = self.at.places(calls).of(self.log)
        sink = self.make(calls, self.log.on(place), place, self.batch_max)
        try:
            progress = await sink.step()
            if progress is Progress.WON and self.reports:
                await sink.row.horizon.register(reader=f"sink/{SINK}", at=sink.reached.index)
            if progress is Progress.IDLE:
                await ChangeWait().wait({place.store: sink.row.seen(max(sink.reached.index, sink.row.cells.end))})
        except (Trimmed, OtherLog):  # which stop a sink
            raise
        except MAY_RETRY:
            pass
        return None


@dataclass(frozen=True)
class SinkMonitor:
    """What took effect is what lies in the log before the cursor, in every world; in the end it is everything."""

    found: Callable[[Sequence[Any]], Tables]
    log: Sequence[Sequence[int]]
    """The numbers in each cell of the log."""

    def initial(self) -> Hashable:
        return ()

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        return None

    def step(self, ghost: Hashable, event: Any) -> Hashable:
        return ghost

    def check(self, ghost: Any, states: Sequence[Any]) -> Finding | None:
        tables = self.found(states)
        cell, entry = tables.cursor or (0, 0)
        before = [number for numbers in self.log[:cell] for number in numbers]
        before += self.log[cell][:entry] if entry else []
        if list(tables.applied) == before:
            return None
        return Finding("EffectOnce", f"{tables.applied} took effect, and the cursor is at {cell}.{entry}")

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        return False

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        applied, all_ = list(self.found(states).applied), [number for numbers in self.log for number in numbers]
        return [] if applied == all_ else [Finding("NoLost", f"{applied} of {all_} took effect")]

    def outcome(self, ghost: Any, states: Sequence[Any]) -> Hashable:
        return self.found(states)


def in_tables(states: Sequence[Any]) -> Tables:
    """What a database holds."""
    tables: Tables = states[DATABASE]
    return tables


def in_documents(states: Sequence[Any]) -> Tables:
    """The same of a store's documents."""
    documents = dict(dict(states[0])[PARTITION].docs) if PARTITION in dict(states[0]) else {}
    bodies = {id: document.body for id, document in documents.items()}
    at = msgspec.json.decode(bodies.get(f"sink:{SINK}", b'{"at":[0,0]}'))["at"]
    return Tables((at[0], at[1]), tuple(msgspec.json.decode(bodies.get(EFFECTS.id, b"[]"))))


@dataclass
class SinkScope:
    """Sinks of one name over a log that holds some numbers, while a producer appends the others.

    What is `given` is a cell for each number, or for several at once.
    """

    kind: str = "database"
    given: Sequence[int | Sequence[int]] = (1,)
    appended: Sequence[int] = (2,)
    sinks: int = 2
    batch_max: int = 1
    began: bool = True
    trims: bool = False
    at: Stores = field(default_factory=Stores)

    def explored(self, *, cpu_s: float = 60.0, **faults: int) -> Report:
        """Every interleaving, with so many faults of each kind."""
        given = Given()
        log: OrderedLog[Number] = OrderedLog("in", given.place, type=Number)
        cells = [[given] if isinstance(given, int) else list(given) for given in (*self.given, *self.appended)]
        for numbers in cells[: len(self.given)]:
            done(log.extend([Number(number) for number in numbers], id=f"in{numbers[0]}"))
        if self.began:
            row: Row[Number] = only_row(SINK, log)
            done(enter(row, SINK))
        is_database = self.kind == "database"
        make = into_a_database if is_database else into_documents
        programs: list[Program] = [Sinking(log, self.at, make, self.batch_max, self.trims)] * self.sinks
        if self.trims:
            programs.append(Trimmer(log, self.at))
        if self.appended:
            programs.append(Producer(log, [Number(n) for n in self.appended], self.at))
        beside: list[Model] = [DatabaseModel()] if is_database else []
        monitor = SinkMonitor(in_tables if is_database else in_documents, cells)
        scenario: Any = StreamScenario(
            programs, monitor, self.at, given.apart(self.at), Budgets(**faults), beside=beside
        )
        return search(scenario, limits=Limits(cpu_s=cpu_s), hashing="exact")
