"""Every adapter that is shipped keeps every clause of its contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from outbox.engine.backend.apart import EngineStore
from outbox.engine.backend.blobs import FolderBlobStore, MemoryBlobStore
from outbox.engine.backend.store_scopes import ItemStore
from outbox.ports import BlobStore, StateStore
from outbox.verify.contracts import (
    BLOB_STORE,
    JOURNAL,
    MESSAGE_BUS,
    ORDERED_LOG,
    STATE_STORE,
    BusFixture,
    Clause,
    JournalFixture,
    check_blob_store,
    check_journal,
    check_message_bus,
    check_ordered_log,
    check_state_store,
    name_of,
    store_clauses_of_time,
)
from tests.contract import benches
from tests.contract.benches import GROUNDS, Bench, Ground


@pytest.mark.parametrize("clause", STATE_STORE, ids=name_of)
@pytest.mark.parametrize("ground", GROUNDS)
async def test_the_engine_is_a_state_store(ground: Ground, clause: Clause[StateStore], disk_path: Path) -> None:
    await check_state_store(partial(benches.store, ground, disk_path), clauses=[clause])


@pytest.mark.parametrize("ground", GROUNDS)
async def test_documents_of_the_engine_vanish_in_time(ground: Ground, disk_path: Path) -> None:
    bench = Bench(ground, disk_path)

    @asynccontextmanager
    async def make() -> AsyncIterator[StateStore]:
        yield EngineStore(bench.engine.core, bench.engine.documents)
        for document in [d async for d in EngineStore(bench.engine.core, bench.engine.documents).scan("contract")]:
            bench.engine.state.documents.spaces["p/contract"].pop(document.key.id)

    await check_state_store(make, clauses=store_clauses_of_time(bench.wait))
    bench.engine.close()


@pytest.mark.parametrize("clause", ORDERED_LOG, ids=name_of)
@pytest.mark.parametrize("ground", GROUNDS)
@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_ordered_logs_keep_their_promises_on_the_engine(
    scope: str, ground: Ground, clause: Clause[StateStore], disk_path: Path
) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[StateStore]:
        async with benches.store(ground, disk_path) as store:
            yield store if scope == "partition" else ItemStore(store)

    await check_ordered_log(make, clauses=[clause])


@pytest.mark.parametrize("clause", MESSAGE_BUS, ids=name_of)
@pytest.mark.parametrize("ground", GROUNDS)
async def test_the_engine_is_a_message_bus(ground: Ground, clause: Clause[BusFixture], disk_path: Path) -> None:
    await check_message_bus(partial(benches.bus, ground, disk_path), clauses=[clause])


@pytest.mark.parametrize("clause", JOURNAL, ids=name_of)
@pytest.mark.parametrize("ground", ["disk in memory", "folder"])
async def test_the_engine_is_a_journal(ground: Ground, clause: Clause[JournalFixture], disk_path: Path) -> None:
    await check_journal(partial(benches.journal, ground, disk_path), clauses=[clause])


@pytest.mark.parametrize("clause", BLOB_STORE, ids=name_of)
@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_both_blob_stores_keep_the_contract(kind: str, clause: Clause[BlobStore], disk_path: Path) -> None:
    @asynccontextmanager
    async def make() -> AsyncIterator[BlobStore]:
        yield FolderBlobStore(disk_path / uuid4().hex) if kind == "folder" else MemoryBlobStore()

    await check_blob_store(make, clauses=[clause])


async def test_a_folders_blobs_are_there_for_the_next_process(disk_path: Path) -> None:
    await FolderBlobStore(disk_path / "blobs").write("a", b"1")
    again = FolderBlobStore(disk_path / "blobs")
    assert await again.read("a", bytes_max=10) == b"1"
    assert await again.write("a", b"2") is False
    assert len(list((disk_path / "blobs").iterdir())) == 1
