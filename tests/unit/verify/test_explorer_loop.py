"""The explorer's event loop runs asyncio's own tools, in one order, and stops where only the outside could go on."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from typing import Any

import pytest

from outbox.verify.explorer.run import LeavesLoop, Loop, ProgramSpins, make_loop

VALUE = contextvars.ContextVar("VALUE", default=0)


def run(coroutine: Coroutine[Any, Any, Any], *, timers: bool = True) -> tuple[Any, Loop]:
    loop = make_loop()
    task = loop.create_task(coroutine)
    loop.run_ready()
    while timers and not task.done() and loop.has_timer():
        loop.fire_timer()
        loop.run_ready()
    return (task.result() if task.done() else None), loop


async def tagged(log: list[str], name: str, seconds: float) -> str:
    await asyncio.sleep(seconds)
    log.append(name)
    return name


def test_sleeps_end_in_the_order_of_their_times_and_take_none() -> None:
    log: list[str] = []

    async def program() -> list[str]:
        return list(await asyncio.gather(tagged(log, "late", 3_600), tagged(log, "soon", 1), tagged(log, "now", 0)))

    result, loop = run(program())
    assert result == ["late", "soon", "now"] and log == ["now", "soon", "late"]
    assert loop.time() == 3_600


def test_a_timeout_cancels_what_waits_for_the_outside() -> None:
    async def program() -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "too late"
        return "answered"

    assert run(program())[0] == "too late"


def test_a_task_group_cancels_its_others() -> None:
    async def fails() -> None:
        raise ValueError("no")

    async def program() -> list[str]:
        log: list[str] = []
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(tagged(log, "never", 60))
                group.create_task(fails())
        except* ValueError:
            log.append("failed")
        return log

    assert run(program())[0] == ["failed"]


def test_locks_queues_and_context_variables_work() -> None:
    async def worker(lock: asyncio.Lock, queue: asyncio.Queue[int]) -> None:
        async with lock:
            VALUE.set(VALUE.get() + 1)
            await queue.put(VALUE.get())

    async def program() -> list[int]:
        lock, queue = asyncio.Lock(), asyncio.Queue[int]()
        await asyncio.gather(*(worker(lock, queue) for _ in range(3)))
        return [await queue.get() for _ in range(3)]

    assert run(program())[0] == [1, 1, 1]  # each task has a context of its own


def test_it_stops_where_only_the_outside_could_go_on() -> None:
    async def program() -> None:
        await asyncio.get_running_loop().create_future()

    result, loop = run(program())
    assert result is None and not loop.is_finished and not loop.has_timer()
    loop.dispose()
    assert loop.is_finished


def test_a_program_that_spins_is_reported() -> None:
    async def program() -> None:
        while True:  # noqa: ASYNC110  # the very thing that is to be told
            await asyncio.sleep(0)

    with pytest.raises(ProgramSpins, match="busy wait"):
        run(program())


def test_threads_and_sockets_are_refused() -> None:
    async def program() -> None:
        await asyncio.to_thread(print)

    with pytest.raises(LeavesLoop):
        run(program())


async def test_it_runs_inside_another_loop() -> None:
    outer = asyncio.get_running_loop()
    log: list[str] = []
    assert run(tagged(log, "inner", 1))[0] == "inner"
    assert asyncio.get_running_loop() is outer
