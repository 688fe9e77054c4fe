"""A deterministic event loop: it runs ready callbacks, in order, and stops where only the outside could go on.

asyncio decides nothing by itself: given the order and the results of the calls that leave the process, a program does
the same every time.  This loop has no sockets, threads or clock.  A call that would leave the process is a future that
the explorer resolves; time moves only when the explorer fires the next timer.  Tasks, futures, context variables,
`gather`, `timeout`, `TaskGroup`, `sleep` and locks are asyncio's own and work unmodified.
"""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from heapq import heappop, heappush
from typing import Any, NoReturn, TypeVar, TypeVarTuple

Ts = TypeVarTuple("Ts")
T = TypeVar("T")

TURN_COUNT_MAX = 100_000
"""How many callbacks may run before the program waits for the outside; more is a program that spins."""


class ProgramSpins(Exception):
    """A program runs on without ever waiting for the outside."""


class LeavesLoop(Exception):
    """A program asked the loop for a thread, a socket or a process; nothing of that can be explored."""


class _Timer(asyncio.TimerHandle):
    """A timer; those of one time fire in the order in which they were made."""

    order = 0

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        return (self.when(), self.order) < (other.when(), other.order)


def make_loop() -> Loop:
    """A loop for one program."""
    return Loop()  # type: ignore[abstract]  # what is left out is what an explored program cannot use


def done(awaited: Awaitable[T]) -> T:
    """The result of what waits for nothing outside."""

    async def result() -> T:
        return await awaited

    loop = make_loop()
    try:
        task = loop.create_task(result())
        loop.run_ready()
        return task.result()
    finally:
        loop.dispose()


class Loop(asyncio.AbstractEventLoop):
    """Runs one program; `run_ready` and `fire_timer` are the only ways to make it go on."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[_Timer] = []
        self._now_s = 0.0
        self._timer_count = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._is_closed = False

    # What drives it

    def run_ready(self) -> None:
        """Run until nothing is ready.

        Raises:
            ProgramSpins: the program never waits.
        """
        ready = self._ready
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for _ in range(TURN_COUNT_MAX):
                if not ready:
                    return
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(outer)
        raise ProgramSpins(f"{TURN_COUNT_MAX} turns of the loop without a call that leaves it; look for a busy wait")

    def has_timer(self) -> bool:
        """Whether a timer waits to fire."""
        timers = self._timers
        while timers and timers[0].cancelled():
            heappop(timers)
        return bool(timers)

    def fire_timer(self) -> None:
        """Let time pass up to the next timer, and fire all that are due then."""
        if not self.has_timer():
            return
        self._now_s = max(self._now_s, self._timers[0].when())
        while self.has_timer() and self._timers[0].when() <= self._now_s:
            self._ready.append(heappop(self._timers))

    @property
    def is_finished(self) -> bool:
        """Whether every task has ended."""
        return all(task.done() for task in self._tasks)

    def dispose(self) -> None:
        """Drop the rest of the program without running any more of it than its `finally` blocks."""
        outer = events._get_running_loop()
        events._set_running_loop(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # what asyncio's own tests set
                    coroutine = task.get_coro()
                    assert coroutine is not None, "no task of this loop is eager"
                    with suppress(BaseException):  # whatever its clean-up raises
                        coroutine.close()
        finally:
            events._set_running_loop(outer)
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()
        self._is_closed = True

    # What asyncio asks of a loop

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._timer_count += 1
        timer.order = self._timer_count
        heappush(self._timers, timer)
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when it comes up."""

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # later versions of Python have further options
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None, **options: Any
    ) -> asyncio.Task[T]:
        options.pop("eager_start", None)
        task = asyncio.Task(coro, loop=self, name=name or f"task-{len(self._tasks) + 1}", context=context)
        self._tasks.append(task)
        return task

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return self._is_closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """A callback that raised changes nothing: what a program comes to is its tasks' business."""

    def _leaves(self, *args: object, **options: object) -> NoReturn:
        raise LeavesLoop("a handler under exploration may not use threads, sockets or processes; use ctx.call")

    call_soon_threadsafe = run_in_executor = _leaves
    getaddrinfo = create_connection = create_server = create_datagram_endpoint = add_reader = add_writer = _leaves
    subprocess_exec = subprocess_shell = _leaves
