"""What each answer of Blob Storage, or the lack of one, lets the adapters conclude; and what they ask for."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.state_store import BlobStateStore, name_of
from outbox.azure.blobs.store import AzureBlobStore
from outbox.errors import OutcomeUnknown, Refused, Throttled, TooLarge
from outbox.ports import Create, Delete, DocumentKey, Lost, Replace, Won, Write
from outbox.testing import START_S, VirtualClock
from tests.wire.on_azure.blob_service import BlobService, blob_service

KEY = DocumentKey("Account:alice", "state")
NAME = name_of(KEY)
PENDING = b'{"pending":true}'
WITHIN_S = 2.0
"""How long a call may take that the SDK would send again."""


@pytest.fixture
async def service() -> AsyncIterator[BlobService]:
    async with blob_service() as found:
        yield found


@pytest.fixture
async def account(service: BlobService) -> AsyncIterator[BlobAccount]:
    found = BlobAccount(service.connection, "states")
    await found.prepare(create=True)
    service.requests.clear()
    yield found
    await found.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


@pytest.fixture
def store(account: BlobAccount, clock: VirtualClock) -> BlobStateStore:
    return BlobStateStore(account, now_ms=clock.wall_ms)


async def version_of(store: BlobStateStore, body: bytes = b"1", **options: Any) -> str:
    outcome = await store.write([Create(KEY, body, **options)])
    assert isinstance(outcome, Won)
    return outcome.versions[0]


# Unknown outcomes


@pytest.mark.parametrize("kind", ["create", "replace", "delete"])
async def test_a_write_whose_answer_is_lost_is_sent_once_and_told_as_unknown(
    service: BlobService, store: BlobStateStore, kind: str
) -> None:
    version = "" if kind == "create" else await version_of(store)
    writes: dict[str, Write] = {
        "create": Create(KEY, b"2"), "replace": Replace(KEY, b"2", version), "delete": Delete(KEY, version),
    }  # fmt: skip
    service.requests.clear()
    service.lost_count = 1
    with pytest.raises(OutcomeUnknown):
        await store.write([writes[kind]])
    assert len(service.requests) == 1
    found = await store.read(KEY)
    assert (None if found is None else found.body) == (None if kind == "delete" else b"2")


async def test_a_blob_whose_answer_is_lost_is_sent_once_and_told_as_unknown(
    service: BlobService, account: BlobAccount
) -> None:
    service.lost_count = 1
    with pytest.raises(OutcomeUnknown):
        await AzureBlobStore(account).write("claims/a", b"1")
    assert service.requests == ["PUT claims/a"]
    assert await AzureBlobStore(account).write("claims/a", b"1") is False


@pytest.mark.parametrize(
    ("status", "code", "meant"),
    [
        (429, "TooManyRequests", Throttled),
        (503, "ServerBusy", Throttled),
        (503, "Other", OutcomeUnknown),
        (500, "InternalError", OutcomeUnknown),
        (500, "OperationTimedOut", OutcomeUnknown),
        (408, "RequestTimeout", OutcomeUnknown),
        (413, "RequestBodyTooLarge", TooLarge),
        (403, "AuthorizationPermissionMismatch", Refused),
        (400, "InvalidHeaderValue", Refused),
    ],
)
async def test_an_answer_means_what_azure_documents(
    service: BlobService, account: BlobAccount, clock: VirtualClock, status: int, code: str, meant: type[Exception]
) -> None:
    blobs = AzureBlobStore(account, timeout_s=WITHIN_S)
    store = BlobStateStore(account, now_ms=clock.wall_ms, timeout_s=WITHIN_S)
    for call in (
        lambda: store.write([Create(KEY, b"1")]),
        lambda: store.read(KEY),
        lambda: blobs.write("a", b"1"),
        lambda: blobs.read("a", bytes_max=1),
        lambda: blobs.delete("a"),
    ):
        service.requests.clear()
        service.refusals.append((status, code))
        with pytest.raises(meant) as caught:
            await call()
        assert type(caught.value) is meant and len(service.requests) == 1


async def test_a_container_that_is_not_there_is_neither_an_absent_document_nor_a_lost_condition(
    service: BlobService, clock: VirtualClock
) -> None:
    missing = BlobAccount(service.connection, "missing")
    store = BlobStateStore(missing, now_ms=clock.wall_ms)
    for call in (
        lambda: store.read(KEY),
        lambda: store.write([Replace(KEY, b"1", '"0x1"')]),
        lambda: AzureBlobStore(missing).read("a", bytes_max=1),
        lambda: AzureBlobStore(missing).write("a", b"1"),
    ):
        with pytest.raises(Refused, match="container"):
            await call()
    await missing.close()


async def test_only_an_account_that_may_create_makes_its_container(service: BlobService) -> None:
    found = BlobAccount(service.connection, "new")
    await found.prepare(create=False)
    assert not service.requests
    await found.prepare(create=True)
    await found.prepare(create=True)
    assert list(service.containers) == ["new"]
    await found.close()


# Conditions


async def test_a_replace_and_a_delete_lose_at_a_version_that_has_gone(store: BlobStateStore) -> None:
    first = await version_of(store)
    second = await store.write([Replace(KEY, b"2", first)])
    assert isinstance(second, Won)
    for stale in (Replace(KEY, b"3", first), Delete(KEY, first)):
        assert await store.write([stale]) == Lost(0)
    await store.write([Delete(KEY, second.versions[0])])
    for gone in (Replace(KEY, b"3", second.versions[0]), Delete(KEY, second.versions[0])):
        assert await store.write([gone]) == Lost(0)


async def test_of_two_creates_over_what_has_expired_one_wins(
    service: BlobService, store: BlobStateStore, clock: VirtualClock
) -> None:
    await version_of(store, ttl_s=5)
    clock.seconds += 6

    def another_is_faster(asked: str) -> None:
        blob = service.containers["states"][NAME]
        if asked.startswith("PUT") and service.requests.count(asked) == 3:  # the first made it, the second lost
            service.containers["states"][NAME] = replace(blob, data=b"theirs", etag='"0xff"', metadata={})

    service.before = another_is_faster
    assert isinstance(await store.write([Create(KEY, b"ours")]), Lost)
    found = await store.read(KEY)
    assert found is not None and found.body == b"theirs"


@pytest.mark.parametrize("at", ["GET", "DELETE"])
async def test_what_was_renewed_while_the_container_is_purged_stays(
    service: BlobService, store: BlobStateStore, clock: VirtualClock, at: str
) -> None:
    await version_of(store, ttl_s=5)
    clock.seconds += 6

    def renewed(asked: str) -> None:
        if asked == f"{at} {NAME}":
            blob = service.containers["states"][NAME]
            service.containers["states"][NAME] = replace(blob, etag='"0xff"', metadata={})

    service.before = renewed
    assert await store.purge() == 0
    assert await store.read(KEY) is not None


# Pages


@pytest.mark.parametrize("tags", [True, False])
async def test_every_page_of_a_listing_is_read(account: BlobAccount, clock: VirtualClock, tags: bool) -> None:
    store = BlobStateStore(account, now_ms=clock.wall_ms, tags=tags)
    keys = [DocumentKey("p", str(n)) for n in range(5)]
    for key in keys:
        await store.write([Create(key, PENDING, ttl_s=5)])
    assert [document.key async for document in store.scan("p")] == keys
    assert [document.key async for document in store.unfinished()] == keys
    clock.seconds += 6
    assert await store.purge() == 5


async def test_what_is_finished_is_not_unfinished_while_the_index_is_behind(
    service: BlobService, store: BlobStateStore
) -> None:
    version = await version_of(store, PENDING)
    service.is_index_behind = True
    assert [document.key async for document in store.unfinished()] == [KEY]
    await store.write([Replace(KEY, b"{}", version)])
    assert [document.key async for document in store.unfinished()] == []


async def test_a_listing_that_breaks_off_is_told_and_does_not_end(service: BlobService, store: BlobStateStore) -> None:
    for n in range(3):
        await store.write([Create(DocumentKey("p", str(n)), PENDING)])
    found = store.unfinished()
    await anext(found)
    await anext(found)
    service.refusals.append((500, "InternalError"))
    with pytest.raises(OutcomeUnknown):
        await anext(found)


# Limits


async def test_no_more_of_a_blob_is_read_than_tells_that_it_is_too_large(
    service: BlobService, account: BlobAccount
) -> None:
    blobs = AzureBlobStore(account)
    await blobs.write("a", b"x" * 1_000)
    with pytest.raises(TooLarge):
        await blobs.read("a", bytes_max=10)
    assert service.sent_bytes == 11


async def test_what_is_asked_for_is_counted_and_so_is_what_failed(service: BlobService, account: BlobAccount) -> None:
    blobs = AzureBlobStore(account)
    await blobs.write("a", b"1")
    await blobs.write("a", b"1")
    used = blobs.usage.by_kind["write blob"]
    assert (used.count, used.failed_count) == (2, 1)
