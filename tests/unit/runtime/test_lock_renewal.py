"""A worker keeps the locks of what it handles, short ones too, and asks for no more renewals than that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from outbox import App, Engine, Worker
from outbox.engine.entities import QueueSettings
from outbox.ports import Delivery, Ports


@dataclass
class Slow:
    """A message whose handling takes so many seconds."""

    takes_s: float


class Counted:
    """A backend that notes what is renewed."""

    def __init__(self, engine: Engine) -> None:
        self._ports = engine.ports()
        self.renewed: list[list[str]] = []
        renew = self._ports.journal.renew

        async def noted(deliveries: Sequence[Delivery]) -> int:
            self.renewed.append([delivery.queue for delivery in deliveries])
            return await renew(deliveries)

        self._ports.journal.renew = noted  # type: ignore[method-assign]  # one instance, for this test

    def ports(self) -> Ports:
        return replace(self._ports)


def application(started: list[float]) -> App:
    app = App("slow")

    @app.handler("quick")
    @app.handler("slow")
    async def handle(slow: Slow) -> None:
        started.append(slow.takes_s)
        await asyncio.sleep(slow.takes_s)

    return app


@pytest.mark.parametrize(("lock_s", "takes_s"), [(2.0, 3.0), (0.4, 1.2)])
async def test_a_handler_slower_than_its_lock_is_started_once(engine: Engine, lock_s: float, takes_s: float) -> None:
    started: list[float] = []
    engine.declare(QueueSettings("slow", lock_s=lock_s))
    backend = Counted(engine)
    async with Worker(application(started), backend) as worker:
        await asyncio.sleep(0.05)  # the worker looks for locks already, every two seconds
        await worker.send("slow", Slow(takes_s))
        await worker.wait_idle(timeout_s=10)
        assert worker.handled_count == 1
    assert started == [takes_s]
    assert 2 <= len(backend.renewed) <= takes_s / lock_s * 3 + 1


async def test_a_long_lock_is_not_renewed_because_a_short_one_is(engine: Engine) -> None:
    engine.declare(QueueSettings("slow"), QueueSettings("quick", lock_s=0.5))
    backend = Counted(engine)
    async with Worker(application([]), backend) as worker:
        await worker.send("slow", Slow(1.0))
        await worker.send("quick", Slow(1.0))
        await worker.wait_idle(timeout_s=10)
    assert {queue for queues in backend.renewed for queue in queues} == {"quick"}
