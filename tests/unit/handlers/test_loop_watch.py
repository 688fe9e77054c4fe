"""A handler that holds the event loop is named in the log, while it does and when it has let go."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from outbox import App, Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.http_entry import HttpEntry
from outbox.ports import Backend
from outbox.runtime.commit import loop_watch
from outbox.runtime.start.plan import compile_app
from tests.unit.messages import Step, Steps, deliver
from tests.unit.waiting import until

IS_HELD, WAS_HELD = "the event loop is held by a handler; declare it blocking", "the event loop was held by a handler"
HOLD_S = 20.0


class Told(logging.Handler):
    """What the watch logs, and a way for a handler to wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.has_told = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.has_told.set()

    def of(self, message: str) -> list[dict[str, Any]]:
        return [record.__dict__ for record in self.records if record.getMessage() == message]


@contextmanager
def told() -> Iterator[Told]:
    log, found = logging.getLogger("outbox.loop"), Told()
    log.addHandler(found)
    try:
        yield found
    finally:
        log.removeHandler(found)


@asynccontextmanager
async def backend_of(scope: str) -> AsyncIterator[Backend]:
    async with Engine.in_memory() as engine:
        yield engine if scope == "engine" else NarrowEngine(engine, "partition")


def holding(hold: Callable[[], object]) -> App:
    app = App("holding")

    @app.handler("plain", key="key")
    def plain(message: Step, steps: Steps) -> None:
        steps.ns.append(message.n)
        hold()

    @app.handler("waiting", key="key")
    async def waiting(message: Step, steps: Steps) -> None:
        await asyncio.sleep(0)
        hold()

    @app.handler("stateless")
    def stateless(message: Step) -> None:
        hold()

    @app.http("POST", "/asked/{key}", key="key")
    def asked(message: Step, steps: Steps) -> None:
        hold()

    return app


@pytest.mark.parametrize("queue", ["plain", "waiting", "stateless"])
@pytest.mark.parametrize("scope", ["engine", "partition"])
async def test_a_handler_that_holds_the_loop_is_named_while_it_does_and_after(scope: str, queue: str) -> None:
    with told() as found:
        app = holding(lambda: found.has_told.wait(HOLD_S))
        async with backend_of(scope) as backend, Worker(app, backend) as worker:
            await deliver(worker, queue, Step("a"))
            await asyncio.sleep(2 * loop_watch.BEAT_S)  # the beat that says how long
        (first,), (last,) = found.of(IS_HELD), found.of(WAS_HELD)
        for record in (first, last):
            assert (record["handler"], record["queue"]) == (queue, queue) and record["held_s"] >= loop_watch.HELD_S


async def test_a_request_that_holds_the_loop_is_named() -> None:
    with told() as found:
        app = holding(lambda: found.has_told.wait(HOLD_S))
        async with backend_of("partition") as backend, HttpEntry(app, backend) as entry:
            answer = await entry.handle("POST", "/asked/a", {"Idempotency-Key": "k"}, b"{}")
            assert answer.status == 204
        assert [record["handler"] for record in found.of(IS_HELD)] == ["asked"]


async def test_a_handler_is_named_once_a_minute_at_most() -> None:
    with told() as found:
        again: list[float] = []

        def hold() -> None:
            if not found.has_told.is_set():
                found.has_told.wait(HOLD_S)
                return
            again.append(time.monotonic())
            while time.monotonic() < again[0] + 2 * loop_watch.HELD_S:
                pass

        async with backend_of("engine") as backend, Worker(holding(hold), backend) as worker:
            for n in range(2):
                await deliver(worker, "plain", Step("a", n))
                await asyncio.sleep(2 * loop_watch.BEAT_S)
        assert again and len(found.of(IS_HELD)) == len(found.of(WAS_HELD)) == 1


async def test_what_holds_the_loop_and_is_no_handler_is_not_taken_for_one() -> None:
    with told() as found:
        app = holding(lambda: None)
        async with backend_of("engine") as backend, Worker(app, backend) as worker:
            await deliver(worker, "plain", Step("a"))
            began_s = time.monotonic()
            while time.monotonic() < began_s + 2 * loop_watch.HELD_S:
                pass
            await asyncio.sleep(2 * loop_watch.BEAT_S)
        assert not found.records


async def test_a_blocking_handler_holds_nothing() -> None:
    app, go = App("a"), threading.Event()

    @app.handler("steps", blocking=True)
    def step(message: Step) -> None:
        go.wait(HOLD_S)

    with told() as found:
        async with backend_of("engine") as backend, Worker(app, backend) as worker:
            await worker.send("steps", Step("a"))
            await asyncio.sleep(2 * loop_watch.HELD_S)
            go.set()
            await worker.wait_idle()
        assert not found.records


def watches() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "outbox loop watch"}


async def test_the_watch_ends_with_its_worker() -> None:
    others = watches()  # of workers that other tests abandoned, and whose loops were closed just now
    async with backend_of("engine") as backend, Worker(holding(lambda: None), backend):
        own = watches() - others
        assert own and all(thread.daemon for thread in own)
    await until(lambda: not any(thread.is_alive() for thread in own))


def test_the_watch_of_a_worker_that_is_abandoned_ends_with_its_loop() -> None:
    others = watches()
    loop = asyncio.new_event_loop()

    async def start() -> None:
        loop_watch.LoopWatch(compile_app(holding(lambda: None))).start()

    loop.run_until_complete(start())
    (own,) = watches() - others
    loop.close()
    own.join(HOLD_S)
    assert not own.is_alive()
