"""Batches that are not transactional, the bulk mode of clients: each operation for itself, under its own key."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.engine.engine import Engine
from tests.wire.cosmos.every import EVERY, Request, with_offers

WANTED: list[Any] = [
    {"operationType": "Create", "partitionKey": '["a"]', "resourceBody": {"id": "2", "pk": "a"}},
    {"operationType": "Create", "partitionKey": '["b"]', "resourceBody": {"id": "2", "pk": "b", "large": 1.0}},
    {"operationType": "Create", "partitionKey": '["b"]', "resourceBody": {"id": "2", "pk": "b"}},
    {
        "operationType": "Patch",
        "partitionKey": '["a"]',
        "id": "1",
        "resourceBody": [{"op": "incr", "path": "/n", "value": 1}],
    },
    {"operationType": "Delete", "partitionKey": '["c"]', "id": "1"},
    {"operationType": "Read", "id": "1"},
    {"operationType": ["Read"], "partitionKey": '["a"]', "id": "1"},
    {"operationType": "Read", "partitionKey": '["a"]', "id": "2"},
]


@pytest.fixture
async def emulator() -> AsyncIterator[CosmosEmulator]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        await with_offers(emulator)
        yield emulator


async def statuses(emulator: CosmosEmulator, wanted: list[Any], *, goes_on: bool = True) -> tuple[int, list[int]]:
    batch = EVERY["batch"]
    headers = {"x-ms-cosmos-is-batch-request": "True", "x-ms-cosmos-batch-continue-on-error": str(goes_on)}
    status, answer = await Request("POST", batch.path, "docs", batch.link, wanted, headers).ask(emulator)
    return status, [one["statusCode"] for one in msgspec.json.decode(answer)]


async def test_each_operation_is_done_for_itself(emulator: CosmosEmulator) -> None:
    assert await statuses(emulator, WANTED) == (207, [201, 201, 409, 200, 404, 400, 400, 200])
    assert await statuses(emulator, [WANTED[3], WANTED[7]]) == (200, [200, 200])
    assert b'"n":3' in (await EVERY["item.read"].ask(emulator))[1]


async def test_nothing_is_done_behind_a_failure_unless_that_is_asked_for(emulator: CosmosEmulator) -> None:
    assert await statuses(emulator, [WANTED[4], WANTED[0]], goes_on=False) == (207, [404, 424])
    assert await statuses(emulator, [WANTED[7]]) == (207, [404])


async def test_one_operation_in_bulk_can_be_throttled(emulator: CosmosEmulator) -> None:
    emulator.faults.install(FaultRule(kind="throttled", operation="batch", batch_index=1, count=1))
    assert await statuses(emulator, [WANTED[0], WANTED[1]]) == (207, [201, 429])
    assert await statuses(emulator, [WANTED[0], WANTED[1]]) == (207, [409, 201])


async def test_a_bulk_request_has_a_hundred_operations_and_no_more(emulator: CosmosEmulator) -> None:
    assert (await statuses(emulator, [WANTED[7]] * 100))[0] == 207
    batch, headers = EVERY["batch"], {"x-ms-cosmos-is-batch-request": "True"}
    bad: tuple[Any, ...] = ([], [WANTED[7]] * 101, {})
    for wanted in bad:
        assert (await Request("POST", batch.path, "docs", batch.link, wanted, headers).ask(emulator))[0] == 400
