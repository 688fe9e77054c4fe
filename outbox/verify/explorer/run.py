"""One run of a program on a deterministic loop of its own: the calls that it issues, and their answers.

asyncio decides nothing by itself: given the order and the results of the calls that leave the process, a program does
the same every time.  The loop runs ready callbacks, in order, and stops where only the outside could go on.  It has no
sockets, threads or clock.  A call that would leave the process is a future that the explorer resolves; time moves only
when the explorer fires the next timer.  Tasks, futures, context variables, `gather`, `timeout`, `TaskGroup`, `sleep`
and locks are asyncio's own and work unmodified.

What a breaker or a rate decides depends on the clock and on all that its process has seen.  Here each decision may fall
either way, up to a number of times that a message is rescheduled in one run; so what is explored holds of every policy
that reschedules messages as `outbox.guards` do.  The decision is asked of a resource that holds how many are left; what
then reschedules the message is the runtime's own way round handlers and calls, with a guard in it that does as was
chosen.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from asyncio import Future, events
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, NoReturn, Protocol, TypeVar, TypeVarTuple

import msgspec

from outbox.context import Context
from outbox.errors import LockLost, OutcomeUnknown, Refused, Throttled, TooLarge, UnknownDestination
from outbox.guards import Attempted, Guard, GuardView, State
from outbox.ports import Commit
from outbox.retries import Retry
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.verify.explorer.ops import NO_LOCKS, Event, Locks, Op, Outcome, Raised, Reach, Table, canonical

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


Outer = tuple[asyncio.AbstractEventLoop | None, asyncio.Task[Any] | None]


def _step_in(loop: asyncio.AbstractEventLoop) -> Outer:
    """Let a loop run inside another, whose task is left: from Python 3.14 on a thread has only one."""
    outer = events._get_running_loop()
    task = asyncio.current_task(outer) if outer else None
    if outer and task:
        asyncio.tasks._leave_task(outer, task)
    events._set_running_loop(loop)
    return outer, task


def _step_out(outer: asyncio.AbstractEventLoop | None, task: asyncio.Task[Any] | None) -> None:
    events._set_running_loop(outer)
    if outer and task:
        asyncio.tasks._enter_task(outer, task)


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
        outer = _step_in(self)
        try:
            for _ in range(TURN_COUNT_MAX):
                if not ready:
                    return
                handle = ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            _step_out(*outer)
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
        outer = _step_in(self)
        try:
            for task in self._tasks:
                if not task.done():
                    task._log_destroy_pending = False  # type: ignore[attr-defined]  # what asyncio's own tests set
                    coroutine = task.get_coro()
                    assert coroutine is not None, "no task of this loop is eager"
                    with suppress(BaseException):  # whatever its clean-up raises
                        coroutine.close()
        finally:
            _step_out(*outer)
        self._tasks.clear()
        self._ready.clear()
        self._timers.clear()
        self._is_closed = True

    # What asyncio asks of a loop

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = _Timer(when, callback, args, self, context)
        self._timer_count += 1
        timer.order = self._timer_count
        heappush(self._timers, timer)
        return timer

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now_s + delay, callback, *args, context=context)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when it comes up."""

    def time(self) -> float:
        return self._now_s

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]  # later versions of Python have further options
        self,
        coro: Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
        **options: Any,
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


ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind for kind in (OutcomeUnknown, Throttled, Refused, LockLost, TooLarge, UnknownDestination)
}
TIMER = -1
"""The position of an answer that is no call's: the program's next timer fires."""


class Calls:
    """The outside, as one run of a program sees it: what it calls, the time, fresh ids."""

    def __init__(self, loop: Loop, ops: Table[Op], now_ms: int) -> None:
        self.pending: list[tuple[int, Future[Any]]] = []
        """The calls that wait for an answer, as (number of the op, future), in the order of their issue."""
        self.time_ms = now_ms
        self.digest = b""
        self.made: list[str] = []
        """The ids that were made since the last answer."""
        self.remembered: tuple[bytes, int] | None = None
        """All that the program remembered when it last said so, and the ids made by then; None after an answer."""
        self.is_known = False
        """Whether the next calls are known from an earlier run, and need not be numbered again."""
        self._loop = loop
        self._ops = ops
        self._id_count = 0

    def now_ms(self) -> int:
        """The time of the last answer."""
        return self.time_ms

    def new_id(self) -> str:
        """A unique id: no two attempts are handed one lock; without one, its log identifies it."""
        self._id_count += 1
        id = blake2b(b"%b/%d" % (self.digest, self._id_count), digest_size=8).hexdigest()
        self.made.append(id)
        return id

    def remembers(self, what: bytes) -> None:
        """Declare that only `what` decides the program's further steps; the program must not wait for anything."""
        if not self.pending:
            self.remembered = what, self._id_count

    def __call__(self, resource: int, verb: str, *args: Any) -> Future[Any]:
        future = self._loop.create_future()
        if self.is_known:
            self.pending.append((-1, future))
            return future
        key = b"%d.%b.%b" % (resource, verb.encode(), canonical(args))
        number = self._ops.number(key, Op(resource, verb, tuple(map(_frozen, args)), key))
        self.pending.append((number, future))
        return future


def _frozen(value: Any) -> Any:
    """An argument that its caller cannot change any more."""
    if isinstance(value, Commit):
        return msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Commit)
    return tuple(value) if isinstance(value, list) else value


class Alarms(logging.Handler):
    """Keeps what a program logs from the console, and the alarms among it: what calls for a person."""

    def __init__(self) -> None:
        super().__init__(logging.CRITICAL)
        self.messages: list[str] = []
        self._log = logging.getLogger("outbox")
        self._propagated = True

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())

    def __enter__(self) -> Alarms:
        self.messages.clear()
        self._propagated, self._log.propagate = self._log.propagate, False
        self._log.addHandler(self)
        return self

    def __exit__(self, *error: object) -> None:
        self._log.removeHandler(self)
        self._log.propagate = self._propagated


class Program(Protocol):
    """A program that a process runs over and over."""

    @property
    def name(self) -> str:
        """Programs of one name are interchangeable."""

    def run(self, calls: Calls, carried: Any) -> Coroutine[Any, Any, Hashable]:
        """One attempt, from what the last one handed on to what this one does; a fresh process begins with `None`."""


class Run:
    """A program under way; it goes on when it is answered, and only then."""

    def __init__(self, program: Program, carried: Hashable, ops: Table[Op], now_ms: int) -> None:
        self.loop = make_loop()
        self.calls = Calls(self.loop, ops, now_ms)
        self._main = self.loop.create_task(program.run(self.calls, carried))

    def answer(self, position: int, value: Any, now_ms: int, digest: bytes) -> None:
        """Answer a pending call, or let the next timer fire; `digest` is what new ids are made from."""
        self.calls.time_ms, self.calls.digest, self.calls.remembered = now_ms, digest, None
        if position == TIMER:
            self.loop.fire_timer()
            return
        _, future = self.calls.pending.pop(position)
        if isinstance(value, Raised):
            future.set_exception(ERRORS[value.error](value.text))
        else:
            future.set_result(value)

    def settle(self) -> tuple[int, ...]:
        """Let the program run on as far as it can; the calls that it gave up.

        Raises:
            ProgramSpins, LeavesLoop: it does what cannot be explored.
        """
        self.loop.run_ready()
        calls, is_finished = self.calls, self.loop.is_finished
        dropped = tuple(number for number, future in calls.pending if is_finished or future.cancelled())
        if dropped:
            calls.pending = [] if is_finished else [pair for pair in calls.pending if not pair[1].cancelled()]
        return dropped

    def settle_as(self, ops: tuple[int, ...]) -> bool:
        """Let the program run on to where it is known to issue these calls; whether it issues as many."""
        calls = self.calls
        calls.is_known = True
        self.settle()
        calls.is_known = False
        calls.pending = [(op, future) for op, (_, future) in zip(ops, calls.pending, strict=False)]
        return len(calls.pending) == len(ops)

    def made(self) -> list[str]:
        """The ids that the program has made since this was last asked."""
        found, self.calls.made = self.calls.made, []
        return found

    @property
    def pending(self) -> tuple[int, ...]:
        """The calls that wait for an answer, by number."""
        return tuple(number for number, _ in self.calls.pending)

    def outcome(self) -> tuple[BaseException | None, Hashable]:
        """The error that ended the program, or what it hands on."""
        error = self._main.exception()
        return error, None if error is not None else self._main.result()


AFTER_S = 1.0
"""For how long a message is rescheduled; time passes only where nothing else can happen, so any length is alike."""

_calls: contextvars.ContextVar[Calls] = contextvars.ContextVar("_calls")
"""The calls by which the running program reaches the outside."""


def begin(calls: Calls) -> None:
    """Say how the program under way, and the tasks that it starts, call the outside."""
    _calls.set(calls)


class GuardModel:
    """How often guards may still reschedule a message; each that is asked does so or lets it pass."""

    name = "guards"

    def __init__(self, count: int) -> None:
        self._count = count

    def initial(self) -> int:
        return self._count

    def reach(self, verb: str) -> Reach:
        return "read"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: int, op: Op) -> bool:
        return True

    def outcomes(self, state: int, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        passes = Outcome("-> lets it pass", state, False)
        return [passes, Outcome("-> reschedules it", state - 1, True)] if state else [passes]

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: int, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: int, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: int, now_ms: int) -> tuple[int, ...]:
        return ()

    def describe(self, op: Op) -> str:
        return f"ask a guard of {op.args[0]}"

    def show(self, state: int, now_ms: int) -> list[str]:
        return [f"messages may be rescheduled {state} times more"]


class ChosenGuards:
    """Finds a guard for every declaration, in place of a process' own; they decide as the explorer has chosen."""

    def __init__(self, resource: int) -> None:
        self._resource = resource
        self._chosen: dict[int, bool] = {}
        """Whether the next question of an attempt reschedules it, by the attempt's context."""

    def __call__(self, declared: Any) -> Guard:
        return _Chosen(declared, self._chosen)

    async def choose(self, context: Context) -> None:
        """Let the explorer choose what the next guard of this attempt does; where it cannot be asked, it lets pass."""
        self._chosen[id(context)] = False
        with suppress(*MAY_RETRY):
            self._chosen[id(context)] = await _calls.get()(self._resource, "ask", context.work.handler.name)


class _Chosen:
    """A guard that does once as was chosen."""

    rescheduled_count = 0
    name = "chosen"
    state: State = "closed"

    def __init__(self, declared: Any, chosen: dict[int, bool]) -> None:
        self.declared = declared
        self._chosen = chosen

    @contextmanager
    def around(self, attempt: Attempted, *, earlier: int = 0) -> Iterator[None]:
        if self._chosen.pop(id(getattr(attempt, "_context", attempt)), False):
            raise Retry("the explorer reschedules it", after_s=AFTER_S)
        yield

    def view(self, now_ms: int) -> GuardView:
        return GuardView(self.name, "breaker", self.state, "", 0.0, 0)
