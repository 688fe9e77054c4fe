"""A key that stands still behind a dead letter, over a store and a bus: what is resubmitted goes ahead of the rest."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from outbox import App, Engine, Reject, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.message import Message
from outbox.ports import BusOperations, Delivery, Output, StorePorts
from outbox.runtime.delivery.blocked_sessions import BlockedSessions
from outbox.runtime.delivery.claim_check import redeem
from outbox.runtime.work import Attempt, Work
from outbox.testing import START_S, VirtualClock
from tests.unit.stores.store_site import AtTheEnd, Seen, Step, Trail


class Site:
    """Steps that are refused while they are `bad`, on a queue whose keys stop behind a dead letter."""

    def __init__(self, engine: Engine, clock: VirtualClock, scope: str, operations: BusOperations) -> None:
        ports = NarrowEngine(engine, "item" if scope == "item" else "partition").ports()
        self._ports = StorePorts(ports.store, ports.bus, operations, ports.blobs)
        self.engine, self.clock = engine, clock
        self.bad: set[tuple[str, int]] = {("trail", 1)}
        self.app = App("steps")
        self.app.queue("steps", "per_key")

        @self.app.handler("steps", key="key", on_dead_letter="stop_key")
        def follow(step: Step, trail: Trail) -> None:
            self.refuse("trail", step)
            trail.steps.append(step.n)

    def also_seen(self) -> None:
        """Let a second handler read the steps."""

        @self.app.handler("steps", key="key", on_dead_letter="stop_key")
        def look(step: Step, seen: Seen) -> None:
            self.refuse("seen", step)
            seen.steps.append(step.n)

    def refuse(self, who: str, step: Step) -> None:
        if (who, step.n) in self.bad:
            raise Reject("bad")

    def ports(self) -> StorePorts:
        return self._ports

    async def until(self, holds: Callable[[], Any]) -> None:
        """Let time pass until something holds."""
        async with asyncio.timeout(10):
            while not await holds():
                self.clock.seconds += 1
                self.engine.tick()
                await asyncio.sleep(0.005)

    async def rest(self) -> None:
        """Let some time pass, in which what rests comes several times."""
        for _ in range(20):
            self.clock.seconds += 1
            self.engine.tick()
            await asyncio.sleep(0.005)


def own_operations(engine: Engine) -> BusOperations:
    return engine.ports().operations


@asynccontextmanager
async def stopped(
    scope: str,
    operations: Callable[[Engine], BusOperations] = AtTheEnd,
    *,
    count: int = 5,
    both: bool = False,
    concurrency: int = 64,
) -> AsyncIterator[tuple[Site, Worker]]:
    """A worker whose key stands still behind step 1 of some."""
    clock = VirtualClock(START_S)
    async with Engine.in_memory(clock=clock) as engine:
        at = Site(engine, clock, scope, operations(engine))
        if both:
            at.also_seen()
            at.bad.add(("seen", 1))
        async with Worker(at.app, at, concurrency=concurrency) as worker:
            for number in range(count):
                await worker.send("steps", Step("a", number), id=f"s{number}")
            await at.until(lambda: worker.dead_letters("steps"))
            yield at, worker


async def steps(worker: Worker, kind: type[Trail] | type[Seen] = Trail) -> list[int]:
    found = await worker.state(kind, "a")
    return [] if found is None else found.steps


@pytest.mark.parametrize("operations", [AtTheEnd, own_operations])
async def test_a_resubmitted_message_goes_ahead_of_its_successors(
    scope: str, operations: Callable[[Engine], BusOperations]
) -> None:
    async with stopped(scope, operations) as (at, worker):
        at.bad.clear()
        await worker.resubmit("steps", "s1")
        await at.until(lambda: done(worker, 5))
        assert await steps(worker) == [0, 1, 2, 3, 4]


async def done(worker: Worker, count: int) -> bool:
    return len(await steps(worker)) == count


async def test_a_resubmitted_message_that_is_refused_again_keeps_its_key_where_it_is(scope: str) -> None:
    async with stopped(scope) as (at, worker):
        await worker.resubmit("steps", "s1")
        await at.until(lambda: worker.dead_letters("steps"))
        await at.rest()
        assert await steps(worker) == [0]
        await worker.discard("steps", "s1")
        await at.until(lambda: done(worker, 4))
        assert await steps(worker) == [0, 2, 3, 4]


async def test_a_key_goes_on_only_when_every_handler_has_applied_what_it_stood_behind(scope: str) -> None:
    async with stopped(scope, both=True) as (at, worker):
        at.bad = {("seen", 1)}
        await worker.resubmit("steps", "s1")
        await at.until(lambda: worker.dead_letters("steps"))
        await at.rest()
        assert (await steps(worker), await steps(worker, Seen)) == ([0, 1], [0])
        at.bad.clear()
        await worker.resubmit("steps", "s1")
        await at.until(lambda: done(worker, 5))
        assert await steps(worker) == await steps(worker, Seen) == [0, 1, 2, 3, 4]


async def test_a_resubmission_that_cannot_be_reached_is_logged_and_not_overtaken(
    scope: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="outbox.lanes"):
        async with stopped(scope, count=6, concurrency=2) as (at, worker):
            at.bad.clear()
            await worker.resubmit("steps", "s1")
            await at.rest()
            assert await steps(worker) == [0]
            await worker.drain()
            async with Worker(at.app, at) as larger:
                await at.until(lambda: done(larger, 6))
                assert await steps(larger) == [0, 1, 2, 3, 4, 5]
        assert "raise concurrency" in caplog.messages[-1] and vars(caplog.records[-1])["id"] == "s1"


async def test_what_is_resubmitted_is_noted_with_its_body_apart_where_a_document_could_not_hold_it(scope: str) -> None:
    clock, body = VirtualClock(START_S), b'{"key":"a","n":1}' + 900_000 * b" "
    async with Engine.in_memory(clock=clock) as engine:
        at = Site(engine, clock, scope, AtTheEnd(engine))
        async with Worker(at.app, at) as worker:
            await worker.send("steps", Step("a", 0), id="s0")
            whole = Message(body=body, outbox_id="s1", type="Step", created_ms=engine.now_ms(), session_id="a")
            await at.ports().operations.send([Output("steps", 0, whole)])  # as a sender with a limit of its own
            await worker.send("steps", Step("a", 2), id="s2")
            await at.until(lambda: worker.dead_letters("steps"))
            await worker.resubmit("steps", "s1")
            await at.until(lambda: worker.dead_letters("steps"))  # refused again
            at.bad.clear()
            (dead_letter,) = await at.ports().operations.dead_letters("steps")
            await BlockedSessions(at.ports().store, at.ports().blobs).note_resubmission("steps", dead_letter, 2)
            stop = await BlockedSessions(at.ports().store, at.ports().blobs).blocked_behind(
                Delivery("steps", 0, whole, 0, 0, 0)
            )
            assert stop is not None and stop.again is not None and stop.again.body == b""
            assert (await redeem(stop.again, at.ports().blobs)).body == body
            await worker.resubmit("steps", "s1")
            await at.until(lambda: done(worker, 3))
            assert await steps(worker) == [0, 1, 2]


@pytest.mark.parametrize("has_time", [True, False])
async def test_what_is_noted_as_resubmitted_begins_anew_under_its_first_time(scope: str, has_time: bool) -> None:
    async with stopped(scope) as (at, _):
        (dead_letter,) = await at.ports().operations.dead_letters("steps")
        dead_letter = replace(dead_letter, message=replace(dead_letter.message, failures=2))
        if not has_time:  # then it is as old as the broker says
            message = replace(dead_letter.message, created_ms=0)
            dead_letter = replace(dead_letter, message=message, enqueued_ms=dead_letter.message.created_ms - 5)
        at.clock.seconds += 60
        stops = BlockedSessions(at.ports().store, at.ports().blobs)
        await stops.note_resubmission("steps", dead_letter, 1)
        stop = await stops.blocked_behind(Delivery("steps", 0, dead_letter.message, 0, 0, 0))
        assert stop is not None and stop.again is not None
        assert (stop.again.attempt, stop.again.failures) == (1, 0)
        assert stop.again.created_ms == (dead_letter.message.created_ms or dead_letter.enqueued_ms) < at.engine.now_ms()


async def test_an_earlier_attempt_that_comes_once_more_does_not_undo_a_resubmission(scope: str) -> None:
    async with stopped(scope) as (at, worker):
        (dead_letter,) = await at.ports().operations.dead_letters("steps")
        stops = BlockedSessions(at.ports().store, at.ports().blobs)
        await stops.note_resubmission("steps", dead_letter, 1)
        work = Work(Delivery("steps", 0, dead_letter.message, 0, 0, 0))
        await stops.block(Attempt(work, is_blocker=True))  # of attempt 0: its host had died before it could complete it
        stop = await stops.blocked_behind(work.delivery)
        assert stop is not None and stop.again is not None and stop.again.attempt == 1
        again = Work(Delivery("steps", 0, stop.again, 0, 0, 0))
        await stops.block(Attempt(again, is_blocker=True))  # the attempt itself, refused again
        stop = await stops.blocked_behind(work.delivery)
        assert stop is not None and stop.again is None
        assert await steps(worker) == [0]
