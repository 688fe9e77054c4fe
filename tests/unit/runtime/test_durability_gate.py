"""What leaves the process through a handler leaves only after what it depends on is durable."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outbox import App, Context, Engine, Worker
from tests.unit.messages import deliver


@dataclass
class Ask:
    key: str


async def test_a_call_is_made_only_when_its_message_is_durable(disk_path: Path) -> None:
    app, synced = App("a"), []

    async with Engine.open(disk_path / "data") as engine:
        log = engine.log
        assert log is not None

        @app.handler("q", key="key")
        async def handle(ask: Ask, ctx: Context) -> None:
            before = log.appended - 1  # the claim itself may be written only
            await ctx.call(lambda: synced.append(log.synced >= before))

        async with Worker(app, engine) as worker:
            await worker.wait_idle()
            await deliver(worker, "q", Ask("a"))
    assert synced == [True]
