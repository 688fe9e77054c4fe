"""Pages of ordered queries: a later page looks at what was written since, and is what it would be computed anew."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from outbox.emulator.cosmos import feeds, history
from outbox.emulator.cosmos.history import FoundRow, Snapshots
from outbox.emulator.cosmos.query.plan import QueryPlan
from outbox.emulator.cosmos.server import CosmosEmulator
from outbox.emulator.faults import FaultRule
from outbox.engine.core import SystemClock
from outbox.engine.engine import Engine
from tests.wire.cosmos.asking import ask, of_items, with_container

COUNT = 600
PAGE_COUNT = 15
KEY = {"x_ms_documentdb_partitionkey": '["a"]'}
ORDERED = "SELECT c.id, c.n FROM c ORDER BY c.n DESC"
TIED = "SELECT VALUE c.id FROM c WHERE c.n >= 0 ORDER BY c.text, c.n DESC"
JOINED = "SELECT c.id, t FROM c JOIN t IN c.tags ORDER BY c.text DESC"


class ShiftedClock(SystemClock):
    """The system's clock, so much ahead."""

    shift_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.shift_s


class Place:
    """A container, written and read by raw requests of one session."""

    def __init__(self, emulator: CosmosEmulator) -> None:
        self.emulator = emulator

    async def send(self, verb: str, id: str, body: bytes = b"", **headers: str) -> int:
        return (await ask(self.emulator, of_items(verb, id, body, **KEY, **headers)))[0]

    async def put(self, number: int, n: int) -> None:
        assert (await ask(self.emulator, upserted(number, n)))[0] in (200, 201)

    async def page(self, text: str, continuation: str = "", **headers: str) -> tuple[list[Any], str]:
        """One page, and where the next one goes on."""
        headers |= {"x_ms_max_item_count": str(PAGE_COUNT), "x_ms_continuation": continuation, **KEY}
        body = json.dumps({"query": text}).encode()
        request = of_items("POST", body=body, x_ms_documentdb_isquery="True", **headers)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.emulator.port)
        writer.write(request)
        async with asyncio.timeout(20):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if line)
            found = json.loads(await reader.readexactly(int(fields["Content-Length"])))
        writer.close()
        assert head.split(" ")[1] == "200", found
        return found["Documents"], fields.get("x-ms-continuation", "")

    async def pages(self, text: str) -> AsyncIterator[tuple[list[Any], str]]:
        continuation = ""
        while True:
            results, continuation = await self.page(text, continuation)
            yield results, continuation
            if not continuation:
                return


def upserted(number: int, n: int) -> bytes:
    item = {"id": str(number), "pk": "a", "n": n, "text": "abc"[n % 3], "tags": list(range(n % 4))}
    return of_items("POST", body=json.dumps(item).encode(), x_ms_documentdb_is_upsert="True", **KEY)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    async with Engine.in_memory() as engine, CosmosEmulator(engine, port=0) as emulator:
        composite = [{"path": "/text"}, {"path": "/n", "order": "descending"}]
        await with_container(emulator, indexingPolicy={"compositeIndexes": [composite]})
        place = Place(emulator)
        all_items = [upserted(number, number * 7_919 % COUNT) for number in range(COUNT)]
        assert (await ask(emulator, *all_items, within_s=60))[0] == 201
        yield place


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The items whose rows were evaluated."""
    found: list[Any] = []
    rows = QueryPlan.rows

    def counted(self: QueryPlan, item: Any) -> Any:
        found.append(item["id"])
        return rows(self, item)

    monkeypatch.setattr(QueryPlan, "rows", counted)
    yield found


async def anew(place: Place, text: str, continuation: str) -> tuple[list[Any], str]:
    """A page without anything that was kept, which stays as it was."""
    kept = place.emulator.store.snapshots._by_query
    before = kept.copy()
    kept.clear()
    try:
        return await place.page(text, continuation)
    finally:
        kept.clear()
        kept.update(before)


@pytest.mark.parametrize(
    "text", [ORDERED, "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.n", "SELECT c.n, COUNT(1) AS k FROM c GROUP BY c.n"]
)
async def test_the_fortieth_page_looks_at_no_item_again(place: Place, looked: list[Any], text: str) -> None:
    found, page_count = [], 0
    async for results, _ in place.pages(text):
        found += results
        page_count += 1
        assert len(looked) == COUNT, f"page {page_count}"
    assert (page_count, len(found)) == (COUNT // PAGE_COUNT, COUNT)
    if text == ORDERED:
        assert [row["n"] for row in found] == list(reversed(range(COUNT)))


@pytest.mark.parametrize("text", [ORDERED, TIED, JOINED, ORDERED + " OFFSET 30 LIMIT 420"])
@pytest.mark.parametrize("size_bytes", [history.SNAPSHOT_MAX_BYTES, 36_000])
async def test_pages_are_what_they_would_be_without_a_snapshot(
    place: Place, looked: list[Any], text: str, size_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Items are written, replaced and deleted between some of the pages; the rows may be too large to be kept."""
    monkeypatch.setattr(feeds, "SNAPSHOT_MAX_BYTES", size_bytes)
    chance = random.Random(size_bytes + len(text))
    results, continuation = await place.page(text)
    page_count, looked_count = 1, 0
    while continuation:
        for _ in range(chance.randrange(4) if page_count > 10 else 0):
            if chance.random() < 0.3:
                await place.send("DELETE", str(chance.randrange(COUNT)))
            else:
                await place.put(chance.randrange(COUNT + 200), chance.randrange(COUNT))
        expected = await anew(place, text, continuation)
        looked.clear()
        results, continuation = await place.page(text, continuation)
        looked_count += len(looked) if page_count <= 10 else 0
        assert (results, continuation) == expected, f"page {page_count}"
        page_count += 1
    assert page_count > 20
    assert bool(looked_count) is (size_bytes == 36_000)


async def test_distinct_results_are_computed_anew_after_a_write(place: Place) -> None:
    """They go on by count, so one that is new and comes first moves all others."""
    text = "SELECT DISTINCT VALUE c.n FROM c ORDER BY c.n"
    results, continuation = await place.page(text)
    assert results == list(range(PAGE_COUNT))
    await place.put(5_000, -1)
    assert (await place.page(text, continuation))[0] == list(range(PAGE_COUNT - 1, 2 * PAGE_COUNT - 1))


async def test_a_page_of_the_past_keeps_and_takes_nothing(place: Place) -> None:
    """A stale read is of another state than the one that was kept."""
    place.emulator.faults.install(FaultRule(kind="stale-read", operation="query", behind_count=2, count=None, after=1))
    _, continuation = await place.page(ORDERED)
    await place.put(0, 5_000)
    await place.put(1, -5_000)
    results, _ = await place.page(ORDERED, continuation)
    assert [row["n"] for row in results] == list(range(COUNT - PAGE_COUNT - 1, COUNT - 2 * PAGE_COUNT - 1, -1))


async def test_an_item_that_ran_out_is_on_no_page() -> None:
    clock = ShiftedClock()
    async with Engine.in_memory(clock=clock) as engine, CosmosEmulator(engine, port=0) as emulator:
        await with_container(emulator, defaultTtl=-1)
        place = Place(emulator)
        for number in range(100):
            item = {"id": str(number), "pk": "a", "n": number, **({"ttl": 600} if number % 2 else {})}
            assert await place.send("POST", "", json.dumps(item).encode()) == 201
        results, continuation = await place.page(ORDERED.replace(" DESC", ""))
        assert [row["n"] for row in results] == list(range(PAGE_COUNT))
        clock.shift_s = 700.0
        results, _ = await place.page(ORDERED.replace(" DESC", ""), continuation)
        assert [row["n"] for row in results] == list(range(PAGE_COUNT + 1, 3 * PAGE_COUNT + 1, 2))


# The store of snapshots


def test_snapshots_have_a_size_together_and_those_kept_longest_ago_go_first() -> None:
    kept, part = Snapshots(), [FoundRow((), ("", 0, 0), bytes(history.ALL_MAX_BYTES // 4 - history.ROW_BYTES))]
    for name in (b"1", b"2", b"3", b"4", b"1", b"5"):
        kept.keep(name, 7, part)
    assert [kept.get(name, 7) == part for name in (b"1", b"2", b"3", b"4", b"5")] == [True, False, True, True, True]
    assert kept.get(b"5", 8) is None
    kept.keep(b"6", 7, part * 5)
    assert [kept.get(name, 7) for name in (b"5", b"6")] == [None, None]
