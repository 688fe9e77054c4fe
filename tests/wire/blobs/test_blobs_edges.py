"""Blob Storage at its edges: exact limits, second pages, what a blob keeps, and paths that the SDK does not take."""

from __future__ import annotations

import base64
from typing import Any
from urllib.parse import quote

import pytest

from outbox.emulator import xml
from outbox.emulator.blobs import gateway, leases, store
from outbox.emulator.blobs.auth import Signatures, string_to_sign
from outbox.emulator.blobs.blob_operations import read_block_list
from outbox.emulator.blobs.catalog import Lease
from outbox.emulator.blobs.requests import BY_STATUS, CODES
from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.faults import FaultRule
from outbox.errors import Refused
from outbox.testing import VirtualClock
from tests.wire.blobs.asking import Reply, ask, put, signed

LEASE, OTHER = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"
MD5 = "XUFAKrxLKna5cZ2REBfFkg=="  # of hello
BOX = "/box?restype=container"
GIVEN = {
    "content-type": "text/x", "content-encoding": "br", "content-language": "sw", "content-disposition": "inline",
    "cache-control": "no-store", "content-md5": MD5,
}  # fmt: skip
PROPERTIES: dict[str, Any] = {f"x-ms-blob-{name}": value for name, value in GIVEN.items()}


async def told(emulator: BlobEmulator, method: str, path: str, body: Any = b"", **headers: Any) -> Reply:
    return await ask(emulator, signed(method, path, body, **headers))


# Codes


def test_every_code_has_the_status_that_is_documented() -> None:
    by_status: dict[int, set[str]] = {}
    for code, (status, _) in CODES.items():
        by_status.setdefault(status, set()).add(code)
    of_requests = by_status.pop(400)
    assert len(of_requests) == 28 and not any(code.startswith("Lease") for code in of_requests)
    assert by_status == {
        401: {"NoAuthenticationInformation"},
        403: {"AuthenticationFailed", "AuthorizationFailure", "AccountIsDisabled"},
        404: {"ResourceNotFound", "ContainerNotFound", "BlobNotFound"},
        405: {"UnsupportedHttpVerb"},
        409: {
            "ContainerAlreadyExists", "BlobAlreadyExists", "BlockCountExceedsLimit", "LeaseAlreadyPresent",
            "LeaseIdMismatchWithLeaseOperation", "LeaseNotPresentWithLeaseOperation", "LeaseIsBrokenAndCannotBeRenewed",
            "LeaseIsBreakingAndCannotBeAcquired", "LeaseIsBreakingAndCannotBeChanged",
        },
        412: {
            "LeaseIdMissing", "LeaseIdMismatchWithBlobOperation", "LeaseIdMismatchWithContainerOperation",
            "LeaseNotPresentWithBlobOperation", "LeaseNotPresentWithContainerOperation", "ConditionNotMet",
        },
        413: {"RequestBodyTooLarge"},
        416: {"InvalidRange"},
        500: {"InternalError", "OperationTimedOut"},
        503: {"ServerBusy"},
    }  # fmt: skip
    assert {status: CODES[code][0] for status, code in BY_STATUS.items() if CODES[code][0] != status} == {429: 503}


# Who asks


async def test_a_signature_needs_a_date_and_the_accounts_name(emulator: BlobEmulator) -> None:
    dated = signed("GET", BOX, Date="Sun, 22 Nov 2026 00:00:00 GMT", x_ms_date="")
    assert (await ask(emulator, dated)).status == 200
    assert (await told(emulator, "GET", BOX, x_ms_date="")).code == "AuthenticationFailed"
    another = signed("GET", BOX).replace(b"SharedKey devstoreaccount1:", b"SharedKey another:")
    assert b"sign with its name and key" in (await ask(emulator, another)).body
    assert (await told(emulator, "GET", BOX, Date="Sun, 22 Nov 2026 00:00:01 GMT")).status == 200  # of two, ours counts
    with pytest.raises(Refused):
        Signatures("a", "")


def test_what_is_signed_is_as_documented() -> None:
    headers = {"date": "now", "x-ms-date": "then", "content-length": "0", "if-match": "e", "x-ms-meta-a": " 1 "}
    text = string_to_sign("GET", "/a/b/c?comp=x&B=2&b=1&d=%20", headers, "a")
    assert text == "GET\n\n\n\n\n\n\n\ne\n\n\n\nx-ms-date:then\nx-ms-meta-a:1\n/a/a/b/c\nb:1,2\ncomp:x\nd: "
    text = string_to_sign("PUT", "/a", {"date": "now", "content-length": "10"}, "a")
    assert text == "PUT\n\n\n10\n\n\nnow\n\n\n\n\n\n/a/a"


async def test_an_answer_says_again_what_the_client_calls_its_request(emulator: BlobEmulator) -> None:
    numbers = [(await told(emulator, "GET", BOX)).headers["x-ms-request-id"] for _ in range(2)]
    assert numbers[0] < numbers[1]
    for id, is_said in (("x" * 1_024, True), ("x" * 1_025, False), ("y", True)):
        reply = await told(emulator, "GET", BOX, x_ms_client_request_id=id)
        assert (reply.headers.get("x-ms-client-request-id") == id) is is_said
        assert reply.headers["x-ms-version"] == "2024-11-04"


# What a blob keeps


async def test_a_blob_shows_what_was_set_until_all_is_set_anew(emulator: BlobEmulator, clock: VirtualClock) -> None:
    made = await put(emulator, x_ms_meta_a="1", x_ms_tags="t=1&u=2", **PROPERTIES)
    assert made.headers["content-md5"] == MD5
    for method, path in (("GET", "/box/b"), ("HEAD", "/box/b")):
        shown = (await told(emulator, method, path)).headers
        assert GIVEN.items() <= shown.items()
        assert (shown["x-ms-meta-a"], shown["x-ms-tag-count"], shown["content-length"]) == ("1", "2", "5")
    listed = (await told(emulator, "GET", f"{BOX}&comp=list&include=metadata,tags")).body.decode()
    for name, value in GIVEN.items():
        assert f"<{name}>{value}</{name}>".lower() in listed.lower()
    assert "<Metadata><a>1</a></Metadata>" in listed and "<TagCount>2</TagCount>" in listed
    assert "<Key>t</Key><Value>1</Value>" in listed
    plain = (await told(emulator, "GET", f"{BOX}&comp=list")).body.decode()
    assert "<Metadata>" not in plain and "<Key>" not in plain
    clock.seconds += 2
    set_anew = await told(emulator, "PUT", "/box/b?comp=properties", x_ms_blob_content_type="text/y")
    assert set_anew.headers["etag"] != made.headers["etag"]
    assert set_anew.headers["last-modified"] != made.headers["last-modified"]
    after = (await told(emulator, "HEAD", "/box/b")).headers
    assert (after["content-type"], after["x-ms-meta-a"], after["x-ms-tag-count"]) == ("text/y", "1", "2")
    assert not {"content-encoding", "content-md5", "cache-control"} & after.keys()
    assert after["x-ms-creation-time"] == made.headers["last-modified"]
    await told(emulator, "PUT", "/box/b?comp=metadata", x_ms_meta_b="2")
    after = (await told(emulator, "GET", "/box/b?comp=metadata")).headers
    assert after["x-ms-meta-b"] == "2" and "x-ms-meta-a" not in after and after["content-type"] == "text/y"
    clock.seconds += 2
    again = await put(emulator, Content_Type="text/z")
    after = (await told(emulator, "HEAD", "/box/b")).headers
    assert (after["content-type"], after["content-md5"]) == ("text/z", MD5)
    assert (after["x-ms-access-tier"], after["x-ms-access-tier-inferred"]) == ("Hot", "true")
    assert after["x-ms-creation-time"] == made.headers["last-modified"] != again.headers["last-modified"]
    assert not {"x-ms-meta-b", "x-ms-tag-count"} & after.keys()
    same = await told(emulator, "GET", "/box/b", If_None_Match=after["etag"])
    assert (same.status, same.headers["etag"]) == (304, after["etag"])
    await put(emulator, Content_Type="text/z", x_ms_blob_content_type="text/y")
    assert (await told(emulator, "HEAD", "/box/b")).headers["content-type"] == "text/y"
    assert (await told(emulator, "DELETE", "/box/b")).headers["x-ms-delete-type-permanent"] == "true"


async def test_tags_are_set_as_a_document_and_leave_etag_and_time(emulator: BlobEmulator, clock: VirtualClock) -> None:
    made = await put(emulator)
    clock.seconds += 2
    ten = "".join(f"<Tag><Key>t{n}</Key><Value>{'x' * 256}</Value></Tag>" for n in range(10))
    for inner, status in ((ten, 204), (ten + "<Tag><Key>a</Key><Value/></Tag>", 400), ("<Tag><Key>a</Key></Tag>", 400)):
        body = f"<Tags><TagSet>{inner}</TagSet></Tags>".encode()
        assert (await told(emulator, "PUT", "/box/b?comp=tags", body)).status == status
    shown = await told(emulator, "GET", "/box/b?comp=tags")
    assert shown.texts("Key") == [f"t{n}" for n in range(10)]
    head = (await told(emulator, "HEAD", "/box/b")).headers
    assert (head["etag"], head["last-modified"]) == (made.headers["etag"], made.headers["last-modified"])


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_ms_tags": "n" * 128 + "=" + "v" * 256}, 201),
        ({"x_ms_tags": "n" * 129 + "="}, 400),
        ({"x_ms_tags": "n=" + "v" * 257}, 400),
        ({"x_ms_tags": "&".join(f"t{n}=1" for n in range(10))}, 201),
        ({"x_ms_meta_a": "x" * 8_191}, 201),
        ({"x_ms_meta_a": "x" * 8_192}, 400),
        ({"x_ms_blob_content_md5": "AAAA"}, 400),
        ({"x_ms_blob_content_md5": "!"}, 400),
        ({"x_ms_blob_cache_control": "\xe9"}, 400),
        ({"If_Match": ",".join(['"1"'] * 100)}, 412),
        ({"If_Match": ",".join(['"1"'] * 101)}, 400),
        ({"If_Match": '"1",,"2"'}, 400),
        ({"If_None_Match": "*"}, 201),
        ({"If_Modified_Since": "yesterday"}, 400),
        ({"x_ms_if_tags": "t = '" + "x" * (8 * 1_024 - 6) + "'"}, 412),
        ({"x_ms_if_tags": "t = '" + "x" * (8 * 1_024 - 5) + "'"}, 400),
    ],
)
async def test_a_write_takes_exactly_what_is_documented(emulator: BlobEmulator, headers: Any, status: int) -> None:
    assert (await put(emulator, "new", **headers)).status == status


async def test_an_etag_may_come_without_quotes_or_stand_for_any(emulator: BlobEmulator) -> None:
    etag = (await put(emulator)).headers["etag"]
    for headers, status in (
        ({"If_Match": etag.strip('"')}, 200),
        ({"If_Match": "*"}, 200),
        ({"If_Match": '"0x1"'}, 412),
        ({"If_None_Match": etag}, 304),
        ({"If_None_Match": '"0x1"'}, 200),
        ({"If_None_Match": "*"}, 400),
    ):
        reply = await told(emulator, "GET", "/box/b", **headers)
        assert reply.status == status
    assert (await put(emulator, If_None_Match="*")).code == "BlobAlreadyExists"
    assert (await put(emulator, If_None_Match=etag)).code == "ConditionNotMet"
    assert (await told(emulator, "DELETE", "/box/b", If_None_Match=etag)).code == "ConditionNotMet"
    assert (await told(emulator, "DELETE", "/box/b", If_Match=etag)).status == 202


async def test_the_md5_of_a_range_is_given_up_to_four_mebibytes(emulator: BlobEmulator) -> None:
    most = 4 << 20
    await put(emulator, body=b"hello" + bytes(most - 4))
    wanted = {"x_ms_range": "bytes=0-4", "x_ms_range_get_content_md5": "true"}
    reply = await told(emulator, "GET", "/box/b", **wanted)
    assert reply.headers["content-md5"] == MD5 != reply.headers["x-ms-blob-content-md5"]
    for last, status in ((most - 1, 206), (most, 400)):
        reply = await told(emulator, "GET", "/box/b", **(wanted | {"x_ms_range": f"bytes=0-{last}"}))
        assert reply.status == status
    reply = await told(emulator, "GET", "/box/b", x_ms_range=f"bytes=0-{most}")
    assert reply.status == 206 and "content-md5" not in reply.headers


# Blocks


async def test_a_block_list_shows_the_kind_that_is_asked_for(emulator: BlobEmulator, clock: VirtualClock) -> None:
    ids = [base64.b64encode(name).decode() for name in (b"2", b"1", b"3")]
    for id in ids[:2]:
        await told(emulator, "PUT", f"/box/b?comp=block&blockid={id}", b"xy")
    reply = await told(emulator, "GET", "/box/b?comp=blocklist")
    assert reply.headers["x-ms-blob-content-length"] == "0" and reply.texts("Name") == []
    reply = await told(emulator, "GET", "/box/b?comp=blocklist&blocklisttype=uncommitted")
    assert reply.texts("Name") == sorted(ids[:2])
    body = "".join(f"<Latest>{id}</Latest>" for id in ids[:2])
    headers = {"x_ms_meta_a": "1", "x_ms_blob_content_type": "text/x", "x_ms_tags": "t=1"}
    made = await told(emulator, "PUT", "/box/b?comp=blocklist", f"<BlockList>{body}</BlockList>".encode(), **headers)
    await told(emulator, "PUT", f"/box/b?comp=block&blockid={ids[2]}", b"z")
    for kind, names in (("committed", ids[:2]), ("uncommitted", ids[2:]), ("all", ids), ("", ids[:2])):
        reply = await told(emulator, "GET", f"/box/b?comp=blocklist&blocklisttype={kind}")
        assert reply.texts("Name") == names and reply.headers["x-ms-blob-content-length"] == "4"
        assert reply.headers["etag"] == made.headers["etag"]
    assert (await told(emulator, "GET", "/box/b?comp=blocklist&blocklisttype=some")).status == 400
    assert (await told(emulator, "GET", "/box/b?comp=blocklist", x_ms_lease_id=LEASE)).status == 412
    longest = quote(base64.b64encode(bytes(64)).decode(), safe="")
    assert (await told(emulator, "PUT", f"/box/other?comp=block&blockid={longest}", b"z")).status == 201
    shown = (await told(emulator, "HEAD", "/box/b")).headers
    assert (shown["x-ms-meta-a"], shown["content-type"], shown["x-ms-tag-count"]) == ("1", "text/x", "1")
    assert "content-md5" not in shown
    clock.seconds += 2
    await told(emulator, "PUT", "/box/b?comp=blocklist", b"<BlockList/>")
    after = await told(emulator, "GET", "/box/b")
    assert after.body == b"" and after.headers["x-ms-creation-time"] == made.headers["last-modified"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("comp=block", b"x"),
        ("comp=block&blockid=MQ==", b""),
        ("comp=blocklist", b"<Blocks/>"),
        ("comp=blocklist", b"<BlockList><Other>MQ==</Other></BlockList>"),
        ("comp=blocklist", b"<BlockList><Latest></Latest></BlockList>"),
        ("comp=blocklist", b"<!DOCTYPE a><BlockList/>"),
        ("comp=blocklist", b"<BlockList>"),
    ],
)
async def test_what_is_no_block_or_list_is_refused(emulator: BlobEmulator, path: str, body: bytes) -> None:
    assert (await told(emulator, "PUT", f"/box/b?{path}", body)).status == 400


def test_a_document_has_50000_blocks_4_levels_and_4096_characters_at_most() -> None:
    one = b"<Latest>MQ==</Latest>"
    assert len(read_block_list(b"<BlockList>" + one * 50_000 + b"</BlockList>")) == 50_000
    for beyond in (one * 50_001, one * 50_010):
        with pytest.raises(Exception, match=r"BlockListTooLong|InvalidXmlDocument"):
            read_block_list(b"<BlockList>" + beyond + b"</BlockList>")
    assert xml.read_leaves(b"<a><b><c><d>" + b"x" * 4_096 + b"</d></c></b></a>") == [(tuple("abcd"), "x" * 4_096)]
    for data in (b"<a><b><c><d><e/></d></c></b></a>", b"<a>" + b"x" * 4_097 + b"</a>", b"<!DOCTYPE a><a/>"):
        with pytest.raises(ValueError, match=r"levels|characters|document type"):
            xml.read_leaves(data)


# Containers


async def test_a_container_keeps_metadata_under_its_conditions_and_lease(
    emulator: BlobEmulator, clock: VirtualClock
) -> None:
    made = await told(emulator, "GET", BOX)
    clock.seconds += 2
    changed = await told(emulator, "PUT", f"{BOX}&comp=metadata", x_ms_meta_a="1")
    for name in ("etag", "last-modified"):
        assert changed.headers[name] != made.headers[name]
    shown = await told(emulator, "GET", BOX)
    assert (shown.headers["x-ms-meta-a"], shown.headers["etag"]) == ("1", changed.headers["etag"])
    again = await told(emulator, "PUT", f"{BOX}&comp=metadata", x_ms_meta_b="2")
    assert again.headers["etag"] != changed.headers["etag"]
    changed = await told(emulator, "PUT", f"{BOX}&comp=metadata", x_ms_meta_a="1")
    written = made.headers["last-modified"]
    for headers, code in (
        ({"If_Unmodified_Since": written}, "ConditionNotMet"),
        ({"x_ms_if_tags": "a = '1'"}, "ConditionHeadersNotSupported"),
        ({"x_ms_lease_id": LEASE}, "LeaseNotPresentWithContainerOperation"),
    ):
        assert (await told(emulator, "PUT", f"{BOX}&comp=metadata", **headers)).code == code
        assert (await told(emulator, "DELETE", BOX, **headers)).code == code
    early: dict[str, Any] = {"If_Unmodified_Since": written, "x_ms_lease_action": "break"}
    assert (await told(emulator, "PUT", f"{BOX}&comp=lease", **early)).code == "ConditionNotMet"
    taken: dict[str, Any] = {"x_ms_lease_action": "acquire", "x_ms_lease_duration": "-1"}
    leased = await told(emulator, "PUT", f"{BOX}&comp=lease", x_ms_proposed_lease_id=LEASE, **taken)
    assert leased.headers["etag"] == changed.headers["etag"]
    for path in (BOX, f"{BOX}&comp=acl", f"{BOX}&comp=list"):
        assert (await told(emulator, "GET", path, x_ms_lease_id=LEASE)).status == 200
        if "list" not in path:
            reply = await told(emulator, "GET", path, x_ms_lease_id=OTHER)
            assert reply.code == "LeaseIdMismatchWithContainerOperation"
    shown = await told(emulator, "GET", BOX)
    assert [shown.headers[f"x-ms-lease-{name}"] for name in ("state", "status", "duration")] == [
        "leased", "locked", "infinite",
    ]  # fmt: skip
    listed = await told(emulator, "GET", "/?comp=list&include=metadata")
    assert b"<LeaseState>leased</LeaseState>" in listed.body and b"<Metadata><a>1</a></Metadata>" in listed.body
    assert b"<Metadata>" not in (await told(emulator, "GET", "/?comp=list")).body


async def test_containers_are_listed_page_by_page(emulator: BlobEmulator) -> None:
    for name in ("boy", "bow", "cox"):
        await told(emulator, "PUT", f"/{name}?restype=container")
    found, marker = [], ""
    for _ in range(2):
        reply = await told(emulator, "GET", f"/?comp=list&prefix=bo&maxresults=2&marker={marker}")
        found.append(reply.texts("Name"))
        marker = (reply.texts("NextMarker") or [""])[0]
    assert found == [["bow", "box"], ["boy"]] and not marker
    assert reply.texts("Prefix") == ["bo"] and reply.texts("MaxResults") == ["2"]


async def test_names_are_as_long_as_is_documented(emulator: BlobEmulator) -> None:
    for name, status in (("a" * 63, 201), ("a" * 64, 400), ("a" * 3, 201), ("a-", 400), ("a-b", 201), ("-ab", 400)):
        assert (await told(emulator, "PUT", f"/{name}?restype=container")).status == status
    for length, status in ((1_024, 201), (1_025, 400)):
        assert (await put(emulator, "x" * length)).status == status


async def test_a_full_account_takes_no_container_and_a_large_one_goes_in_steps(
    emulator: BlobEmulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "DROP_COUNT", 2)
    monkeypatch.setattr(store, "CONTAINER_COUNT_MAX", 2)
    assert (await told(emulator, "PUT", "/bin?restype=container")).status == 201
    assert (await told(emulator, "PUT", "/can?restype=container")).code == "ServerBusy"
    for n in range(3):
        await put(emulator, f"{n}")
    assert (await told(emulator, "DELETE", BOX)).status == 202
    assert emulator.engine.state.documents.count == 1
    assert (await told(emulator, "GET", "/box/0")).code == "ContainerNotFound"


# Lists


async def test_a_list_has_prefix_folders_and_what_is_not_committed(emulator: BlobEmulator) -> None:
    for name in ("a", "a/1", "a/2", "a/b/1", "ab", "b"):
        await put(emulator, name)
    await told(emulator, "PUT", "/box/a/0?comp=block&blockid=MQ==", b"x")

    async def names(query: str) -> list[str]:
        return (await told(emulator, "GET", f"{BOX}&comp=list&{query}")).texts("Name")

    assert await names("prefix=a&delimiter=/") == ["a", "a/", "ab"]
    assert await names("prefix=a/&delimiter=/") == ["a/1", "a/2", "a/b/"]
    assert await names("prefix=a/&include=uncommittedblobs") == ["a/0", "a/1", "a/2", "a/b/1"]
    assert await names("prefix=c") == []
    assert await names("maxresults=99999&include=,metadata") == ["a", "a/1", "a/2", "a/b/1", "ab", "b"]
    for length, status in ((1_024, 200), (1_025, 400)):
        assert (await told(emulator, "GET", f"{BOX}&comp=list&delimiter={'/' * length}")).status == status
    marker = base64.urlsafe_b64encode(b"ab>?").decode()
    assert await names(f"marker={marker}") == ["b"]


async def test_a_search_from_a_change_ago_knows_the_second_of_two_containers(emulator: BlobEmulator) -> None:
    emulator.faults.install(FaultRule(kind="stale-read", operation="blob.find", count=None, behind_count=1))
    await told(emulator, "PUT", "/bin?restype=container")
    for container, value in (("box", "0"), ("bin", "1"), ("bin", "2")):
        path = f"/{container}/b"
        await told(emulator, "PUT", path, b"x", x_ms_blob_type="BlockBlob", x_ms_tags=f"t={value}&other=1")
    search = "/?comp=blobs&where=t%3D%27{}%27"
    reply = await told(emulator, "GET", search.format(1))
    assert reply.texts("ContainerName") == ["bin"] and reply.texts("Key") == ["t"]
    assert (await told(emulator, "GET", search.format(2))).texts("Name") == []
    emulator.faults.clear()
    assert (await told(emulator, "GET", search.format(2))).texts("ContainerName") == ["bin"]
    within = "%40container%3D%27box%27%20AND%20t%3D%270%27"
    assert (await told(emulator, "GET", f"/?comp=blobs&where={within}")).texts("ContainerName") == ["box"]
    reply = await told(emulator, "GET", "/bin?restype=container&comp=blobs&where=t%3E%3D%271%27")
    assert reply.texts("Name") == ["b"]
    for wrong in ("t%3C%3E%271%27", "t%3D%271%27%20OR%20t%3D%272%27", ""):
        assert (await told(emulator, "GET", f"/?comp=blobs&where={wrong}")).status == 400


# Leases


@pytest.mark.parametrize("state", ["available", "leased", "endless", "expired", "breaking", "broken"])
def test_an_operation_on_a_lease_does_what_is_documented_in_every_state(state: str) -> None:
    lease = {
        "available": None,
        "leased": Lease(LEASE, 15, 20_000),
        "endless": Lease(LEASE, -1, 0),
        "expired": Lease(LEASE, 15, 10_000),
        "breaking": Lease(LEASE, 15, 20_000, 10_001),
        "broken": Lease(LEASE, 15, 20_000, 10_000),
    }[state]

    def outcome(do: Any, **given: Any) -> str:
        try:
            do(lease, 10_000, **given)
        except Exception as refused:
            return str(refused).partition(":")[0]
        return "done"

    def release(held: Lease | None, now_ms: int, *, id: str) -> None:
        leases.own(held, id)

    none, another, own = "LeaseNotPresentWithLeaseOperation", "LeaseIdMismatchWithLeaseOperation", "done"
    taken, is_broken = "LeaseAlreadyPresent", "LeaseIsBrokenAndCannotBeRenewed"
    fixed, missing = "LeaseIsBreakingAndCannotBeChanged", "LeaseIdMissing"
    gone, other = "LeaseNotPresentWithBlobOperation", "LeaseIdMismatchWithBlobOperation"
    rows = {  # acquire with the own id, with another; renew; change from the own, from another to it; break; release
        "available": [own, own, another, none, none, none, another],
        "leased": [own, taken, own, own, own, own, own],
        "endless": [own, taken, own, own, own, own, own],
        "expired": [own, own, own, none, none, own, own],
        "breaking": ["LeaseIsBreakingAndCannotBeAcquired", taken, is_broken, fixed, fixed, own, own],
        "broken": [own, own, is_broken, none, none, own, own],
    }  # fmt: skip
    assert [
        outcome(leases.acquire, id=LEASE, duration_s=15),
        outcome(leases.acquire, id=OTHER, duration_s=15),
        outcome(leases.renew, id=LEASE),
        outcome(leases.change, id=LEASE, proposed=OTHER),
        outcome(leases.change, id=OTHER, proposed=LEASE),
        outcome(leases.break_, period_s=None),
        outcome(release, id=LEASE),
    ] == rows[state]
    is_held = state in ("leased", "endless", "breaking")
    for do, without_id in ((leases.check_write, missing if is_held else own), (leases.check_read, own)):
        uses = [outcome(do, id=id, owner="Blob") for id in (LEASE, OTHER, "")]
        assert uses == [own if is_held else gone, other if is_held else gone, without_id]
    assert outcome(release, id=OTHER) == outcome(leases.renew, id=OTHER) == another
    if lease is not None:
        left_s = leases.break_(lease, 10_000, period_s=None)[1]
        assert left_s == {"leased": 10, "breaking": 1}.get(state, 0)


async def test_a_lease_is_released_and_broken_at_once(emulator: BlobEmulator, clock: VirtualClock) -> None:
    made = await put(emulator)

    async def leased(action: str, **headers: Any) -> Reply:
        return await told(emulator, "PUT", "/box/b?comp=lease", x_ms_lease_action=action, **headers)

    own: dict[str, Any] = {"x_ms_lease_id": LEASE}
    assert (await leased("acquire", x_ms_lease_duration="-1", If_Match='"0x1"')).code == "ConditionNotMet"
    clock.seconds += 2
    first = await leased("acquire", x_ms_lease_duration="-1")
    id = first.headers["x-ms-lease-id"]
    assert first.headers["etag"] == made.headers["etag"] and id != LEASE
    assert first.headers["last-modified"] == made.headers["last-modified"]
    assert (await leased("release", **own)).code == "LeaseIdMismatchWithLeaseOperation"
    assert (await told(emulator, "GET", "/box/b", **own)).code == "LeaseIdMismatchWithBlobOperation"
    assert (await leased("release", x_ms_lease_id=id)).status == 200
    assert (await told(emulator, "GET", "/box/b", x_ms_lease_id=id)).code == "LeaseNotPresentWithBlobOperation"
    shown = (await told(emulator, "GET", "/box/b")).headers
    assert (shown["x-ms-lease-state"], shown["x-ms-lease-status"]) == ("available", "unlocked")
    await leased("acquire", x_ms_lease_duration="60", x_ms_proposed_lease_id=LEASE)
    for period in ("61", "-1", "x"):
        assert (await leased("break", x_ms_lease_break_period=period)).code == "InvalidHeaderValue"
    for period in ("60", ""):
        assert (await leased("break", x_ms_lease_break_period=period)).headers["x-ms-lease-time"] == "60"
    reply = await leased("break", x_ms_lease_break_period="0")
    assert (reply.status, reply.headers["x-ms-lease-time"]) == (202, "0")
    assert (await leased("renew")).code == (await leased("steal")).code == "InvalidHeaderValue"


# Faults


@pytest.mark.parametrize(("wait_s", "said"), [(0.0, None), (0.4, "1"), (1.6, "2"), (30.0, "30")])
async def test_throttling_says_whole_seconds_of_at_least_one(
    emulator: BlobEmulator, wait_s: float, said: str | None
) -> None:
    emulator.faults.install(FaultRule(kind="throttled", operation="blob.put", retry_after_s=wait_s))
    reply = await put(emulator)
    assert (reply.status, reply.headers.get("retry-after")) == (503, said)


async def test_what_was_counted_says_what_failed_and_how_large_it_was(emulator: BlobEmulator) -> None:
    await put(emulator)
    await told(emulator, "GET", "/box/b")
    await told(emulator, "GET", "/box/none")
    await told(emulator, "GET", "/box/b", If_Modified_Since="Sun, 22 Nov 2099 00:00:00 GMT")
    used = emulator.usage()
    assert (used["blob.put"].count, used["blob.put"].failed_count) == (1, 0)
    assert (used["blob.read"].count, used["blob.read"].failed_count) == (3, 1)
    await told(emulator, "GET", "/box/b?snapshot=1")
    assert (emulator.usage()["blob.read"].count, emulator.usage()["blob.read"].failed_count) == (4, 2)
    assert gateway.BODY_MAX_BYTES == 64 << 20 < gateway.BODIES_MAX_BYTES
