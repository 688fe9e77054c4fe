"""Blob Batch: deletes in one request, each answered for itself; a body that is none does nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from azure.core.exceptions import HttpResponseError
from azure.storage.blob import PartialBatchErrorException
from azure.storage.blob.aio import BlobServiceClient

from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.faults import FaultRule
from tests.wire.blobs.asking import Reply, ask, signed
from tests.wire.blobs.batches import ABOUT, BATCH_TYPE, BOUNDARY, batch, deletes

BOX = "/box?restype=container&comp=batch"
BATCH_COUNT_MAX, BATCH_MAX_BYTES = 256, 4 << 20


async def put(emulator: BlobEmulator, *names: str) -> None:
    for name in names:
        await ask(emulator, signed("PUT", f"/box/{name}", b"1", x_ms_blob_type="BlockBlob"))


async def names_of(emulator: BlobEmulator) -> list[str]:
    return (await ask(emulator, signed("GET", "/box?restype=container&comp=list"))).texts("Name")


async def submitted(emulator: BlobEmulator, body: bytes, path: str = BOX, kind: str = BATCH_TYPE) -> Reply:
    return await ask(emulator, signed("POST", path, body, Content_Type=kind))


def parts_of(reply: Reply) -> list[tuple[str, int, str]]:
    """The Content-ID, the status and the code of each part."""
    found = []
    for part in reply.body.decode().split("--batchresponse_00000000-0000-0000-0000-000000000000")[1:-1]:
        id, status = re.search(r"Content-ID: (\S+)\r", part), re.search(r"HTTP/1\.1 (\d+) ", part)
        code = re.search(r"x-ms-error-code: (\S+)\r", part)
        assert status is not None
        found.append((id[1] if id else "", int(status[1]), code[1] if code else ""))
    return found


# The SDKs


async def test_the_sdk_deletes_many_blobs_at_once(emulator: BlobEmulator) -> None:
    names = ["a b", "x/\u00e9", "c+d%", *(f"n{number}" for number in range(BATCH_COUNT_MAX - 3))]
    async with BlobServiceClient.from_connection_string(emulator.connection.connection_string) as client:
        box = client.get_container_client("box")
        for name in [*names, "left"]:
            await box.upload_blob(name, b"1")
        answers = [answer async for answer in await box.delete_blobs(*names)]
        assert [answer.status_code for answer in answers] == [202] * BATCH_COUNT_MAX
        assert [blob.name async for blob in box.list_blobs()] == ["left"]
    assert emulator.usage()["blob.batch"].count == 1 and emulator.usage()["blob.delete"].count == BATCH_COUNT_MAX


async def test_the_sdk_learns_what_became_of_each(emulator: BlobEmulator) -> None:
    await put(emulator, "a", "b")
    async with BlobServiceClient.from_connection_string(emulator.connection.connection_string) as client:
        box = client.get_container_client("box")
        stale: Any = {"name": "b", "etag": '"0x1"'}
        with pytest.raises(PartialBatchErrorException) as caught:
            await box.delete_blobs("a", "gone", stale)
    assert [part.status_code for part in caught.value.parts] == [202, 404, 412]
    assert await names_of(emulator) == ["b"]


async def test_delta_rs_vacuums_a_table(emulator: BlobEmulator) -> None:
    pa, deltalake = pytest.importorskip("pyarrow"), pytest.importorskip("deltalake")
    connection = emulator.connection
    options = {
        "account_name": connection.account, "account_key": connection.key, "endpoint": connection.url,
        "allow_http": "true",
    }  # fmt: skip

    def vacuumed() -> list[str]:
        for number in range(3):
            frame = pa.table({"n": [number]})
            deltalake.write_deltalake("az://box/t", frame, mode="overwrite", storage_options=options)
        table = deltalake.DeltaTable("az://box/t", storage_options=options)
        found: list[str] = table.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        assert deltalake.DeltaTable("az://box/t", storage_options=options).to_pyarrow_table().num_rows == 1
        return found

    removed = await asyncio.to_thread(vacuumed)
    assert len(removed) == 2 and emulator.usage()["blob.batch"].count >= 1
    assert len([name for name in await names_of(emulator) if name.endswith(".parquet")]) == 1


# Parts


async def test_each_part_is_answered_for_itself(emulator: BlobEmulator) -> None:
    await put(emulator, "a", "b", "c")
    unsigned = deletes("/box/b")[0].replace(b"SharedKey devstoreaccount1:", b"SharedKey devstoreaccount1:x")
    parts = [*deletes("/box/a"), unsigned.replace(b"-ID: 0", b"-ID: x"), *deletes("/box/c")]
    reply = await submitted(emulator, batch(*parts[:2], parts[2].replace(b"Content-ID: 0\r\n", b"")))
    assert (reply.status, parts_of(reply)) == (202, [("0", 202, ""), ("x", 403, "AuthenticationFailed"), ("", 202, "")])
    assert await names_of(emulator) == ["b"]


async def test_a_part_keeps_its_conditions_and_parameters(emulator: BlobEmulator) -> None:
    await put(emulator, "a")
    for part, code in (
        (deletes("/box/a", If_Match='"0x1"'), "ConditionNotMet"),
        (deletes("/box/a?snapshot=1"), "UnsupportedQueryParameter"),
        (deletes("/box/a", x_ms_lease_id="11111111-1111-1111-1111-111111111111"), "LeaseNotPresentWithBlobOperation"),
    ):
        assert [found[2] for found in parts_of(await submitted(emulator, batch(*part)))] == [code]
    assert await names_of(emulator) == ["a"]


async def test_a_batch_of_the_account_is_about_any_container(emulator: BlobEmulator) -> None:
    await ask(emulator, signed("PUT", "/another?restype=container"))
    await ask(emulator, signed("PUT", "/another/b", b"1", x_ms_blob_type="BlockBlob"))
    await put(emulator, "a")
    body = batch(*deletes("/box/a", "/another/b"))
    assert parts_of(await submitted(emulator, body)) == [("", 400, "InvalidInput")]
    assert parts_of(await submitted(emulator, body, "/?comp=batch")) == [("0", 202, ""), ("1", 202, "")]


async def test_a_part_fails_on_demand(emulator: BlobEmulator) -> None:
    await put(emulator, "a", "b")
    emulator.faults.install(FaultRule(kind="throttled", operation="blob.delete", key="a"))
    emulator.faults.install(FaultRule(kind="status", status=599, operation="blob.delete", key="b"))
    reply = await submitted(emulator, batch(*deletes("/box/a", "/box/b")))
    assert [part[1] for part in parts_of(reply)] == [503, 599]
    emulator.faults.install(FaultRule(kind="lost-reply", operation="blob.batch"))
    assert (await submitted(emulator, batch(*deletes("/box/a", "/box/b")))).status == 0
    assert await names_of(emulator) == []


# Limits, and bodies that are none

ONE = deletes("/box/a")[0]
WRONG = {
    "nothing": b"",
    "no parts": batch(),
    "no end": batch(ONE).removesuffix(b"--\r\n"),
    "text before": b"hello\r\n" + batch(ONE),
    "text behind": batch(ONE) + b"--batch_1\r\nmore",
    "text beside the boundary": batch(ONE).replace(b"--batch_1\r\n", b"--batch_1 \r\n", 1),
    "another boundary": batch(ONE).replace(b"batch_1", b"batch_2"),
    "bare line feeds": batch(ONE).replace(b"\r\n", b"\n"),
    "no type": batch(ONE.replace(b"Content-Type: application/http\r\n", b"")),
    "another type": batch(ONE.replace(b"application/http", b"multipart/mixed")),
    "another encoding": batch(ONE.replace(b"binary", b"base64")),
    "an id with a blank": batch(ONE.replace(b"-ID: 0", b"-ID: 0 1")),
    "one id twice": batch(ONE, ONE),
    "no request": batch(ABOUT + b"\r\n"),
    "another version": batch(ONE.replace(b"HTTP/1.1", b"HTTP/2")),
    "an address": batch(ONE.replace(b"DELETE /", b"DELETE http://localhost/")),
    "a body": batch(ONE + b"x"),
    "a length": batch(ONE.replace(b"Content-Length: 0", b"Content-Length: 1")),
    "a folded header": batch(ONE.replace(b"Host: localhost", b"Host: localhost\r\n more")),
    "a header twice": batch(ONE.replace(b"Host: localhost", b"Host: localhost\r\nhost: localhost")),
    "a line feed in a header": batch(ONE.replace(b"Host: localhost", b"Host: local\nhost")),
    "many headers": batch(ONE.replace(b"Host: localhost", b"\r\n".join(b"h%d: 1" % n for n in range(41)))),
    "a put": batch(ONE.replace(b"DELETE ", b"PUT ")),
    "a container": batch(ONE.replace(b"/box/a", b"/box?restype=container")),
    "a batch in a batch": batch(ONE.replace(b"DELETE /devstoreaccount1/box/a", b"POST /devstoreaccount1/?comp=batch")),
}


@pytest.mark.parametrize("body", WRONG.values(), ids=WRONG.keys())
async def test_a_batch_that_cannot_be_read_whole_does_nothing(emulator: BlobEmulator, body: bytes) -> None:
    await put(emulator, "a", "b")
    good = deletes("/box/b")[0].replace(b"-ID: 0", b"-ID: good")
    both = body.replace(b"--batch_1\r\n", b"--batch_1\r\n%b\r\n--batch_1\r\n" % good, 1)
    for each in {body, both}:
        reply = await submitted(emulator, each)
        assert reply.status == 202 and [(id, status) for id, status, _ in parts_of(reply)] == [("", 400)]
    assert await names_of(emulator) == ["a", "b"]


async def test_a_batch_has_256_parts_and_no_more(emulator: BlobEmulator) -> None:
    await put(emulator, "n0")
    paths = [f"/box/n{number}" for number in range(BATCH_COUNT_MAX + 1)]
    reply = await submitted(emulator, batch(*deletes(*paths)))
    assert parts_of(reply) == [("", 400, "ExceedsMaxBatchRequestCount")] and await names_of(emulator) == ["n0"]
    reply = await submitted(emulator, batch(*deletes(*paths[:-1])))
    assert [part[1] for part in parts_of(reply)] == [202] + [404] * (BATCH_COUNT_MAX - 1)


async def test_a_batch_has_four_mebibytes_and_no_more(emulator: BlobEmulator) -> None:
    await put(emulator, "a")
    reply = await submitted(emulator, batch(*deletes("/box/a")) + b"x" * BATCH_MAX_BYTES)
    assert (reply.status, reply.code) == (413, "RequestBodyTooLarge") and await names_of(emulator) == ["a"]


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "multipart/mixed", "multipart/mixed; boundary=", 'multipart/mixed; boundary="a\tb"',
             f"multipart/mixed; boundary={'b' * 71}"],
)  # fmt: skip
async def test_a_batch_names_its_boundary(emulator: BlobEmulator, kind: str) -> None:
    reply = await submitted(emulator, batch(*deletes("/box/a")), kind=kind)
    assert (reply.status, reply.code) == (400, "InvalidHeaderValue")


async def test_a_boundary_may_be_quoted(emulator: BlobEmulator) -> None:
    await put(emulator, "a")
    reply = await submitted(emulator, batch(*deletes("/box/a")), kind=f'multipart/mixed;boundary="{BOUNDARY}"')
    assert parts_of(reply) == [("0", 202, "")]


async def test_a_batch_needs_a_container_that_is_there(emulator: BlobEmulator) -> None:
    reply = await submitted(emulator, batch(*deletes("/none/a")), "/none?restype=container&comp=batch")
    assert parts_of(reply) == [("0", 404, "ContainerNotFound")]
    with pytest.raises(HttpResponseError):
        async with BlobServiceClient.from_connection_string(emulator.connection.connection_string) as client:
            await client.get_container_client("none").delete_blobs("a")
