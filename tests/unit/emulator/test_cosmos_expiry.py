"""What the Cosmos DB emulator notes about expiry costs a write little, however many items there are."""

from __future__ import annotations

import msgspec
import pytest

from outbox.emulator.cosmos.catalog import EXPIRING_COUNT, Container
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.cosmos.store import Put, Store
from outbox.emulator.cosmos.wire import store_form
from outbox.engine.engine import Engine

WRITE_COUNT = 2 * EXPIRING_COUNT


def put(store: Store, container: Container, number: int) -> None:
    rid, id = store.fresh_rid(container), f"i{number}"
    item = store_form({"id": id, "pk": id, "ttl": 3_600}, rid, "", store.engine.now_ms() // 1_000)
    store.commit(container, msgspec.json.encode([id]).decode(), [Put(id, item)])


@pytest.mark.parametrize("distinct_count", [1, WRITE_COUNT])
async def test_expiries_stay_bounded_without_looking_at_all_items_each_time(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, distinct_count: int
) -> None:
    looks: list[Container] = []
    index = Store.index_expiry

    def look(self: Store, container: Container) -> None:
        looks.append(container)
        index(self, container)

    store = CosmosEmulator(engine, port=0).store
    database = store.catalog.create_database({"id": "d"})
    body = {"id": "c", "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2}, "defaultTtl": -1}
    container = store.catalog.create_container(database, body)
    monkeypatch.setattr(Store, "index_expiry", look)
    for number in range(WRITE_COUNT):
        put(store, container, number % distinct_count)
    assert len(container.expiring) <= EXPIRING_COUNT + 2 * distinct_count
    assert len(looks) <= 2
