"""What the Cosmos DB emulator reads, to its exact limits: keys, ids, depths, throughput, pages, changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from outbox.emulator.cosmos import feed_operations
from outbox.emulator.cosmos.feed_operations import _changed, _since_of, _start_of
from outbox.emulator.cosmos.feeds import PAGE_COUNT, PAGE_COUNT_MAX, page_count_of
from outbox.emulator.cosmos.offers import AUTOSCALE_HEADER, THROUGHPUT_HEADER, of_body, of_headers, offer_of
from outbox.emulator.cosmos.wire import (
    Rejection,
    check_id,
    item_rid,
    key_of,
    key_of_header,
    key_text,
    number_of,
    parse,
    rid_at,
    store_form,
    wire_form,
)

FEED = "Incremental feed"


def refused(call: Any, *given: Any) -> int:
    with pytest.raises(Rejection) as caught:
        call(*given)
    return caught.value.status


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1, "[1]"), (1.0, "[1]"), (-0.0, "[0]"), (True, "[true]"), (None, "[null]"), ({}, "[{}]"), ("1", '["1"]'),
        (1.5, "[1.5]"), (float((1 << 53) - 1), "[9007199254740991]"), (2.0**53, "[9007199254740992.0]"),
    ],
)  # fmt: skip
def test_a_key_has_one_form_for_each_value(value: Any, text: str) -> None:
    assert key_text([value]) == text
    assert key_of({"pk": value}, (("pk",),)) == key_of_header(msgspec.json.encode([value]).decode(), 1) == text


def test_a_key_that_is_not_there_is_undefined_and_not_null() -> None:
    assert key_of({"a": None}, (("pk",),)) == key_of({"a": 1}, (("a", "b"),)) == "[{}]"
    assert key_of({"a": {"b": None}}, (("a", "b"), ("c",))) == "[null,{}]"
    assert key_of_header("[]", 2) == "[{},{}]"
    for text in ("[1]", "[1,2,3]", "{}", "1", "[[1],2]", '[{"a":1},2]', "[" + "9" * 309 + ",1]"):
        assert refused(key_of_header, text, 2) == 400


def test_keys_ids_and_depths_have_exact_limits() -> None:
    assert len(key_text(["x" * 2_048])) == 2_052 and refused(key_text, ["x" * 2_049]) == 400
    assert len(key_text(["x" * 1_024, "y" * 1_025])) == 2_056 and refused(key_text, ["x" * 1_024, "y" * 1_026]) == 400
    assert check_id("\xe9" * 511) and check_id("x" * 1_023)
    for id in ("\xe9" * 512, "x" * 1_024, "", None, "a/b", "a?", "a#", "a\\", "\ud800"):
        assert refused(check_id, id) == 400
    assert parse(b"[" * 128 + b"]" * 128) and parse(b"\xef\xbb\xbf[0]") == [0]
    assert refused(parse, b"[" * 129 + b"]" * 129) == 400
    assert parse(b"[" + b"[]," * 200 + b"[]]")  # wide, not deep
    deep: Any = 1
    for _ in range(127):
        deep = [deep]
    assert store_form({"a": deep}, "r", "", 1) and refused(store_form, {"a": [deep]}, "r", "", 1) == 400
    room = (2 << 20) - len('{"id":"1","a":""}')
    assert store_form({"id": "1", "a": "x" * room}, "r", "", 1)
    assert refused(store_form, {"id": "1", "a": "x" * (room + 1)}, "r", "", 1) == 413


def test_what_an_item_brought_of_the_systems_is_replaced() -> None:
    brought = {"id": "1", "_rid": "x", "_ts": 9, "_self": "y", "_etag": "z", "_attachments": "w", "s": ',"_rid":"no"'}
    stored = store_form(brought, "real", "link", 7)
    assert rid_at(stored) == "real"
    assert msgspec.json.decode(wire_form(stored, 26)) == {
        "id": "1", "s": ',"_rid":"no"', "_rid": "real", "_self": "link", "_attachments": "attachments/", "_ts": 7,
        "_etag": f'"{26:016x}"',
    }  # fmt: skip
    rids = [item_rid("AAAAAAAAAAA=", number) for number in (1, 255, 256, 1 << 60)]
    assert [number_of(rid) for rid in rids] == [1, 255, 256, 1 << 60]


@pytest.mark.parametrize("name", ["offerThroughput", "maxThroughput"])
@pytest.mark.parametrize(
    ("value", "is_number", "is_greatest"),
    [
        (400, True, False), (300, False, False), (450, False, False), (1_000, True, True), (1_500, True, False),
        (1_000_000, True, True), (1_000_100, False, False), (1_001_000, False, False), (0, False, False),
    ],
)  # fmt: skip
def test_a_throughput_is_one_that_the_service_takes(name: str, value: int, is_number: bool, is_greatest: bool) -> None:
    is_manual = name == "offerThroughput"
    content: dict[str, Any] = {name: value} if is_manual else {"offerAutopilotSettings": {name: value}}
    headers = {THROUGHPUT_HEADER: str(value)} if is_manual else {AUTOSCALE_HEADER: f'{{"{name}":{value}}}'}
    if not (is_number if is_manual else is_greatest):
        assert refused(of_body, {"content": content}) == refused(of_headers, headers) == 400
        return
    found = of_body({"content": content})
    assert found == of_headers(headers)
    assert offer_of("r", "o", "l", found, "e", 1)["content"]["offerThroughput"] == (value if is_manual else value // 10)


def test_a_throughput_is_given_once() -> None:
    both: dict[str, Any] = {"offerThroughput": 400, "offerAutopilotSettings": {"maxThroughput": 4_000}}
    found = of_body({"content": both})
    assert found.offer_throughput is None and found.offer_autopilot_settings is not None
    assert of_headers({}) is None
    assert refused(of_headers, {THROUGHPUT_HEADER: "400", AUTOSCALE_HEADER: '{"maxThroughput":4000}'}) == 400
    wrong: list[dict[str, Any]] = [
        {},
        {"content": None},
        {"content": {}},
        {"content": {"offerAutopilotSettings": None}},
    ]
    for body in wrong:
        assert refused(of_body, body) == 400
    for percent, is_taken in ((1_000, True), (1_001, False), (-1, False)):
        policy = {"throughputPolicy": {"incrementPercent": percent}}
        content = {"offerAutopilotSettings": {"maxThroughput": 4_000, "autoUpgradePolicy": policy}}
        assert of_body({"content": content}) if is_taken else refused(of_body, {"content": content}) == 400


@pytest.mark.parametrize(
    ("text", "count"),
    [("", PAGE_COUNT), ("-1", PAGE_COUNT_MAX), ("1", 1), (f"{PAGE_COUNT_MAX + 1}", PAGE_COUNT_MAX), ("0", None),
     ("-2", None), ("x", None), ("9" * 10, PAGE_COUNT_MAX), ("9" * 11, None)],
)  # fmt: skip
def test_a_page_has_as_many_items_as_are_asked_for(text: str, count: int | None) -> None:
    assert refused(page_count_of, text) == 400 if count is None else page_count_of(text) == count


def stored(number: int, version: int, ts_s: int = 5) -> Any:
    value = store_form({"id": f"{number}"}, item_rid("AAAAAAAAAAA=", number), "", ts_s)
    return "[1]", SimpleNamespace(value=value, version=version)


def changes(found: list[Any], *given: int) -> tuple[list[str], int, int]:
    page, last = _changed(found, *given)
    return [msgspec.json.decode(one)["id"] for one in page.results], last, page.examined_count


def test_a_page_of_changes_ends_with_what_was_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [stored(5, 4), stored(1, 1), stored(3, 2), stored(2, 2), stored(4, 3, 9)]
    assert changes(found, 0, 0, 1) == (["1"], 1, 5)
    assert changes(found, 1, 0, 1) == (["2", "3"], 2, 4)
    assert changes(found, 0, 0, 2) == (["1", "2", "3"], 2, 5)
    assert changes(found, 2, 0, 9) == (["4", "5"], 4, 2)
    assert changes(found, 0, 9, 1) == (["4"], 3, 5)  # from that second on
    assert changes(found, 0, 10, 1) == ([], 4, 5)
    size_bytes = len(_changed(found, 0, 0, 1)[0].results[0])
    monkeypatch.setattr(feed_operations, "PAGE_SIZE_MAX_BYTES", size_bytes)
    assert changes(found, 0, 0, 9) == (["1", "2", "3"], 2, 5)
    monkeypatch.setattr(feed_operations, "PAGE_SIZE_MAX_BYTES", size_bytes - 1)
    assert changes(found, 0, 0, 9) == (["1"], 1, 5)


def test_changes_go_on_at_an_etag_or_a_second() -> None:
    container = cast(Any, SimpleNamespace(version=7))
    assert [_start_of(FEED, etag, container) for etag in ("", '"5"', "5", "*", '""')] == [0, 5, 5, 7, 0]
    for mode, etag in (("Full-Fidelity Feed", ""), (FEED, "x"), (FEED, "-1"), (FEED, "9" * 40)):
        assert refused(_start_of, mode, etag, container) == 400
    assert _since_of("") == 0 and _since_of("Thu, 01 Jan 1970 00:00:09 GMT") == 9
    assert refused(_since_of, "yesterday") == 400
