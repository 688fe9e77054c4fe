"""A worker of one at a time claims some messages at once while none takes any time; what that may not change."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest

from outbox import App, Engine, Worker
from outbox.engine.entities import QueueSettings
from outbox.message import Message
from outbox.ports import Delivery, Ports
from outbox.worker import AHEAD_COUNT, AHEAD_S
from tests.unit.waiting import until


@dataclass
class Line:
    """A message, and how long its handler waits (or, below 0, computes)."""

    n: int
    takes_s: float = 0.0


@dataclass
class Pause:
    """One of another type, whose handler waits."""

    takes_s: float


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


def put(engine: Engine, app: App, lines: Sequence[Line | Pause], *, session_id: str = "") -> None:
    for n, line in enumerate(lines):
        body, kind = app.encode(line)
        engine.broker.send("lines", [Message(body=body, outbox_id=str(n), type=kind, session_id=session_id)])


def at_once() -> float:
    """A clock by which nothing takes any time, however busy the machine is; a worker by it yields only to wait."""
    return 0.0


async def run(
    lines: Sequence[Line], *, ordering: str = "unordered", monotonic_s: Callable[[], float] = at_once
) -> tuple[Claims, list[int]]:
    handled: list[int] = []
    app = application(handled, ordering=ordering)
    async with Engine.in_memory() as engine:
        engine.declare(QueueSettings("lines", ordering=ordering))  # type: ignore[arg-type]  # one of two
        put(engine, app, lines, session_id="s" if ordering == "per_key" else "")
        backend = Claims(engine)
        async with Worker(app, backend, concurrency=1, monotonic_s=monotonic_s) as worker:
            await worker.wait_idle(timeout_s=5)
            assert worker.handled_count == len(lines)
    return backend, handled


async def test_quick_messages_are_claimed_together_and_handled_in_turn() -> None:
    count = 10 * AHEAD_COUNT
    backend, handled = await run([Line(n) for n in range(count)])
    assert handled == list(range(count))
    assert [got for got in backend.got if got] == [1] * AHEAD_COUNT + [AHEAD_COUNT] * (count // AHEAD_COUNT - 1)


async def test_behind_a_message_that_took_its_time_the_next_is_claimed_alone() -> None:
    backend, handled = await run([Line(n, -2 * AHEAD_S) for n in range(2 * AHEAD_COUNT)], monotonic_s=time.monotonic)
    assert handled == list(range(2 * AHEAD_COUNT)) and max(backend.got) == 1


@pytest.mark.parametrize("takes_s", [0.01, 1e-9])
async def test_messages_that_wait_are_handled_one_at_a_time(takes_s: float) -> None:
    """The handler asserts that it is alone."""
    every, count = AHEAD_COUNT + 4, 5 * AHEAD_COUNT
    backend, handled = await run([Line(n, takes_s if n % every == every - 1 else 0.0) for n in range(count)])
    assert handled == list(range(count)) and sum(backend.got) > count, "some were given back and claimed again"


@pytest.mark.parametrize("how", ["waits", "blocks", "fans out"])
async def test_handlers_that_are_known_to_wait_are_claimed_one_at_a_time(engine: Engine, how: str) -> None:
    """Their messages go to a task of their own at once, and the attempt at a batch ends before they do."""
    begun: list[int] = []
    app = App("known")

    async def waits(line: Line) -> None:
        begun.append(line.n)
        await asyncio.sleep(line.takes_s)

    def blocks(line: Line) -> None:
        begun.append(line.n)
        time.sleep(line.takes_s)

    app.handler("lines", blocking=how == "blocks")(blocks if how == "blocks" else waits)
    if how == "fans out":
        app.handler("lines", name="other")(waits)
    count = 2 * AHEAD_COUNT
    engine.declare(QueueSettings("lines"))
    put(engine, app, [Line(n, 0.005) for n in range(count)])
    backend = Claims(engine)
    async with Worker(app, backend, concurrency=1, monotonic_s=at_once) as worker:
        await worker.wait_idle(timeout_s=5)
    assert [*dict.fromkeys(begun)] == list(range(count)) and max(backend.got) == 1


async def test_where_each_second_message_waits_none_is_claimed_to_be_given_back() -> None:
    backend, handled = await run([Line(n, 1e-9 if n % 2 else 0.0) for n in range(40)])
    assert handled == list(range(40)) and set(backend.asked) == {1}


@pytest.mark.parametrize("is_known", [False, True], ids=["the first that waits", "known to wait"])
async def test_behind_a_message_that_waits_the_others_go_to_who_is_free(engine: Engine, is_known: bool) -> None:
    """The handler of another type waits; once that is known, its messages go to a task of their own at once."""
    handled: list[int] = []
    app = application(handled)

    @app.handler("lines")
    async def wait(pause: Pause) -> None:
        await asyncio.sleep(pause.takes_s)
        handled.append(-1)

    quick = [Line(n) for n in range(AHEAD_COUNT + 4)]
    behind = [Line(n) for n in range(100, 100 + AHEAD_COUNT)]
    before: list[Line | Pause] = [Pause(1e-9)] if is_known else []
    engine.declare(QueueSettings("lines"))
    put(engine, app, [*before, *quick, Pause(0.5), *behind])
    backend = Claims(engine)
    async with Worker(app, backend, concurrency=1, monotonic_s=at_once) as worker:
        begun_count = len(before) + len(quick) + 1
        await until(lambda: len(handled) >= begun_count - 1)
        waiting = engine.broker.claim("lines", len(behind))
        assert len(waiting) == len(behind) and len(handled) == begun_count - 1
        assert sum(backend.got) > begun_count, "some were in hand behind the one that waits"
        assert {claim.delivery_count for claim in waiting} == {0}, "they were not handled"
        assert [claim.sequence for claim in waiting] == sorted(claim.sequence for claim in waiting)
        await asyncio.sleep(0.6)
        assert worker.handled_count == begun_count == len(handled)


async def test_in_an_ordered_queue_each_claim_is_of_one() -> None:
    """There a message that is rescheduled holds back the next, which must not be in hand already."""
    backend, handled = await run([Line(n) for n in range(20)], ordering="per_key")
    assert handled == list(range(20)) and set(backend.asked) == {1}


async def test_a_stop_gives_back_what_was_claimed_ahead(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    handled: list[int] = []
    app, now_s = application(handled), itertools.count(step=AHEAD_S / 4)
    count = 10 * AHEAD_COUNT
    engine.declare(QueueSettings("lines"))
    put(engine, app, [Line(n) for n in range(count)])
    backend = Claims(engine)
    with caplog.at_level(logging.WARNING):
        async with Worker(app, backend, concurrency=1, monotonic_s=lambda: next(now_s)) as worker:
            # By that clock the worker yields now and then within a claim.  ASYNC110: it has no event for that.
            while sum(backend.got) < 3 * AHEAD_COUNT or sum(backend.got) == len(handled):  # noqa: ASYNC110
                await asyncio.sleep(0)
            done_count = len(handled)
            assert done_count < sum(backend.got), "some are claimed and not begun"
    assert worker.handled_count == done_count
    waiting = engine.broker.claim("lines", count)
    assert handled == list(range(done_count)) and len(waiting) == count - done_count
    assert {claim.delivery_count for claim in waiting} == {0}, "a stop is nobody's failure"
    assert not caplog.records


async def test_of_a_queue_that_allows_one_delivery_each_is_claimed_alone(engine: Engine) -> None:
    handled: list[int] = []
    app = application(handled)
    engine.declare(QueueSettings("lines", max_delivery_count=1))
    put(engine, app, [Line(n) for n in range(3 * AHEAD_COUNT)])
    backend = Claims(engine)
    async with Worker(app, backend, concurrency=1, monotonic_s=at_once) as worker:
        await worker.wait_idle(timeout_s=5)
    assert handled == list(range(3 * AHEAD_COUNT)) and max(backend.got) == 1
