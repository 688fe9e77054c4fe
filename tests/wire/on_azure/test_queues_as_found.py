"""Queues and subscriptions that somebody else has made: refused, or told of with the cure, as far as one may look."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from outbox import Client, Worker
from outbox.app import App
from outbox.azure.servicebus import entities
from outbox.azure.servicebus.entities import misfits
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.emulator.faults import FaultRule
from outbox.engine.entities import QueueSettings, TopicSettings
from outbox.errors import Refused
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order, ledger_app

AS_FOUND = QueueSettings("orders", lock_s=5, max_delivery_count=10, time_to_live_s=3_600, dead_letter_on_expiry=False)
AS_MADE = QueueSettings("entries", lock_s=60, max_delivery_count=100)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """What was told of queues: of which, and why."""
    records = [vars(record) for record in caplog.records if record.message == "queue settings do not fit"]
    return [(record["queue"], record["why"]) for record in records]


async def prepared(world: Place, *queues: Any) -> None:
    """Containers, and queues as somebody else has made them."""
    async with world.connect() as backend:
        await Client(App("nothing"), backend).declare()
    world.servicebus.engine.declare(*queues)


@pytest.mark.parametrize("create", [True, False])
async def test_a_queue_whose_broker_may_expire_messages_is_logged_once(
    create: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with place() as world:
        await prepared(world, AS_FOUND, AS_MADE)
        async with world.connect(create=create) as backend:
            for _ in range(2):
                await Client(ledger_app(), backend).declare()
        (count, lock, life) = told(caplog)
        assert {count[0], lock[0], life[0]} == {"orders"}
        assert "max delivery count is 10:" in count[1] and count[1].endswith("set 100")
        assert "locks last 5 s" in lock[1] and "held for 3600 s is dropped" in life[1]


async def test_entities_are_counted_up_to_a_limit_and_named_below_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with place() as world:
        await prepared(world, QueueSettings("a"), TopicSettings("t", ("x", "y", "z")))
        async with world.connect() as backend:
            every, named = await backend.operations.counts(), await backend.operations.names("t/Subscriptions/x")
            assert len(every) == 4 and {"a", "t", *every} == {*named}
            for limit in (3, 2, 1):
                monkeypatch.setattr(entities, "ENTITY_COUNT_MAX", limit)
                assert list(await backend.operations.counts()) == list(every)[:limit]
                assert limit == 3 or await backend.operations.names("t") == []


@pytest.mark.parametrize("create", [True, False])
async def test_a_subscription_is_looked_at_too(create: bool, caplog: pytest.LogCaptureFixture) -> None:
    app = App("news")
    app.topic("news")

    @app.handler("news", subscription="readers", key="account")
    def read(order: Order, account: Account) -> None:
        account.total += order.amount

    async with place() as world:
        path = "news/Subscriptions/readers"
        await prepared(world, TopicSettings("news", ("readers",)), QueueSettings(path, max_delivery_count=3))
        async with world.connect(create=create) as backend:
            await Client(app, backend).declare()
        assert [(queue, why[:28]) for queue, why in told(caplog)] == [(path, "its max delivery count is 3:")]


@pytest.mark.parametrize("create", [True, False])
async def test_a_queue_that_orders_otherwise_is_refused_at_the_start(create: bool) -> None:
    async with place() as world:
        await prepared(world, QueueSettings("orders", ordering="per_key"), AS_MADE)
        async with world.connect(create=create) as backend:
            with pytest.raises(Refused, match=r"orders is there .*does without sessions"):
                await Client(ledger_app(), backend).declare()


async def test_a_worker_that_may_not_read_settings_logs_so_once_and_works(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with place() as world:
        await prepared(world, AS_FOUND, AS_MADE)
        world.servicebus.faults.install(FaultRule(kind="status", status=401, operation="admin/get", count=None))
        async with world.connect(create=False) as backend:
            app = ledger_app()
            for _ in range(2):
                await Client(app, backend).declare()
            async with Worker(app, backend) as worker:
                await worker.send("orders", Order("alice", 1), id="1")
                async with asyncio.timeout(20):
                    while await worker.state(Account, "alice") is None:  # noqa: ASYNC110  # a store tells nobody
                        await asyncio.sleep(0.05)
        records = [record for record in caplog.records if "queue settings cannot be read" in record.message]
        assert [record.levelno for record in records] == [logging.INFO] and told(caplog) == []
        assert "right to manage" in vars(records[0])["error"]


async def test_a_namespace_that_does_not_answer_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.azure.servicebus.entities.LOOK_S", 0.2)
    async with place() as world:
        await prepared(world, AS_FOUND, AS_MADE)
        world.servicebus.faults.install(FaultRule(kind="reset", operation="admin/get", count=None))
        async with world.connect(create=False) as backend:
            await Client(ledger_app(), backend).declare()


async def test_what_is_made_here_is_as_it_has_to_be_and_what_deletes_itself_is_not() -> None:
    async with place() as world, world.connect() as backend:
        await Client(ledger_app("per_key"), backend).declare()
        namespace = ServiceBusNamespace(world.servicebus.connection_string)
        try:
            found = await namespace.administration().get_queue("orders")
        finally:
            await namespace.close()
        assert list(misfits(found)) == []
        found.auto_delete_on_idle = timedelta(minutes=5)
        (why,) = misfits(found)
        assert "deleted with all that it holds after 300 s" in why
        found.auto_delete_on_idle = None
        assert list(misfits(found)) == []
