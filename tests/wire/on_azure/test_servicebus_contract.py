"""The Service Bus adapter keeps the contract of a message bus, through the real SDK."""

from __future__ import annotations

import pytest

from outbox.verify.contracts import MESSAGE_BUS, BusFixture, Clause, check_message_bus, name_of
from tests.wire.on_azure.ground import bus_fixture


@pytest.mark.parametrize("clause", MESSAGE_BUS, ids=name_of)
async def test_service_bus_is_a_message_bus(clause: Clause[BusFixture]) -> None:
    await check_message_bus(bus_fixture, clauses=[clause])
