"""An emulator of Blob Storage in the test's own loop, on a clock that is moved, with a container `box`."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from outbox.emulator.blobs.server import BlobEmulator
from outbox.engine.engine import Engine
from outbox.testing import START_S, VirtualClock
from tests.wire.blobs.asking import ask, signed


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(START_S)


@pytest.fixture
async def emulator(clock: VirtualClock) -> AsyncIterator[BlobEmulator]:
    async with Engine.in_memory(clock=clock) as engine, BlobEmulator(engine, port=0) as emulator:
        assert (await ask(emulator, signed("PUT", "/box?restype=container"))).status == 201
        yield emulator
