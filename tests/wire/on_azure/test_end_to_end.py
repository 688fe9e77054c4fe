"""Workers and clients on `azure.connect`, against the emulators through the real SDKs."""

from __future__ import annotations

from outbox import Client, Worker
from tests.wire.on_azure.ground import place
from tests.wire.on_azure.ledger_app import Account, Order, books, ledger_app


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
