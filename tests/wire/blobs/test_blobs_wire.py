"""Blob Storage request by request: what the SDK does not send, or sends in one way only."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from outbox.emulator.blobs import blob_operations
from outbox.emulator.blobs.server import BlobEmulator
from outbox.testing import VirtualClock
from tests.wire.blobs.asking import Reply, ask, put, signed

FIRST = "Sun, 22 Nov 2026 00:00:00 GMT"
LEASE = "11111111-1111-1111-1111-111111111111"


async def get(emulator: BlobEmulator, name: str, **headers: Any) -> Reply:
    return await ask(emulator, signed("GET", f"/box/{name}", **headers))


def block(name: str) -> str:
    return base64.b64encode(name.encode()).decode()


# Who asks


async def test_a_wrong_key_is_not_let_in(emulator: BlobEmulator) -> None:
    reply = await ask(emulator, signed("GET", "/box?restype=container", key=base64.b64encode(b"other").decode()))
    assert (reply.status, reply.code) == (403, "AuthenticationFailed")
    assert b"<Code>AuthenticationFailed</Code>" in reply.body


async def test_a_request_without_a_signature_is_not_let_in(emulator: BlobEmulator) -> None:
    request = signed("GET", "/box?restype=container").replace(b"Authorization", b"X-Nothing")
    assert (await ask(emulator, request)).code == "NoAuthenticationInformation"


@pytest.mark.parametrize(
    ("one", "another"),
    [
        (b"GET /devstoreaccount1/box?restype=container", b"GET /devstoreaccount1/bin?restype=container"),
        (b"restype=container", b"restype=container&comp=list"),
        (b"x-ms-version: 2024", b"x-ms-version: 2023"),
        (b"x-ms-date: Sun, 22", b"x-ms-date: Mon, 23"),
        (b"GET ", b"HEAD "),
    ],
)
async def test_a_signature_is_good_for_what_it_signed(emulator: BlobEmulator, one: bytes, another: bytes) -> None:
    request = signed("GET", "/box?restype=container")
    assert (await ask(emulator, request)).status == 200
    assert (await ask(emulator, request.replace(one, another))).status == 403


async def test_a_page_whose_name_was_rebound_is_not_let_in(emulator: BlobEmulator) -> None:
    request = signed("GET", "/box?restype=container").replace(b"Host: localhost", b"Host: evil.example")
    assert (await ask(emulator, request)).status == 403


# What is not here


@pytest.mark.parametrize(
    ("method", "path", "headers", "named"),
    [
        ("GET", "/box/b?snapshot=2026-11-22T00:00:00Z", {}, "snapshots"),
        ("GET", "/box/b?versionid=1", {}, "versions"),
        ("PUT", "/box/b", {"x_ms_copy_source": "http://x/y"}, "copies"),
        ("PUT", "/box/b", {"x_ms_blob_type": "PageBlob"}, "PageBlob"),
        ("PUT", "/box/b", {"x_ms_blob_type": "BlockBlob", "x_ms_access_tier": "Cool"}, "tier"),
        ("PUT", "/box?restype=container", {"x_ms_blob_public_access": "blob"}, "public access"),
        ("PUT", "/box/b?comp=snapshot", {}, "snapshot"),
        ("POST", "/?comp=batch", {}, "batch"),
        ("PUT", "/box/b?comp=tier", {}, "tier"),
    ],
)
async def test_what_is_not_understood_is_refused_by_name(
    emulator: BlobEmulator, method: str, path: str, headers: dict[str, Any], named: str
) -> None:
    reply = await ask(emulator, signed(method, path, **headers))
    assert reply.status == 400 and named in reply.texts("Message")[0]


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/Box?restype=container", "InvalidResourceName"),
        ("/a--b?restype=container", "InvalidResourceName"),
        ("/ab?restype=container", "OutOfRangeInput"),
        ("/box/" + "x" * 1_025, "OutOfRangeInput"),
        ("/box/%ff", "InvalidUri"),
        ("/box/b?comp=tags&comp=lease", "InvalidUri"),
    ],
)
async def test_names_that_cannot_be_are_refused(emulator: BlobEmulator, path: str, code: str) -> None:
    assert (await ask(emulator, signed("PUT", path, x_ms_blob_type="BlockBlob"))).code == code


# Ranges


@pytest.mark.parametrize(
    ("wanted", "status", "body", "where"),
    [
        ("bytes=0-0", 206, b"h", "bytes 0-0/5"),
        ("bytes=1-2", 206, b"el", "bytes 1-2/5"),
        ("bytes=3-", 206, b"lo", "bytes 3-4/5"),
        ("bytes=4-99", 206, b"o", "bytes 4-4/5"),
    ],
)
@pytest.mark.parametrize("header", ["Range", "x_ms_range"])
async def test_a_range_gives_its_bytes(
    emulator: BlobEmulator, header: str, wanted: str, status: int, body: bytes, where: str
) -> None:
    await put(emulator, "b")
    reply = await get(emulator, "b", **{header: wanted})
    assert (reply.status, reply.body, reply.headers["content-range"]) == (status, body, where)


async def test_a_range_behind_the_end_is_refused_with_the_size(emulator: BlobEmulator) -> None:
    await put(emulator, "b")
    reply = await get(emulator, "b", x_ms_range="bytes=5-9")
    assert (reply.status, reply.code, reply.headers["content-range"]) == (416, "InvalidRange", "bytes */5")


@pytest.mark.parametrize("wanted", ["bytes=-3", "bytes=2-1", "0-3", "bytes=a-b", "bytes=0-1,3-4"])
async def test_what_is_no_range_is_refused(emulator: BlobEmulator, wanted: str) -> None:
    await put(emulator, "b")
    assert (await get(emulator, "b", x_ms_range=wanted)).code == "InvalidHeaderValue"


async def test_the_range_of_the_service_goes_before_that_of_http(emulator: BlobEmulator) -> None:
    await put(emulator, "b")
    assert (await get(emulator, "b", x_ms_range="bytes=1-1", Range="bytes=3-3")).body == b"e"


async def test_a_range_runs_over_blocks(emulator: BlobEmulator) -> None:
    for name, body in (("1", b"abc"), ("2", b"defg"), ("3", b"h")):
        await ask(emulator, signed("PUT", f"/box/b?comp=block&blockid={block(name)}", body))
    names = "".join(f"<Latest>{block(name)}</Latest>" for name in ("1", "2", "3"))
    await ask(emulator, signed("PUT", "/box/b?comp=blocklist", f"<BlockList>{names}</BlockList>".encode()))
    for first in range(8):
        for last in range(first, 8):
            reply = await get(emulator, "b", x_ms_range=f"bytes={first}-{last}")
            assert reply.body == b"abcdefgh"[first : last + 1]


# Conditions


async def test_times_are_conditions_in_whole_seconds(emulator: BlobEmulator, clock: VirtualClock) -> None:
    written = (await put(emulator, "b")).headers["last-modified"]
    assert (await get(emulator, "b", If_Modified_Since=written)).status == 304
    assert (await get(emulator, "b", If_Unmodified_Since=written)).status == 200
    clock.seconds += 2
    assert (await put(emulator, "b", If_Modified_Since=written)).code == "ConditionNotMet"
    assert (await put(emulator, "b", If_Unmodified_Since=written)).status == 201
    assert (await get(emulator, "b", If_Modified_Since=written)).status == 200
    assert (await get(emulator, "b", If_Unmodified_Since=written)).code == "ConditionNotMet"


async def test_a_read_holds_to_all_of_its_conditions(emulator: BlobEmulator, clock: VirtualClock) -> None:
    clock.seconds += 0.4  # headers have whole seconds
    made = await put(emulator, "b")
    etag, written = made.headers["etag"], made.headers["last-modified"]
    assert (await get(emulator, "b", If_Match=f'"0x1", {etag}')).status == 200
    assert (await get(emulator, "b", If_Match=etag, If_Unmodified_Since="Sat, 01 Jan 2000 00:00:00 GMT")).status == 412
    assert (await get(emulator, "b", If_None_Match=etag, If_Modified_Since=written)).status == 304
    later = "Sat, 01 Jan 2000 00:00:00 GMT"
    assert (await get(emulator, "b", If_None_Match=etag, If_Modified_Since=later)).status == 200  # one of them will do


async def test_a_write_takes_one_condition(emulator: BlobEmulator) -> None:
    etag = (await put(emulator, "b")).headers["etag"]
    reply = await put(emulator, "b", If_Match=etag, If_None_Match='"0x1"')
    assert (reply.status, reply.code) == (400, "MultipleConditionHeadersNotSupported")


@pytest.mark.parametrize(
    ("where", "status"),
    [
        ("\"n\" = '1'", 200),
        ("\"n\" = '2'", 412),
        ("\"n\" <> '2'", 200),
        ("\"n\" = '2' OR \"c\" = 'red'", 200),
        ("\"n\" = '2' OR \"c\" = 'red' AND \"n\" > '1'", 412),
        ("n = '1'", 200),
        ("other <> '1'", 200),
        ("n = '1' and c = 'red'", 200),
        (" OR ".join(["n = '1'"] * 10), 200),
        (" OR ".join(["n = '1'"] * 11), 400),
        ("\"n\" = '1' AND", 400),
        ("\"n\" ~ '1'", 400),
    ],
)
async def test_tags_are_conditions(emulator: BlobEmulator, where: str, status: int) -> None:
    await put(emulator, "b", x_ms_tags="n=1&c=red")
    assert (await get(emulator, "b", x_ms_if_tags=where)).status == status


# Blocks


async def staged(emulator: BlobEmulator, name: str, body: bytes, blob: str = "b") -> Reply:
    return await ask(emulator, signed("PUT", f"/box/{blob}?comp=block&blockid={block(name)}", body))


async def committed(emulator: BlobEmulator, *entries: tuple[str, str]) -> Reply:
    inner = "".join(f"<{kind}>{block(name)}</{kind}>" for kind, name in entries)
    return await ask(emulator, signed("PUT", "/box/b?comp=blocklist", f"<BlockList>{inner}</BlockList>".encode()))


async def test_a_list_says_where_each_block_is_looked_for(emulator: BlobEmulator) -> None:
    await staged(emulator, "1", b"old")
    assert (await committed(emulator, ("Uncommitted", "1"))).status == 201
    await staged(emulator, "1", b"new")
    assert (await committed(emulator, ("Committed", "1"))).status == 201
    assert (await get(emulator, "b")).body == b"old"
    assert (await committed(emulator, ("Uncommitted", "1"))).code == "InvalidBlockList"  # a commit forgets the others
    await staged(emulator, "1", b"new")
    assert (await committed(emulator, ("Latest", "1"))).status == 201
    assert (await get(emulator, "b")).body == b"new"


async def test_a_list_that_names_what_is_not_there_changes_nothing(emulator: BlobEmulator) -> None:
    await put(emulator, "b")
    await staged(emulator, "1", b"x")
    assert (await committed(emulator, ("Latest", "1"), ("Latest", "2"))).code == "InvalidBlockList"
    assert (await get(emulator, "b")).body == b"hello"
    reply = await ask(emulator, signed("GET", "/box/b?comp=blocklist&blocklisttype=all"))
    assert (reply.texts("Name"), reply.texts("Size")) == ([block("1")], ["1"])


async def test_a_block_is_put_anew_though_there_may_be_no_more(
    emulator: BlobEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_operations, "UNCOMMITTED_COUNT_MAX", 1)
    assert [(await staged(emulator, name, b"x")).code for name in "112"] == ["", "", "BlockCountExceedsLimit"]


async def test_the_ids_of_a_blobs_blocks_have_one_length(emulator: BlobEmulator) -> None:
    await staged(emulator, "1", b"x")
    assert (await staged(emulator, "22", b"x")).code == "InvalidBlobOrBlock"
    assert (await staged(emulator, "22", b"x", blob="other")).status == 201


@pytest.mark.parametrize("id", ["", "no base64", base64.b64encode(b"x" * 65).decode()])
async def test_a_block_id_is_base64_of_at_most_64_bytes(emulator: BlobEmulator, id: str) -> None:
    path = f"/box/b?comp=block&blockid={id.replace(' ', '%20')}"
    assert (await ask(emulator, signed("PUT", path, b"x"))).status == 400


async def test_a_put_forgets_the_blocks_that_were_not_committed(emulator: BlobEmulator) -> None:
    await staged(emulator, "1", b"x")
    await put(emulator, "b")
    assert (await committed(emulator, ("Latest", "1"))).code == "InvalidBlockList"


async def test_blocks_that_nobody_commits_go_after_a_week(emulator: BlobEmulator, clock: VirtualClock) -> None:
    await staged(emulator, "1", b"x")
    clock.seconds += 7 * 86_400 - 1
    assert emulator.store.sweep() == 0
    clock.seconds += 2
    assert emulator.store.sweep() == 1
    assert (await ask(emulator, signed("GET", "/box/b?comp=blocklist"))).code == "BlobNotFound"
    assert "blobs.data" not in emulator.engine.state.documents.spaces


async def test_the_week_of_a_blobs_blocks_begins_with_the_last_of_them(
    emulator: BlobEmulator, clock: VirtualClock
) -> None:
    await staged(emulator, "1", b"x")
    clock.seconds += 6 * 86_400
    await staged(emulator, "2", b"y")
    clock.seconds += 6 * 86_400
    assert emulator.store.sweep() == 0
    assert (await committed(emulator, ("Latest", "1"), ("Latest", "2"))).status == 201
    assert (await get(emulator, "b")).body == b"xy"


# Checksums, metadata, tags


async def test_a_body_with_another_checksum_is_refused(emulator: BlobEmulator) -> None:
    good = "XUFAKrxLKna5cZ2REBfFkg=="
    assert (await put(emulator, "b", Content_MD5=good)).headers["content-md5"] == good
    assert (await put(emulator, "b", b"other", Content_MD5=good)).code == "Md5Mismatch"
    assert (await put(emulator, "b", Content_MD5="AAAA")).code == "InvalidMd5"
    assert (await get(emulator, "b")).body == b"hello"
    for comp, body in (("tags", b"<Tags><TagSet/></Tags>"), ("blocklist", b"<BlockList/>")):
        assert (await ask(emulator, signed("PUT", f"/box/b?comp={comp}", body, Content_MD5=good))).code == "Md5Mismatch"


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"x_ms_meta_a.b": "1"}, "InvalidMetadata"),
        ({"x_ms_meta_1a": "1"}, "InvalidMetadata"),
        ({"x_ms_meta_a": "x" * 8_200}, "MetadataTooLarge"),
        ({"x_ms_tags": "&".join(f"t{n}=1" for n in range(11))}, "TagsTooLarge"),
        ({"x_ms_tags": "a=1&a=2"}, "DuplicateTagNames"),
        ({"x_ms_tags": "a=%3C"}, "InvalidTag"),
        ({"x_ms_tags": "=1"}, "EmptyTagName"),
        ({"x_ms_lease_id": "none"}, "InvalidHeaderValue"),
        ({"If_Match": '"0x1"'}, "ConditionNotMet"),
    ],
)
async def test_what_a_blob_cannot_have_is_refused(emulator: BlobEmulator, headers: Any, code: str) -> None:
    assert (await put(emulator, "b", **headers)).code == code
    assert (await get(emulator, "b")).code == "BlobNotFound"


# Leases


async def leased(emulator: BlobEmulator, action: str, **headers: Any) -> Reply:
    return await ask(emulator, signed("PUT", "/box/b?comp=lease", x_ms_lease_action=action, **headers))


@pytest.mark.parametrize("duration", ["14", "61", "0", "-2", "x", ""])
async def test_a_lease_takes_15_to_60_seconds_or_has_no_end(emulator: BlobEmulator, duration: str) -> None:
    await put(emulator, "b")
    assert (await leased(emulator, "acquire", x_ms_lease_duration=duration)).code == "InvalidHeaderValue"
    for good in ("15", "60", "-1"):
        reply = await leased(emulator, "acquire", x_ms_lease_duration=good, x_ms_proposed_lease_id=LEASE)
        assert (reply.status, reply.headers["x-ms-lease-id"]) == (201, LEASE)


@pytest.mark.parametrize("comp", ["", "?comp=metadata", "?comp=properties"])
async def test_a_lease_ends_by_itself_and_may_be_renewed_until_another_writes(
    emulator: BlobEmulator, clock: VirtualClock, comp: str
) -> None:
    await put(emulator, "b")
    await leased(emulator, "acquire", x_ms_lease_duration="15", x_ms_proposed_lease_id=LEASE)
    assert (await put(emulator, "b")).code == "LeaseIdMissing"
    clock.seconds += 15
    assert (await get(emulator, "b")).headers["x-ms-lease-state"] == "expired"
    assert (await leased(emulator, "renew", x_ms_lease_id=LEASE)).status == 200
    clock.seconds += 15
    assert (await put(emulator, f"b{comp}")).status == (200 if comp else 201)
    assert (await leased(emulator, "renew", x_ms_lease_id=LEASE)).code == "LeaseIdMismatchWithLeaseOperation"


async def test_a_lease_outlasts_what_its_holder_writes_in_blocks(emulator: BlobEmulator) -> None:
    await put(emulator, "b")
    await leased(emulator, "acquire", x_ms_lease_duration="60", x_ms_proposed_lease_id=LEASE)
    block = signed("PUT", "/box/b?comp=block&blockid=YQ==", b"1", x_ms_lease_id=LEASE)
    assert (await ask(emulator, block)).status == 201
    names = b"<BlockList><Latest>YQ==</Latest></BlockList>"
    committed = signed("PUT", "/box/b?comp=blocklist", names, x_ms_lease_id=LEASE)
    assert (await ask(emulator, committed)).status == 201
    assert (await put(emulator, "b")).code == "LeaseIdMissing"


async def test_a_lease_under_another_id_ends_when_it_would_have_ended(
    emulator: BlobEmulator, clock: VirtualClock
) -> None:
    other = LEASE.replace(LEASE[0], "f" if LEASE[0] != "f" else "e")
    await put(emulator, "b")
    await leased(emulator, "acquire", x_ms_lease_duration="15", x_ms_proposed_lease_id=LEASE)
    clock.seconds += 10
    changed = await leased(emulator, "change", x_ms_lease_id=LEASE, x_ms_proposed_lease_id=other)
    assert (changed.status, changed.headers["x-ms-lease-id"]) == (200, other)
    assert (await put(emulator, "b", x_ms_lease_id=LEASE)).code == "LeaseIdMismatchWithBlobOperation"
    clock.seconds += 5
    assert (await get(emulator, "b")).headers["x-ms-lease-state"] == "expired"


async def test_a_broken_lease_says_when_another_may_be_had(emulator: BlobEmulator, clock: VirtualClock) -> None:
    await put(emulator, "b")
    await leased(emulator, "acquire", x_ms_lease_duration="60", x_ms_proposed_lease_id=LEASE)
    assert (await leased(emulator, "break", x_ms_lease_break_period="30")).headers["x-ms-lease-time"] == "30"
    assert (await leased(emulator, "break", x_ms_lease_break_period="50")).headers["x-ms-lease-time"] == "30"
    assert (await leased(emulator, "break", x_ms_lease_break_period="10")).headers["x-ms-lease-time"] == "10"
    clock.seconds += 9.5
    assert (await leased(emulator, "break", x_ms_lease_break_period="50")).headers["x-ms-lease-time"] == "1"
    assert (await put(emulator, "b")).code == "LeaseIdMissing"
    clock.seconds += 0.5
    assert (await put(emulator, "b")).status == 201


async def test_a_lease_of_a_container_keeps_it(emulator: BlobEmulator) -> None:
    path = "/box?restype=container&comp=lease"
    taken: dict[str, Any] = {
        "x_ms_lease_action": "acquire",
        "x_ms_lease_duration": "-1",
        "x_ms_proposed_lease_id": LEASE,
    }
    assert (await ask(emulator, signed("PUT", path, **taken))).status == 201
    assert (await ask(emulator, signed("DELETE", "/box?restype=container"))).code == "LeaseIdMissing"
    assert (await ask(emulator, signed("DELETE", "/box?restype=container", x_ms_lease_id=LEASE))).status == 202


# Lists


async def listed(emulator: BlobEmulator, query: str) -> Reply:
    return await ask(emulator, signed("GET", f"/box?restype=container&comp=list&{query}"))


async def test_pages_go_on_where_the_last_one_ended_whatever_is_written_meanwhile(emulator: BlobEmulator) -> None:
    for name in ("a", "b/1", "b/2", "c", "d"):
        await put(emulator, name)
    first = await listed(emulator, "maxresults=2&delimiter=/")
    assert first.texts("Name") == ["a", "b/"]
    await ask(emulator, signed("DELETE", "/box/b/2"))
    await put(emulator, "aa")
    [marker] = first.texts("NextMarker")
    second = await listed(emulator, f"maxresults=2&delimiter=/&marker={marker}")
    assert second.texts("Name") == ["c", "d"] and second.texts("NextMarker") == []
    assert second.texts("Marker") == [marker]


@pytest.mark.parametrize("count", [1, 2, 3, 100])
async def test_a_folder_is_listed_once_whatever_its_names_begin_with(emulator: BlobEmulator, count: int) -> None:
    """Its last names lie behind every text by which a folder could be passed over."""
    last = quote("\U0010ffff")
    for name in ("a", "d/1", f"d/{last}", f"d/{last}{last}2", f"d/{last}/3", "e"):
        await put(emulator, name)

    async def pages(query: str) -> list[str]:
        found, marker = list[str](), ""
        for _ in range(10):
            page = await listed(emulator, f"maxresults={count}&{query}&marker={marker}")
            found += page.texts("Name")
            if not (markers := page.texts("NextMarker")):
                return found
            marker = markers[0]
        raise AssertionError(f"no end: {found}")

    assert await pages("delimiter=/") == ["a", "d/", "e"]
    assert len(await pages("prefix=d/&delimiter=/")) == 4
    assert len(await pages("")) == 6


async def test_a_page_that_is_exactly_full_is_the_last(emulator: BlobEmulator) -> None:
    for name in ("a", "b"):
        await put(emulator, name)
    reply = await listed(emulator, "maxresults=2")
    assert reply.texts("Name") == ["a", "b"] and b"<NextMarker/>" in reply.body


@pytest.mark.parametrize("query", ["maxresults=0", "maxresults=x", "marker=!", "include=nonsense"])
async def test_a_list_that_cannot_be_is_refused(emulator: BlobEmulator, query: str) -> None:
    assert (await listed(emulator, query)).status == 400


async def test_names_that_xml_cannot_write_are_listed_encoded(emulator: BlobEmulator) -> None:
    await put(emulator, "a%01b&c")
    await put(emulator, "a%0Db")
    found = (await listed(emulator, "")).body
    assert b'<Name Encoded="true">a%01b%26c</Name>' in found and b'<Name Encoded="true">a%0Db</Name>' in found


async def test_a_search_over_containers_goes_on_in_order(emulator: BlobEmulator) -> None:
    await ask(emulator, signed("PUT", "/box-d?restype=container"))
    for container in ("box", "box-d"):
        for name in ("1", "2"):
            path = f"/{container}/{name}"
            await ask(emulator, signed("PUT", path, b"x", x_ms_blob_type="BlockBlob", x_ms_tags="n=1"))
    found, marker = [], ""
    for _ in range(4):
        where = "%22n%22%3D%271%27"
        reply = await ask(emulator, signed("GET", f"/?comp=blobs&where={where}&maxresults=1&marker={marker}"))
        found += [(reply.texts("ContainerName")[0], reply.texts("Name")[0])]
        marker = (reply.texts("NextMarker") or [""])[0]
    assert found == [("box", "1"), ("box", "2"), ("box-d", "1"), ("box-d", "2")] and not marker
