"""A worker of one at a time claims some messages at once while none takes any time; what that may not change."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from outbox import App, Engine, Worker
from outbox.engine.entities import QueueSettings
from outbox.message import Message
from outbox.ports import Delivery, Ports
from outbox.worker import AHEAD_COUNT, AHEAD_S


@dataclass
class Line:
    """A message, and how long its handler waits (or, below 0, computes)."""

    n: int
    takes_s: float = 0.0


class Claims:
    """A backend that notes how many messages each claim asked for, and how many it got."""

    def __init__(self, engine: Engine) -> None:
        self._ports = engine.ports()
        self.asked: list[int] = []
        self.got: list[int] = []
        claim = self._ports.journal.claim

        async def noted(queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
            deliveries = await claim(queues, count_max=count_max, wait_s=wait_s)
            self.asked.append(count_max)
            self.got.append(len(deliveries))
            return deliveries

        self._ports.journal.claim = noted  # type: ignore[method-assign]  # one instance, for this test

    def ports(self) -> Ports:
        return replace(self._ports)


def application(handled: list[int], *, ordering: str = "unordered") -> App:
    app = App("lines")
    app.queue("lines", ordering=ordering)  # type: ignore[arg-type]  # one of two
    at_work = 0

    @app.handler("lines")
    async def handle(line: Line) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1, "two at a time"
        if line.takes_s < 0:
            time.sleep(-line.takes_s)  # noqa: ASYNC251  # it computes
        elif line.takes_s:
            await asyncio.sleep(line.takes_s)
        at_work -= 1
        handled.append(line.n)

    return app


def put(engine: Engine, app: App, lines: Sequence[Line], *, session_id: str = "") -> None:
    for line in lines:
        body, kind = app.encode(line)
        engine.broker.send("lines", [Message(body=body, outbox_id=str(line.n), type=kind, session_id=session_id)])


async def run(lines: Sequence[Line], *, concurrency: int = 1, ordering: str = "unordered") -> tuple[Claims, list[int]]:
    handled: list[int] = []
    app = application(handled, ordering=ordering)
    async with Engine.in_memory() as engine:
        engine.declare(QueueSettings("lines", ordering=ordering))  # type: ignore[arg-type]  # one of two
        put(engine, app, lines, session_id="s" if ordering == "per_key" else "")
        backend = Claims(engine)
        async with Worker(app, backend, concurrency=concurrency) as worker:
            await worker.wait_idle(timeout_s=5)
            assert worker.handled_count == len(lines)
    return backend, handled


async def test_quick_messages_are_claimed_together_and_handled_in_turn() -> None:
    count = 10 * AHEAD_COUNT
    backend, handled = await run([Line(n) for n in range(count)])
    assert handled == list(range(count))
    assert backend.got[0] == 1 and max(backend.got) == AHEAD_COUNT
    assert sum(1 for got in backend.got if got) < count / 4


async def test_behind_a_message_that_took_its_time_the_next_is_claimed_alone() -> None:
    backend, handled = await run([Line(n, -2 * AHEAD_S) for n in range(10)])
    assert handled == list(range(10)) and max(backend.got) == 1


@pytest.mark.parametrize("takes_s", [0.01, 1e-9])
async def test_messages_that_wait_are_handled_one_at_a_time(takes_s: float) -> None:
    """The handler asserts that it is alone."""
    lines = [Line(n, takes_s if n % 5 == 4 else 0.0) for n in range(40)]
    _, handled = await run(lines)
    assert handled == list(range(40))


async def test_behind_a_message_that_waits_the_others_go_to_who_is_free() -> None:
    handled: list[int] = []
    app = application(handled)
    slow, behind = 2 * AHEAD_COUNT + 4, AHEAD_COUNT
    async with Engine.in_memory() as engine:
        engine.declare(QueueSettings("lines"))
        put(engine, app, [Line(n, 0.5 if n == slow else 0.0) for n in range(slow + 1 + behind)])
        backend = Claims(engine)
        async with Worker(app, backend, concurrency=1, monotonic_s=lambda: 0.0) as worker:  # so it yields only to wait
            async with asyncio.timeout(5):
                while len(handled) < slow:  # noqa: ASYNC110  # a worker has no such event
                    await asyncio.sleep(0.01)
            waiting = engine.broker.claim("lines", behind)
            assert len(waiting) == behind
            assert slow not in handled and sum(backend.got) > slow + 1
            assert {claim.delivery_count for claim in waiting} == {0}, "they were not handled"
            assert [claim.sequence for claim in waiting] == sorted(claim.sequence for claim in waiting)
            await asyncio.sleep(0.6)
            assert worker.handled_count == slow + 1 == len(handled)


async def test_in_an_ordered_queue_each_claim_is_of_one() -> None:
    """There a message that is rescheduled holds back the next, which must not be in hand already."""
    backend, handled = await run([Line(n) for n in range(20)], ordering="per_key")
    assert handled == list(range(20)) and set(backend.asked) == {1}


async def test_a_stop_gives_back_what_was_claimed_ahead(caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []
    app, now_s = application(handled), itertools.count(step=AHEAD_S / 4)
    count = 10 * AHEAD_COUNT
    async with Engine.in_memory() as engine:
        engine.declare(QueueSettings("lines"))
        put(engine, app, [Line(n) for n in range(count)])
        backend = Claims(engine)
        with caplog.at_level(logging.WARNING):
            async with Worker(app, backend, concurrency=1, monotonic_s=lambda: next(now_s)):
                while sum(backend.got) < 2 * AHEAD_COUNT or sum(backend.got) == len(handled):  # noqa: ASYNC110
                    await asyncio.sleep(0)  # the worker has its turns by that clock
                assert (done_count := len(handled)) < sum(backend.got), "some are claimed and not begun"
        waiting = engine.broker.claim("lines", count)
        assert handled == list(range(done_count)) and len(waiting) == count - done_count
        assert {claim.delivery_count for claim in waiting} == {0}, "a stop is nobody's failure"
    assert not caplog.records
