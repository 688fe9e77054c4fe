"""What time does to items, and what is still there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from azure.core import MatchConditions
from azure.cosmos import PartitionKey

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.store import Put
from outbox.engine.engine import Engine
from outbox.testing import VirtualClock
from tests.wire.cosmos.conftest import MODES, Cosmos, Sdk, query
from tests.wire.cosmos.test_cosmos_items import status

# Time


@pytest.fixture
def timed() -> Iterator[tuple[Cosmos, VirtualClock]]:
    clock = VirtualClock(1_767_225_600.0)
    cosmos = Cosmos(lambda: Engine.in_memory(clock=clock))
    yield cosmos, clock
    cosmos.close()


@pytest.mark.parametrize("mode", MODES)
def test_an_items_time_counts_only_where_the_container_has_one(timed: tuple[Cosmos, VirtualClock], mode: str) -> None:
    cosmos, clock = timed
    sdk = Sdk(cosmos, mode)
    container = sdk.container("lasting")
    container.create_item({"id": "1", "pk": "a", "ttl": 5})
    clock.seconds += 100
    assert container.read_item("1", "a")["ttl"] == 5
    database = sdk.client.get_database_client(f"db-{mode}")
    database.replace_container("lasting", PartitionKey("/pk"), default_ttl=-1)
    assert status(container.read_item, "1", "a") == 404
    container.create_item({"id": "1", "pk": "a"})
    clock.seconds += 1_000_000
    assert container.read_item("1", "a")["id"] == "1"
    sdk.close()


# Restarts


@pytest.fixture
def durable(disk_path: Path) -> Iterator[tuple[Cosmos, Callable[[], Engine]]]:
    def engine() -> Engine:
        return Engine.open(disk_path / "log")

    cosmos = Cosmos(engine)
    yield cosmos, engine
    cosmos.close()


@pytest.mark.parametrize("mode", MODES)
def test_a_restarted_emulator_has_everything(durable: tuple[Cosmos, Callable[[], Engine]], mode: str) -> None:
    cosmos, engine = durable
    sdk = Sdk(cosmos, mode)
    container = sdk.container("kept")
    first = container.create_item({"id": "1", "pk": "a", "n": 1})
    container.create_item({"id": "2", "pk": "b"})
    container.delete_item("2", "b")
    cosmos.stop()
    cosmos.start(engine)
    assert container.read_item("1", "a") == first
    assert status(container.create_item, {"id": "1", "pk": "a"}) == 409
    second = container.patch_item(
        "1",
        "a",
        [{"op": "incr", "path": "/n", "value": 1}],
        etag=first["_etag"],
        match_condition=MatchConditions.IfNotModified,
    )
    assert second["n"] == 2 and second["_etag"] > first["_etag"]
    assert query(container, "SELECT VALUE c.id FROM c") == ["1"]
    sdk.close()


def test_items_of_a_container_whose_deletion_was_cut_short_are_gone() -> None:
    async def run() -> None:
        async with Engine.in_memory() as engine:
            first = CosmosEmulator(engine, port=0)
            catalog = first.store.catalog
            database = catalog.create_database({"id": "d"})
            container = catalog.create_container(database, {"id": "c", "partitionKey": {"paths": ["/pk"]}})
            first.store.commit(container, '["a"]', [Put("1", b'{"id":"1"}')])
            catalog._forget([f"coll/{database.rid}/{container.rid}"])
            assert container.prefix + '["a"]' in engine.state.documents.spaces
            again = CosmosEmulator(engine, port=0)
            assert container.prefix + '["a"]' not in engine.state.documents.spaces
            assert again.store.catalog.containers() == []

    asyncio.run(run())
