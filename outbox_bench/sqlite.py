"""The peer: the same guarantee hand-written on SQLite, as good as its user would make it.

WAL, tables without row ids, statements that sqlite3 keeps prepared, msgspec on both sides.  One transaction takes
messages from the input table, inserts their ids into the dedupe table (the primary key decides), changes the states,
appends the outputs and deletes the inputs.  `one` commits a message at a time; `batch64` and `batch100` read each
state once a batch and write with `executemany`.  FULL syncs every commit; NORMAL syncs at checkpoints only, so that a
power loss takes back what was acknowledged.  A log of ten times the default 1,000 pages was tried: it gains only as
much as it leaves to a checkpoint after the clock has stopped.
"""

from __future__ import annotations

import sqlite3
import struct
import time
from pathlib import Path

import msgspec

from outbox_bench.measure import Add, Added, Counter, Measurement, Stopwatch, expected_total, inputs, measured

SYSTEM = "sqlite"
VARIANTS = ("one-full", "one-normal", "batch64-full", "batch64-normal", "batch100-full", "batch100-normal")
BATCH_COUNTS = {"one": 1, "batch64": 64, "batch100": 100}
IN_FLIGHT = {"one": 1, "batch64": 64, "batch100": 64}

SCHEMA = """
CREATE TABLE input (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE state (account TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE output (sequence INTEGER PRIMARY KEY, body BLOB NOT NULL);
"""
CLAIM = "SELECT sequence, body FROM input ORDER BY sequence LIMIT ?"
SEE = "INSERT INTO seen VALUES (?) ON CONFLICT DO NOTHING"
LOAD = "SELECT body FROM state WHERE account = ?"
SAVE = "INSERT INTO state VALUES (?, ?) ON CONFLICT DO UPDATE SET body = excluded.body"
EMIT = "INSERT INTO output (body) VALUES (?)"
CONSUME = "DELETE FROM input WHERE sequence = ?"
CONSUME_UP_TO = "DELETE FROM input WHERE sequence <= ?"

decode_add = msgspec.json.Decoder(Add).decode
decode_counter = msgspec.json.Decoder(Counter).decode
encode = msgspec.json.Encoder().encode


def run(variant: str, folder: Path, message_count: int) -> Measurement:
    """Run W1 in `folder`, which must be fresh, and check that every message had its effect once."""
    shape, sync = variant.split("-")
    path = folder / "w1.sqlite"
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        prepare(connection, [encode(message) for message in inputs(message_count)], sync)
        restarts = wal_restarts(path)
        watch = Stopwatch()
        if shape == "one":
            latencies_s, commit_count = one_at_a_time(connection)
        else:
            latencies_s, commit_count = in_batches(connection, BATCH_COUNTS[shape])
        watch.stop()
        restarts = wal_restarts(path) - restarts
        verify(connection, message_count)
    finally:
        connection.close()
    # FULL syncs the log at each commit, NORMAL does not; under both a checkpoint that starts the log over costs three
    # syncs (log, database, the new header).  `strace -c -e fdatasync` counts exactly these and the preparation's.
    full = sync == "full"
    return measured(
        system=SYSTEM,
        variant=variant,
        in_flight=IN_FLIGHT[shape],
        durable=full,
        watch=watch,
        latencies_s=latencies_s,
        flush_count=(commit_count if full else 0) + restarts * 3,
    )


def prepare(connection: sqlite3.Connection, bodies: list[bytes], sync: str) -> None:
    """Queue the inputs and make them durable, and leave an empty log behind."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.executescript(SCHEMA)
    connection.execute("BEGIN IMMEDIATE")
    connection.executemany("INSERT INTO input (body) VALUES (?)", [(body,) for body in bodies])
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.execute(f"PRAGMA synchronous = {sync.upper()}")


def one_at_a_time(connection: sqlite3.Connection) -> tuple[list[float], int]:
    """One transaction a message; gives the latencies and the number of commits."""
    execute, clock = connection.execute, time.perf_counter
    latencies_s: list[float] = []
    commit_count = 0
    while True:
        started = clock()
        execute("BEGIN IMMEDIATE")
        row = execute(CLAIM, (1,)).fetchone()
        if row is None:
            execute("ROLLBACK")
            return latencies_s, commit_count
        sequence, body = row
        message = decode_add(body)
        if execute(SEE, (message.id,)).rowcount:
            known = execute(LOAD, (message.account,)).fetchone()
            state = decode_counter(known[0]) if known else Counter()
            state.total += message.amount
            state.changes += 1
            execute(SAVE, (message.account, encode(state)))
            execute(EMIT, (encode(Added(message.id, message.account, state.total)),))
        execute(CONSUME, (sequence,))
        execute("COMMIT")
        commit_count += 1
        latencies_s.append(clock() - started)


def in_batches(connection: sqlite3.Connection, count_max: int) -> tuple[list[float], int]:
    """One transaction for up to `count_max` messages; gives the latencies and the number of commits."""
    execute, clock = connection.execute, time.perf_counter
    latencies_s: list[float] = []
    commit_count = 0
    while True:
        started = clock()
        execute("BEGIN IMMEDIATE")
        rows = execute(CLAIM, (count_max,)).fetchall()
        if not rows:
            execute("ROLLBACK")
            return latencies_s, commit_count
        messages = [decode_add(body) for _, body in rows]
        apply(connection, unseen(connection, messages))
        execute(CONSUME_UP_TO, (rows[-1][0],))
        execute("COMMIT")
        commit_count += 1
        latencies_s.extend([clock() - started] * len(rows))


def unseen(connection: sqlite3.Connection, messages: list[Add]) -> list[Add]:
    """The messages whose ids are new, recorded as seen; hopes for no duplicate and looks closer when there is one."""
    connection.execute("SAVEPOINT hope")
    if connection.executemany(SEE, [(message.id,) for message in messages]).rowcount == len(messages):
        connection.execute("RELEASE hope")
        return messages
    connection.execute("ROLLBACK TO hope")
    connection.execute("RELEASE hope")
    return [message for message in messages if connection.execute(SEE, (message.id,)).rowcount]


def apply(connection: sqlite3.Connection, messages: list[Add]) -> None:
    """Run the handler on each message in turn, every state read and written once."""
    states: dict[str, Counter] = {}
    outputs: list[tuple[bytes]] = []
    for message in messages:
        state = states.get(message.account)
        if state is None:
            known = connection.execute(LOAD, (message.account,)).fetchone()
            state = states[message.account] = decode_counter(known[0]) if known else Counter()
        state.total += message.amount
        state.changes += 1
        outputs.append((encode(Added(message.id, message.account, state.total)),))
    connection.executemany(SAVE, [(account, encode(state)) for account, state in states.items()])
    connection.executemany(EMIT, outputs)


def wal_restarts(path: Path) -> int:
    """How often the log was started over: bytes 12 to 15 of its header count the checkpoints."""
    header = path.with_name(path.name + "-wal").read_bytes()[:16]
    count: int = struct.unpack(">12xI", header)[0] if len(header) == 16 else 0
    return count


def verify(connection: sqlite3.Connection, message_count: int) -> None:
    """A run that lost or doubled anything is no measurement."""
    states = [decode_counter(body) for (body,) in connection.execute("SELECT body FROM state")]
    counts = [
        connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("seen", "output", "input")
    ]
    found = (sum(s.total for s in states), sum(s.changes for s in states), *counts)
    wanted = (expected_total(message_count), message_count, message_count, message_count, 0)
    if found != wanted:
        raise AssertionError(f"SQLite peer: found {found}, wanted {wanted}; do not publish this run")
