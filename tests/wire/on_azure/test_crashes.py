"""Workers that crash, lose replies and are refused, at drawn port calls, over the real SDKs: nothing seen changes.

The same promise as the crash matrix of the simulation, which tries every call; here a few draws show that the adapters
leave nothing behind (links, locks, batches) that the simulated ports do not.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from outbox import Client, Worker
from outbox.azure import AzureBackend
from outbox.engine.backend.operations import dead_letters
from outbox.engine.entities import QueueSettings
from outbox.errors import OutboxError
from outbox.ports import StorePorts
from outbox.verify.faults import FaultPlan, Faults, FaultyBlobs, FaultyBus, FaultyStore, SimulatedCrash
from tests.wire.on_azure.ground import Place, place
from tests.wire.on_azure.ledger_app import Account, Order, books, ledger_app

pytestmark = pytest.mark.slow


SENDS = [
    *((f"a{n}", Order("alice", n)) for n in range(6)),
    *((f"b{n}", Order("bob", n)) for n in range(6)),
    ("a1", Order("alice", 1)),
    ("r1", Order("alice", -1)),
    ("r1", Order("alice", -1)),
]
LOCK_S = 2
PROCESS_COUNT_MAX = 12


@dataclass
class Faulty:
    """A backend whose ports fail as planned."""

    backend: AzureBackend
    plan: FaultPlan

    def ports(self) -> StorePorts:
        known, plan = self.backend.ports(), self.plan
        store, bus = FaultyStore(known.store, plan), FaultyBus(known.bus, plan)
        return StorePorts(store, bus, known.operations, FaultyBlobs(known.blobs, plan))


def is_done(world: Place) -> bool:
    return not any(world.servicebus.engine.broker.peek(queue, 0, 1) for queue in ("orders", "entries"))


async def one_process(world: Place, app: Any, plan: FaultPlan, scope: Literal["partition", "item"]) -> None:
    """A worker on clients of its own, until everything is done or it dies."""
    async with world.connect(create=False, scope=scope) as backend:
        with suppress(SimulatedCrash, OutboxError):  # a process that dies is followed by another
            async with Worker(app, Faulty(backend, plan), drain_s=1) as worker:
                died = asyncio.ensure_future(worker.wait_stopped())
                while not is_done(world) and not died.done():  # noqa: ASYNC110  # an engine has no such event
                    await asyncio.sleep(0.05)
                died.cancel()
                with suppress(asyncio.CancelledError):
                    await died


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("scope", "ordering"), [("partition", "unordered"), ("partition", "per_key"), ("item", "unordered")]
)
async def test_drawn_faults_change_nothing_that_can_be_seen(scope: Any, ordering: Any, seed: int) -> None:
    app = ledger_app(ordering)
    plan = FaultPlan(Faults.drawn(seed=seed, crashes=2, lost=3, refused=2, duplicates=2, within=40))
    async with place() as world:
        world.declare(
            QueueSettings("orders", ordering=ordering, lock_s=LOCK_S), QueueSettings("entries", lock_s=LOCK_S)
        )
        async with world.connect(scope=scope) as outside:
            client = Client(app, outside)
            await client.declare()
            for id, order in SENDS:
                await client.send("orders", order, id=id)
            async with asyncio.timeout(80):
                for _ in range(PROCESS_COUNT_MAX):
                    await one_process(world, app, plan, scope)
                    if is_done(world):
                        break
            entries = await books(client)
            states = [await client.state(Account, name) for name in ("alice", "bob")]
        letters = {(one.message.identity, one.reason) for one in dead_letters(world.servicebus.engine.broker, "orders")}
    assert plan.fired
    assert len({entry.split()[0] for entry in entries}) == len(entries) == 12, plan.fired
    assert states == [Account(15, 6), Account(15, 6)], plan.fired
    assert letters == {("r1", "a negative amount")}, plan.fired
