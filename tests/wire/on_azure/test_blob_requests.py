"""What each answer of Blob Storage, or the lack of one, lets the adapters conclude; and what they ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.outcomes import as_error
from outbox.azure.blobs.state_store import BlobStateStore, name_of
from outbox.azure.blobs.store import AzureBlobStore
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.faults import FaultRule
from outbox.errors import OutcomeUnknown, Refused, Throttled, TooLarge, Unreachable
from outbox.ports import Create, Delete, DocumentKey, Lost, Replace, Won, Write
from outbox.testing import START_S, VirtualClock
from tests.wire.on_azure.ground import blob_emulator

KEY = DocumentKey("Account:alice", "state")
NAME = name_of(KEY)
PENDING = b'{"pending":true}'
WITHIN_S = 2.0
"""How long a call may take that the SDK would send again."""
HELD_S = 2.0
"""How long a request is held, so that another comes between."""

T = TypeVar("T")


@pytest.fixture
async def service() -> AsyncIterator[BlobEmulator]:
    async with blob_emulator(page_count_max=2) as found:
        yield found


@pytest.fixture
async def account(service: BlobEmulator) -> AsyncIterator[BlobAccount]:
    found = BlobAccount(service.connection.connection_string, "states")
    await found.prepare(create=True)
    service.reset_usage()
    yield found
    await found.close()


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


@pytest.fixture
def store(account: BlobAccount, clock: VirtualClock) -> BlobStateStore:
    return BlobStateStore(account, now_ms=clock.wall_ms)


def counts(service: BlobEmulator) -> dict[str, int]:
    """How many requests came, by operation."""
    return {operation: found.count for operation, found in service.usage().items()}


async def while_held(service: BlobEmulator, rule: FaultRule, call: Awaitable[T], another: Awaitable[object]) -> T:
    """What a call comes to one of whose requests is held by a rule, while another client does something."""
    service.faults.install(rule)
    running = asyncio.ensure_future(call)
    async with asyncio.timeout(5):
        while not service.faults.fired.get("delay"):  # noqa: ASYNC110  # no event says so
            await asyncio.sleep(0.01)
    service.faults.clear()
    await another
    return await running


async def version_of(store: BlobStateStore, body: bytes = b"1", **options: Any) -> str:
    outcome = await store.write([Create(KEY, body, **options)])
    assert isinstance(outcome, Won)
    return outcome.versions[0]


# Unknown outcomes


@pytest.mark.parametrize("kind", ["create", "replace", "delete"])
async def test_a_write_whose_answer_is_lost_is_sent_once_and_told_as_unknown(
    service: BlobEmulator, store: BlobStateStore, kind: str
) -> None:
    version = "" if kind == "create" else await version_of(store)
    writes: dict[str, Write] = {
        "create": Create(KEY, b"2"), "replace": Replace(KEY, b"2", version), "delete": Delete(KEY, version),
    }  # fmt: skip
    service.reset_usage()
    service.faults.install(FaultRule(kind="lost-reply"))
    with pytest.raises(OutcomeUnknown):
        await store.write([writes[kind]])
    assert counts(service) == {"blob.delete" if kind == "delete" else "blob.put": 1}
    found = await store.read(KEY)
    assert (None if found is None else found.body) == (None if kind == "delete" else b"2")


async def test_a_blob_whose_answer_is_lost_is_sent_once_and_told_as_unknown(
    service: BlobEmulator, account: BlobAccount
) -> None:
    service.faults.install(FaultRule(kind="lost-reply", key="claims/a"))
    with pytest.raises(OutcomeUnknown):
        await AzureBlobStore(account).write("claims/a", b"1")
    assert counts(service) == {"blob.put": 1}
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
    service: BlobEmulator, account: BlobAccount, clock: VirtualClock, status: int, code: str, meant: type[Exception]
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
        service.reset_usage()
        service.faults.install(FaultRule(kind="status", status=status, code=code))
        with pytest.raises(meant) as caught:
            await call()
        assert type(caught.value) is meant and sum(counts(service).values()) == 1
        assert getattr(caught.value, "retry_after_s", 1.0) == 1.0


def test_a_missing_token_is_refused_and_a_missing_connection_is_unreachable() -> None:
    assert type(as_error(ClientAuthenticationError("no token"), "read")) is Refused
    assert type(as_error(ServiceRequestError("", error=ConnectionRefusedError()), "read")) is Unreachable


async def test_a_container_that_is_not_there_is_neither_an_absent_document_nor_a_lost_condition(
    service: BlobEmulator, clock: VirtualClock
) -> None:
    missing = BlobAccount(service.connection.connection_string, "missing")
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


async def test_only_an_account_that_may_create_makes_its_container(service: BlobEmulator) -> None:
    found = BlobAccount(service.connection.connection_string, "new")
    await found.prepare(create=False)
    assert not counts(service)
    await found.prepare(create=True)
    await found.prepare(create=True)
    assert list(service.store.containers) == ["new"]
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
    service: BlobEmulator, account: BlobAccount, store: BlobStateStore, clock: VirtualClock
) -> None:
    await version_of(store, ttl_s=5)
    clock.seconds += 6
    third = FaultRule(kind="delay", operation="blob.put", after=1, delay_s=HELD_S)  # the first of these lost
    another = BlobStateStore(account, now_ms=clock.wall_ms)
    ours = store.write([Create(KEY, b"ours")])
    assert isinstance(await while_held(service, third, ours, another.write([Create(KEY, b"theirs")])), Lost)
    found = await store.read(KEY)
    assert found is not None and found.body == b"theirs"


async def test_what_takes_the_place_of_something_expired_expires_in_its_turn(
    store: BlobStateStore, clock: VirtualClock
) -> None:
    await version_of(store, ttl_s=5)
    clock.seconds += 6
    assert isinstance(await store.write([Create(KEY, b"2", ttl_s=5)]), Won)
    clock.seconds += 4
    assert await store.read(KEY) is not None
    clock.seconds += 2
    assert await store.read(KEY) is None
    assert await store.purge() == 1


@pytest.mark.parametrize("at", ["blob.read", "blob.delete"])
async def test_what_was_renewed_while_the_container_is_purged_stays(
    service: BlobEmulator, account: BlobAccount, store: BlobStateStore, clock: VirtualClock, at: str
) -> None:
    version = await version_of(store, ttl_s=5)
    clock.seconds += 6
    held = FaultRule(kind="delay", operation=at, delay_s=HELD_S)
    another = BlobStateStore(account, now_ms=clock.wall_ms)
    assert await while_held(service, held, store.purge(), another.write([Replace(KEY, b"2", version)])) == 0
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
    service: BlobEmulator, store: BlobStateStore
) -> None:
    version = await version_of(store, PENDING)
    service.faults.install(FaultRule(kind="stale-read", operation="blob.find", count=None))
    assert [document.key async for document in store.unfinished()] == [KEY]
    await store.write([Replace(KEY, b"{}", version)])
    assert [document.key async for document in store.unfinished()] == []


async def test_a_listing_that_breaks_off_is_told_and_does_not_end(service: BlobEmulator, store: BlobStateStore) -> None:
    for n in range(3):
        await store.write([Create(DocumentKey("p", str(n)), PENDING)])
    found = store.unfinished()
    await anext(found)
    await anext(found)
    service.faults.install(FaultRule(kind="status", status=500, operation="blob.find"))
    with pytest.raises(OutcomeUnknown):
        await anext(found)


# Limits


async def test_no_more_of_a_blob_is_read_than_tells_that_it_is_too_large(
    service: BlobEmulator, account: BlobAccount
) -> None:
    blobs = AzureBlobStore(account)
    await blobs.write("a", b"x" * 1_000)
    with pytest.raises(TooLarge):
        await blobs.read("a", bytes_max=10)
    assert service.usage()["blob.read"].sent_bytes == 11


async def test_what_is_asked_for_is_counted_and_so_is_what_failed(service: BlobEmulator, account: BlobAccount) -> None:
    blobs = AzureBlobStore(account)
    await blobs.write("a", b"1")
    await blobs.write("a", b"1")
    used = blobs.usage.by_kind["write blob"]
    assert (used.count, used.failed_count) == (2, 1)
