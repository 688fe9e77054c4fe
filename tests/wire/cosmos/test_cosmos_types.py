"""A member or a header of the wrong type is a refusal, never an error of the emulator, in every operation."""

from __future__ import annotations

import copy
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.engine.engine import Engine
from tests.wire.cosmos.every import EVERY, with_offers

Path = tuple[str | int, ...]
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, 10**30, "", "x", [], [1], {}, {"a": []})
HEADERS = (
    "x-ms-documentdb-partitionkey", "x-ms-max-item-count", "x-ms-continuation", "x-ms-session-token", "If-Match",
    "If-None-Match", "If-Modified-Since", "a-im", "x-ms-start-epk", "x-ms-end-epk", "Prefer", "x-ms-offer-throughput",
    "x-ms-cosmos-offer-autopilot-settings", "x-ms-documentdb-partitionkeyrangeid", "x-ms-indexing-directive",
    "x-ms-documentdb-isquery", "x-ms-cosmos-is-batch-request", "x-ms-cosmos-batch-atomic", "x-ms-documentdb-is-upsert",
    "x-ms-cosmos-intended-collection-rid", "x-ms-documentdb-populatequerymetrics",
    "x-ms-documentdb-query-enablecrosspartition",
)  # fmt: skip
WRONG_TEXTS = (
    "x", "True", "null", "0", "-1", "1.5", "1e999", "9" * 40, "[]", "[[1]]", "[{}]", "[null, 1]", '{"a":1}', '"', ",",
    "0:-1#", "FF", "\xe9", "Mon, 99 Foo 2026",
)  # fmt: skip
WITH_BODY = sorted(name for name, request in EVERY.items() if request.body is not None)
PAIR_COUNT = 60
TEXT_COUNT = 5


@pytest.fixture
async def emulator(caplog: pytest.LogCaptureFixture) -> AsyncIterator[CosmosEmulator]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        yield emulator
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Where something is in a body: the whole, and each member of it at any depth."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, one in inner:
        yield from places(one, (*path, name))


def changed(body: Any, *changes: tuple[Path, Any]) -> Any:
    """A body with other values at some places, as far as these are there."""
    body = copy.deepcopy(body)
    for path, value in copy.deepcopy(changes):
        at: Any = body
        try:
            for name in path[:-1]:
                at = at[name]
            if path:
                at[path[-1]] = value
            else:
                body = value
        except (TypeError, KeyError, IndexError):  # the change before has taken it away
            continue
    return body


@pytest.mark.parametrize("operation", [*WITH_BODY, "offer.replace"])
async def test_a_member_of_the_wrong_type_is_no_error_of_the_emulator(emulator: CosmosEmulator, operation: str) -> None:
    every, chance = await with_offers(emulator), random.Random(operation)
    request = every[operation]
    everywhere = list(places(request.body))
    changes = [[(path, value)] for path in everywhere for value in WRONG]
    changes += [[(chance.choice(everywhere), chance.choice(WRONG)) for _ in range(2)] for _ in range(PAIR_COUNT)]
    seen = set()
    for change in changes:
        body = changed(request.body, *change)
        status, answer = await request.ask(emulator, b"null" if body is None else body)
        assert 200 <= status < 500, (change, answer)
        seen.add(status)
    assert 400 in seen


@pytest.mark.parametrize("operation", [*EVERY, "offer.read", "offer.replace"])
async def test_a_header_that_makes_no_sense_is_no_error_of_the_emulator(
    emulator: CosmosEmulator, operation: str
) -> None:
    request, chance = (await with_offers(emulator))[operation], random.Random(operation)
    for name in HEADERS:
        for text in chance.sample(WRONG_TEXTS, TEXT_COUNT):
            headers = {own: value for own, value in request.headers.items() if own != name} | {name: text}
            status, answer = await replace(request, headers=headers).ask(emulator)
            assert 200 <= status < 500, (name, text, answer)


@pytest.mark.parametrize("wrong", [1, True, [], {}, None, ["Create"], {"Create": 1}])
async def test_the_type_of_an_operation_in_a_batch_is_a_text(emulator: CosmosEmulator, wrong: Any) -> None:
    request = (await with_offers(emulator))["batch"]
    status, answer = await request.ask(emulator, changed(request.body, ((0, "operationType"), wrong)))
    assert status == 400 and b"operation 0 of the batch: it needs an operationType" in answer


async def test_a_patch_may_be_the_list_of_its_operations(emulator: CosmosEmulator) -> None:
    every = await with_offers(emulator)
    steps = [{"op": "set", "path": "/n", "value": 8}]
    assert (await every["item.patch"].ask(emulator, steps))[0] == 200
    batch = [{"operationType": "Patch", "id": "1", "resourceBody": [{"op": "incr", "path": "/n", "value": 1}]}]
    status, answer = await every["batch"].ask(emulator, batch)
    assert status == 200 and b'"n":9' in answer
    bad: tuple[Any, ...] = ([], [1], 1)
    for wrong in bad:
        assert (await every["item.patch"].ask(emulator, wrong))[0] == 400


@pytest.mark.parametrize("path", ["/list/123~", "/list/~", "/list/12~2", "/~/x", "/~"])
async def test_a_tilde_in_a_path_is_escaped_or_refused(emulator: CosmosEmulator, path: str) -> None:
    patch = (await with_offers(emulator))["item.patch"]
    for step in ({"op": "set", "path": path, "value": 1}, {"op": "move", "from": path, "path": "/moved"}):
        status, answer = await patch.ask(emulator, [step])
        assert status == 400 and b"written ~0" in answer
    status, answer = await patch.ask(emulator, [{"op": "set", "path": "/a~0b~1c", "value": 1}])
    assert status == 200 and b'"a~b/c":1' in answer


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("container.create", ("partitionKey", "version")),
        ("container.create", ("indexingPolicy",)),
        ("container.create", ("indexingPolicy", "indexingMode")),
        ("container.create", ("indexingPolicy", "automatic")),
        ("container.create", ("uniqueKeyPolicy",)),
        ("container.create", ("uniqueKeyPolicy", "uniqueKeys")),
        ("container.create", ("conflictResolutionPolicy",)),
        ("batch", (1, "ifMatch")),
        ("query", ("parameters",)),
    ],
)
async def test_what_is_empty_has_its_type_all_the_same(emulator: CosmosEmulator, operation: str, path: Path) -> None:
    request = (await with_offers(emulator))[operation]
    at: Any = request.body
    for name in path:
        at = at[name]
    empty: tuple[Any, ...] = ("", 0, False, [], {})
    for wrong in empty:
        if not isinstance(wrong, type(at)):
            assert (await request.ask(emulator, changed(request.body, (path, wrong))))[0] == 400, wrong
