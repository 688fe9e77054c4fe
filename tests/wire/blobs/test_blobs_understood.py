"""Nothing that changes an answer is ignored: conditions and query parameters are done, or refused by name."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from outbox.emulator.blobs.requests import OPERATIONS
from outbox.emulator.blobs.server import BlobEmulator
from outbox.testing import VirtualClock
from tests.wire.blobs.asking import Reply, ask, put, signed
from tests.wire.blobs.batches import BATCH_TYPE, batch, deletes

BOX = "/box?restype=container"
LEASE = "11111111-1111-1111-1111-111111111111"
TAGS = b"<Tags><TagSet><Tag><Key>n</Key><Value>1</Value></Tag></TagSet></Tags>"
BATCH = batch(*deletes("/box/b"))
ACQUIRE = {"x_ms_lease_action": "acquire", "x_ms_lease_duration": "-1"}
REQUESTS: dict[str, tuple[str, str, bytes, dict[str, str]]] = {
    "account.read": ("GET", "/?restype=account&comp=properties", b"", {}),
    "service.read": ("GET", "/?restype=service&comp=properties", b"", {}),
    "container.list": ("GET", "/?comp=list", b"", {}),
    "container.create": ("PUT", "/another?restype=container", b"", {}),
    "container.read": ("GET", BOX, b"", {}),
    "container.metadata": ("PUT", f"{BOX}&comp=metadata", b"", {}),
    "container.delete": ("DELETE", BOX, b"", {}),
    "container.lease": ("PUT", f"{BOX}&comp=lease", b"", ACQUIRE),
    "container.policy": ("GET", f"{BOX}&comp=acl", b"", {}),
    "blob.list": ("GET", f"{BOX}&comp=list", b"", {}),
    "blob.find": ("GET", "/?comp=blobs&where=n='1'", b"", {}),
    "blob.batch": ("POST", f"{BOX}&comp=batch", BATCH, {"Content_Type": BATCH_TYPE}),
    "blob.put": ("PUT", "/box/b?", b"hello", {"x_ms_blob_type": "BlockBlob"}),
    "blob.read": ("GET", "/box/b?", b"", {}),
    "blob.head": ("HEAD", "/box/b?", b"", {}),
    "blob.delete": ("DELETE", "/box/b?", b"", {}),
    "blob.metadata": ("PUT", "/box/b?comp=metadata", b"", {}),
    "blob.properties": ("PUT", "/box/b?comp=properties", b"", {}),
    "blob.lease": ("PUT", "/box/b?comp=lease", b"", ACQUIRE),
    "tags.read": ("GET", "/box/b?comp=tags", b"", {}),
    "tags.write": ("PUT", "/box/b?comp=tags", TAGS, {}),
    "block.put": ("PUT", "/box/b?comp=block&blockid=MQ==", b"x", {}),
    "block.commit": ("PUT", "/box/b?comp=blocklist", b"<BlockList/>", {}),
    "block.list": ("GET", "/box/b?comp=blocklist", b"", {}),
}
"""One of each operation, on a container that has the blob `b`."""
FALSE = {
    "If-Match": '"0x1"',
    "If-None-Match": "ETAG",
    "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Unmodified-Since": "Sat, 01 Jan 2000 00:00:00 GMT",
}
CONDITIONS = {
    **FALSE,
    **{f"x-ms-blob-{name}": value for name, value in FALSE.items()},
    **{f"x-ms-source-{name}": value for name, value in FALSE.items()},
    "If-Range": '"0x1"',
    "x-ms-if-tags": "n = '2'",
    "x-ms-source-if-tags": "n = '2'",
    "x-ms-if-sequence-number-le": "0",
    "x-ms-blob-condition-maxsize": "1",
    "x-ms-blob-condition-appendpos": "1",
}
"""None of them holds."""


async def asked(emulator: BlobEmulator, operation: str, more: str = "", headers: dict[str, str] | None = None) -> Reply:
    method, path, body, usual = REQUESTS[operation]
    return await ask(emulator, signed(method, path + more, body, **(usual | (headers or {}))))


def message(reply: Reply) -> str:
    return reply.texts("Message")[0] if reply.body else ""


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_a_condition_that_does_not_hold_is_never_ignored(emulator: BlobEmulator, operation: str) -> None:
    etag = (await put(emulator)).headers["etag"]
    for name, value in CONDITIONS.items():
        reply = await asked(emulator, operation, headers={name: value.replace("ETAG", etag)})
        if reply.code == "ConditionHeadersNotSupported":
            assert reply.status == 400 and (name.lower() in message(reply) or operation == "blob.head")
        else:
            assert (reply.code, reply.status in (304, 412)) == ("ConditionNotMet", True), name
    assert (await asked(emulator, operation)).status < 300


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_a_parameter_that_an_operation_does_not_know_is_refused_by_name(
    emulator: BlobEmulator, operation: str
) -> None:
    await put(emulator)
    for name in ("endBefore", "showonly", "snapshot", "nonsense"):
        reply = await asked(emulator, operation, f"&{name}=1")
        assert (reply.status, reply.code) == (400, "UnsupportedQueryParameter")
        assert name.lower() in message(reply) or operation == "blob.head"
    assert (await asked(emulator, operation, "&timeout=30")).status < 300


async def test_a_header_that_nothing_is_known_of_passes(emulator: BlobEmulator) -> None:
    assert (await put(emulator, x_ms_nonsense="1", x_ms_meta_if_not="1")).code == "InvalidMetadata"  # by its name
    assert (await put(emulator, x_ms_nonsense="1", Priority="u=3", If_Match="")).status == 201


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-ms-immutability-policy-mode", "Locked"),
        ("x-ms-immutability-policy-until-date", "Fri, 01 Jan 2100 00:00:00 GMT"),
        ("x-ms-legal-hold", "true"),
        ("x-ms-expiry-option", "RelativeToNow"),
        ("x-ms-expiry-time", "1"),
    ],
)
async def test_a_header_that_asks_for_what_is_not_here_is_refused_by_name(
    emulator: BlobEmulator, name: str, value: str
) -> None:
    headers: dict[str, Any] = {name: value}
    reply = await put(emulator, **headers)
    assert (reply.status, reply.code) == (400, "UnsupportedHeader") and name in message(reply)


@pytest.mark.parametrize("timeout", ["x", "-1", "1.5", "9" * 40])
async def test_a_timeout_is_a_number(emulator: BlobEmulator, timeout: str) -> None:
    await put(emulator)
    reply = await asked(emulator, "blob.read", f"&timeout={timeout}")
    assert (reply.status, reply.code) == (400, "InvalidQueryParameterValue") and "timeout" in message(reply)
    assert (await asked(emulator, "blob.read", "&timeout=0")).status == 200


async def test_the_md5_of_a_range_needs_a_range(emulator: BlobEmulator) -> None:
    await put(emulator)
    reply = await asked(emulator, "blob.read", headers={"x-ms-range-get-content-md5": "true"})
    assert reply.status == 400 and reply.texts("HeaderName") == ["x-ms-range-get-content-md5"]
    assert (await asked(emulator, "blob.read", headers={"x-ms-range-get-content-md5": "false"})).status == 200


async def test_tags_have_conditions_of_their_own_names(emulator: BlobEmulator, clock: VirtualClock) -> None:
    made = (await put(emulator)).headers
    clock.seconds += 2
    held = {"x_ms_blob_if_match": made["etag"], "x_ms_blob_if_unmodified_since": made["last-modified"]}
    assert (await asked(emulator, "tags.write", headers=held)).status == 204
    assert (await asked(emulator, "tags.read", headers=held)).status == 200
    seen = {"x_ms_blob_if_none_match": made["etag"]}
    assert (await asked(emulator, "tags.read", headers=seen)).status == 304
    assert (await asked(emulator, "tags.write", headers=seen)).status == 412


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("startFrom=b", ["b", "c/1", "c/3", "d"]),
        ("startFrom=c/2", ["c/3", "d"]),
        ("startFrom=c/2&prefix=c/", ["c/3"]),
        ("startFrom=a&prefix=c/", ["c/1", "c/3"]),
        ("startFrom=d&prefix=c/", []),
        ("startFrom=c/2&delimiter=/", ["d", "c/"]),
        ("startFrom=e", []),
    ],
)
async def test_a_list_begins_where_it_is_to(emulator: BlobEmulator, query: str, names: list[str]) -> None:
    for name in ("a", "b", "c/1", "c/3", "d"):
        await put(emulator, name)
    for count in (1, 5):
        found, marker = list[str](), ""
        for _ in range(6):
            more = f"{query}&maxresults={count}{f'&marker={marker}' if marker else ''}"
            reply = await ask(emulator, signed("GET", f"{BOX}&comp=list&{more}"))
            found += reply.texts("Name")
            if not (marker := "".join(reply.texts("NextMarker"))):
                break
        assert sorted(found) == sorted(names)


async def test_an_md5_that_is_to_be_kept_is_that_of_the_body(emulator: BlobEmulator) -> None:
    zeros, short = base64.b64encode(bytes(16)).decode(), base64.b64encode(bytes(12)).decode()
    assert (await put(emulator, x_ms_blob_content_md5=zeros)).code == "Md5Mismatch"
    assert (await put(emulator, x_ms_blob_content_md5=short)).code == "InvalidMd5"
    assert (await asked(emulator, "blob.head")).status == 404
    assert (await put(emulator, x_ms_blob_content_md5="XUFAKrxLKna5cZ2REBfFkg==")).status == 201
    for kept in (zeros, short):  # nothing comes with these that it could be compared with
        assert (await asked(emulator, "blob.properties", headers={"x-ms-blob-content-md5": kept})).status == 200
        assert (await asked(emulator, "blob.read")).headers["content-md5"] == kept
    assert (await asked(emulator, "blob.properties", headers={"x-ms-blob-content-md5": "!"})).code == "InvalidMd5"


async def test_who_names_the_lease_of_a_blob_may_write_it_anew(emulator: BlobEmulator, clock: VirtualClock) -> None:
    await put(emulator)
    taken = ACQUIRE | {"x_ms_lease_duration": "15", "x_ms_proposed_lease_id": LEASE}
    await asked(emulator, "blob.lease", headers=taken)
    assert (await put(emulator, If_None_Match="*", x_ms_lease_id=LEASE)).status == 201
    assert (await put(emulator, If_None_Match="*")).code == "BlobAlreadyExists"
    assert (await put(emulator, If_None_Match="*", x_ms_lease_id=LEASE.replace("1", "2"))).code == "BlobAlreadyExists"
    clock.seconds += 15
    assert (await put(emulator, If_None_Match="*", x_ms_lease_id=LEASE)).code == "BlobAlreadyExists"
    for headers in (taken, {"x_ms_lease_action": "break"}):
        await asked(emulator, "blob.lease", headers=headers)
    assert (await put(emulator, If_None_Match="*", x_ms_lease_id=LEASE)).status == 201, "a breaking lease holds"
    clock.seconds += 15
    assert (await put(emulator, If_None_Match="*", x_ms_lease_id=LEASE)).code == "BlobAlreadyExists"


async def test_a_container_says_that_nothing_of_it_is_immutable(emulator: BlobEmulator) -> None:
    shown = (await asked(emulator, "container.read")).headers
    assert shown["x-ms-immutable-storage-with-versioning-enabled"] == "false"
    listed = await asked(emulator, "container.list")
    assert listed.texts("ImmutableStorageWithVersioningEnabled") == listed.texts("HasLegalHold") == ["false"]


@pytest.mark.parametrize(
    ("version", "status"), [("2019-02-02", 200), ("2027-12-31", 200), ("2099-11-05", 400), ("foo", 400)]
)
async def test_a_version_that_cannot_be_is_refused(emulator: BlobEmulator, version: str, status: int) -> None:
    reply = await ask(emulator, signed("GET", BOX, x_ms_version=version))
    assert reply.status == status
    if status == 400:
        assert reply.code == "InvalidHeaderValue" and reply.texts("HeaderName") == ["x-ms-version"]
