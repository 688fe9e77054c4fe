"""Properties near what a broker takes: what is handled can be sent on and rescheduled, the rest is dead-lettered."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from azure.servicebus import ServiceBusMessage
from azure.servicebus.aio import ServiceBusClient

from outbox import App, Context, Retries, Worker
from outbox.message import ID_BYTES_MAX, PROPERTIES_BYTES_MAX
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order


def relaying() -> App:
    app = App("relay", retry=Retries(limit=3, delays_s=(0.05,)))
    app.queue("out")

    @app.handler("in", key="account")
    async def relay(order: Order, account: Account, ctx: Context) -> None:
        if ctx.delivery_count == 1 and order.amount == 13:
            raise ValueError("not yet")
        account.total += order.amount
        ctx.send("out", order)

    return app


async def sent(world: Place, amount: int, properties: dict[str | bytes, Any]) -> None:
    """Send as a foreign sender does, through the SDK."""
    async with (
        ServiceBusClient.from_connection_string(world.servicebus.connection_string) as client,
        client.get_queue_sender("in") as sender,
    ):
        body = b'{"account":"alice","amount":%d}' % amount
        properties = {"outbox-type": "Order", **properties}
        await sender.send_messages(ServiceBusMessage(body, message_id="m1", application_properties=properties))


@pytest.mark.parametrize(("name", "scope"), [("correlation-id", "item"), ("outbox-id", "partition"), ("own", "item")])
async def test_what_no_broker_takes_on_is_dead_lettered_and_its_key_is_unblocked(
    name: str, scope: Literal["partition", "item"]
) -> None:
    app = relaying()
    async with place() as world, world.connect(scope=scope) as backend, Worker(app, backend) as worker:
        await sent(world, 13, {name: "x" * 62_000})
        async with asyncio.timeout(20):
            while not (letters := await worker.dead_letters("in")):  # noqa: ASYNC110  # nor has a broker
                await asyncio.sleep(0.1)
        assert [(one.reason, one.message) for one in letters] == [("oversize", Order("alice", 13))]
        await worker.send("in", Order("alice", 5), id="m2")
        async with asyncio.timeout(20):
            while not world.servicebus.engine.broker.peek("out", 0, 1):  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.05)
        assert await worker.state(Account, "alice") == Account(5, 0)


async def test_the_longest_accepted_message_is_rescheduled_and_sent_on() -> None:
    app, own = relaying(), PROPERTIES_BYTES_MAX - 4 * ID_BYTES_MAX - 1_024
    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        longest: dict[str | bytes, Any] = {
            name: name[0] * ID_BYTES_MAX for name in ("correlation-id", "outbox-id", "traceparent")
        }
        await sent(world, 13, {"own": "x" * own, **longest})
        async with asyncio.timeout(20):
            while not (held := world.servicebus.engine.broker.peek("out", 0, 10)):  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.05)
        assert [task.message.correlation_id for task in held] == ["c" * ID_BYTES_MAX]
        assert await worker.dead_letters("in") == [] and await worker.state(Account, "alice") == Account(13, 0)
        assert backend.usage.reasons == {}
