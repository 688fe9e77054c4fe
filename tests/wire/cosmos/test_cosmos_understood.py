"""Nothing that changes an answer is ignored: conditions and query parameters are done, or refused by name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from outbox.emulator.cosmos.requests import CONDITIONS
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine
from tests.wire.cosmos.every import EVERY, Request, with_offers

NAMES = (*EVERY, "offer.read", "offer.replace")
FALSE = {
    "If-Match": '"0000"',
    "If-None-Match": "ETAG",
    "If-Modified-Since": "Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Unmodified-Since": "Sat, 01 Jan 2000 00:00:00 GMT",
    "x-ms-if-tags": "n = '2'",
}
"""None of them holds."""
ETAG_OF = {"database": "database.read", "container": "container.read", "offer": "offer.read", "item": "item.read"}


@pytest.fixture
async def emulator() -> AsyncIterator[CosmosEmulator]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        yield emulator


async def etag_of(emulator: CosmosEmulator, operation: str, every: dict[str, Request]) -> str:
    if operation == "changes":
        return "*"  # from now on: nothing is newer
    if operation not in CONDITIONS or operation == "ranges.read":
        return '"1"'
    found = msgspec.json.decode((await every[ETAG_OF[operation.partition(".")[0]]].ask(emulator))[1])
    return str(found["_etag"])


@pytest.mark.parametrize("operation", NAMES)
async def test_a_condition_that_does_not_hold_is_never_ignored(emulator: CosmosEmulator, operation: str) -> None:
    every = await with_offers(emulator)
    etag = await etag_of(emulator, operation, every)
    for name, value in FALSE.items():
        status, body = await every[operation].ask(emulator, **{name: value.replace("ETAG", etag)})
        if name.lower() not in CONDITIONS.get(operation, ()):
            assert status == 400 and name.lower() in body.decode()
        elif operation == "item.create":
            assert status in (201, 409)  # it looks at no ETag, on the service neither
        elif every[operation].method == "GET" and name == "If-Match":
            assert status == 200  # it applies to PUT and DELETE
        else:
            assert status == (304 if every[operation].method == "GET" else 412), name


@pytest.mark.parametrize("operation", [name for name in NAMES if "if-match" in CONDITIONS.get(name, ())])
async def test_what_is_there_meets_a_condition_on_anything(emulator: CosmosEmulator, operation: str) -> None:
    every = await with_offers(emulator)
    assert (await every[operation].ask(emulator, if_match="*"))[0] < (300 if operation != "item.create" else 410)


@pytest.mark.parametrize("operation", NAMES)
async def test_a_query_parameter_is_refused_by_name(emulator: CosmosEmulator, operation: str) -> None:
    every = await with_offers(emulator)
    request = replace(every[operation], path=every[operation].path + "?depth=1")
    status, body = await request.ask(emulator)
    assert status == 400 and "'depth'" in body.decode()


@pytest.mark.parametrize("operation", NAMES)
async def test_headers_that_nothing_is_known_of_pass(emulator: CosmosEmulator, operation: str) -> None:
    every = await with_offers(emulator)
    status, _ = await every[operation].ask(emulator, x_ms_nonsense="1", x_ms_consistency_level="Session")
    assert status < 300


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("x-ms-consistency-level", ("Strong", "BoundedStaleness", "Bogus", "5"), ("Eventual", "ConsistentPrefix")),
        ("x-ms-indexing-directive", ("Bogus", "3", "Exclude", "1"), ("Default", "Include", "0", "2")),
        ("x-ms-cosmos-batch-atomic", ("Bogus", "1"), ("True", "true")),
        ("x-ms-session-token", ("Bogus", "0:-1#x", ",", "1" * 20_000), ("0:-1#1", "0:-1#1,1:-1#2")),
    ],
)
async def test_a_header_has_one_of_its_values(
    emulator: CosmosEmulator, name: str, wrong: tuple[str, ...], right: tuple[str, ...]
) -> None:
    every = await with_offers(emulator)
    for operation in ("item.upsert", "item.patch", "item.read", "batch"):
        for value in wrong:
            assert (await every[operation].ask(emulator, **{name: value}))[0] == 400, (operation, value)
    for operation in ("item.upsert", "item.read"):
        for value in right:
            assert (await every[operation].ask(emulator, **{name: value}))[0] in (200, 201), (operation, value)


async def test_a_batch_leaves_no_item_out_of_the_index(emulator: CosmosEmulator) -> None:
    batch = (await with_offers(emulator))["batch"]
    one = {"operationType": "Upsert", "resourceBody": {"id": "9", "pk": "a"}}
    wrong: tuple[Any, ...] = ("Exclude", 1, "Bogus", [], {"a": 1})
    for directive in wrong:
        status, body = await batch.ask(emulator, [one | {"indexingDirective": directive}])
        assert status == 400 and b"operation 0 of the batch" in body and b"index" in body
    for directive in ("Include", "Default", None):
        assert (await batch.ask(emulator, [one | {"indexingDirective": directive}]))[0] == 200


async def test_a_definition_is_changed_under_the_etag_that_it_has(emulator: CosmosEmulator) -> None:
    every = await with_offers(emulator)
    for kind, change in (
        ("container", "replace"),
        ("offer", "replace"),
        ("container", "delete"),
        ("database", "delete"),
    ):
        for quote in ('"', ""):
            etag = (await etag_of(emulator, f"{kind}.read", every)).strip('"')
            assert (await every[f"{kind}.read"].ask(emulator, If_None_Match=f"{quote}{etag}{quote}"))[0] == 304
        assert (await every[f"{kind}.{change}"].ask(emulator, If_Match=etag))[0] in (200, 204)
