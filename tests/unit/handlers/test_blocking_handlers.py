"""Blocking handlers run in threads: real ones here, held where a test wants them by events.

What is shown for every commit protocol: the loop goes on meanwhile; an attempt past its limit commits nothing, however
its thread ends; until then its place is taken and no other attempt of its key begins.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import HandlingEnded, NotRegistrable
from outbox.http_entry import HttpEntry
from outbox.ports import Backend
from outbox.runtime.commit import handler_threads as threads
from outbox.runtime.commit import run_handler as handling
from outbox.runtime.commit.handler_threads import HandlerThreads, hosted
from outbox.testing import Harness
from outbox.verify.findings.exploration import explore
from tests.unit.messages import Step, Steps, deliver
from tests.unit.waiting import until

Scope = Literal["engine", "partition", "item"]

HOLD_S = 10.0
"""How long a thread waits at most for the test to let it go."""


@dataclass
class Seen:
    """What threads did, and what holds them."""

    began: list[int] = field(default_factory=list)
    ended: list[Any] = field(default_factory=list)
    out: list[int] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    most: int = 0
    now: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def enter(self, n: int) -> None:
        with self.lock:
            self.began.append(n)
            self.now += 1
            self.most = max(self.most, self.now)

    def leave(self, result: Any) -> None:
        with self.lock:
            self.now -= 1
            self.ended.append(result)


def stepping(seen: Seen, **options: Any) -> App:
    app = App("steps", **{"retry": Retries(limit=1), "time_limit_s": 600.0, **options})

    @app.handler("out")
    def out(message: Step) -> None:
        seen.out.append(message.n)

    @app.handler("steps", key="key", blocking=True)
    def step(message: Step, steps: Steps, ctx: Context) -> None:
        seen.enter(message.n)
        try:
            steps.ns.append(message.n)
            ctx.send("out", message)
            if message.what == "waits":
                seen.go.wait(HOLD_S)
                ctx.send("out", message)
                ctx.save(Steps([99]))
            if message.what == "reject":
                raise Reject("no")
        except BaseException as error:
            seen.leave(error)
            raise
        seen.leave(None)

    @app.handler("plain", key="key")
    def plain(message: Step, steps: Steps) -> None:
        steps.ns.append(message.n)

    return app


@asynccontextmanager
async def backend_of(scope: Scope) -> AsyncIterator[Backend]:
    async with Engine.in_memory() as engine:
        yield engine if scope == "engine" else NarrowEngine(engine, scope)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is rescheduled comes again at once."""
    for module in (threads, handling):
        monkeypatch.setattr(module, "RETRY_AFTER_S", 0.01)


async def test_the_loop_goes_on_while_a_blocking_handler_waits(scope: Scope) -> None:
    seen = Seen()
    async with backend_of(scope) as backend, Worker(stepping(seen), backend) as worker:
        await worker.send("steps", Step("a", 1, "waits"))
        await until(lambda: seen.began == [1])
        await worker.send("plain", Step("b", 2))
        await until(lambda: worker.handled_count == 1)
        assert await worker.state(Steps, "b") == Steps([2])
        seen.go.set()
        await worker.wait_idle()
        assert await worker.state(Steps, "a") == Steps([99]) and seen.out == [1, 1]


async def test_blocking_handlers_act_once_in_so_many_threads_at_most(scope: Scope) -> None:
    seen = Seen()
    async with backend_of(scope) as backend, Worker(stepping(seen), backend, threads=3) as worker:
        for n in range(24):
            await worker.send("steps", Step(f"k{n % 5}", n, "reject" if n == 7 else ""), id=str(n))
            await worker.send("plain", Step(f"k{n % 5}", 100 + n))
        await worker.wait_idle()
        for key in range(5):
            state = await worker.state(Steps, f"k{key}")
            mine = [n for n in range(24) if n % 5 == key and n != 7]
            assert state is not None and sorted(state.ns) == mine + [100 + n for n in range(24) if n % 5 == key]
        assert [dead_letter.reason for dead_letter in await worker.dead_letters("steps")] == ["no"]
    assert 1 <= seen.most <= 3 and sorted(seen.began) == list(range(24))


async def test_context_variables_reach_the_thread(engine: Engine) -> None:
    app, who, found = App("a"), ContextVar("who", default="nobody"), list[Any]()

    @app.handler("steps", blocking=True)
    def step(message: Step) -> None:
        found.append((who.get(), threading.current_thread() is threading.main_thread()))

    who.set("ann")
    async with Worker(app, engine) as worker:
        await deliver(worker, "steps", Step("a", 1))
    assert found == [("ann", False)]


def test_a_handler_is_under_its_own_limit_or_its_hosts_where_that_is_shorter() -> None:
    [handler] = [each for each in stepping(Seen(), time_limit_s=5.0).handlers if each.name == "step"]
    for of_host, limit_s in ((2.0, 2.0), (9.0, 5.0)):
        assert hosted(handler, None, of_host).time_limit_s == limit_s
        assert hosted(handler, HandlerThreads(1), of_host).time_limit_s == 2 * limit_s + 1  # with the wait for a thread


# Past the limit


async def test_an_attempt_past_its_limit_commits_nothing_whatever_its_thread_does(scope: Scope) -> None:
    seen = Seen()
    async with backend_of(scope) as backend, Worker(stepping(seen, time_limit_s=0.05), backend) as worker:
        await worker.send("steps", Step("a", 1, "waits"), id="1")
        await until(lambda: worker.handled_count == 1)
        (dead_letter,) = await worker.dead_letters("steps")
        assert (
            dead_letter.reason == "failed" and "had not ended after 0.05 s, its time limit" in dead_letter.description
        )
        seen.go.set()
        await until(lambda: len(seen.ended) == 1)
        assert isinstance(seen.ended[0], HandlingEnded) and "nothing of it is committed" in str(seen.ended[0])
        await worker.wait_idle()
        assert await worker.state(Steps, "a") is None
        assert seen.out == []


async def test_a_key_waits_for_a_thread_past_its_limit_and_other_keys_do_not(scope: Scope) -> None:
    seen = Seen()
    app = stepping(seen, time_limit_s=0.05)
    async with backend_of(scope) as backend, Worker(app, backend, threads=4) as worker:
        await worker.send("steps", Step("a", 1, "waits"), id="1")
        await until(lambda: worker.handled_count == 1)
        for n, key in enumerate("aab", 2):
            await worker.send("steps", Step(key, n), id=str(n))
        await worker.send("plain", Step("a", 5))
        await until(lambda: worker.handled_count >= 10)  # those of the key have been rescheduled again and again
        assert seen.began == [1, 4] and await worker.state(Steps, "a") is None
        assert await worker.state(Steps, "b") == Steps([4])
        seen.go.set()
        await worker.wait_idle()
        await until(lambda: len(seen.ended) == 4)
        await worker.wait_idle()
        state = await worker.state(Steps, "a")
        assert state is not None and sorted(state.ns) == [2, 3, 5]
        assert [dead_letter.id for dead_letter in await worker.dead_letters("steps")] == [
            "1"
        ]  # nobody else's failures counted


async def test_a_session_waits_for_a_thread_past_its_limit_where_there_is_no_state(scope: Scope) -> None:
    seen = Seen()
    app = App("steps", retry=Retries(limit=1), time_limit_s=0.05)
    app.queue("steps", "per_key")

    @app.handler("steps", key="key", blocking=True)
    def step(message: Step) -> None:
        seen.enter(message.n)
        if message.what == "waits":
            seen.go.wait(HOLD_S)
        seen.leave(message.n)

    async with backend_of(scope) as backend, Worker(app, backend, threads=4) as worker:
        await worker.send("steps", Step("a", 1, "waits"), id="1")
        await until(lambda: worker.handled_count == 1)
        await worker.send("steps", Step("a", 2), id="2")
        await worker.send("steps", Step("b", 3), id="3")
        await until(lambda: seen.began == [1, 3] and worker.handled_count >= 4)  # the second is given back
        seen.go.set()
        await until(lambda: seen.ended == [3, 1, 2])
        await worker.wait_idle()


async def test_a_place_stays_taken_until_its_thread_ends(scope: Scope) -> None:
    seen = Seen()
    shared = HandlerThreads(1)
    app = stepping(seen, time_limit_s=0.05)
    async with backend_of(scope) as backend, Worker(app, backend, threads=shared) as worker:
        await worker.send("steps", Step("a", 1, "waits"), id="1")
        await until(lambda: worker.handled_count == 1)
        await worker.send("steps", Step("b", 2), id="2")
        await until(lambda: worker.handled_count >= 3)  # it found no place, and no failure was counted
        assert seen.began == [1] and len(shared.running) == 1
        seen.go.set()
        await until(lambda: len(seen.ended) == 2)
        await worker.wait_idle()
        assert await worker.state(Steps, "b") == Steps([2]) and await worker.state(Steps, "a") is None
    shared.close()


@pytest.mark.parametrize("kind", [Worker, HttpEntry])
async def test_threads_end_with_whoever_made_them(kind: type[Worker | HttpEntry]) -> None:
    shared = HandlerThreads(1)
    async with Engine.in_memory() as engine:
        async with kind(App("a"), engine) as own, kind(App("a"), engine, threads=shared):
            were_closed = [own._threads._is_closed]
        assert [*were_closed, own._threads._is_closed, shared._is_closed] == [False, True, False]
        assert own._watch is not None and own._watch._stopping.is_set()  # nor does a thread watch the loop any more


async def test_a_key_is_held_for_every_worker_that_shares_the_threads(scope: Scope) -> None:
    seen = Seen()
    shared = HandlerThreads(4)
    app = stepping(seen, time_limit_s=0.05)
    async with backend_of(scope) as backend:
        async with Worker(app, backend, threads=shared) as one:
            await one.send("steps", Step("a", 1, "waits"), id="1")
            await until(lambda: one.handled_count == 1)
        async with Worker(app, backend, threads=shared) as other:
            await other.send("steps", Step("a", 2), id="2")
            await until(lambda: other.handled_count >= 2)
            assert seen.began == [1]
            seen.go.set()
            await until(lambda: len(seen.ended) == 2)
            await other.wait_idle()
            assert await other.state(Steps, "a") == Steps([2])
    shared.close()


async def test_a_key_waits_for_every_thread_that_was_left_behind_with_it(scope: Scope) -> None:
    shared, seen, first = HandlerThreads(4), Seen(), threading.Event()
    app = App("steps", retry=Retries(limit=1), time_limit_s=0.5)

    @app.handler("steps", key="key", blocking=True)
    def step(message: Step, steps: Steps) -> None:
        seen.enter(message.n)
        (first if message.n == 1 else seen.go).wait(HOLD_S if message.n < 3 else 0)
        seen.leave(message.n)
        steps.ns.append(message.n)

    async with backend_of(scope) as backend, Worker(app, backend, threads=shared, concurrency=1) as one:
        await one.send("steps", Step("a", 1), id="1")
        await until(lambda: seen.began == [1])
        async with Worker(app, backend, threads=shared, concurrency=1) as other:  # of the same host
            await one.send("steps", Step("a", 2), id="2")
            await until(lambda: one.handled_count + other.handled_count == 2)
            assert seen.began == [1, 2] and len(shared.running) == 2
            seen.go.set()  # the one that was left behind last ends first
            await until(lambda: len(shared.running) == 1)
            await one.send("steps", Step("a", 3), id="3")
            await until(lambda: one.handled_count + other.handled_count >= 4)  # it was rescheduled
            assert seen.began == [1, 2] and seen.ended == [2]
            first.set()
            await until(lambda: 3 in seen.ended)
            assert seen.ended[:2] == [2, 1]
            await other.wait_idle()
        await one.wait_idle()
        state = await one.state(Steps, "a")
        assert state is not None and 3 in state.ns and 1 not in state.ns  # 2 may have lost its refusal, and run again
    shared.close()


# Stopping


async def test_a_stop_does_not_wait_for_a_thread_and_names_what_is_left(
    scope: Scope, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    async with backend_of(scope) as backend:
        with caplog.at_level(logging.WARNING, "outbox.threads"):
            async with Worker(stepping(seen), backend, drain_s=0.01) as worker:
                await worker.send("steps", Step("a", 1, "waits"), id="one")
                await until(lambda: seen.began == [1])
        assert not seen.ended, "nobody waited for the thread"
        (record,) = [found for found in caplog.records if found.message.startswith("stopped before handlers")]
        assert record.__dict__["ids"] == ["one"] and record.__dict__["handlers"] == ["step"]
        seen.go.set()
        await until(lambda: len(seen.ended) == 1)
        assert isinstance(seen.ended[0], HandlingEnded)
        async with Worker(stepping(seen), backend) as worker:  # it was given back, and nothing of it was committed
            await worker.wait_idle()
            assert await worker.state(Steps, "a") == Steps([99]) and seen.began == [1, 1]


LEFT = """
import asyncio, threading
from dataclasses import dataclass
from outbox import App, Engine, Worker

app, began = App("left"), threading.Event()

@dataclass
class Step:
    n: int

@app.handler("steps", blocking=True)
def step(message: Step) -> None:
    began.set()
    threading.Event().wait()

async def main():
    async with Engine.in_memory() as engine, Worker(app, engine, drain_s=0.01) as worker:
        await worker.send("steps", Step(1))
        await asyncio.to_thread(began.wait, 20)

asyncio.run(main())
print("over")
"""


def test_a_thread_that_never_ends_does_not_keep_its_process() -> None:
    done = subprocess.run([sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


async def test_idle_threads_end_with_their_worker(engine: Engine) -> None:
    seen = Seen()
    async with Worker(stepping(seen), engine) as worker:
        await deliver(worker, "steps", Step("a", 1))
        made = [thread for thread in threading.enumerate() if thread.name.startswith("outbox handler")]
        assert made and all(thread.daemon for thread in made)  # one that never ends does not keep its process
    await until(lambda: not [one for one in threading.enumerate() if one.name.startswith("outbox handler")])


# HTTP


def asking(seen: Seen) -> App:
    app = App("asked")

    @app.http("POST", "/steps/{key}", key="key", blocking=True, time_limit_s=0.5)
    def step(message: Step, steps: Steps, ctx: Context) -> int:
        seen.enter(message.n)
        steps.ns.append(message.n)
        if len(seen.began) == 1:
            seen.go.wait(HOLD_S)
        try:
            ctx.now()
        except HandlingEnded as error:
            seen.leave(error)
            raise
        seen.leave(None)
        return len(steps.ns)

    @app.http("GET", "/steps/{key}", key="key")
    def steps(message: Step, steps: Steps, ctx: Context) -> list[int]:
        return steps.ns

    return app


async def test_a_request_past_its_limit_keeps_nothing_and_its_key_waits(scope: Scope) -> None:
    seen = Seen()
    async with backend_of(scope) as backend, HttpEntry(asking(seen), backend) as entry:

        async def post(key: str) -> tuple[int, bytes]:
            answer = await entry.handle("POST", "/steps/a", {"Idempotency-Key": key}, b'{"n":1}')
            return answer.status, answer.body

        assert (await post("k"))[0] == 500
        assert (await post("k"))[0] == 503 and (await post("other"))[0] == 503 and seen.began == [1]
        answer = await entry.handle("GET", "/steps/a?n=0", {})
        assert (answer.status, answer.body) == (200, b"[]")
        seen.go.set()
        await until(lambda: len(seen.ended) == 1)
        await until(lambda: len(entry._threads.running) == 0)
        assert isinstance(seen.ended[0], HandlingEnded)
        assert await post("k") == (200, b"1") and await post("other") == (200, b"2")


# What is refused, and where no thread is needed


def test_an_async_handler_cannot_be_blocking() -> None:
    app = App("a", blocking=True)

    async def step(message: Step) -> None: ...

    def plain(message: Step) -> None: ...

    with pytest.raises(NotRegistrable, match=r"step is async.*asyncio\.to_thread"):
        app.handler("one", blocking=True)(step)
    with pytest.raises(NotRegistrable, match="step is async"):
        app.http("POST", "/a", blocking=True)(step)
    app.handler("one")(step)
    app.handler("two")(plain)
    app.handler("three", blocking=False)(plain)
    app.http("POST", "/b")(plain)
    assert [handler.blocking for handler in app.handlers] == [False, True, False] and app.routes[0].handler.blocking
    App("b").handler("two", name="b")(plain)
    with pytest.raises(ValueError, match="threads=0"):
        Worker(app, Engine.in_memory(), threads=0)


def misusing() -> App:
    app = App("a", retry=Retries(limit=1), blocking=True)

    async def waits() -> None: ...

    @app.handler("calls")
    def calls(message: Step, ctx: Context) -> None:
        ctx.call(waits)  # type: ignore[unused-coroutine]  # the mistake in question

    @app.handler("returns")
    def returns(message: Step) -> Any:
        return waits()

    @app.handler("yields")
    def yields(message: Step) -> Any:
        return (number for number in [message.n])

    return app


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_a_blocking_handler_cannot_await_in_a_thread_or_in_a_harness() -> None:
    said = {"calls": "blocking handler calls cannot await ctx.call", "returns": "returned <coroutine"}
    said |= {"yields": "handler yields returned a generator, so nothing of it ran; leave out yield"}
    async with Harness(misusing()) as world, Engine.in_memory() as engine, Worker(misusing(), engine) as worker:
        for queue, text in said.items():
            await world.send(queue, Step("a", 1))
            await worker.send(queue, Step("a", 1))
            await world.wait_idle()
            await worker.wait_idle()
            for (dead_letter,) in (world.dead_letters(queue), await worker.dead_letters(queue)):
                assert text in dead_letter.description


async def test_a_harness_and_an_exploration_run_a_blocking_handler_inline(scope: Scope) -> None:
    app, where = App("a"), set[threading.Thread]()

    @app.handler("steps", key="key", blocking=True)
    def step(message: Step, steps: Steps) -> None:
        where.add(threading.current_thread())
        steps.ns.append(message.n)

    async with Harness(app, scope=scope) as world:
        await deliver(world, "steps", Step("a", 1))
        assert await world.state(Steps, "a") == Steps([1])
    report = await asyncio.to_thread(explore, app, [("steps", Step("a", 1), "1")], scope=scope)
    assert not report.anomalies and report.exhausted, report
    assert len(where) == 2, "this thread, and that of the exploration"
