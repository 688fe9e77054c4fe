"""How documents become items: what comes back is what was written, byte for byte, or is refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outbox.azure.cosmos.items import (
    BODY_BYTES_MAX,
    DEPTH_MAX,
    ITEM_BYTES_MAX,
    TTL_S_MAX,
    _is_plain,
    _survives,
    decode_id,
    encode_id,
    from_item,
    to_item,
)
from outbox.azure.cosmos.store import BATCH_COUNT_MAX, CosmosStateStore, KeyRange, _batched
from outbox.errors import CorruptRecord, TooLarge
from outbox.ports import Create, Delete, Document, DocumentKey, Replace

KEY = DocumentKey("Account:alice", "state")


def through(body: bytes, key: DocumentKey = KEY) -> tuple[dict[str, Any], Document]:
    """An item and what comes back of it, through a store that keeps numbers as IEEE doubles."""
    item, size_bytes = to_item(Create(key, body))
    sent = json.dumps(item, separators=(",", ":"), ensure_ascii=False)
    assert len(sent.encode()) <= size_bytes
    kept = json.loads(sent, parse_int=lambda text: int(float(text)), parse_float=_as_double)
    return item, from_item({**kept, "_etag": '"1"'})


def _as_double(text: str) -> float | int:
    found = float(text)
    return int(found) if found.is_integer() else found  # it forgets how a number was written


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (b'{"a":1,"b":[true,null,"x"],"c":{"d":0.1}}', "body"),
        (b"{}", "body"),
        (b'{"big":9007199254740992}', "body"),
        (b'{"big":9007199254740993}', "text"),
        (b'{"big":-9007199254740993}', "text"),
        (b'{"big":123456789012345678901234567890}', "text"),
        (b'{"ratio":1.0}', "text"),
        (b'{"ratio":1e16}', "text"),
        (b'{"a": 1}', "text"),
        (b'{"a":1,"a":2}', "text"),
        (b"[1,2]", "text"),
        (b"1", "text"),
        (b"", "text"),
        ('{"é":"ü"}'.encode(), "body"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "text"),
        (b'{"a":' * 5_000 + b"1" + b"}" * 5_000, "text"),
        (bytes(range(256)), "base64"),
        (b'{"a":"\xff"}', "base64"),
    ],
)
def test_a_body_comes_back_as_it_was(body: bytes, form: str) -> None:
    item, found = through(body)
    assert form in item
    assert found == Document(KEY, body, '"1"')


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
        max_leaves=10,
    )
)
def test_any_json_comes_back_as_it_was(value: object) -> None:
    body = msgspec.json.encode({"value": value})
    assert through(body)[1].body == body


NUMBERS = st.integers() | st.integers(-(1 << 60), 1 << 60) | st.floats(allow_nan=False, allow_infinity=False)


@given(st.recursive(NUMBERS | st.text("[]{},:0123456789.eE-", max_size=30), lambda inner: st.lists(inner, max_size=4)))
def test_what_a_glance_takes_for_plain_survives(value: object) -> None:
    body = msgspec.json.encode({"value": value})
    assert not _is_plain(body) or _survives(msgspec.json.decode(body), DEPTH_MAX)


def test_most_bodies_are_plain_at_a_glance() -> None:
    assert _is_plain(b'{"total":12345,"names":["a1b2e3","c"],"at_ms":1790000000000}')


@given(st.binary(max_size=60))
def test_any_bytes_come_back_as_they_were(body: bytes) -> None:
    assert through(body)[1].body == body


@pytest.mark.parametrize(
    ("body", "pending"),
    [(b'{"pending":true}', True), (b'{"pending":1.0}', True), (b'{"a":{"pending":1}}', False), (b"pending", False)],
)
def test_what_is_pending_says_so_outside_of_its_body(body: bytes, pending: bool) -> None:
    assert through(body)[0].get("pending", False) is pending


@given(st.text(min_size=1, max_size=80), st.text(min_size=1, max_size=80))
def test_ids_come_back_stay_apart_and_keep_their_prefixes(one: str, other: str) -> None:
    assert decode_id(encode_id(one)) == one
    assert (encode_id(one) == encode_id(other)) == (one == other)
    assert encode_id(one + other).startswith(encode_id(one))
    assert not set(encode_id(one)) & set("/\\?# \n")


@pytest.mark.parametrize("character", "/\\?#~% \t\x00\x1f\x7f")
def test_what_no_id_may_hold_is_written_by_its_number(character: str) -> None:
    assert encode_id(f"a{character}b") == f"a~{ord(character):02x}b"


@pytest.mark.parametrize("id", ["", "x" * 1_024, "/" * 400, "\udc80"])
def test_an_id_that_cosmos_would_not_take_is_refused(id: str) -> None:
    with pytest.raises(TooLarge):
        to_item(Create(DocumentKey("p", id), b"1"))


def test_the_longest_key_fits_and_counts() -> None:
    longest = Create(DocumentKey("p" * 2_048, "x" * 1_023), b"1")
    assert to_item(longest)[1] - to_item(Create(DocumentKey("p", "x"), b"1"))[1] == 2_047 + 1_022
    for partition in ("p" * 2_049, "\u00e9" * 1_025):
        with pytest.raises(TooLarge, match="partition"):
            to_item(Create(DocumentKey(partition, "x"), b"1"))


def test_what_a_batch_replaces_and_deletes_is_named_as_it_was_created() -> None:
    key, held = DocumentKey("p", "a/b"), {"if_match_etag": "1"}
    item, _ = to_item(Create(key, b"{}"))
    assert _batched(Delete(key, "1"), None) == ("delete", (item["id"],), held)
    assert _batched(Replace(key, b"{}", "1"), item) == ("replace", (item["id"], item), held)


def test_all_hashes_are_split_evenly() -> None:
    middle = "2" + "0" * 31
    assert KeyRange().split(2) == [KeyRange("", middle), KeyRange(middle, "FF")]


def test_the_largest_body_fits_and_what_grows_beyond_the_limit_is_refused() -> None:
    largest = b'{"a":"' + b"x" * (BODY_BYTES_MAX - 8) + b'"}'
    assert to_item(Create(KEY, largest))[1] <= ITEM_BYTES_MAX
    with pytest.raises(TooLarge, match="blob"):
        to_item(Create(KEY, b"\xff" * BODY_BYTES_MAX))


@pytest.mark.parametrize(
    ("bodies", "told"),
    [
        ([b"1" * (BODY_BYTES_MAX // 2), b"1" * (BODY_BYTES_MAX // 2 + 1)], f"bodies of {BODY_BYTES_MAX + 1} bytes"),
        ([b'"' * 600_000] * 2, "2400.* bytes as items"),
        ([b"1"] * (BATCH_COUNT_MAX + 1), "101 operations"),
    ],
    ids=["bodies", "items", "operations"],
)
async def test_a_batch_that_together_is_too_large_is_refused_before_it_is_sent(bodies: list[bytes], told: str) -> None:
    async def unasked() -> Any:
        raise AssertionError("nothing was to be sent")

    writes = [Create(DocumentKey("p", str(at)), body) for at, body in enumerate(bodies)]
    with pytest.raises(TooLarge, match=told):
        await CosmosStateStore(unasked).write(writes)
    with pytest.raises(AssertionError):
        await CosmosStateStore(unasked).write(writes[1:])


@pytest.mark.parametrize(("ttl_s", "expected"), [(0.0, 1), (0.01, 1), (2.0, 2), (2.1, 3), (1e12, TTL_S_MAX)])
def test_a_time_to_live_is_whole_seconds_and_never_shorter(ttl_s: float, expected: int) -> None:
    assert to_item(Create(KEY, b"1", ttl_s))[0]["ttl"] == expected


@pytest.mark.parametrize(
    "item", [{}, {"id": "a", "pk": "b"}, {"id": "a", "pk": "b", "base64": "%", "_etag": "1"}, {"id": 1, "pk": "b"}]
)
def test_a_foreign_item_is_named(item: dict[str, Any]) -> None:
    with pytest.raises(CorruptRecord, match="who else writes"):
        from_item(item)
