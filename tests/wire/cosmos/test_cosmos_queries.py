"""Queries through the real SDK: the matrix of what is understood, pages, and what is refused by name."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from azure.cosmos import PartitionKey, exceptions

from outbox.emulator.cosmos.hashing import effective_key, effective_key_v1
from outbox.emulator.cosmos.query.budget import Budget
from outbox.emulator.cosmos.wire import key_text
from tests.wire.cosmos.conftest import Sdk, query
from tests.wire.cosmos.test_cosmos_items import own, status

PEOPLE = [
    {"id": "1", "pk": "a", "n": 1, "name": "Ann", "tags": ["x", "y"], "at": {"city": "Oslo"}, "ok": True},
    {"id": "2", "pk": "a", "n": 2, "name": "bob", "tags": ["y"], "at": {"city": "Rome"}, "ok": False},
    {"id": "3", "pk": "b", "n": 3.5, "name": "Cid", "tags": [], "at": {"city": "Oslo", "zip": "0150"}, "ok": None},
    {"id": "4", "pk": "b", "n": 10, "name": "Dee", "tags": [{"k": 1, "v": 2}], "value": {"order": "by"}},
    {"id": "5", "pk": "c", "n": "10", "name": "100%", "a b": 1},
]


@pytest.fixture(scope="session")
def people(sdk: Sdk) -> Any:
    """A container with the five people, in three partitions."""
    composite = [{"path": "/pk", "order": "ascending"}, {"path": "/id", "order": "descending"}]
    return sdk.filled(PEOPLE, indexing_policy={"compositeIndexes": [composite]})


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("c.n = 1", "1"),
        ("c.n != 1", "2345"),
        ("c.n <> 1 AND c.n < 4", "23"),
        ("c.n >= 2 AND NOT (c.n > 5)", "23"),
        ("c.n = '10'", "5"),
        ("c.n > 5", "4"),
        ("c.n BETWEEN 2 AND 10", "234"),
        ("c.n NOT BETWEEN 2 AND 10", "1"),
        ("c.n IN (1, 10)", "14"),
        ("c.id NOT IN ('1', '2')", "345"),
        ("c.ok", "1"),
        ("c.ok = null", "3"),
        ("c.ok != null", "12"),
        ("IS_NULL(c.ok)", "3"),
        ("IS_DEFINED(c.ok) AND NOT IS_NULL(c.ok)", "12"),
        ("NOT IS_DEFINED(c.ok)", "45"),
        ("NOT c.ok", "2"),
        ("c.missing = c.missing", ""),
        ("c.at.city = 'Oslo'", "13"),
        ("c['at']['city'] = \"Rome\"", "2"),
        ("c.tags[0] = 'y'", "2"),
        ("c['a b'] = 1", "5"),
        ("c['value']['order'] = 'by'", "4"),
        ("c.value.order = 'by'", "4"),
        ("ARRAY_CONTAINS(c.tags, 'y')", "12"),
        ("startswith(c.name, 'A')", "1"),
        ("CONTAINS(LOWER(c.name), 'n')", "1"),
        ("c.name LIKE 'A%'", "1"),
        ("c.name LIKE '%o_'", "2"),
        ("c.name NOT LIKE '%n%'", "2345"),
        ("c.name LIKE '100!%' ESCAPE '!'", "5"),
        ("c.pk || c.id = 'b3'", "3"),
        ("c.n + 1 = 2", "1"),
        ("c.n * 2 = 7", "3"),
        ("c.n % 2 = 0", "24"),
        ("-c.n = -10", "4"),
        ("c.n / 4 = 2.5", "4"),
        ("(c.n > 1 ? c.name : 'none') = 'bob'", "2"),
        ("(c.at.zip ?? 'none') = '0150'", "3"),
        ("IS_NUMBER(c.n) AND IS_STRING(c.name) AND IS_OBJECT(c.at) AND IS_ARRAY(c.tags)", "123"),
        ("c.id = '1' OR c.pk = 'b' AND c.n = 10", "14"),
        ("NOT c.id = '1' AND c.pk = 'a'", "2"),
        ("c.at = {'city': 'Rome'}", "2"),
        ("c.tags = ['y']", "2"),
        ("true", "12345"),
        ("1 < '2' OR c.id = '1'", "1"),
        ("c.name = 'O\\'Hara' OR c.name = \"Cid\"", "3"),
        ("c.n = 1e0 -- a comment\n", "1"),
    ],
)
def test_a_condition_finds_what_it_says(people: Any, condition: str, expected: str) -> None:
    assert "".join(sorted(query(people, f"SELECT VALUE c.id FROM c WHERE {condition}"))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT c.id, c.at.city FROM c WHERE c.id = '1'", [{"id": "1", "city": "Oslo"}]),
        ("SELECT c.id AS i, c.missing FROM c WHERE c.id = '1'", [{"i": "1"}]),
        ("SELECT c.n + 1, c.id FROM c WHERE c.id = '1'", [{"$1": 2, "id": "1"}]),
        ("SELECT {'i': c.id, 'l': [c.n, c.pk]} AS o FROM c WHERE c.id = '1'", [{"o": {"i": "1", "l": [1, "a"]}}]),
        ("SELECT VALUE {i: c.id} FROM c WHERE c.id = '1'", [{"i": "1"}]),
        ("SELECT VALUE c.at.zip FROM c", ["0150"]),
        ("SELECT VALUE r.name FROM root r WHERE r.id = '1'", ["Ann"]),
        ("SELECT VALUE people.name FROM people WHERE people.id = '1'", ["Ann"]),
        ("SELECT VALUE t FROM t IN c.tags WHERE IS_STRING(t)", ["x", "y", "y"]),
        (
            "SELECT c.id, t AS tag FROM c JOIN t IN c.tags WHERE c.pk = 'a' AND t = 'y'",
            [{"id": i, "tag": "y"} for i in "12"],
        ),
        ("SELECT VALUE city FROM c.at.city", ["Oslo", "Rome", "Oslo"]),
        ("SELECT VALUE COUNT(1) FROM c", [5]),
        ("SELECT VALUE COUNT(c.ok) FROM c", [3]),
        ("SELECT COUNT(1) AS count, SUM(c.n) AS sum FROM c WHERE c.pk = 'a'", [{"count": 2, "sum": 3}]),
        ("SELECT VALUE SUM(c.n) FROM c", [None]),
        ("SELECT VALUE AVG(c.n) FROM c WHERE IS_NUMBER(c.n)", [4.125]),
        ("SELECT MIN(c.name) AS low, MAX(c.name) AS high FROM c", [{"low": "100%", "high": "bob"}]),
        ("SELECT VALUE MAX(c.n) FROM c WHERE c.pk = 'none'", [None]),
        ("SELECT VALUE COUNT(1) FROM c WHERE c.pk = 'none'", [0]),
        ("SELECT VALUE MAX(c.n) FROM c WHERE c.pk = 'a' ORDER BY c.n", [2]),
        ("SELECT VALUE AVG(c.n) FROM c ORDER BY c.n DESC", [None]),
        ("SELECT VALUE TOSTRING(c.n * 2.0) FROM c WHERE c.id IN ('1', '3')", ["2", "7"]),
        ("SELECT VALUE [5.0 | 2, 7 & 3.0, ~1.0, 5 ^ 1.0, 1.5 | 1, '1' | 1] FROM c WHERE c.id = '1'", [[7, 3, -2, 4]]),
        (
            "SELECT VALUE [1 << 3, -8 >> 1, -8 >>> 28, 1 + 1 << 1, 1 << 1 > 1] FROM c WHERE c.id = '1'",
            [[8, -4, 15, 4, True]],
        ),
        ("SELECT VALUE TOSTRING([c.n * 1.0, c.at]) FROM c WHERE c.id = '1'", ['[1,{"city":"Oslo"}]']),
        (
            "SELECT c.pk, COUNT(1) AS n FROM c GROUP BY c.pk",
            [{"pk": "a", "n": 2}, {"pk": "b", "n": 2}, {"pk": "c", "n": 1}],
        ),
        ("SELECT DISTINCT VALUE c.at.city FROM c", ["Oslo", "Rome"]),
        ("SELECT DISTINCT c.pk FROM c", [{"pk": "a"}, {"pk": "b"}, {"pk": "c"}]),
        ("SELECT VALUE c.id FROM c ORDER BY c.name", ["5", "1", "3", "4", "2"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.n DESC", ["5", "4", "3", "2", "1"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.pk DESC, c.id ASC", ["5", "3", "4", "1", "2"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.ok", ["4", "5", "3", "2", "1"]),
        ("SELECT TOP 2 VALUE c.id FROM c ORDER BY c.id DESC", ["5", "4"]),
        ("SELECT TOP @n VALUE c.id FROM c ORDER BY c.id", ["1", "2", "3"]),
        ("SELECT VALUE c.id FROM c ORDER BY c.id OFFSET 1 LIMIT 2", ["2", "3"]),
        ("SELECT VALUE c.id FROM c OFFSET 4 LIMIT 9", ["5"]),
        ("SELECT VALUE c.id FROM c WHERE c.n = @n", ["3"]),
        ("SELECT VALUE c.id FROM c WHERE c.n > 0 AND c.id IN ('3', '9', '1', '3')", ["1", "3"]),
        ("SELECT VALUE c.id FROM c WHERE @ids[1] = c.id AND c.n = 1", ["1"]),
        ("SELECT VALUE c.id FROM c WHERE '2' = c.id", ["2"]),
        ("SELECT VALUE c.id FROM c WHERE ARRAY_CONTAINS(@ids, c.id)", ["1", "4"]),
    ],
)
def test_a_query_gives_what_it_selects(people: Any, text: str, expected: list[Any]) -> None:
    parameters: dict[str, Any] = {"@n": 3 if "TOP" in text else 3.5, "@ids": ["4", "1"]}
    assert query(people, text, parameters) == expected


VALUES: list[Any] = [None, False, True, -1, 1, 2.5, 3, "", "a", "b", [1, 2], {"x": 1, "y": [2]}]
"""In the order of types that Azure documents for ORDER BY, behind items that lack the property."""


@pytest.fixture(scope="session")
def mixed(sdk: Sdk) -> Any:
    """A container with one item for each of the values, and two without; in an order and partitions of their own."""
    places = (7, 2, 11, 0, 9, 4, 1, 10, 3, 8, 5, 6)
    valued = [{"id": f"{place:02}", "pk": f"{place % 3}", "v": VALUES[place]} for place in places]
    return sdk.filled([*valued, *({"id": id, "pk": id} for id in ("x", "y"))])


def test_values_of_several_types_are_ordered_by_type_and_then_by_value(sdk: Sdk, mixed: Any) -> None:
    ordered: list[Any] = [{}, {}, *({"v": value} for value in VALUES)]
    up, down = "SELECT c.v FROM c ORDER BY c.v", "SELECT c.v FROM c ORDER BY c.v DESC"
    assert query(mixed, up) == ordered
    assert query(mixed, down) == ordered[::-1]
    options: dict[str, Any] = {"enable_cross_partition_query": True} if sdk.mode == "sync" else {}
    for count in (1, 2, 5):  # a page may end with a value of any type, and where there is none
        pages = sdk.pages(lambda n=count: mixed.target.query_items(up, max_item_count=n, **options))  # type: ignore[misc]  # the loop's own
        assert [row for page in pages for row in page] == ordered
    found = query(mixed, "SELECT VALUE c.id FROM c WHERE IS_DEFINED(c.v) ORDER BY c.v OFFSET 0 LIMIT 3")
    assert found == ["00", "01", "02"]


SAME = [
    {"number": 1, "large": 10**17, "list": [1, {"a": 1, "b": 2}], "object": {"a": 1, "b": {"c": 2, "d": None}}},
    {"number": 1.0, "large": 1e17, "list": [1.0, {"b": 2, "a": 1.0}], "object": {"b": {"d": None, "c": 2.0}, "a": 1}},
]


@pytest.mark.parametrize("name", list(SAME[0]))
@pytest.mark.parametrize(
    "text",
    [
        "SELECT DISTINCT VALUE c.{0} FROM c",
        "SELECT DISTINCT c.{0} FROM c",
        "SELECT DISTINCT {{'in': [c.{0}]}} AS made FROM c",
        "SELECT DISTINCT VALUE c.{0} FROM c ORDER BY c.{0}",
        "SELECT c.{0}, COUNT(1) AS n FROM c GROUP BY c.{0}",
        "SELECT DISTINCT VALUE MAX(c.id) = '' FROM c GROUP BY c.id",
    ],
)
def test_numbers_and_objects_that_are_equal_are_one(sdk: Sdk, name: str, text: str) -> None:
    database = sdk.client.get_database_client(f"db-{sdk.mode}")
    container = database.create_container_if_not_exists("same", PartitionKey("/id"))
    for index, one in enumerate(SAME):
        container.upsert_item({"id": str(index), **one})
    assert len(query(container, text.format(name))) == 1


def test_what_only_looks_the_same_is_distinct(items: Any) -> None:
    values: list[Any] = [1, "1", True, "true", None, "null", [1], ["1"], {"a": 1}, {"a": None}, {}, [], 0, False, ""]
    for index, value in enumerate(values):
        items.create_item({"id": f"{index:02}", "pk": "a", "v": value})
    assert query(items, "SELECT DISTINCT VALUE c.v FROM c") == values
    assert query(items, "SELECT DISTINCT c.v, c.pk FROM c") == [{"v": value, "pk": "a"} for value in values]


def test_groups_with_the_same_result_are_several(items: Any) -> None:
    for id, kind in (("1", "x"), ("2", "x"), ("3", "y"), ("4", "y"), ("5", "z")):
        items.create_item({"id": id, "pk": id, "kind": kind})
    assert sorted(query(items, "SELECT VALUE COUNT(1) FROM c GROUP BY c.kind")) == [1, 2, 2]
    assert sorted(query(items, "SELECT DISTINCT VALUE COUNT(1) FROM c GROUP BY c.kind")) == [1, 2]


@pytest.mark.parametrize("name", ["MAX", "MIN", "AVG"])
def test_an_aggregate_over_nothing_is_null_over_all_partition_keys(people: Any, name: str) -> None:
    text = f"SELECT VALUE {name}(c.n) FROM c WHERE c.n = @n"
    assert query(people, text, {"@n": "none"}) == [None]
    assert query(people, text, {"@n": "none"}, partition_key="a") == []
    assert query(people, f"SELECT VALUE {name}(c.missing) FROM c") == [None]


@pytest.mark.parametrize("name", ["SUM", "AVG"])
def test_a_sum_over_what_is_no_number_is_undefined(people: Any, name: str) -> None:
    assert query(people, f"SELECT VALUE {name}(c.n) FROM c") == [None]
    assert query(people, f"SELECT VALUE {name}(c.n) FROM c", partition_key="c") == []


def test_select_star_gives_the_whole_items(people: Any) -> None:
    found = query(people, "SELECT * FROM c")
    assert [own(item) for item in found] == PEOPLE
    assert query(people, "SELECT VALUE c FROM c") == found == people.read_all_items()


def test_a_query_of_one_partition_sees_only_that(people: Any) -> None:
    assert query(people, "SELECT VALUE c.id FROM c", partition_key="b") == ["3", "4"]
    assert query(people, "SELECT VALUE COUNT(1) FROM c", partition_key="a") == [2]
    assert query(people, "SELECT * FROM c", partition_key="none") == []


@pytest.mark.parametrize(
    "text",
    [
        "SELECT VALUE c.id FROM c",
        "SELECT VALUE c.id FROM c ORDER BY c.n DESC",
        "SELECT VALUE c.id FROM c ORDER BY c.half",
        "SELECT DISTINCT VALUE c.id FROM c",
        "SELECT VALUE c.id FROM c JOIN t IN c.two",
        "SELECT VALUE c.id FROM c ORDER BY c.n OFFSET 3 LIMIT 11",
        "SELECT TOP 7 VALUE c.id FROM c",
        "SELECT VALUE c.half FROM c GROUP BY c.half",
    ],
)
def test_pages_hold_together_what_one_page_would(sdk: Sdk, items: Any, text: str) -> None:
    for n in range(17):
        items.create_item({"id": f"{n:02}", "pk": str(n % 3), "n": n % 5, "half": n // 2, "two": [1, 2]})
    options: dict[str, Any] = {"enable_cross_partition_query": True} if sdk.mode == "sync" else {}
    pages = sdk.pages(lambda: items.target.query_items(text, max_item_count=4, **options))
    whole = query(items, text)
    assert [item for page in pages for item in page] == whole
    assert all(len(page) <= 4 for page in pages) and len(whole) > 4


def test_a_scan_goes_on_behind_what_was_deleted_meanwhile(sdk: Sdk, items: Any) -> None:
    for n in range(6):
        items.create_item({"id": str(n), "pk": "a"})
    token = {}

    async def page(continuation: str | None) -> list[str]:
        pages = items.target.query_items("SELECT * FROM c", partition_key="a", max_item_count=2).by_page(continuation)
        found = [item["id"] async for item in await anext(pages)]
        token["next"] = pages.continuation_token
        return found

    def page_sync(continuation: str | None) -> list[str]:
        pages = items.target.query_items("SELECT * FROM c", partition_key="a", max_item_count=2).by_page(continuation)
        found = [item["id"] for item in next(pages)]
        token["next"] = pages.continuation_token
        return found

    step = page_sync if sdk.mode == "sync" else page
    assert sdk.run(lambda: step(None)) == ["0", "1"]
    items.delete_item("1", "a")
    items.delete_item("2", "a")
    items.create_item({"id": "1", "pk": "a"})
    assert sdk.run(lambda: step(token["next"])) == ["3", "4"]
    assert sdk.run(lambda: step(token["next"])) == ["5", "1"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELEC * FROM c", "SELECT"),
        ("SELECT * FROM c WHERE", "value"),
        ("SELECT * FROM c WHERE c.n = @missing", "@missing"),
        ("SELECT * FROM c WHERE d.n = 1", "'d'"),
        ("SELECT * FROM c WHERE c.n = 1 1", "end"),
        ("SELECT * FROM c WHERE c.n = 'open", "syntax error"),
        ("SELECT * FROM c WHERE ST_DISTANCE(c.a, c.b) < 1", "ST_DISTANCE"),
        ("SELECT * FROM c WHERE udf.f(c)", "user-defined"),
        ("SELECT * FROM c WHERE EXISTS(SELECT VALUE t FROM t IN c.tags)", "EXISTS"),
        ("SELECT VALUE ARRAY(SELECT t FROM t IN c.tags) FROM c", "ARRAY"),
        ("SELECT * FROM c JOIN (SELECT VALUE t FROM t IN c.tags)", "name"),
        ("SELECT c.pk, COUNT(1) FROM c GROUP BY c.pk ORDER BY c.pk", "GROUP BY"),
        ("SELECT * FROM c ORDER BY RANK RRF(1, 2)", "RANK"),
        ("SELECT * FROM c WHERE VECTORDISTANCE(c.a, [1]) < 1", "VECTORDISTANCE"),
        ("SELECT * FROM c WHERE UPPER(c.a, 1) = ''", "UPPER"),
        ("SELECT * FROM c WHERE COUNT(1) > 1", "COUNT"),
        ("SELECT * FROM c GROUP BY c.n", r"SELECT \*"),
        ("SELECT * FROM c OFFSET 1", "LIMIT"),
        ("SELECT TOP -1 * FROM c", "TOP"),
        ("SELECT * FROM c WHERE c.a LIKE '[a-z]'", "set of characters"),
        ("SELECT c.a FROM c JOIN c IN c.tags", "alias"),
        ("SELECT VALUE " + "(" * 500 + "1" + ")" * 500, "deep"),
        ("SELECT VALUE " + "- " * 500 + "1", "deep"),
        ("SELECT VALUE " + "1+" * 500 + "1", "operators"),
        ("SELECT VALUE c" + ".a" * 500 + " FROM c", "steps"),
        ("SELECT VALUE " + "(" * 15 + "1" + ("+1" * 190 + ")") * 15 + " FROM c", "deep"),
        ("SELECT DISTINCT VALUE '\\ud800' FROM c", "half a character"),
    ],
)
def test_what_is_not_understood_is_refused_by_name(people: Any, text: str, named: str) -> None:
    with pytest.raises(exceptions.CosmosHttpResponseError, match=named) as caught:
        query(people, text)
    assert caught.value.status_code == 400


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"SELECT VALUE {'9' * 400} + {'9' * 400}", []),
        (f"SELECT VALUE {'9' * 400} / 0.5", []),
        (f"SELECT VALUE IS_INTEGER({'9' * 400}) FROM c WHERE c.id = '1'", [True]),
        (f"SELECT VALUE AVG({'9' * 400}) FROM c WHERE c.id = '1'", [None]),
        (f"SELECT VALUE SUM(c.id = '1' ? {'9' * 400} : 0.5) FROM c", [None]),
        ("SELECT VALUE SUM(1e308) FROM c", [None]),
        ("SELECT VALUE '\\ud83d\\ude00' = '\U0001f600' FROM c WHERE c.id = '1'", [True]),
    ],
)
def test_numbers_and_texts_at_their_ends_are_answered(people: Any, text: str, expected: list[Any]) -> None:
    assert query(people, text) == expected


def test_long_lists_of_conditions_are_no_depth(people: Any) -> None:
    text = " OR ".join(f"c.id = '{number}'" for number in range(2_000))
    assert query(people, f"SELECT VALUE c.id FROM c WHERE {text}") == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("SELECT VALUE [" + ",".join(["c"] * 100) + "] FROM c", "too much memory"),
        ("SELECT * FROM c WHERE c.text LIKE '%" + "x_" * 140 + "y%'", "steps on one row; shorten"),
        ("SELECT VALUE 1 FROM c JOIN a IN c.list JOIN b IN c.list JOIN d IN c.none", "steps; give a partition key"),
    ],
)
def test_a_query_that_would_take_everything_is_refused(
    items: Any, text: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Budget.__init__, "__defaults__", (1_200_000,))
    items.create_item({"id": "1", "pk": "a", "text": "x" * 1_000_000, "list": [0] * 2_000, "none": []})
    with pytest.raises(exceptions.CosmosHttpResponseError, match=named) as caught:
        query(items, text)
    assert caught.value.status_code == 400


def test_an_ordered_page_keeps_no_more_than_it_needs(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a", "text": "x" * 100_000, "list": list(range(2_000))})
    text = "SELECT t, c.text FROM c JOIN t IN c.list ORDER BY c.id DESC"
    assert [row["t"] for row in query(items, f"{text} OFFSET 0 LIMIT 3")] == [0, 1, 2]
    with pytest.raises(exceptions.CosmosHttpResponseError, match="memory"):
        query(items, text, max_item_count=1_000)


def test_several_items_are_read_at_once(people: Any) -> None:
    found = people.read_items([("1", "a"), ("4", "b"), ("9", "c")])
    assert sorted(item["id"] for item in found) == ["1", "4"]


def test_a_continuation_of_another_query_is_refused(sdk: Sdk, people: Any) -> None:
    options: dict[str, Any] = {"enable_cross_partition_query": True} if sdk.mode == "sync" else {}
    unsummed = base64.urlsafe_b64encode(b"\0\0\0\0" + b"[null,[],-1,null,0]").decode()
    for continuation in ("x", "bm9uZQ==", "WzEsbnVsbCxudWxsLDAsbnVsbCwwXQ==", unsummed):
        with pytest.raises(exceptions.CosmosHttpResponseError) as caught:
            sdk.run(lambda c=continuation: _first(people, c, options))  # type: ignore[misc]  # the loop's own
        assert caught.value.status_code == 400


def _first(people: Any, continuation: str, options: dict[str, Any]) -> Any:
    pages = people.target.query_items("SELECT * FROM c", **options).by_page(continuation)
    return anext(pages) if hasattr(pages, "__anext__") else next(pages)


# Ranges of hashed partition keys, and the change feed


@pytest.mark.parametrize(
    "value", ["", "a", "x" * 15, "x" * 16, "x" * 100, "ключ", 0, -1, 2.5, 1e300, True, False, None]
)
def test_partition_keys_are_hashed_as_the_sdk_does(value: Any) -> None:
    text = key_text([value])
    assert effective_key(text, is_hierarchical=False) == PartitionKey("/a")._get_effective_partition_key_string([value])
    several = PartitionKey(["/a", "/b"], kind="MultiHash")._get_effective_partition_key_string([value, "z"])
    assert effective_key(key_text([value, "z"]), is_hierarchical=True) == several


@pytest.mark.parametrize(
    "value", ["", "a", "x" * 100, "x" * 101, "ключ" * 30, 0, 7, -1, 2**40, 2.5, -1e300, True, False]
)
def test_partition_keys_of_version_1_are_hashed_as_the_sdk_does(value: Any) -> None:
    expected = PartitionKey("/a", version=1)._get_effective_partition_key_string([value])
    assert effective_key_v1(key_text([value])) == str(expected).upper()


def test_a_partition_key_that_no_double_holds_is_refused(items: Any) -> None:
    assert status(items.create_item, {"id": "1", "pk": 10**400}) == 400
    items.create_item({"id": "1", "pk": 10**300})
    found = items.query_items_change_feed(partition_key=10**300, is_start_from_beginning=True)
    assert [item["id"] for item in found] == ["1"]


def test_the_change_feed_of_a_partition_key_of_version_1_has_only_that(sdk: Sdk) -> None:
    sdk.container("beside")
    database = sdk.client.get_database_client(f"db-{sdk.mode}")
    container = database.create_container("first", PartitionKey("/pk", version=1))
    keys = ["a", "b" * 200, 1000, 1.5, None]
    for number, key in enumerate(keys):
        container.create_item({"id": str(number), "pk": key})
    for number, key in enumerate(keys[:4]):
        found = container.query_items_change_feed(partition_key=key, is_start_from_beginning=True)
        assert [item["id"] for item in found] == [str(number)]


def test_a_condition_on_the_partition_key_is_as_good_as_naming_it(sdk: Sdk) -> None:
    container = sdk.container("named")
    for key in ("a", "b"):
        container.create_item({"id": "1", "pk": key})
    text = "SELECT VALUE c.pk FROM c WHERE c.id = '1' AND c.pk = @pk"
    assert list(container.query_items(text, parameters=[{"name": "@pk", "value": "a"}])) == ["a"]
    if sdk.mode == "sync":  # the other asks for all partition keys unless it is told one
        for open_text in ("SELECT * FROM c WHERE c.pk = 'a' OR c.id = '1'", "SELECT * FROM c WHERE c.pk > 'a'"):
            with pytest.raises(exceptions.CosmosHttpResponseError):
                list(container.query_items(open_text))


def test_the_first_parts_of_a_key_find_all_below_them(sdk: Sdk) -> None:
    container = sdk.container("below", ["/tenant", "/user"])
    for tenant, user in (("t", "u"), ("t", "v"), ("s", "u")):
        container.create_item({"id": "1", "tenant": tenant, "user": user})
    found = container.query_items("SELECT VALUE c.user FROM c", partition_key=["t"])
    assert sorted(found) == ["u", "v"]


def test_feed_ranges_cover_everything(people: Any) -> None:
    [whole] = list(people.read_feed_ranges())
    assert len(people.query_items("SELECT * FROM c", feed_range=whole)) == len(PEOPLE)


def changes(items: Any, **options: Any) -> tuple[list[str], str]:
    """The ids that the change feed tells, and where it goes on."""
    found = [item["id"] for item in items.query_items_change_feed(**options)]
    headers = items.target.client_connection.last_response_headers
    return found, headers["etag"]


def test_the_change_feed_has_the_latest_of_each_item_in_order(items: Any) -> None:
    for id, key in (("1", "a"), ("2", "b"), ("3", "a")):
        items.create_item({"id": id, "pk": key})
    items.upsert_item({"id": "1", "pk": "a", "n": 1})
    found, continuation = changes(items, start_time="Beginning", max_item_count=2)
    assert found == ["2", "3", "1"]
    assert changes(items, continuation=continuation)[0] == []
    items.execute_item_batch([("create", ({"id": id, "pk": "a"},)) for id in ("4", "5")], "a")
    items.delete_item("2", "b")
    assert sorted(changes(items, continuation=continuation)[0]) == ["4", "5"]


def test_the_change_feed_of_a_partition_key_has_only_that(items: Any) -> None:
    for id, key in (("1", "a"), ("2", "b"), ("3", "a")):
        items.create_item({"id": id, "pk": key})
    assert changes(items, start_time="Beginning", partition_key="a")[0] == ["1", "3"]
    assert changes(items, start_time="Beginning", partition_key="c")[0] == []


def test_the_change_feed_from_now_has_what_comes(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a"})
    found, continuation = changes(items, start_time="Now")
    assert found == []
    items.create_item({"id": "2", "pk": "a"})
    assert changes(items, continuation=continuation)[0] == ["2"]
    past, future = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    assert changes(items, start_time=past)[0] == ["1", "2"]
    assert changes(items, start_time=future)[0] == []


def test_deletes_in_the_change_feed_are_refused_by_name(items: Any) -> None:
    with pytest.raises(exceptions.CosmosHttpResponseError, match="mode"):
        changes(items, mode="AllVersionsAndDeletes")
