"""Service Bus with the queues of the contract, for a test of its adapter, and Azurite to compare with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from tests.wire.on_azure import azurite
from tests.wire.on_azure.ground import BusGround, bus_ground


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[BusGround]:
    async with bus_ground() as found:
        yield found


@pytest.fixture(scope="module")
def of_azurite() -> Iterator[str]:
    yield from azurite.start()
