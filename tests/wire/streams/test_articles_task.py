"""The article's task over three kinds of store and a database: an average over a sliding window, and a counter.

Two streams of numbers lie on an engine.  A processor keeps a window of both; its register is on Cosmos DB, its outputs
are on Blob Storage.  A sink counts the crossings in an SQLite file.  Replicas and sinks are killed at any time, and
answers of both services are lost: each average and each crossing is there once all the same.
"""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from outbox.azure.blobs.account import BlobAccount
from outbox.azure.blobs.state_store import BlobStateStore
from outbox.azure.blobs.store import AzureBlobStore
from outbox.emulator.faults import FaultRule, Faults
from outbox.engine.engine import Engine
from outbox.ports import StateStore
from outbox.streams import Entry, Inputs, OrderedLog, Processor, Step, TransactionalSink
from outbox.streams.log_places import Place, wall_ms
from tests.wire.on_azure.ground import blob_emulator, cosmos_ground

WINDOW_COUNT = 5
CROSSED_ABOVE = 50.0


@dataclass
class Window:
    items: list[float] = field(default_factory=list)


@dataclass
class Average:
    value: float


@dataclass
class Crossing:
    value: float


def average(window: Window, inputs: Inputs, step: Step) -> None:
    """The average of the last numbers of both streams, after each of them."""
    for entry in inputs:
        window.items = [*window.items, entry.value][-WINDOW_COUNT:]
        mean = sum(window.items) / len(window.items)
        step.emit("averages", Average(mean))
        if mean > CROSSED_ABOVE:
            step.emit("crossings", Crossing(mean))


def count(db: sqlite3.Connection, entries: Sequence[Entry[Crossing]]) -> None:
    db.execute("UPDATE counters SET n = n + ? WHERE name = 'crossings'", (len(entries),))


class Site:
    """The stores, and what runs over them; each call is another process."""

    def __init__(self, engine: Engine, cosmos: StateStore, blobs: Place, file: Path, faults: list[Faults]) -> None:
        self.engine = engine
        self.faults = faults
        self.cosmos = cosmos
        self.blobs = blobs
        self.file = file
        with sqlite3.connect(file) as db:
            db.execute("CREATE TABLE counters (name TEXT PRIMARY KEY, n INTEGER)")
            db.execute("INSERT INTO counters VALUES ('crossings', 0)")

    def input(self, name: str) -> OrderedLog[float]:
        return OrderedLog(name, self.engine, type=float)

    def output(self, name: str, kind: Any) -> OrderedLog[Any]:
        return OrderedLog(name, self.blobs, type=kind, poll_s_max=0.05)

    def processor(self) -> Processor[Window]:
        inputs = {name: self.input(name) for name in ("left", "right")}
        outputs = {"averages": self.output("averages", Average), "crossings": self.output("crossings", Crossing)}
        return Processor(
            "averages", average, state=Window, register=self.cosmos, inputs=inputs, outputs=outputs, batch_max=2
        )

    def sink(self) -> TransactionalSink:
        crossings = self.output("crossings", Crossing)
        return TransactionalSink(
            "counter", crossings, lambda: sqlite3.connect(self.file), count, create=True, batch_max=2
        )

    def counted(self) -> int:
        with sqlite3.connect(self.file) as db:
            found: int = db.execute("SELECT n FROM counters").fetchone()[0]
            return found

    async def averages(self) -> list[float]:
        return [entry.value.value async for entry in self.output("averages", Average).read()]


@asynccontextmanager
async def site(file: Path) -> AsyncIterator[Site]:
    async with Engine.in_memory() as engine, cosmos_ground() as cosmos, blob_emulator() as emulator:
        account = BlobAccount(emulator.connection.connection_string, "streams")
        await account.prepare(create=True)
        place = Place(BlobStateStore(account, now_ms=wall_ms), AzureBlobStore(account))
        yield Site(engine, cosmos.store(), place, file, [cosmos.emulator.faults, emulator.faults])
        await account.close()


async def feed(at: Site, chance: random.Random, number_count: int) -> None:
    """Numbers into both streams."""
    for n in range(number_count):
        await at.input(chance.choice(["left", "right"])).append(float(chance.randrange(100)), id=f"{n}")


async def check(at: Site, number_count: int) -> None:
    """Check that each number gave one average, and that the counter counts those above the limit."""
    found = await at.averages()
    assert len(found) == number_count
    assert at.counted() == sum(value > CROSSED_ABOVE for value in found)


async def test_averages_are_those_of_one_replica_that_never_failed(tmp_path: Path) -> None:
    async with site(tmp_path / "counters.db") as at:
        given = [10.0, 20.0, 90.0, 90.0, 90.0, 90.0, 90.0, 0.0]
        for n, value in enumerate(given):
            await at.input("left").append(value, id=f"{n}")
        await kill_again_and_again(at, random.Random(2))
        await at.processor().run_until_idle()
        windows = [given[max(0, n + 1 - WINDOW_COUNT) : n + 1] for n in range(len(given))]
        assert await at.averages() == [sum(window) / len(window) for window in windows]


async def kill_again_and_again(at: Site, chance: random.Random) -> None:
    """Start replicas and a sink, and kill them, a few times."""
    for _ in range(6):
        tasks = [asyncio.create_task(at.processor().run_until_idle()) for _ in range(2)]
        tasks.append(asyncio.create_task(at.sink().run_until_idle()))
        await asyncio.sleep(chance.random() * 0.05)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("seed", range(2))
async def test_replicas_and_sinks_that_are_killed_lose_and_repeat_nothing(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    async with site(tmp_path / "counters.db") as at:
        feeding = asyncio.create_task(feed(at, chance, 24))
        await kill_again_and_again(at, chance)
        await feeding
        await at.processor().run_until_idle()
        await at.sink().run_until_idle()
        await check(at, 24)


FAULTS = [
    FaultRule(kind="lost-reply", probability=0.2, seed=1, count=4),
    FaultRule(kind="reset", after=20, count=1),
    FaultRule(kind="stale-read", operation="item.read", probability=0.2, count=None),
]


async def test_answers_that_are_lost_or_stale_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async with site(tmp_path / "counters.db") as at:
        await feed(at, random.Random(3), 24)
        for faults in at.faults:
            for rule in FAULTS:
                faults.install(rule)
        await asyncio.gather(at.processor().run_until_idle(), at.processor().run_until_idle())
        await at.sink().run_until_idle()
        for faults in at.faults:
            assert faults.fired["lost-reply"] > 1
            faults.clear()
        await at.processor().run_until_idle()
        await at.sink().run_until_idle()
        await check(at, 24)
