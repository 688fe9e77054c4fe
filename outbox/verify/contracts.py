"""Contract suites for authors of adapters: what a store, a bus, a blob store or a journal has to keep.

    async with asyncio.timeout(60):
        await check_state_store(make)          # make() is an async context manager that gives an empty store

Each suite is a tuple of clauses, small functions named after their promises; `clauses=` runs some of them, so that a
test framework can show them one by one.  A broken promise raises `AssertionError` with the clause and a sentence.
Nothing here needs a test framework.
"""

from __future__ import annotations

from outbox.verify.suites.blobs import BLOB_STORE, check_blob_store
from outbox.verify.suites.bus import MESSAGE_BUS, BusFixture, check_message_bus
from outbox.verify.suites.clauses import Clause, Make, Wait, name_of
from outbox.verify.suites.journal import JOURNAL, JournalFixture, check_journal
from outbox.verify.suites.store import (
    ORDERED_LOG,
    STATE_STORE,
    check_ordered_log,
    check_state_store,
    store_clauses_of_time,
)

__all__ = [
    "BLOB_STORE",
    "JOURNAL",
    "MESSAGE_BUS",
    "ORDERED_LOG",
    "STATE_STORE",
    "BusFixture",
    "Clause",
    "JournalFixture",
    "Make",
    "Wait",
    "check_blob_store",
    "check_journal",
    "check_message_bus",
    "check_ordered_log",
    "check_state_store",
    "name_of",
    "store_clauses_of_time",
]
