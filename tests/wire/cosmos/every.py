"""One request of each operation of Cosmos DB, on a database `d`, a container `c` and an item `1` of the key `a`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from outbox.emulator.cosmos.server import CosmosEmulator
from tests.wire.cosmos.asking import ask, signed

CONTAINER, ITEM = "dbs/d/colls/c", "dbs/d/colls/c/docs/1"
KEY = {"x-ms-documentdb-partitionkey": '["a"]'}
IS_QUERY = {"x-ms-documentdb-isquery": "True"}
SHOWN: dict[str, Any] = {"id": "1", "pk": "a", "n": 1, "list": [1, {"x": None}], "ttl": 60}
STEPS: list[Any] = [
    {"op": "add", "path": "/list/-", "value": {"y": 2}},
    {"op": "incr", "path": "/n", "value": 1},
    {"op": "move", "from": "/list/0", "path": "/moved"},
]
PATCH: dict[str, Any] = {"operations": STEPS, "condition": "from c where c.n < 3"}
QUERY: dict[str, Any] = {
    "query": "SELECT TOP 3 * FROM c WHERE c.id IN (@a, 'x') ORDER BY c.n",
    "parameters": [{"name": "@a", "value": "1"}],
}
DEFINITION: dict[str, Any] = {
    "id": "c",
    "partitionKey": {"paths": ["/pk"], "kind": "Hash", "version": 2},
    "defaultTtl": -1,
    "indexingPolicy": {
        "indexingMode": "consistent",
        "automatic": True,
        "includedPaths": [{"path": "/*"}],
        "excludedPaths": [{"path": '/"x"/?'}],
        "compositeIndexes": [[{"path": "/a", "order": "ascending"}, {"path": "/b", "order": "descending"}]],
    },
    "uniqueKeyPolicy": {"uniqueKeys": []},
    "conflictResolutionPolicy": {"mode": "LastWriterWins", "conflictResolutionPath": "/_ts"},
}
BATCH: list[Any] = [
    {"operationType": "Upsert", "resourceBody": {"id": "2", "pk": "a"}},
    {"operationType": "Replace", "id": "1", "resourceBody": SHOWN, "ifMatch": "*"},
    {"operationType": "Patch", "id": "1", "resourceBody": {**PATCH, "condition": "from c where c.n < 9"}},
    {"operationType": "Read", "id": "1", "ifNoneMatch": "x"},
    {"operationType": "Delete", "id": "2"},
]


@dataclass(frozen=True, slots=True)
class Request:
    """A request: what is signed of it, its body as JSON has it (None: it has none), and its headers."""

    method: str
    path: str
    kind: str
    link: str
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)

    def signed(self, body: Any = None, **headers: str) -> bytes:
        """Its bytes, with another body or with more headers."""
        sent = self.body if body is None else body
        data = sent if isinstance(sent, bytes) else b"" if sent is None else msgspec.json.encode(sent)
        return signed(self.method, self.path, self.kind, self.link, data, **(self.headers | headers))

    async def ask(self, emulator: CosmosEmulator, body: Any = None, **headers: str) -> tuple[int, bytes]:
        """Send it, with another body or with more headers."""
        return await ask(emulator, self.signed(body, **headers))


EVERY = {
    "account.read": Request("GET", "/", "", ""),
    "database.list": Request("GET", "/dbs", "dbs", ""),
    "database.create": Request("POST", "/dbs", "dbs", "", {"id": "e"}),
    "database.read": Request("GET", "/dbs/d", "dbs", "dbs/d"),
    "database.delete": Request("DELETE", "/dbs/d", "dbs", "dbs/d"),
    "container.list": Request("GET", "/dbs/d/colls", "colls", "dbs/d"),
    "container.create": Request("POST", "/dbs/d/colls", "colls", "dbs/d", DEFINITION | {"id": "e"}),
    "container.read": Request("GET", f"/{CONTAINER}", "colls", CONTAINER),
    "container.replace": Request("PUT", f"/{CONTAINER}", "colls", CONTAINER, DEFINITION),
    "container.delete": Request("DELETE", f"/{CONTAINER}", "colls", CONTAINER),
    "ranges.read": Request("GET", f"/{CONTAINER}/pkranges", "pkranges", CONTAINER),
    "feed": Request("GET", f"/{CONTAINER}/docs", "docs", CONTAINER),
    "changes": Request("GET", f"/{CONTAINER}/docs", "docs", CONTAINER, None, {"a-im": "Incremental feed"}),
    "query": Request(
        "POST", f"/{CONTAINER}/docs", "docs", CONTAINER, QUERY,
        IS_QUERY | {"x-ms-documentdb-query-enablecrosspartition": "True"},
    ),
    "batch": Request(
        "POST", f"/{CONTAINER}/docs", "docs", CONTAINER, BATCH,
        KEY | {"x-ms-cosmos-is-batch-request": "True", "x-ms-cosmos-batch-atomic": "True"},
    ),
    "item.create": Request("POST", f"/{CONTAINER}/docs", "docs", CONTAINER, SHOWN | {"id": "new"}),
    "item.upsert": Request(
        "POST", f"/{CONTAINER}/docs", "docs", CONTAINER, SHOWN, {"x-ms-documentdb-is-upsert": "True"}
    ),
    "item.read": Request("GET", f"/{ITEM}", "docs", ITEM, None, KEY),
    "item.replace": Request("PUT", f"/{ITEM}", "docs", ITEM, SHOWN, KEY),
    "item.patch": Request("PATCH", f"/{ITEM}", "docs", ITEM, PATCH, KEY),
    "item.delete": Request("DELETE", f"/{ITEM}", "docs", ITEM, None, KEY),
    "conflict.list": Request("GET", f"/{CONTAINER}/conflicts", "conflicts", CONTAINER),
    "key.delete": Request("POST", f"/{CONTAINER}/operations/partitionkeydelete", "colls", CONTAINER, None, KEY),
    "offer.list": Request(
        "POST", "/offers", "offers", "", {"query": "SELECT * FROM r", "parameters": []}, IS_QUERY
    ),
}  # fmt: skip
"""By operation; `with_offers` adds those of the container's offer, whose id is drawn."""


async def with_offers(emulator: CosmosEmulator) -> dict[str, Request]:
    """Make the container and the item, and give a request for each operation."""
    for name, body in (("database.create", {"id": "d"}), ("container.create", DEFINITION)):
        assert (await EVERY[name].ask(emulator, body))[0] == 201
    assert (await EVERY["item.upsert"].ask(emulator))[0] == 201
    offer = msgspec.json.decode((await EVERY["offer.list"].ask(emulator))[1])["Offers"][0]
    id = offer["id"]
    return EVERY | {
        "offer.read": Request("GET", f"/offers/{id}", "offers", id),
        "offer.replace": Request("PUT", f"/offers/{id}", "offers", id, offer | {"content": {"offerThroughput": 500}}),
    }
