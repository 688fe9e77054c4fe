"""Workers and clients on `azure.connect`, against the emulators through the real SDKs."""

from __future__ import annotations

import msgspec
import pytest

from outbox import Client, Worker
from outbox.emulator.faults import FaultRule, Faults
from outbox.engine.entities import QueueSettings
from tests.wire.on_azure.ground import place, settled
from tests.wire.on_azure.ledger_app import Account, Order, books, ledger_app

FAULTS_OF_STORE = (
    FaultRule(kind="lost-reply", operation="batch", probability=0.04, count=None),
    FaultRule(kind="reset", operation="batch", probability=0.04, count=None),
    FaultRule(kind="throttled", operation="batch", batch_index=1, probability=0.04, retry_after_s=0.01, count=None),
    FaultRule(kind="status", status=503, operation="batch", probability=0.02, count=None),
    FaultRule(kind="stale-read", operation="item.read", probability=0.3, count=None),
    FaultRule(kind="lost-reply", operation="item.read", probability=0.04, count=None),
)
FAULTS_OF_BUS = (
    FaultRule(kind="lost-reply", operation="send", probability=0.002, count=1),
    FaultRule(kind="throttled", operation="send", probability=0.02, count=None),
    FaultRule(kind="duplicate", operation="receive", probability=0.1, count=None),
    FaultRule(kind="reset", operation="receive", probability=0.01, count=2),
    FaultRule(kind="lock-expiry", operation="receive", probability=0.03, count=None),
)
ACCOUNTS = [f"account-{n}" for n in range(10)]


def rule_with(rule: FaultRule, **changes: object) -> FaultRule:
    return msgspec.structs.replace(rule, **changes)


async def test_messages_are_handled_once_and_states_read_by_another_client() -> None:
    app = ledger_app()
    async with place() as world, world.connect() as backend, Worker(app, backend) as worker:
        for n in range(3):
            await worker.send("orders", Order("alice", n), id=f"o{n}")
            await worker.send("orders", Order("alice", n), id=f"o{n}")
        await worker.wait_idle(timeout_s=20)
        async with world.connect(create=False) as other:
            client = Client(app, other)
            assert await client.state(Account, "alice") == Account(3, 3)
            assert len(await books(client)) == 3


@pytest.mark.slow
@pytest.mark.parametrize("ordering", ["unordered", "per_key"])
async def test_two_hundred_messages_under_faults_are_neither_lost_nor_doubled(
    ordering: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.azure.servicebus.bus.SEND_S", 1.0)  # how long a lost answer is waited for
    app, fired = ledger_app(ordering), dict[str, int]()
    documents, deliveries = Faults(), Faults()
    async with place(cosmos_faults=documents, bus_faults=deliveries) as world:
        world.declare(
            QueueSettings("orders", ordering="per_key" if ordering == "per_key" else "unordered", lock_s=5),
            QueueSettings("entries", lock_s=5),
        )
        async with world.connect() as backend, Worker(app, backend) as worker:
            for n, rule in enumerate(FAULTS_OF_STORE):
                documents.install(rule_with(rule, seed=n))
            for n, rule in enumerate(FAULTS_OF_BUS):
                deliveries.install(rule_with(rule, seed=n))
            for n in range(200):
                await worker.send("orders", Order(ACCOUNTS[n % 10], n), id=f"o{n}")
            await settled(world, "orders", "entries")
            for faults in (documents, deliveries):
                fired |= {f"{one.rule.kind} {one.rule.operation}": one.fired_count for one in faults.installed()}
                faults.clear()
            async with world.connect() as other:
                client = Client(app, other)
                entries = await books(client)
                states = [await client.state(Account, name) for name in ACCOUNTS]
    ids = [entry.split()[0] for entry in entries]
    assert len(ids) == len(set(ids)) == 200
    assert [state.total for state in states if state] == [sum(range(n, 200, 10)) for n in range(10)]
    assert sum(fired.values()) > 20 and all(fired.values()), fired
