"""Handlers that wait: alone, in a batch, on one key with others; and what a handler leaves when it raises."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import deliver


@dataclass
class Call:
    key: str
    n: int
    waits: int = 0
    what: str = ""


@dataclass
class Log:
    total: int = 0
    lines: list[int] = field(default_factory=list)


def waiting(**options: object) -> App:
    app = App("waiting", retry=Retries(limit=2, delays_s=(1.0,)))
    app.queue("out")

    @app.handler("q", key="key")
    async def handle(call: Call, log: Log, ctx: Context) -> None:
        log.total += call.n
        for _ in range(call.waits):
            await asyncio.sleep(0)
        log.lines.append(call.n)
        ctx.send("out", call)
        if call.what == "timeout":
            async with asyncio.timeout(0.01):
                await asyncio.sleep(60)
        if call.what == "caught":
            try:
                async with asyncio.timeout(0.01):
                    await asyncio.sleep(60)
            except TimeoutError:
                log.total += 100
        if call.what == "gather":
            log.total += sum(await asyncio.gather(*(asyncio.sleep(0, n) for n in range(4))))
        if call.what == "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(4)]
            log.total += sum(task.result() for task in tasks)
        if call.what == "reject":
            raise Reject("no")
        if call.what == "raise":
            raise ValueError("no")

    return app


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("keys", ["aaaaaaaa", "abababab", "abcdefgh"])
async def test_waiting_and_plain_messages_of_one_batch_each_act_once(keys: str, seed: int) -> None:
    async with Harness(waiting(), seed=seed) as world:
        for n, key in enumerate(keys, 1):
            await world.send("q", Call(key, n, waits=(n * 3) % 4), id=str(n))
        await world.wait_idle()
        for key in set(keys):
            log = await world.state(Log, key)
            mine = [n for n, k in enumerate(keys, 1) if k == key]
            assert log is not None and (log.total, sorted(log.lines)) == (sum(mine), mine)
        assert sorted(call.n for call in world.sent("out")) == list(range(1, len(keys) + 1))


@pytest.mark.parametrize("keys", ["aaaaaa", "abcabc"])
async def test_waiting_messages_act_once_under_drawn_faults(keys: str) -> None:
    for seed in range(60):
        faults = Faults.drawn(seed=seed, crashes=2, lost=2, refused=1, duplicates=3)
        async with Harness(waiting(), faults=faults, seed=seed) as world:
            for n, key in enumerate(keys, 1):
                await world.send("q", Call(key, n, waits=n % 3, what="reject" if n == 5 else ""), id=str(n))
            await world.wait_idle()
            for key in set(keys):
                log = await world.state(Log, key)
                mine = [n for n, k in enumerate(keys, 1) if k == key and n != 5]
                assert log is not None and sorted(log.lines) == mine, f"seed {seed}: {world.fault_log}"
            assert {dead_letter.id for dead_letter in world.dead_letters("q")} == {"5"}


@pytest.mark.parametrize(("what", "total"), [("caught", 101), ("gather", 7), ("group", 7)])
async def test_timeouts_and_tasks_inside_a_handler_work(what: str, total: int) -> None:
    async with Harness(waiting()) as world:
        for n in (1, 2, 3):
            await world.send("q", Call(f"k{n}", 1, waits=n - 1, what=what))
        await world.wait_idle()
        for n in (1, 2, 3):
            log = await world.state(Log, f"k{n}")
            assert log is not None and log.total == total


async def test_a_handling_that_is_run_again_is_cancelled_where_it_waits_and_ends_in_order() -> None:
    app, ended = App("a"), []

    @app.handler("q", key="key")
    async def handle(call: Call, log: Log) -> None:
        log.lines.append(call.n)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(asyncio.sleep(0.001 * call.waits))
                await asyncio.sleep(0)
        finally:
            await asyncio.sleep(0)
            ended.append(call.n)

    app.handler("q", key="key", name="second")(plain)
    for seed in range(8):
        ended.clear()
        async with Harness(app, seed=seed) as world:
            for n in range(6):
                await world.send("q", Call("a", n, waits=n % 2), id=str(n))
            await world.wait_idle()
            log = await world.state(Log, "a")
            assert log is not None and sorted(log.lines) == [0, 1, 2, 3, 4, 5] and log.total == 6
            assert sorted(set(ended)) == [0, 1, 2, 3, 4, 5]


def plain(call: Call, log: Log) -> None:
    log.total += 1


async def test_a_timeout_that_runs_out_is_a_failure_and_holds_up_no_other() -> None:
    async with Harness(waiting()) as world:
        await world.send("q", Call("a", 1, what="timeout"), id="1")
        await world.send("q", Call("a", 2), id="2")
        await world.send("q", Call("b", 3), id="3")
        await world.advance(minutes=1)
        (dead_letter,) = world.dead_letters("q")
        assert (dead_letter.id, dead_letter.description, dead_letter.delivery_count) == ("1", "TimeoutError", 2)
        assert (await world.state(Log, "a"), await world.state(Log, "b")) == (Log(2, [2]), Log(3, [3]))


@pytest.mark.parametrize("waits", [0, 2])
@pytest.mark.parametrize("what", ["reject", "raise"])
async def test_a_handler_that_changes_its_state_and_raises_leaves_nothing(what: str, waits: int) -> None:
    for seed in range(5):
        async with Harness(waiting(), seed=seed) as world:
            await world.given(Log, "a", Log(10, [10]))
            for n in (1, 2, 3):
                await world.send("q", Call("a", n, waits, what if n == 2 else ""), id=str(n))
            await world.advance(minutes=1)
            log = await world.state(Log, "a")
            assert log is not None and (log.total, sorted(log.lines)) == (14, [1, 3, 10])
            assert sorted(call.n for call in world.sent("out")) == [1, 3]


async def test_an_object_handed_in_belongs_to_its_caller() -> None:
    app = App("a")
    kept: list[Log] = []

    @app.handler("q", key="key")
    def handle(call: Call, log: Log) -> None:
        for earlier in kept:
            earlier.lines.append(-1)
        kept.append(log)
        log.lines.append(call.n)

    async with Harness(app) as world:
        for n in range(4):
            await world.send("q", Call("a", n))
        await world.wait_idle()
        found = await world.state(Log, "a")
        assert found is not None and sorted(found.lines) == [0, 1, 2, 3]


async def test_an_attempt_past_its_deadline_writes_nothing() -> None:
    app = App("a", retry=Retries(limit=1), time_limit_s=1_800)

    @app.handler("q", key="key")
    async def handle(call: Call, log: Log) -> None:
        log.total += 1
        await asyncio.sleep(0)
        if call.what:
            world._clock.seconds += 3_000  # as if it had taken that long

    async with Harness(app) as world:
        await deliver(world, "q", Call("a", 1, what="slow"), id="1")
        assert await world.state(Log, "a") is None
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "failed" and "margin" in dead_letter.description


@dataclass
class Cancelling:
    key: str
    cancels: bool


@dataclass
class Cancelled:
    n: int = 0


async def test_a_handler_that_cancels_its_own_task_fails_like_any_other(engine: Engine) -> None:
    app = App("cancels", retry=Retries(limit=2, delays_s=(0.0,)))

    @app.handler("q", key="key")
    async def handle(message: Cancelling, state: Cancelled) -> None:
        state.n += 1
        if message.cancels:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    async with Worker(app, engine, concurrency=4) as worker:
        for n in range(8):
            await worker.send("q", Cancelling("k", n == 0), id=f"m{n}")
        await worker.wait_idle(timeout_s=10)
        assert await worker.state(Cancelled, "k") == Cancelled(7)
        assert [dead_letter.reason for dead_letter in await worker.dead_letters("q")] == ["failed"]


async def test_a_handler_that_returns_something_to_await_is_reported() -> None:
    app = App("gathers", retry=Retries(limit=1))

    @app.handler("q")
    def handle(message: Cancelling) -> object:
        return asyncio.gather(asyncio.sleep(0))

    async with Harness(app) as world:
        await deliver(world, "q", Cancelling("k", False), id="m")
        (dead_letter,) = world.dead_letters("q")
        assert dead_letter.reason == "failed" and "make it async" in dead_letter.description


async def test_a_destination_declared_too_late_refuses_its_message_and_nothing_else(engine: Engine) -> None:
    app = App("late")

    @app.handler("q", key="key")
    def handle(message: Cancelling, state: Cancelled, ctx: Context) -> None:
        state.n += 1
        if message.cancels:
            app.queue("late")
            ctx.send("late", message)

    async with Worker(app, engine) as worker:
        await worker.send("q", Cancelling("a", True), id="m0")
        await worker.send("q", Cancelling("b", False), id="m1")
        await worker.wait_idle(timeout_s=10)
        assert await worker.state(Cancelled, "b") == Cancelled(1)
        assert await worker.state(Cancelled, "a") is None
        assert [dead_letter.reason for dead_letter in await worker.dead_letters("q")] == ["failed"]
