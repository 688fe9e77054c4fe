"""A storage account for tests that are not asynchronous: the Blob Storage emulator on a loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from azure.storage.blob import ContainerClient

from outbox.emulator.blobs.server import BlobEmulator
from outbox.emulator.faults import FaultRule
from outbox.engine.engine import Engine

BOX = "lake"
PLACES = (pytest.param("folder", marks=pytest.mark.soak), "emulator", pytest.param("azurite", marks=pytest.mark.soak))
"""Of the fixture `address`, for tests that take half a minute each; most others are about folders."""


class Lake:
    """An account with a container, reached by `environ`."""

    def __init__(self, connection_string: str, emulator: BlobEmulator | None = None) -> None:
        self.environ = {"OUTBOX_LAKE": connection_string}
        self.emulator = emulator
        self._loop: asyncio.AbstractEventLoop | None = None

    def blobs(self) -> ContainerClient:
        return ContainerClient.from_connection_string(self.environ["OUTBOX_LAKE"], BOX)

    def plant(self, *rules: FaultRule) -> None:
        """Install these rules in place of all others."""
        emulator = self.emulator
        assert emulator is not None
        emulator.faults.clear()
        for rule in rules:
            emulator.faults.install(rule)


@contextmanager
def emulated(page_count_max: int = 5_000, clock: Any = None) -> Iterator[Lake]:
    """The emulator, in memory, with an empty container."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def start() -> tuple[Engine, BlobEmulator]:
        engine = Engine.in_memory() if clock is None else Engine.in_memory(clock=clock)
        return engine, await BlobEmulator(engine, port=0, page_count_max=page_count_max).start()

    engine, emulator = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        lake = Lake(emulator.connection.connection_string, emulator)
        lake.blobs().create_container()
        yield lake
    finally:
        asyncio.run_coroutine_threadsafe(emulator.stop(), loop).result(30)
        loop.call_soon_threadsafe(engine.close)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
