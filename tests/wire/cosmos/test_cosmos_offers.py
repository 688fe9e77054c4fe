"""Throughput, conflicts, deletion of a partition key and query metrics: what clients ask for beside their items."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.cosmos import PartitionKey, ThroughputProperties

from outbox.engine.engine import Engine
from tests.wire.cosmos.asking import ask, signed
from tests.wire.cosmos.conftest import Cosmos, Sdk, query
from tests.wire.cosmos.test_cosmos_items import status


def test_throughput_is_kept_and_replaced(sdk: Sdk) -> None:
    container = sdk.container("provisioned", offer_throughput=600)
    assert container.get_throughput().offer_throughput == 600
    assert container.replace_throughput(1_000).offer_throughput == 1_000
    assert container.get_throughput().offer_throughput == 1_000
    assert "_offer" not in container.read()
    assert status(container.replace_throughput, 401) == 400


def test_a_container_without_a_throughput_has_the_least_or_its_databases(sdk: Sdk) -> None:
    assert sdk.container("plain").get_throughput().offer_throughput == 400
    shared = sdk.client.create_database(f"shared-{sdk.mode}", offer_throughput=500)
    shared.create_container("inside", PartitionKey("/pk"))
    assert shared.get_throughput().offer_throughput == 500
    [offer] = [one for one in _offers(sdk) if one["resource"] == shared.read()["_self"]]
    assert offer["content"]["offerThroughput"] == 500
    inside = shared.get_container_client("inside").read()["_self"]
    assert inside not in [one["resource"] for one in _offers(sdk)]
    sdk.client.delete_database(shared.id)


def _offers(sdk: Sdk) -> list[dict[str, Any]]:
    found = sdk.cosmos.call(lambda emulator: emulator.store.catalog.offers())
    return list(found)


def test_throughput_that_scales_by_itself_is_kept(sdk: Sdk) -> None:
    asked = ThroughputProperties(auto_scale_max_throughput=5_000, auto_scale_increment_percent=10)
    container = sdk.container("scaling", offer_throughput=asked)
    found = container.get_throughput()
    assert (found.auto_scale_max_throughput, found.auto_scale_increment_percent) == (5_000, 10)
    more = ThroughputProperties(auto_scale_max_throughput=7_000)
    container.replace_throughput(more)
    assert container.get_throughput().auto_scale_max_throughput == 7_000


async def test_offers_are_signed_by_their_resource_ids(emulator: Any) -> None:
    rid = emulator.store.catalog.offers()[0]["_rid"]
    code, _ = await ask(emulator, signed("GET", f"/offers/{rid}", "offers", rid))
    assert code == 200
    assert (await ask(emulator, signed("GET", f"/offers/{rid}", "offers", f"offers/{rid}")))[0] == 401
    for unknown in ("zz", "00", "ff" * 600):
        assert (await ask(emulator, signed("GET", f"/offers/{unknown}", "offers", unknown)))[0] == 404


def test_throughput_outlives_a_restart_and_a_new_definition(disk_path: Path) -> None:
    def engine() -> Engine:
        return Engine.open(disk_path / "engine")

    cosmos = Cosmos(engine)
    sdk = Sdk(cosmos, "sync")
    container = sdk.container("provisioned", offer_throughput=600)
    sdk.client.get_database_client("db-sync").replace_container(container.id, PartitionKey("/pk"), default_ttl=60)
    cosmos.stop()
    cosmos.start(engine)
    assert container.get_throughput().offer_throughput == 600
    sdk.close()
    cosmos.close()


def test_there_are_no_conflicts(items: Any) -> None:
    assert list(items.list_conflicts()) == []
    assert list(items.query_conflicts("SELECT * FROM c", partition_key="a")) == []
    if items.mode == "sync":  # the other asks for all partition keys unless it is told one
        assert status(items.query_conflicts, "SELECT * FROM c") == 400
    assert status(items.get_conflict, "1", "a") == status(items.delete_conflict, "1", "a") == 404


@pytest.mark.parametrize("count", [0, 3, 2_100])
def test_a_partition_key_is_deleted_with_its_items_and_no_others(sdk: Sdk, count: int) -> None:
    container = sdk.container(f"cleared-{count}")
    container.create_item({"id": "other", "pk": "b"})
    for start in range(0, count, 100):
        batch = [("create", ({"id": str(n), "pk": "a"},)) for n in range(start, min(start + 100, count))]
        container.execute_item_batch(batch, "a")
    container.delete_all_items_by_partition_key("a")
    assert query(container, "SELECT VALUE c.id FROM c") == ["other"]
    container.create_item({"id": "1", "pk": "a"})


def test_metrics_of_a_query_are_answered_where_they_are_asked_for(items: Any) -> None:
    for id in ("1", "2"):
        items.create_item({"id": id, "pk": "a"})
    headers: list[dict[str, str]] = []

    def hook(found: dict[str, str], _: object) -> None:
        headers.append(dict(found))

    ask_all: Callable[..., Any] = items.query_items
    where = "SELECT * FROM c WHERE c.id = '1' OR c.id = '3'"
    list(ask_all(where, partition_key="a", populate_query_metrics=True, response_hook=hook))
    metrics = dict(one.split("=") for one in headers[-1]["x-ms-documentdb-query-metrics"].split(";"))
    assert metrics["outputDocumentCount"] == "1" and float(metrics["totalExecutionTimeInMs"]) >= 0
    list(ask_all(where, partition_key="a", response_hook=hook))
    assert "x-ms-documentdb-query-metrics" not in headers[-1]
