"""Items one at a time, through the real SDK: create, read, replace, upsert, delete, patch, under conditions."""

from __future__ import annotations

from typing import Any

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey, exceptions
from azure.cosmos.documents import IndexingDirective

from outbox.emulator.cosmos.catalog import checked
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.wire import Rejection
from outbox.engine.engine import Engine
from tests.wire.cosmos.asking import ask, of_items, with_container
from tests.wire.cosmos.conftest import Sdk, query

_UNCHANGED = MatchConditions.IfNotModified
SYSTEM = {"_rid", "_self", "_etag", "_attachments", "_ts"}


def own(item: Any) -> dict[str, Any]:
    """An item without what the service puts into it."""
    return {name: value for name, value in item.items() if name not in SYSTEM}


def status(call: Any, *args: Any, **options: Any) -> int:
    """The status with which a call is refused."""
    with pytest.raises(exceptions.CosmosHttpResponseError) as caught:
        call(*args, **options)
    return int(caught.value.status_code or 0)


def test_an_item_is_read_as_it_was_created(items: Any) -> None:
    item = {"id": "1", "pk": "a", "text": "é€😀\u0000\u2028", "n": [1, 2.5, None, True, {"x": {}}], "big": 2**53}
    created = items.create_item(item)
    assert own(created) == own(items.read_item("1", "a")) == item
    assert set(created) >= SYSTEM


def test_what_is_not_there_is_not_found(items: Any) -> None:
    assert status(items.read_item, "1", "a") == 404
    assert status(items.replace_item, "1", {"id": "1", "pk": "a"}) == 404
    assert status(items.delete_item, "1", "a") == 404
    assert status(items.patch_item, "1", "a", [{"op": "add", "path": "/v", "value": 1}]) == 404


async def test_an_id_that_no_item_can_have_is_not_found() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        await with_container(emulator)
        asked = of_items("GET", "x" * 1_025, x_ms_documentdb_partitionkey='["a"]')
        assert (await ask(emulator, asked))[0] == 404


def test_upsert_creates_and_then_replaces(items: Any) -> None:
    first = items.upsert_item({"id": "1", "pk": "a", "v": 1, "only": "first"})
    second = items.upsert_item({"id": "1", "pk": "a", "v": 2})
    assert own(items.read_item("1", "a")) == {"id": "1", "pk": "a", "v": 2}
    assert first["_etag"] != second["_etag"] and first["_rid"] == second["_rid"]


@pytest.mark.parametrize("operation", ["create", "read", "replace", "upsert", "delete", "patch", "batch", "query"])
@pytest.mark.parametrize(
    ("option", "named"),
    [
        ({"pre_trigger_include": "stamp"}, "a trigger before"),
        ({"pre_trigger_include": ["stamp", "check"]}, "a trigger before"),
        ({"post_trigger_include": "count"}, "a trigger after"),
    ],
)
def test_a_trigger_that_a_request_names_is_refused_by_name(
    items: Any, operation: str, option: dict[str, Any], named: str
) -> None:
    old = items.create_item({"id": "1", "pk": "a"})
    item = {"id": "1", "pk": "a", "n": 1}
    calls = {
        "create": lambda **options: items.create_item({"id": "2", "pk": "a"}, **options),
        "read": lambda **options: items.read_item("1", "a", **options),
        "replace": lambda **options: items.replace_item("1", item, **options),
        "upsert": lambda **options: items.upsert_item(item, **options),
        "delete": lambda **options: items.delete_item("1", "a", **options),
        "patch": lambda **options: items.patch_item("1", "a", [{"op": "set", "path": "/n", "value": 1}], **options),
        "batch": lambda **options: items.execute_item_batch([("delete", ("1",))], "a", **options),
        "query": lambda **options: items.query_items("SELECT * FROM c", partition_key="a", **options),
    }
    with pytest.raises(exceptions.CosmosHttpResponseError, match=named) as caught:
        calls[operation](**option)
    assert caught.value.status_code == 400
    assert items.read_all_items() == [old]


def test_leaving_an_item_out_of_the_index_is_refused_by_name(items: Any) -> None:
    item = {"id": "3", "pk": "a"}
    assert status(items.create_item, item, indexing_directive=IndexingDirective.Exclude) == 400
    for id, directive in (("1", IndexingDirective.Default), ("2", IndexingDirective.Include)):
        items.create_item({"id": id, "pk": "a"}, indexing_directive=directive)
    assert query(items, "SELECT VALUE c.id FROM c") == ["1", "2"]


@pytest.mark.parametrize("write", ["replace", "upsert", "delete", "patch"])
def test_a_write_under_an_old_etag_is_lost(items: Any, write: str) -> None:
    old = items.create_item({"id": "1", "pk": "a", "v": 1})
    new = items.replace_item("1", {"id": "1", "pk": "a", "v": 2})
    calls = {
        "replace": lambda **options: items.replace_item("1", {"id": "1", "pk": "a", "v": 9}, **options),
        "upsert": lambda **options: items.upsert_item({"id": "1", "pk": "a", "v": 9}, **options),
        "delete": lambda **options: items.delete_item("1", "a", **options),
        "patch": lambda **options: items.patch_item("1", "a", [{"op": "set", "path": "/v", "value": 9}], **options),
    }
    condition = MatchConditions.IfNotModified
    assert status(calls[write], etag=old["_etag"], match_condition=condition) == 412
    assert items.read_item("1", "a")["v"] == 2
    calls[write](etag=new["_etag"], match_condition=condition)


def test_a_read_of_what_the_client_has_gives_nothing(items: Any) -> None:
    item = items.create_item({"id": "1", "pk": "a"})
    same = {"etag": item["_etag"], "match_condition": MatchConditions.IfModified}
    assert not items.read_item("1", "a", **same)
    items.replace_item("1", {"id": "1", "pk": "a", "v": 1})
    assert items.read_item("1", "a", **same)["v"] == 1


def test_a_minimal_answer_has_headers_only(items: Any) -> None:
    written = items.create_item({"id": "1", "pk": "a"}, no_response=True)
    assert not written
    headers = written.get_response_headers()
    assert headers["etag"] == items.read_item("1", "a")["_etag"]
    assert float(headers["x-ms-request-charge"]) > 1


def test_a_write_is_charged_by_its_kind_and_its_index_terms(items: Any) -> None:
    """A write of 1 KB costs 5, a replacement 10, each term 0.2 (here `pk`, `v` and `w`), a patched property 0.4."""

    def charge(answer: Any) -> float:
        return float(answer.get_response_headers()["x-ms-request-charge"])

    assert charge(items.create_item({"id": "1", "pk": "a", "v": 1})) == pytest.approx(5.4)
    assert charge(items.replace_item("1", {"id": "1", "pk": "a", "v": 1, "w": 1})) == pytest.approx(10.2)
    assert charge(items.replace_item("1", {"id": "1", "pk": "a", "v": 2, "w": 1})) == pytest.approx(10.4)
    changes = [{"op": "set", "path": "/v", "value": 3}, {"op": "set", "path": "/x/y", "value": 1}]
    items.patch_item("1", "a", [{"op": "add", "path": "/x", "value": {}}])
    assert charge(items.patch_item("1", "a", changes)) == pytest.approx(10 + 3 * 0.2 + 2 * 0.4)
    seen: list[float] = []
    items.delete_item("1", "a", response_hook=lambda headers, *_: seen.append(float(headers["x-ms-request-charge"])))
    assert seen == [pytest.approx(5.8)]  # pk, v, w, x/y


@pytest.mark.parametrize("key", [None, True, 7, 7.5, "", "ключ", 'a"]b'])
def test_every_kind_of_partition_key_is_a_partition(items: Any, key: object) -> None:
    items.create_item({"id": "1", "pk": key})
    assert items.read_item("1", key)["pk"] == key
    scope: dict[str, Any] = {} if key is None else {"partition_key": key}
    assert [item["id"] for item in query(items, "SELECT * FROM c", **scope)] == ["1"]


def test_an_item_without_the_partition_key_is_kept(items: Any) -> None:
    items.create_item({"id": "1"})
    assert [item["id"] for item in query(items, "SELECT * FROM c")] == ["1"]
    assert own(items.upsert_item({"id": "1", "v": 1})) == {"id": "1", "v": 1}


def test_a_key_of_several_parts_is_one_partition(sdk: Sdk) -> None:
    container = sdk.container("parts", ["/tenant", "/user"])
    container.create_item({"id": "1", "tenant": "t", "user": "u"})
    assert container.read_item("1", ["t", "u"])["user"] == "u"
    assert status(container.read_item, "1", ["t", "v"]) == 404


@pytest.mark.parametrize("id", ["a b", "a%20b", "a+b&c=d", "ü", "x" * 1_023, "a:b|c'd"])
def test_an_id_may_be_any_other_text(items: Any, id: str) -> None:
    items.create_item({"id": id, "pk": "a"})
    assert items.read_item(id, "a")["id"] == id


def test_the_partition_key_cannot_change(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a"})
    assert status(items.patch_item, "1", "a", [{"op": "set", "path": "/pk", "value": "b"}]) == 400
    assert status(items.patch_item, "1", "a", [{"op": "set", "path": "/id", "value": "2"}]) == 400


def test_a_replace_may_give_an_item_another_id(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a"})
    items.create_item({"id": "taken", "pk": "a"})
    assert status(items.replace_item, "1", {"id": "taken", "pk": "a"}) == 409
    renamed = items.replace_item("1", {"id": "2", "pk": "a", "n": 1})
    assert own(renamed) == {"id": "2", "pk": "a", "n": 1}
    assert status(items.read_item, "1", "a") == 404
    assert items.read_item("2", "a") == renamed
    assert query(items, "SELECT VALUE c.id FROM c") == ["taken", "2"]
    items.replace_item(renamed, {"id": "1", "pk": "a"}, etag=renamed["_etag"], match_condition=_UNCHANGED)
    assert status(items.read_item, "2", "a") == 404


def test_pages_hold_an_item_that_got_another_id(items: Any) -> None:
    for number in range(3):
        items.create_item({"id": str(number), "pk": "a"})
    items.replace_item("0", {"id": "x", "pk": "a"})
    assert query(items, "SELECT VALUE c.id FROM c", max_item_count=1) == ["1", "2", "x"]


def test_an_upsert_of_nothing_makes_an_item_whatever_etag_it_names(items: Any) -> None:
    created = items.upsert_item({"id": "1", "pk": "a"}, etag='"0"', match_condition=_UNCHANGED)
    assert items.read_item("1", "a") == created


def test_a_wrong_partition_key_is_refused_in_the_services_words(sdk: Sdk) -> None:
    container = sdk.container("wrong-parts", ["/a", "/b"])
    with pytest.raises(exceptions.CosmosHttpResponseError, match="Partition key provided either") as caught:
        container.execute_item_batch([("create", ({"id": "1", "a": 1, "b": 2},))], [1])
    assert (caught.value.status_code, caught.value.sub_status) == (400, 1001)


def test_an_item_counts_as_it_was_sent(items: Any) -> None:
    text = "\u4e2d" * 360_000  # 1 MiB of UTF-8, 2.1 MB where it is escaped
    assert status(items.create_item, {"id": "1", "pk": "a", "text": text}) == 413
    assert query(items, "SELECT * FROM c") == []


def test_a_read_says_where_the_item_is(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a"})
    place = items.read_item("1", "a").get_response_headers()["content-location"]
    assert place.startswith("http://127.0.0.1:") and place.endswith("/docs/1/")


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        ([{"op": "add", "path": "/new", "value": {"x": 1}}], {"new": {"x": 1}}),
        ([{"op": "set", "path": "/in/side", "value": None}], {"in": {"side": None}}),
        ([{"op": "replace", "path": "/n", "value": "x"}], {"n": "x"}),
        ([{"op": "incr", "path": "/n", "value": -2.5}], {"n": 2.5}),
        ([{"op": "incr", "path": "/count", "value": 4}], {"count": 4}),
        ([{"op": "move", "from": "/in/side", "path": "/out"}], {"in": {}, "out": 1}),
        ([{"op": "add", "path": "/b", "value": 1}, {"op": "incr", "path": "/b", "value": 1}], {"b": 2}),
        ([{"op": "add", "path": "/a~1b~0c", "value": 1}], {"a/b~c": 1}),
        ([{"op": "add", "path": "/a~01b", "value": 1}], {"a~1b": 1}),  # an escaped tilde, and no slash
    ],
)
def test_a_patch_changes_what_it_names(items: Any, operations: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    item = {"id": "1", "pk": "a", "n": 5, "list": [1, 2], "in": {"side": 1}}
    items.create_item(item)
    assert own(items.patch_item("1", "a", operations)) == {**item, **expected}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/missing", "value": 1},
        {"op": "add", "path": "/missing/x", "value": 1},
        {"op": "incr", "path": "/list", "value": 1},
        {"op": "incr", "path": "/n", "value": "1"},
        {"op": "explode", "path": "/n"},
        {"op": "set", "path": "/_etag", "value": "x"},
    ],
)
def test_a_patch_that_cannot_be_done_does_nothing(items: Any, operation: dict[str, Any]) -> None:
    created = items.create_item({"id": "1", "pk": "a", "n": 5, "list": [1, 2], "in": {}})
    assert status(items.patch_item, "1", "a", [{"op": "set", "path": "/n", "value": 6}, operation]) == 400
    assert items.read_item("1", "a") == created


@pytest.mark.parametrize("by", [1, 0.5])
def test_a_number_that_no_double_holds_is_not_incremented(items: Any, by: float) -> None:
    items.create_item({"id": "1", "pk": "a", "n": 10**400})
    assert status(items.patch_item, "1", "a", [{"op": "incr", "path": "/n", "value": by}]) == 400


def test_a_patch_holds_to_its_condition(items: Any) -> None:
    items.create_item({"id": "1", "pk": "a", "n": 5, "state": "open"})
    step = [{"op": "incr", "path": "/n", "value": 1}]
    assert status(items.patch_item, "1", "a", step, filter_predicate="from c where c.state = 'done'") == 412
    assert items.patch_item("1", "a", step, filter_predicate="from c where c.n < 6 AND IS_DEFINED(c.state)")["n"] == 6
    assert status(items.patch_item, "1", "a", step, filter_predicate="where nonsense") == 400
    assert status(items.patch_item, "1", "a", step * 11) == 400


def test_containers_and_databases_come_and_go(sdk: Sdk) -> None:
    container = sdk.container("passing")
    container.create_item({"id": "1", "pk": "a"})
    database = sdk.client.get_database_client(f"db-{sdk.mode}")
    assert status(sdk.container, "passing") == 409
    assert "passing" in [one["id"] for one in database.list_containers()]
    query = "SELECT * FROM c WHERE c.id = @id"
    assert len(database.query_containers(query, parameters=[{"name": "@id", "value": "passing"}])) == 1
    database.delete_container("passing")
    assert status(database.get_container_client("passing").read) == 404
    again = sdk.container("passing")
    assert status(again.read_item, "1", "a") == 404


def test_a_client_that_knows_a_deleted_container_finds_the_new_one(sdk: Sdk) -> None:
    container = sdk.container("again")
    container.create_item({"id": "1", "pk": "a"})
    database = sdk.client.get_database_client(f"db-{sdk.mode}")
    other = Sdk(sdk.cosmos, "sync")
    database_of_other = other.client.get_database_client(f"db-{sdk.mode}")
    database_of_other.delete_container("again")
    database_of_other.create_container("again", PartitionKey("/pk"))
    other.close()
    container.create_item({"id": "2", "pk": "a"})
    assert [item["id"] for item in container.read_all_items()] == ["2"]
    database.delete_container("again")


@pytest.mark.parametrize(
    "definition",
    [
        {"id": "x"},
        {"id": "x", "partitionKey": {"paths": ["pk"]}},
        {"id": "x", "partitionKey": {"paths": ["/a", "/b", "/c", "/d"]}},
        {"id": "x", "partitionKey": {"paths": ["/a", "/b"], "kind": "Hash"}},
        {"id": "x", "partitionKey": {"paths": ["/a", "/a"], "kind": "MultiHash"}},
        {"id": "x", "partitionKey": {"paths": ["/pk"]}, "defaultTtl": 0},
        {"id": "x", "partitionKey": {"paths": ["/pk"]}, "uniqueKeyPolicy": {"uniqueKeys": [{"paths": ["/n"]}]}},
        {"id": "a/b", "partitionKey": {"paths": ["/pk"]}},
        {"id": "a\r\nevil: 1", "partitionKey": {"paths": ["/pk"]}},
    ],
)
def test_a_container_that_would_behave_otherwise_is_refused(definition: dict[str, Any]) -> None:
    with pytest.raises(Rejection) as caught:
        checked(definition)
    assert caught.value.status == 400
