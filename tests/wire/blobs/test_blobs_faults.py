"""Faults on demand: every kind that Blob Storage can do, met by the real SDK; and the control endpoint."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any, get_args

import pytest
from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError
from azure.storage.blob.aio import BlobServiceClient, ContainerClient

from outbox.azure.transport import OnceTransport
from outbox.emulator.blobs.gateway import BODY_MAX_BYTES
from outbox.emulator.blobs.requests import OPERATIONS
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.faults import FaultRule, Kind
from tests.wire.blobs.asking import ask, signed

DONE_HERE = {"lost-reply", "refused", "throttled", "status", "delay", "stale-read", "reset", "pause"}
OF_THE_BUS = {"lock-expiry", "lost-disposition", "wrong-disposition", "duplicate", "detach", "reorder"}


@pytest.fixture
async def box(emulator: BlobEmulator) -> AsyncIterator[ContainerClient]:
    text = emulator.connection.connection_string
    async with BlobServiceClient.from_connection_string(text, retry_total=0, transport=OnceTransport()) as client:
        yield client.get_container_client("box")


def test_every_kind_is_done_here_or_belongs_to_the_bus() -> None:
    assert set(get_args(Kind)) == DONE_HERE | OF_THE_BUS


async def test_a_lost_reply_has_taken_effect(emulator: BlobEmulator, box: ContainerClient) -> None:
    emulator.faults.install(FaultRule(kind="lost-reply", operation="blob.put"))
    with pytest.raises((ServiceResponseError, ServiceRequestError)):
        await box.upload_blob("a", b"1")
    assert await (await box.download_blob("a")).readall() == b"1"
    assert emulator.usage()["blob.put"].failed_count == 1


async def test_a_connection_that_is_reset_did_nothing(emulator: BlobEmulator, box: ContainerClient) -> None:
    emulator.faults.install(FaultRule(kind="reset", operation="blob.put"))
    with pytest.raises((ServiceResponseError, ServiceRequestError)):
        await box.upload_blob("a", b"1")
    assert not await box.get_blob_client("a").exists()


@pytest.mark.parametrize(
    ("rule", "status", "code"),
    [
        ({"kind": "refused"}, 403, "AuthorizationFailure"),
        ({"kind": "throttled"}, 503, "ServerBusy"),
        ({"kind": "status", "status": 500}, 500, "InternalError"),
        ({"kind": "status", "status": 500, "code": "OperationTimedOut"}, 500, "OperationTimedOut"),
        ({"kind": "status", "status": 409, "code": "LeaseAlreadyPresent"}, 409, "LeaseAlreadyPresent"),
    ],
)
async def test_a_refused_write_did_nothing(
    emulator: BlobEmulator, box: ContainerClient, rule: Any, status: int, code: str
) -> None:
    emulator.faults.install(FaultRule(operation="blob.put", where="box", key="a", **rule))
    await box.upload_blob("other", b"1")
    with pytest.raises(HttpResponseError) as caught:
        await box.upload_blob("a", b"1")
    found = getattr(caught.value, "error_code", "")
    assert (caught.value.status_code, getattr(found, "value", found)) == (status, code)
    assert not await box.get_blob_client("a").exists()


async def test_the_sdk_waits_throttling_out(emulator: BlobEmulator) -> None:
    emulator.faults.install(FaultRule(kind="throttled", operation="blob.put", retry_after_s=1))
    async with BlobServiceClient.from_connection_string(emulator.connection.connection_string) as client:
        await client.get_container_client("box").upload_blob("a", b"1")
    assert emulator.usage()["blob.put"].count == 2


@pytest.mark.parametrize("kind", ["delay", "pause"])
async def test_a_delay_comes_before_the_effect_and_a_pause_behind_it(
    emulator: BlobEmulator, box: ContainerClient, kind: Any
) -> None:
    emulator.faults.install(FaultRule(kind=kind, operation="blob.put", delay_s=0.3))
    with pytest.raises((ServiceResponseError, ServiceRequestError, TimeoutError)):
        await box.upload_blob("a", b"1", read_timeout=0.1)
    assert await box.get_blob_client("a").exists() is (kind == "pause")


async def test_a_search_from_the_past_has_tags_that_blobs_have_lost(
    emulator: BlobEmulator, box: ContainerClient
) -> None:
    where, blob = "\"pending\"='1'", box.get_blob_client("a")
    rule = FaultRule(kind="stale-read", operation="blob.find", count=None)
    emulator.faults.install(rule)
    await blob.upload_blob(b"1", tags={"pending": "1"})
    assert [found.name async for found in box.find_blobs_by_tags(where)] == []  # not there yet
    emulator.faults.clear()
    await box.get_blob_client("b").upload_blob(b"1")
    emulator.faults.install(rule)
    await blob.set_blob_tags({})
    assert [found.name async for found in box.find_blobs_by_tags(where)] == ["a"]
    await blob.delete_blob()
    assert [found.name async for found in box.find_blobs_by_tags(where)] == ["a"]
    emulator.faults.clear()
    assert [found.name async for found in box.find_blobs_by_tags(where)] == []


async def test_the_control_endpoint_takes_rules_under_its_token(emulator: BlobEmulator, box: ContainerClient) -> None:
    rule = b'{"kind":"throttled","operation":"blob.put"}'
    head = f"POST /_outbox/faults HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(rule)}\r\n"
    refused = await ask(emulator, f"{head}Authorization: Bearer no\r\n\r\n".encode() + rule)
    assert refused.status == 401
    taken = await ask(emulator, f"{head}Authorization: Bearer {emulator.control_token}\r\n\r\n".encode() + rule)
    assert (taken.status, taken.body) == (201, b'{"ids":[1]}')
    with pytest.raises(HttpResponseError):
        await box.upload_blob("a", b"1")
    head = f"GET /_outbox/usage HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {emulator.control_token}\r\n\r\n"
    assert b'"blob.put":{"count":1,"failed_count":1' in (await ask(emulator, head.encode())).body


# Limits


async def test_a_body_over_the_limit_is_refused_by_its_head(emulator: BlobEmulator) -> None:
    request = signed("PUT", "/box/a", x_ms_blob_type="BlockBlob", Content_Length=str(BODY_MAX_BYTES + 1))
    reply = await ask(emulator, request)
    assert (reply.status, reply.code) == (413, "RequestBodyTooLarge")


async def test_an_unsigned_body_is_not_read(emulator: BlobEmulator) -> None:
    request = signed("PUT", "/box/a", x_ms_blob_type="BlockBlob", Content_Length="1000000")
    started_s = time.monotonic()
    reply = await ask(emulator, request.replace(b"SharedKey", b"sharedkeyx"))
    assert reply.status == 403 and reply.headers["connection"] == "close" and time.monotonic() - started_s < 3


def test_each_operation_has_a_name_of_two_parts() -> None:
    assert all(operation.count(".") == 1 for operation in OPERATIONS)
