"""A queue of the namespace is drained when it holds nothing at all, whatever is asked through the administration."""

from __future__ import annotations

from outbox import Client
from outbox.engine.entities import Settlement
from outbox.runtime.store_operations import operations_over
from tests.wire.on_azure.ground import place
from tests.wire.on_azure.ledger_app import Order, ledger_app


async def test_a_queue_with_a_scheduled_message_is_idle_and_not_drained() -> None:
    async with place() as world, world.connect() as backend:
        operations = operations_over(backend.ports())
        client = Client(ledger_app(), backend)
        await client.declare()
        assert await operations.is_drained(["orders"])
        await client.send("orders", Order("alice", 1), after_s=600)
        assert await operations.is_idle(["orders"])
        assert not await operations.is_drained(["orders"])


async def test_a_queue_with_a_dead_letter_is_idle_and_not_drained() -> None:
    async with place() as world, world.connect() as backend:
        operations = operations_over(backend.ports())
        client = Client(ledger_app(), backend)
        await client.declare()
        await client.send("orders", Order("alice", 1), id="o1")
        engine = world.servicebus.engine
        (claim,) = engine.broker.claim("orders", 1)
        engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="poison")
        assert await operations.is_idle(["orders"])
        assert not await operations.is_drained(["orders"])
        await client.discard("orders", "o1")
        assert await operations.is_drained(["orders"])
