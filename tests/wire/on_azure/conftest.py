"""Service Bus with the queues of the contract, for a test of its adapter."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.wire.on_azure.ground import BusGround, bus_ground


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[BusGround]:
    async with bus_ground() as found:
        yield found
