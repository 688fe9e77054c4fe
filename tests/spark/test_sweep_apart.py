"""A sweep over a store whose states lie apart: both containers by their ranges, by what is registered in the one."""

from __future__ import annotations

import asyncio

from outbox import Worker
from outbox.emulator.faults import FaultRule
from spark_jobs.sweep import surveyed
from spark_jobs.sweeping import Sweeping, swept_part
from tests.wire.on_azure.ground import place
from tests.wire.on_azure.ledger_app import Account, Order, ledger_app
from tests.wire.on_azure.test_placed_states import by_letter

NAMES = ("alice", "bob", "carol")


async def test_states_apart_are_swept_by_their_ranges_and_found_by_their_names() -> None:
    async with place() as world:
        world.servicebus.faults.install(FaultRule(kind="refused", operation="send", where="entries", count=None))
        backend = world.connect(states="accounts", place=by_letter)
        async with backend, Worker(ledger_app(), backend, drain_s=0.1) as worker:
            for name in NAMES:
                await worker.send("orders", Order(name, 1), id=name)
            while None in [await worker.state(Account, name) for name in NAMES]:  # noqa: ASYNC110  # nobody tells
                await asyncio.sleep(0.01)
        world.servicebus.faults.clear()
        settings = Sweeping(
            connect=lambda: world.connect(create=False, states="accounts", place=by_letter),
            **{"life_ms": 0, "margin_ms": 0, "grace_s": 0, "lanes": 2, "limit_s": 60},
        )
        parts, settings = await surveyed(settings, 2)
        assert settings.life_ms == (7 * 24 + 1) * 3_600_000, "registered with the infrastructure"
        assert [part.store for part in parts] == [0, 0, 1, 1] and all(part.end for part in parts)
        rows = [await swept_part(settings, part) for part in parts]
        assert sum(row["finished"] for row in rows) == len(NAMES) and not any(row["foreign"] for row in rows)
        assert len(world.servicebus.engine.broker.queue("entries").tasks) == len(NAMES)
