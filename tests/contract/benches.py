"""The engine's adapters, each fresh, on memory, on a disk in memory and on a real one."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal
from uuid import uuid4

from outbox.engine.backend.apart import EngineBus, EngineStore
from outbox.engine.backend.operations import dead_letters
from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.log.disk import MemoryDisk
from outbox.engine.log.memory_disk import Crash
from outbox.ports import Ports
from outbox.testing import START_S, VirtualClock
from outbox.verify.contracts import BusFixture, JournalFixture

Ground = Literal["memory", "disk in memory", "folder"]
GROUNDS: tuple[Ground, ...] = ("memory", "disk in memory", "folder")
ORDERED = QueueSettings("contract-ordered", ordering="per_key")


class Bench:
    """An engine whose time stands still, and which can be killed."""

    def __init__(self, ground: Ground, folder: Path) -> None:
        self.clock = VirtualClock(START_S)
        self.ground = ground
        self.folder = folder / uuid4().hex
        self.disk = MemoryDisk("contract")
        self.crash = Crash.PROCESS
        self.engine = self.open()

    def open(self) -> Engine:
        if self.ground == "memory":
            return Engine.in_memory(clock=self.clock)
        place = self.folder if self.ground == "folder" else self.disk
        return Engine.open(place, clock=self.clock)

    async def wait(self, seconds: float) -> None:
        self.clock.seconds += seconds
        self.engine.tick()

    async def killed(self) -> Ports:
        if self.ground == "folder":
            self.engine.close()
        else:
            self.disk = self.disk.crash(self.crash, random.Random(7))
        self.engine = self.open()
        return self.engine.ports()

    async def dead_letters(self, queue: str) -> list[tuple[str, str]]:
        return [
            (dead_letter.message.identity, dead_letter.reason)
            for dead_letter in dead_letters(self.engine.broker, queue)
        ]


@asynccontextmanager
async def store(ground: Ground, folder: Path) -> AsyncIterator[EngineStore]:
    bench = Bench(ground, folder)
    yield EngineStore(bench.engine.core, bench.engine.documents)
    bench.engine.close()


@asynccontextmanager
async def bus(ground: Ground, folder: Path) -> AsyncIterator[BusFixture]:
    bench = Bench(ground, folder)
    bench.engine.declare(QueueSettings("contract"), ORDERED)
    yield BusFixture(
        EngineBus(bench.engine.core, bench.engine.broker), bench.engine.now_ms, bench.wait, bench.dead_letters
    )
    bench.engine.close()


@asynccontextmanager
async def journal(ground: Ground, folder: Path) -> AsyncIterator[JournalFixture]:
    bench = Bench(ground, folder)
    yield JournalFixture(bench.engine.ports(), bench.wait, bench.killed)
    bench.engine.close()
