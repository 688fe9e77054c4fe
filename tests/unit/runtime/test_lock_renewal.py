"""A worker keeps the locks of what it handles, short ones too, and asks for no more renewals than that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
import pytest

from outbox import App, Engine, Worker
from outbox.engine.entities import QueueSettings
from outbox.errors import OutcomeUnknown
from outbox.message import Message
from outbox.ports import Delivery, Ports


@dataclass
class Slow:
    """A message whose handling takes so many seconds."""

    takes_s: float


class Counted:
    """A backend that notes what is renewed; so many renewals fail first."""

    def __init__(self, engine: Engine, failing: int = 0) -> None:
        self._ports = engine.ports()
        self.renewed: list[list[str]] = []
        renew = self._ports.journal.renew

        async def noted(deliveries: Sequence[Delivery]) -> int:
            self.renewed.append([delivery.queue for delivery in deliveries])
            if len(self.renewed) <= failing:
                raise OutcomeUnknown("no answer")
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


@pytest.mark.parametrize(("lock_s", "takes_s", "failing"), [(2.0, 3.0, 1), (0.4, 1.2, 0)])
async def test_a_handler_slower_than_its_lock_is_started_once(
    engine: Engine, lock_s: float, takes_s: float, failing: int
) -> None:
    started: list[float] = []
    engine.declare(QueueSettings("slow", lock_s=lock_s))
    backend = Counted(engine, failing)
    async with Worker(application(started), backend) as worker:
        await asyncio.sleep(0.05)  # the worker looks for locks already, every two seconds
        await worker.send("slow", Slow(takes_s))
        await worker.wait_idle(timeout_s=10)
        assert worker.handled_count == 1
    assert started == [takes_s]
    assert 2 <= len(backend.renewed) - failing <= takes_s / lock_s * 3 + 1


async def test_a_worker_looks_at_locks_as_often_as_the_newest_of_a_queue_needs() -> None:
    async with Engine.in_memory() as engine, Worker(application([]), engine) as worker:
        [group], now_ms = worker._claim_groups, engine.now_ms()
        for number, lock_ms in enumerate((100, 60_000)):
            held = Delivery("slow", number, Message(body=b""), 0, now_ms, now_ms + lock_ms)
            worker._note(group, [held])
            assert worker._shortest_ms <= 100  # looks at once
            worker._settled([held])
        await asyncio.sleep(0.01)
        assert worker._shortest_ms > 50_000


@pytest.mark.parametrize(("is_settled", "comes_again"), [(True, False), (True, True), (False, False)])
async def test_what_is_settled_while_its_lock_is_renewed_is_held_no_more(
    is_settled: bool, comes_again: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine.in_memory() as engine, Worker(application([]), engine) as worker:
        [group], now_ms = worker._claim_groups, engine.now_ms()
        held = Delivery("slow", 1, Message(body=b""), 0, now_ms, now_ms + 60_000)
        worker._note(group, [held])
        group.in_flight[1] = msgspec.structs.replace(held, locked_until_ms=now_ms)
        again = Delivery("slow", 1, Message(body=b""), 1, now_ms, now_ms + 70_000)

        async def renew(deliveries: Sequence[Delivery]) -> int:
            if is_settled:
                worker._settled(deliveries)
            if comes_again:
                worker._note(group, [again])
            return len(deliveries)

        monkeypatch.setattr(worker._intake, "renew", renew)
        await worker._renew_due(group)
        if comes_again:
            assert group.in_flight == {1: again}
            group.in_flight.clear()
            return
        assert [found.locked_until_ms >= now_ms + 60_000 for found in group.in_flight.values()] == [True] * (
            not is_settled
        )
        group.in_flight.clear()


@pytest.mark.parametrize(("left_ms", "is_renewed"), [(39_000, True), (41_000, False)])
async def test_a_lock_is_renewed_when_less_than_two_thirds_are_left(left_ms: int, is_renewed: bool) -> None:
    async with Engine.in_memory() as engine:
        backend = Counted(engine)
        async with Worker(application([]), backend) as worker:
            [group], now_ms = worker._claim_groups, engine.now_ms()
            worker._note(group, [Delivery("slow", 1, Message(body=b""), 0, now_ms, now_ms + 60_000)])
            group.in_flight[1] = msgspec.structs.replace(group.in_flight[1], locked_until_ms=now_ms + left_ms)
            await worker._renew_due(group)
            group.in_flight.clear()
    assert backend.renewed == [["slow"]] * is_renewed


async def test_a_long_lock_is_not_renewed_because_a_short_one_is(engine: Engine) -> None:
    engine.declare(QueueSettings("slow"), QueueSettings("quick", lock_s=0.5))
    backend = Counted(engine)
    async with Worker(application([]), backend) as worker:
        await worker.send("slow", Slow(1.0))
        await worker.send("quick", Slow(1.0))
        await worker.wait_idle(timeout_s=10)
    assert {queue for queues in backend.renewed for queue in queues} == {"quick"}
