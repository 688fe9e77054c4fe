"""The items against a plain dictionary, under random operations; racing clients."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from azure.core import MatchConditions
from azure.core.pipeline.transport import AioHttpTransport
from azure.cosmos import PartitionKey, exceptions
from azure.cosmos.aio import CosmosClient
from hypothesis import given, settings
from hypothesis import strategies as st

from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.item_operations import operations_of, run_batch
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine

KEY = '["a"]'
IDS = st.sampled_from(["1", "2", "3"])
ETAGS = st.sampled_from(["", "now", "old"])
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(["Create", "Upsert", "Replace", "Delete", "Patch", "Read"]), IDS, ETAGS),
    min_size=1,
    max_size=4,
)


class Model:
    """What the items should be: a count each, and the ETag that was told of it."""

    def __init__(self) -> None:
        self.items: dict[str, tuple[int, str]] = {}

    def apply(self, operations: list[tuple[str, str, str]], number: int) -> list[int] | None:
        """The statuses of a batch that holds, None of one that does not; changes the items like the former."""
        items, statuses = dict(self.items), []
        for kind, id, etag in operations:
            there = id in items
            is_held = not etag or (there and etag == "now" and items[id][1] != "pending")
            is_held = is_held or (kind == "Upsert" and not there)
            if (kind == "Create" and there) or (kind not in ("Create", "Upsert") and not there):
                return None
            if kind not in ("Create", "Read") and not is_held:
                return None
            if kind == "Delete":
                del items[id]
            elif kind == "Patch":
                items[id] = (items[id][0] + 1, "pending")
            elif kind != "Read":
                items[id] = (number, "pending")
            statuses.append({"Create": 201, "Delete": 204, "Upsert": 200 if there else 201}.get(kind, 200))
        self.items = items
        return statuses


def wire(model: Model, operation: tuple[str, str, str], number: int) -> dict[str, Any]:
    """An operation as a client sends it, with the ETag that it knows."""
    kind, id, etag = operation
    one: dict[str, Any] = {"operationType": kind, "id": id}
    if kind in ("Create", "Upsert", "Replace"):
        one["resourceBody"] = {"id": id, "pk": "a", "n": number}
    elif kind == "Patch":
        one["resourceBody"] = {"operations": [{"op": "incr", "path": "/n", "value": 1}]}
    if etag and kind != "Read":
        known = model.items.get(id)
        one["ifMatch"] = '"0"' if etag == "old" or known is None else known[1]
    return one


@settings(max_examples=150)
@given(st.lists(OPERATIONS, min_size=1, max_size=6))
def test_batches_do_what_a_dictionary_would_or_nothing(batches: list[list[tuple[str, str, str]]]) -> None:
    engine = Engine.in_memory()
    store = CosmosEmulator(engine, port=0).store
    database = store.catalog.create_database({"id": "d"})
    container = store.catalog.create_container(database, {"id": "c", "partitionKey": {"paths": ["/pk"]}})
    model = Model()
    for number, operations in enumerate(batches):
        data = msgspec.json.encode([wire(model, operation, number * 100) for operation in operations])
        expected = model.apply(operations, number * 100)
        answer = run_batch(store, container, KEY, operations_of(data, container, KEY), None)
        results = msgspec.json.decode(answer.body)
        assert answer.status == (207 if expected is None else 200)
        if expected is not None:
            assert [one["statusCode"] for one in results] == expected
        found = [msgspec.json.decode(item.value) for item in store.items(container, KEY).values()]
        assert {item["id"]: item["n"] for item in found} == {id: n for id, (n, _) in model.items.items()}
        for id, (n, _) in model.items.items():
            item = store.read(container, KEY, id)
            assert item is not None
            model.items[id] = (n, f'"{item.version:016x}"')
    engine.close()


async def test_racing_clients_count_every_win_once() -> None:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        transport = AioHttpTransport(use_env_settings=False)
        async with CosmosClient(emulator.connection.url, WELL_KNOWN_KEY, transport=transport) as client:
            database = await client.create_database("d")
            items = await database.create_container("c", PartitionKey("/pk"))
            await items.create_item({"id": "1", "pk": "a", "n": 0})

            async def count(times: int) -> None:
                while times:
                    item = await items.read_item("1", "a")
                    try:
                        await items.replace_item(
                            "1",
                            {**item, "n": item["n"] + 1},
                            etag=item["_etag"],
                            match_condition=MatchConditions.IfNotModified,
                        )
                        times -= 1
                    except exceptions.CosmosAccessConditionFailedError:
                        continue

            await asyncio.gather(*(count(10) for _ in range(6)))
            assert (await items.read_item("1", "a"))["n"] == 60
        assert emulator.usage()["item.replace"].failed_count > 0
