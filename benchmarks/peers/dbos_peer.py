"""The peer: W1 on DBOS, its state and its system database on SQLite, as good as its user would make it.

One message is one workflow whose id is the message's id, so DBOS itself suppresses duplicates.  Its one step is a
datasource transaction, DBOS's way to exactly-once effects: state, output and the step's record commit together.  Then
DBOS records the step, the end of the workflow and clears the datasource's record: five commits a message.

`call-N`: N threads hand messages over and wait for each result; the durable record of the input is inside the clock.
`queue-N`: everything is enqueued before the clock starts, and a queue runs at most N workflows at once; it polls, and
with the default of one second it would run one message a second where one is in flight, so POLL_S is what was best.

What a careful user sets: WAL in both databases (DBOS leaves SQLite's rollback journal on), a file for each so that
their writers do not wait for each other, small pools because a thread that waits for a connection costs less than one
that waits for the file, and BEGIN IMMEDIATE before the state is read, because Python's sqlite3 begins only at the
first write and another process could change the state in between.  For production DBOS recommends Postgres, which is
not measured here.

Runs in an environment of its own: `python -m benchmarks.peers.dbos_peer VARIANT FOLDER COUNT` prints one line of
JSON: `{"measurement": ..., "versions": ..., "duplicate_count": ...}`.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec
import sqlalchemy as sa  # type: ignore[import-not-found]  # comes with DBOS, in this peer's environment only
from dbos import DBOS, SetWorkflowID, SQLAlchemyDatasource  # type: ignore[import-not-found]  # as above

from outbox_bench.measure import (
    KEY_COUNT,
    MESSAGE_COUNT,
    Add,
    Added,
    Counter,
    Measurement,
    Stopwatch,
    expected_total,
    inputs,
    measured,
)
from outbox_bench.sqlite import wal_restarts

SYSTEM = "dbos"
VARIANTS = ("call-1", "call-64", "queue-1", "queue-64")
POLL_S = {1: 0.001, 64: 0.02}
WARM_UP_COUNT = 20  # SQLAlchemy compiles each statement once; in a short run that would weigh more than in W1
DUPLICATE_COUNT_MAX = 50
WAIT_S_MAX = 240.0
STATE_POOL_SIZE, SYSTEM_POOL_SIZE = 1, 4

SCHEMA = (
    "CREATE TABLE state (account TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE output (sequence INTEGER PRIMARY KEY, body TEXT NOT NULL)",
)
BEGIN = sa.text("BEGIN IMMEDIATE")
LOAD = sa.text("SELECT body FROM state WHERE account = :account")
SAVE = sa.text("INSERT INTO state VALUES (:account, :body) ON CONFLICT DO UPDATE SET body = excluded.body")
EMIT = sa.text("INSERT INTO output (body) VALUES (:body)")

decode_counter = msgspec.json.Decoder(Counter).decode
decode_added = msgspec.json.Decoder(Added).decode


def main(arguments: list[str]) -> int:
    variant, folder, message_count = arguments
    found, duplicate_count = run(variant, Path(folder), int(message_count))
    versions = {name: metadata.version(name) for name in ("dbos", "sqlalchemy")}
    answer = {"measurement": found, "versions": versions, "duplicate_count": duplicate_count}
    print(msgspec.json.encode(answer).decode())
    return 0


class Commits:
    """WAL on every connection, and a count of the commits that wrote something: each is one flush."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()
        sa.event.listen(sa.Engine, "connect", self.connected)
        sa.event.listen(sa.Engine, "commit", self.committed)

    def connected(self, connection: Any, record: Any) -> None:
        mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
        if (mode, synchronous) != ("wal", 2):
            raise AssertionError(f"SQLite runs with {mode}, synchronous {synchronous}; this measures WAL and FULL (2)")

    def committed(self, connection: Any) -> None:
        changes = connection.connection.dbapi_connection.total_changes
        with self._lock:
            self.count += changes != connection.info.get("changes", 0)
        connection.info["changes"] = changes


class Application:
    """The program of DBOS's user: a datasource, a transaction, a workflow; and the clock on them."""

    def __init__(self, folder: Path, message_count: int) -> None:
        self._message_count = message_count
        self.claimed_s: dict[str, float] = {}
        self.latencies_s: list[float] = []
        self.done = threading.Event()
        self.paths = (folder / "state.sqlite", folder / "system.sqlite")
        pool = {"pool_size": STATE_POOL_SIZE, "max_overflow": 0}
        self.state = SQLAlchemyDatasource.create(f"sqlite:///{self.paths[0]}", engine_kwargs=pool)
        with self.state.engine.begin() as connection:
            for statement in SCHEMA:
                connection.execute(sa.text(statement))
        self.apply = self.state.transaction(self._apply, name="apply")
        self.add = DBOS.workflow(name="add")(self._workflow())
        DBOS(
            config={
                "name": "w1-peer",
                "system_database_url": f"sqlite:///{self.paths[1]}",
                "sys_db_pool_size": SYSTEM_POOL_SIZE,
                "log_level": "WARNING",
            }
        )

    def _apply(self, id: str, account: str, amount: int) -> None:
        session = self.state.sql_session()
        session.execute(BEGIN)
        row = session.execute(LOAD, {"account": account}).first()
        state = decode_counter(row[0]) if row else Counter()
        state.total += amount
        state.changes += 1
        session.execute(SAVE, {"account": account, "body": msgspec.json.encode(state).decode()})
        session.execute(EMIT, {"body": msgspec.json.encode(Added(id, account, state.total)).decode()})

    def _workflow(self) -> Any:
        """A plain function, because DBOS wants methods only of classes that it knows."""

        def add(id: str, account: str, amount: int) -> None:
            claimed_s = self.claimed_s.setdefault(id, time.perf_counter())
            self.apply(id, account, amount)
            self.latencies_s.append(time.perf_counter() - claimed_s)
            if len(self.latencies_s) >= self._message_count:
                self.done.set()

        return add

    def call(self, message: Add) -> None:
        self.claimed_s.setdefault(message.id, time.perf_counter())
        with SetWorkflowID(message.id):
            self.add(message.id, message.account, message.amount)

    def warm_up(self) -> None:
        """Have some messages of no amount handled before the clock runs."""
        for n in range(WARM_UP_COUNT):
            self.call(Add(f"warm{n:04d}", "warm", 0))
        self.latencies_s.clear()
        self.done.clear()

    def enqueue(self, message: Add) -> Any:
        with SetWorkflowID(message.id):
            return DBOS.enqueue_workflow("adds", self.add, message.id, message.account, message.amount)


def messages(message_count: int) -> list[Add]:
    """W1's, folded onto fewer accounts, so that a short run loads and changes a state again as often as W1 does."""
    key_count = max(1, message_count * KEY_COUNT // MESSAGE_COUNT)
    found = inputs(message_count)
    return [Add(add.id, f"account-{n % key_count:04d}", add.amount) for n, add in enumerate(found)]


def run(variant: str, folder: Path, message_count: int) -> tuple[Measurement, int]:
    """Run W1 in `folder`, which must be fresh, then send some again; check that each message had its effect once."""
    way, _, in_flight = variant.partition("-")
    sent = messages(message_count)
    again = sent[:DUPLICATE_COUNT_MAX]
    commits = Commits()
    application = Application(folder, message_count)
    DBOS.launch()
    try:
        application.warm_up()
        measure = called if way == "call" else queued
        watch, flush_count = measure(application, sent, again, int(in_flight), commits)
        verify(application, message_count)
    finally:
        DBOS.destroy()
    found = measured(
        system=SYSTEM,
        variant=variant,
        in_flight=int(in_flight),
        durable=True,
        watch=watch,
        latencies_s=application.latencies_s,
        flush_count=flush_count,
    )
    return found, len(again)


def called(
    application: Application, sent: list[Add], again: list[Add], in_flight: int, commits: Commits
) -> tuple[Stopwatch, int]:
    """Hand the messages over from as many threads as may be in flight."""
    with ThreadPoolExecutor(in_flight) as threads:
        before = flushes(application, commits)
        watch = Stopwatch()
        list(threads.map(application.call, sent, timeout=WAIT_S_MAX))
        watch.stop()
        flush_count = flushes(application, commits) - before
        list(threads.map(application.call, again, timeout=WAIT_S_MAX))
    return watch, flush_count


def queued(
    application: Application, sent: list[Add], again: list[Add], in_flight: int, commits: Commits
) -> tuple[Stopwatch, int]:
    """Fill a queue that admits nothing, then let it run; the clock stops when the last effect is durable."""
    queue = DBOS.register_queue("adds", worker_concurrency=0, polling_interval_sec=POLL_S[in_flight])
    for message in sent:
        application.enqueue(message)
    time.sleep(1.5)  # DBOS looks for new queues once a second; its worker must be polling before the clock starts
    if application.latencies_s:
        raise AssertionError("DBOS peer: the queue ran before the clock started; do not publish this run")
    before = flushes(application, commits)
    watch = Stopwatch()
    queue.set_worker_concurrency(in_flight)
    if not application.done.wait(WAIT_S_MAX):
        raise TimeoutError(f"DBOS peer: {len(application.latencies_s)} of {len(sent)} done after {WAIT_S_MAX:.0f} s")
    watch.stop()
    flush_count = flushes(application, commits) - before
    for handle in [application.enqueue(message) for message in again]:
        handle.get_result()
    return watch, flush_count


def flushes(application: Application, commits: Commits) -> int:
    """Commits, and three flushes for each checkpoint that started a log over."""
    return commits.count + 3 * sum(map(wal_restarts, application.paths))


def verify(application: Application, message_count: int) -> None:
    """A run that lost or doubled anything is no measurement."""
    deadline, handled = time.monotonic() + WAIT_S_MAX, message_count + WARM_UP_COUNT
    while (ended := len(DBOS.list_workflows(status="SUCCESS", load_input=False))) < handled:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    with application.state.engine.connect() as connection:
        states = [decode_counter(body) for (body,) in connection.execute(sa.text("SELECT body FROM state"))]
        outputs = [decode_added(body) for (body,) in connection.execute(sa.text("SELECT body FROM output"))]
    changes = sum(state.changes for state in states)
    ids = {output.id for output in outputs}
    totals = (sum(state.total for state in states), changes, len(outputs), len(ids))
    found = (*totals, ended, len(application.latencies_s))
    wanted = (expected_total(message_count), *[handled] * 4, message_count)
    if found != wanted:
        raise AssertionError(f"DBOS peer: found {found}, wanted {wanted}; do not publish this run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
