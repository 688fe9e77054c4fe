"""Connections and locks of Service Bus that break while messages are out: the bus goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from outbox.azure.servicebus import ServiceBusBus
from outbox.azure.servicebus_letters import ServiceBusLetters
from outbox.azure.servicebus_links import Link
from outbox.azure.servicebus_sources import SessionSource
from outbox.errors import LockLost, OutcomeUnknown
from outbox.ports import Settle
from tests.wire.on_azure.bus_calls import QUEUE, output, received
from tests.wire.on_azure.ground import BusGround, bus_ground


@pytest_asyncio.fixture
async def ground() -> AsyncIterator[BusGround]:
    async with bus_ground() as found:
        yield found


def link_of(bus: ServiceBusBus, queue: str) -> Link:
    source: Any = bus._sources[queue]
    found = source._links[0] if isinstance(source, SessionSource) else source._link
    assert found is not None
    return found


async def broken(receiver: Any) -> None:
    """Break the connection of a receiver, unseen until somebody uses it."""
    receiver._handler._connection._transport.writer.transport.abort()
    await asyncio.sleep(0.1)


async def test_giving_back_over_a_broken_connection_fails_as_the_port_says_and_the_bus_goes_on(
    ground: BusGround,
) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(4)])
    deliveries = await received(bus, count=4)
    await broken(link_of(bus, QUEUE).receiver)
    await bus.settle(deliveries[0], Settle("release"))  # the socket takes it, and nobody can tell
    with pytest.raises(OutcomeUnknown):
        await bus.settle(deliveries[1], Settle("release"))
    with pytest.raises(LockLost):
        await bus.settle(deliveries[2], Settle("release"))
    await bus.send([output("next")])
    assert "next" in {one.message.identity for one in await received(bus, count=1)}


async def test_a_link_whose_connection_is_broken_closes_without_failing(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(6)])
    await received(bus, count=1)
    link = link_of(bus, QUEUE)
    link.want(3)
    await asyncio.sleep(0.5)
    assert len(link.ready) >= 2  # closing gives them back
    await broken(link.receiver)
    await bus.close()
    assert link.receiver._shutdown.is_set()  # it was closed, not left behind


async def test_dead_letters_that_cannot_be_given_back_fail_nothing(ground: BusGround) -> None:
    bus = ground.bus()
    await bus.send([output(str(n)) for n in range(3)])
    for delivery in await received(bus, count=3):
        await bus.settle(delivery, Settle("dead-letter", reason="test"))
    letters = ServiceBusLetters(ground.namespaces[0], bus)
    first = (await letters.list(QUEUE))[0]
    async with letters._taken(QUEUE, first.sequence) as (receiver, _, others):
        assert len(others) == 2  # they are given back when this ends
        await broken(receiver)
