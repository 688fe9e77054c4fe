"""Resources addressed by their resource ids through the real SDK: items given as they were read, handles by `_rid`."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey, exceptions

from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.faults import FaultRule
from tests.wire.cosmos.conftest import Cosmos, Sdk, query
from tests.wire.cosmos.test_cosmos_items import own, status

INCREMENT = [{"op": "incr", "path": "/n", "value": 1}]


@pytest.fixture
def by_rid(sdk: Sdk, items: Any) -> Any:
    """The same container, addressed by resource ids."""
    database = sdk.client.get_database_client(f"db-{sdk.mode}").read()
    return sdk.client.get_database_client(database["_rid"]).get_container_client(items.read()["_rid"])


def test_an_item_may_be_given_as_it_was_read(items: Any) -> None:
    for id in ("1", "2", "a b"):
        items.create_item({"id": id, "pk": "a", "n": 1})
    for item in query(items, "SELECT * FROM c"):
        assert items.read_item(item, "a") == item
        assert items.replace_item(item, {**item, "n": 2})["n"] == 2
        assert items.patch_item(item, "a", INCREMENT)["n"] == 3
    for item in items.read_all_items():
        assert item["n"] == 3
        items.delete_item(item, "a")
        assert status(items.read_item, item, "a") == 404
    assert items.read_all_items() == []


def test_an_item_made_since_is_found_by_its_link_as_well(items: Any) -> None:
    first = items.create_item({"id": "1", "pk": "a"})
    assert items.read_item(first, "a") == first
    second = items.create_item({"id": "2", "pk": "a"})
    items.delete_item(first, "a")
    again = items.create_item({"id": "1", "pk": "a"})
    assert items.read_item(second, "a") == second and items.read_item(again, "a") == again


def test_the_link_of_a_deleted_item_is_not_that_of_the_next_with_its_id(items: Any) -> None:
    old = items.create_item({"id": "1", "pk": "a", "n": 1})
    assert items.read_item(old, "a") == old
    items.delete_item(old, "a")
    new = items.create_item({"id": "1", "pk": "a", "n": 2})
    assert status(items.read_item, old, "a") == status(items.delete_item, old, "a") == 404
    assert status(items.replace_item, old, {"id": "1", "pk": "a"}) == 404
    assert items.read_item("1", "a") == new


def test_a_link_is_good_for_its_partition_key_and_container(sdk: Sdk, items: Any) -> None:
    other = sdk.container(f"{items.target.id}-other")
    item = items.create_item({"id": "1", "pk": "a"})
    other.create_item({"id": "1", "pk": "a"})
    assert status(items.read_item, item, "b") == 404
    moved = {**item, "_self": item["_self"].replace(items.read()["_rid"], other.read()["_rid"], 1)}
    assert status(other.read_item, moved, "a") == 404


def test_conditions_and_faults_hold_by_link_as_by_name(cosmos: Cosmos, sdk: Sdk, items: Any) -> None:
    item = items.create_item({"id": "1", "pk": "a"})
    items.upsert_item({"id": "1", "pk": "a", "n": 1})
    condition = {"etag": item["_etag"], "match_condition": MatchConditions.IfNotModified}
    assert status(items.delete_item, item, "a", **condition) == 412
    rule = FaultRule(kind="refused", operation="item.read", where=f"db-{sdk.mode}/{items.target.id}", key='["a"]/1')
    installed = cosmos.call(lambda emulator: emulator.faults.install(rule))
    assert status(items.read_item, item, "a") == 403
    cosmos.call(lambda emulator: emulator.faults.remove(installed))


def test_a_link_is_not_that_of_a_container_made_anew_meanwhile(
    cosmos: Cosmos, sdk: Sdk, items: Any, by_rid: Any
) -> None:
    rule = FaultRule(kind="delay", operation="container.read", where=f"db-{sdk.mode}/{items.target.id}", delay_s=1.0)
    emulator = cosmos.emulator
    before = emulator.faults.fired.get("delay", 0)
    installed = cosmos.call(lambda emulator: emulator.faults.install(rule))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(status, by_rid.read)
        until_s = time.monotonic() + 20
        while emulator.faults.fired.get("delay", 0) == before and time.monotonic() < until_s:
            time.sleep(0.01)
        cosmos.call(lambda emulator: made_anew(emulator.store.catalog, f"db-{sdk.mode}", items.target.id))
        assert reading.result(20) == 404
    cosmos.call(lambda emulator: emulator.faults.remove(installed))


def made_anew(catalog: Catalog, database: str, name: str) -> None:
    catalog.delete_container(catalog.container(database, name))
    catalog.create_container(catalog.database(database), {"id": name, "partitionKey": {"paths": ["/pk"]}})


def test_databases_and_containers_may_be_given_as_they_were_read(sdk: Sdk) -> None:
    client = sdk.client
    client.create_database(f"given-{sdk.mode}")
    [database] = [one for one in client.list_databases() if one["id"] == f"given-{sdk.mode}"]
    handle = client.get_database_client(database)
    handle.create_container("c", PartitionKey("/pk"))
    [container] = handle.list_containers()
    items = handle.get_container_client(container)
    assert own(items.create_item({"id": "1", "pk": "a"})) == {"id": "1", "pk": "a"}
    handle.replace_container(container, PartitionKey("/pk"), default_ttl=60)
    assert items.read()["defaultTtl"] == 60
    handle.delete_container(container)
    client.delete_database(database)
    assert database["id"] not in [one["id"] for one in client.list_databases()]


def test_a_container_by_resource_ids_takes_every_request(sdk: Sdk, items: Any, by_rid: Any) -> None:
    item = by_rid.create_item({"id": "1", "pk": "a", "n": 1})
    by_rid.upsert_item({"id": "2", "pk": "b", "n": 2})
    by_rid.execute_item_batch([("create", ({"id": "3", "pk": "a"},)), ("patch", ("1", INCREMENT))], "a")
    assert by_rid.read_item(item, "a")["n"] == 2
    assert query(by_rid, "SELECT VALUE c.n FROM c WHERE c.n = 2 ORDER BY c.id") == [2, 2]
    assert query(by_rid, "SELECT VALUE c.id FROM c", partition_key="a") == ["1", "3"]
    assert by_rid.read_all_items() == items.read_all_items()
    assert len(by_rid.query_items_change_feed(start_time="Beginning")) == 3
    assert by_rid.read() == items.read()
    with pytest.raises(exceptions.CosmosResourceNotFoundError):
        by_rid.read_item("1", "a")  # ids and resource ids do not go together in one path


def test_a_database_by_its_resource_id_takes_every_request(sdk: Sdk) -> None:
    name = f"by-rid-{sdk.mode}"
    rid = sdk.client.create_database(name).read()["_rid"]
    database = sdk.client.get_database_client(rid)
    assert database.read()["id"] == name
    database.create_container("c", PartitionKey("/pk"))
    [container] = database.list_containers()
    assert [one["id"] for one in database.query_containers("SELECT * FROM c")] == ["c"]
    database.delete_container(container["_rid"])
    sdk.client.delete_database(rid)
    assert status(database.read) == 404


def test_a_database_that_is_named_like_a_resource_id_is_found_by_name(sdk: Sdk) -> None:
    name = "abcdeA==" if sdk.mode == "sync" else "abcdeQ=="
    database = sdk.client.create_database(name)
    assert database.read()["id"] == name
    sdk.client.delete_database(name)
