"""The dispatch ledger on Cosmos DB: its records are found by their entries, and what a worker has left leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from outbox import Worker, stored
from outbox.azure.servicebus.bus import ServiceBusBus
from outbox.errors import OutcomeUnknown
from outbox.ports import Create, Output
from outbox.runtime.shell import Recovery
from outbox.stored import Record, entry_of, record_key
from tests.wire.on_azure.ground import cosmos_ground, place
from tests.wire.on_azure.ledger_app import Order, ledger_app


async def test_records_are_listed_by_their_entries() -> None:
    async with cosmos_ground() as ground:
        store = ground.store(dispatch_ledger=True)
        for ledger, number in (("a", 1), ("a", 2), ("a", 10), ("b", 2)):
            record = Record("tx", b"", 0, entry=entry_of(ledger, number))
            key = record_key(f"Sum:{ledger}{number}", b"inbox")
            await store.write([Create(key, stored.encode(record))])
        await store.write([Create(record_key("Sum:c", b"inbox"), stored.encode(Record("tx", b"", 0, pending=True)))])
        found = [stored.decode(one, Record).entry async for one in store.unsent(entry_of("a", 2), "a0")]
        assert sorted(found) == [entry_of("a", 2), entry_of("a", 10)]
        assert [one async for one in store.unsent(entry_of("a", 3), entry_of("a", 10))] == []


async def test_what_a_worker_could_not_send_leaves_in_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    app = ledger_app()
    async with place() as world:
        with monkeypatch.context() as patch:
            patch.setattr(ServiceBusBus, "send", _send_nothing(ServiceBusBus.send))
            async with world.connect(dispatch_ledger=True) as backend, Worker(app, backend, drain_s=0.2) as worker:
                await worker.send("orders", Order("alice", 5), id="o1")
                async with asyncio.timeout(10):
                    while not world.cosmos.usage().get("batch"):  # noqa: ASYNC110  # no event says so it is committed
                        await asyncio.sleep(0.02)
                await asyncio.sleep(0.2)
        assert world.servicebus.engine.broker.queue("entries").counts()["active"] == 0
        async with world.connect(dispatch_ledger=True) as backend:
            other = Worker(app, backend)  # it has not begun: the order that the first gave back stays in its queue
            recovery: Recovery | None = other._recovery
            assert recovery is not None
            swept = await recovery.sweep(grace_s=0)
            await other.drain()
            assert (swept.finished_count, swept.idle_count) == (1, 0)
        assert world.servicebus.engine.broker.queue("entries").counts()["active"] == 1


def _send_nothing(send: Any) -> Any:
    """A bus that sends what clients send, and nothing that handlers emit."""

    async def sending(bus: ServiceBusBus, outputs: Sequence[Output]) -> None:
        if any(output.destination == "entries" for output in outputs):
            raise OutcomeUnknown("nothing comes back")
        await send(bus, outputs)

    return sending
