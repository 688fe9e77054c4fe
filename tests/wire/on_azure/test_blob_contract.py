"""The Blob Storage adapters keep their contracts, through the real SDK: in every run against our emulator, whose pages
are short, and against Azurite where that is installed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

import pytest

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.state_store import BlobStateStore, encode_part, key_of, name_of
from outbox.azure.blobs.store import AzureBlobStore, encode_name
from outbox.errors import Refused, Unreachable
from outbox.ports import BlobStore, Create, DocumentKey, Replace, StateStore, Won
from outbox.testing import START_S, VirtualClock
from outbox.verify.contracts import (
    BLOB_STORE,
    ORDERED_LOG,
    STATE_STORE,
    Clause,
    check_blob_store,
    check_ordered_log,
    check_state_store,
    store_clauses_of_time,
)
from outbox.verify.contracts import name_of as clause_name
from tests.wire.on_azure.ground import blob_emulator
from tests.wire.on_azure.test_cosmos_contract import OF_BATCHES

FOR_ITEMS = tuple(clause for clause in STATE_STORE if clause_name(clause) not in OF_BATCHES)


@pytest.fixture(params=["emulator", "azurite"])
async def connection(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    if request.param == "azurite":
        yield request.getfixturevalue("of_azurite")
        return
    async with blob_emulator(page_count_max=2) as emulator:
        yield emulator.connection.connection_string


@asynccontextmanager
async def account(connection: str) -> AsyncIterator[BlobAccount]:
    found = BlobAccount(connection, f"c{uuid4().hex}")
    await found.prepare(create=True)
    yield found
    await found.close()


@asynccontextmanager
async def blob_store(connection: str) -> AsyncIterator[AzureBlobStore]:
    async with account(connection) as found:
        yield AzureBlobStore(found)


@asynccontextmanager
async def state_store(
    connection: str, *, tags: bool = True, clock: VirtualClock | None = None
) -> AsyncIterator[BlobStateStore]:
    async with account(connection) as found:
        yield BlobStateStore(found, now_ms=(clock or VirtualClock(START_S)).wall_ms, tags=tags)


@pytest.mark.parametrize("clause", BLOB_STORE, ids=clause_name)
async def test_blob_storage_is_a_blob_store(connection: str, clause: Clause[BlobStore]) -> None:
    await check_blob_store(partial(blob_store, connection), clauses=[clause])


@pytest.mark.parametrize("clause", FOR_ITEMS, ids=clause_name)
async def test_blob_storage_is_a_state_store_of_single_items(connection: str, clause: Clause[StateStore]) -> None:
    await check_state_store(partial(state_store, connection), clauses=[clause])


@pytest.mark.parametrize("clause", ORDERED_LOG, ids=clause_name)
async def test_ordered_logs_keep_their_promises_on_blob_storage(connection: str, clause: Clause[StateStore]) -> None:
    await check_ordered_log(partial(state_store, connection), clauses=[clause])


async def test_documents_of_blob_storage_vanish_in_time(connection: str) -> None:
    clock = VirtualClock(START_S)

    async def wait(seconds: float) -> None:
        clock.seconds += seconds

    await check_state_store(partial(state_store, connection, clock=clock), clauses=store_clauses_of_time(wait))


@pytest.mark.parametrize("tags", [True, False])
async def test_what_is_pending_is_found_and_what_was_finished_is_not(connection: str, tags: bool) -> None:
    keys = [DocumentKey("a/b", str(n)) for n in range(3)]
    async with state_store(connection, tags=tags) as store:
        won = [await store.write([Create(key, b'{"pending":true}')]) for key in keys]
        assert isinstance(won[1], Won)
        await store.write([Replace(keys[1], b'{"done":1}', won[1].versions[0])])
        await store.write([Create(DocumentKey("a/b", "text"), b"pending")])
        await store.write([Create(DocumentKey("a/b", "deep"), b'{"a":' * 50_000)])
        assert [document.key async for document in store.unfinished()] == [keys[0], keys[2]]


async def test_what_is_over_is_purged_and_the_rest_stays(connection: str) -> None:
    clock = VirtualClock(START_S)
    async with state_store(connection, clock=clock) as store:
        await store.write([Create(DocumentKey("p", "1"), b"1", ttl_s=5)])
        await store.write([Create(DocumentKey("p", "2"), b"2")])
        clock.seconds += 6
        assert (await store.purge(), await store.purge()) == (1, 0)
        assert [document.body async for document in store.scan("p")] == [b"2"]


async def test_a_container_that_is_not_there_is_refused_with_the_cure(connection: str) -> None:
    missing = BlobAccount(connection, "missing")
    with pytest.raises(Refused, match="container"):
        await AzureBlobStore(missing).read("a", bytes_max=1)
    await missing.close()


async def test_storage_that_cannot_be_reached_was_sent_nothing() -> None:
    place = "DefaultEndpointsProtocol=http;AccountName=a;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:9/a;"
    nowhere = BlobAccount(place, "c")
    with pytest.raises(Unreachable):
        await AzureBlobStore(nowhere, timeout_s=2).write("a", b"1")
    await nowhere.close()


@pytest.mark.parametrize("text", ["", "a", "é", "a/b", "~", "~7e", "..", "a b", "\udc80", "x" * 300, "\x00"])
def test_names_of_documents_can_be_read_back(text: str) -> None:
    key = DocumentKey(text, f"{text}-{text}")
    assert key_of(name_of(key)) == key
    assert encode_part(text).isascii()


def test_names_of_blobs_stay_apart() -> None:
    names = ["a", "A", "a/b", "a//b", "/a", "a/", "~2f", "a~b", "..", ".", "a/../b", "", "~empty", "x" * 2_000]
    names.append(encode_name(names[-1]).removeprefix("~"))  # what the digest of the long one looks like
    encoded = [encode_name(name) for name in names]
    assert len(set(encoded)) == len(names)
    assert all(".." not in name and len(name) <= 1_000 for name in encoded)
