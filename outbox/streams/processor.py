"""A processor: a handler that reads logs and writes logs, as any number of replicas over one register.

    averages = Processor("averages", average, state=Window, register=cosmos,
                         inputs={"left": left, "right": right}, outputs={"averages": averages_log})
    async with averages.run(): ...

What a replica does in one step is in `replica`; here it is made, run, paused and waited for.
"""

from __future__ import annotations

import asyncio
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar
from uuid import uuid4

from outbox.codec import StateCodec, Upcast, codec_for
from outbox.errors import NoBlobStore, NotRegistrable, OtherLog, OutcomeUnknown, Refused, TooLarge, Trimmed
from outbox.generators import yields
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.retries import Retries
from outbox.runtime.failures.error_text import failure_text
from outbox.streams.callables import check_call
from outbox.streams.cells import Position
from outbox.streams.failures import delay_s
from outbox.streams.log import LogReader, OrderedLog, check_name
from outbox.streams.log_places import POLL_S_MAX, ChangeWait, Place, place_of
from outbox.streams.plan import (
    BATCH_MAX,
    HANDLER_S,
    REFUSED,
    Handler,
    ProcessorPlan,
    QueueOutput,
    RefusedEntry,
    input_of,
    output_of,
)
from outbox.streams.register import Failed, Register
from outbox.streams.replica import Progress, Replica
from outbox.streams.row import NotThere
from outbox.streams.values import ENTRIES_MAX

log = logging.getLogger("outbox.streams")

PAUSE_S_FIRST, PAUSE_S_MAX = 0.05, 15.0
LOOKS_MAX = 8
"""The turns in a row after which a cell counts as missing; with their pauses they take six seconds."""
AT_ONCE_S = 0.001
"""A wait that ends so soon has found a change, and not waited for one."""
MEASURED_COUNT = 32
ERRORS_SAID = 3
"""A run that ends raises what it failed with so often in a row."""
FINAL = (Trimmed, NoBlobStore, TooLarge, OtherLog)
"""Refusals that another try does not change: they stop a replica, with their cure."""

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class ProcessorStatus:
    """The status of a processor: its register's serial, the next phase, entries' cells behind, this replica's steps.

    `failures` counts how often the handler has failed on what is next.
    """

    name: str
    serial: int
    phase: Literal["handling", "writing"]
    lag: dict[str, int]
    won_count: int
    lost_count: int
    failures: int


class Processor(Generic[State]):
    """A handler over logs, for any number of replicas: in this process, in others, on other machines.

    `handler(state, inputs, step)` changes the state in place or saves another, and emits to the declared `outputs`:
    logs, writer shards or queues.  `register` is a backend or a `StateStore`.  `version` is that of the code: replicas
    of a newer one take over, and those of an older one stop; `state_version` is that of the state's schema.

    A handler that fails is run again, on one entry of what it was given at a time; where it fails on one alone for
    the `retries.limit`th time the processor stops, and with `on_error="refuse"` that entry goes to the log `refused`
    instead.  Nothing that came later is read meanwhile.  A step takes up to `batch_max` entries of each input; an async
    handler may take `handler_s` seconds.

    Raises:
        NotRegistrable: something given cannot be used.
    """

    def __init__(
        self,
        name: str,
        handler: Handler,
        *,
        state: type[State],
        register: Any,
        inputs: Mapping[str, OrderedLog[Any] | LogReader[Any]],
        outputs: Mapping[str, Any] | None = None,
        version: int = 1,
        state_version: int = 1,
        upcasts: Mapping[int, Upcast] | None = None,
        on_error: Literal["stop", "refuse"] = "stop",
        refused: OrderedLog[RefusedEntry] | None = None,
        retries: Retries | None = None,
        batch_max: int = BATCH_MAX,
        handler_s: float = HANDLER_S,
        poll_s_max: float = POLL_S_MAX,
    ) -> None:
        if on_error not in ("stop", "refuse") or (on_error == "refuse") != (refused is not None):
            raise NotRegistrable(f'processor {name}: on_error="refuse" and refused=log go together; else "stop"')
        _check_options(name, handler, state, retries)
        for what, number in (("version", version), ("state_version", state_version)):
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise NotRegistrable(f"processor {name}: {what}={number!r}: a whole number, 1 or more")
        check_pace(f"processor {name}", batch_max, handler_s=handler_s, poll_s_max=poll_s_max)
        self.name = name
        self.place: Place = place_of(register)
        written = {check_name("output", each): output_of(name, given) for each, given in (outputs or {}).items()}
        if refused is not None:
            written[REFUSED] = refused.writer(0)
        if not inputs:
            raise NotRegistrable(f"processor {name} has no inputs; give inputs={{name: log}}")
        self.plan = ProcessorPlan(
            check_name("processor", name),
            handler,
            _checked_state(name, StateCodec(codec_for(state, state.__name__), state_version, dict(upcasts or {}))),
            {check_name("input", each): input_of(each, inputs[each]) for each in sorted(inputs)},
            written,
            version,
            refused is not None,
            retries or Retries(),
            batch_max,
            handler_s,
        )
        rows = [row.name for found in self.plan.rows().values() for row in found.values()]
        twice = sorted({row for row in rows if rows.count(row) > 1})
        if twice:
            raise NotRegistrable(f"processor {name} reads {', '.join(twice)} under two names; give each log one")
        self._poll_s_max = poll_s_max
        self._replica = self.replica()

    def replica(self) -> Replica:
        """A replica of its own."""
        return Replica(self.plan, self.place.store, now_ms=self.place.now_ms, new_id=lambda: uuid4().hex)

    def over(
        self, place: Callable[[Place], Place], queue: Callable[[QueueOutput], QueueOutput] = lambda given: given
    ) -> Processor[State]:
        """The same processor over what these make of its logs' and register's places, and of the queues it sends to."""
        made: dict[Place, Place] = {}

        def moved(given: Place) -> Place:
            if given not in made:
                made[given] = place(given)
            return made[given]

        other = copy(self)
        other.place = moved(self.place)
        plan = self.plan.on(lambda log: moved(log.place))
        outputs = {name: queue(each) if isinstance(each, QueueOutput) else each for name, each in plan.outputs.items()}
        other.plan = replace(plan, outputs=outputs)
        other._replica = other.replica()
        return other

    @asynccontextmanager
    async def run(self, *, replicas: int = 1, replica_wait_s: float | None = None) -> AsyncIterator[Running]:
        """Run replicas in this process until the context ends, and raise then what stopped them.

        A replica that lost a step stays back for `replica_wait_s` (default: as long as a step takes).
        """
        made = [self._replica, *(self.replica() for _ in range(replicas - 1))]
        running = Running([Loop(each, self._poll_s_max, replica_wait_s) for each in made])
        try:
            yield running
        finally:
            await running.stop()
        running.check()

    async def run_until_idle(self, *, seconds: float = 50.0, steps_max: int = 1_000_000) -> int:
        """Step until there is nothing to do, or `seconds` have passed; how many steps this replica won.

        For a timer trigger.  Overlapping calls, in any process, are replicas of each other.

        Raises:
            Refused, OutcomeUnknown: a store failed up to the end, and again and again, or nothing was done.
            HandlerFailed: the handler fails on what is next.
        """
        replica, until_s = self.replica(), time.monotonic() + seconds
        loop = Loop(replica, self._poll_s_max, None, until_s=until_s)
        for _ in range(steps_max):
            if time.monotonic() >= until_s or await loop.turn(pauses=False) is Progress.IDLE:
                break
        await replica.report_now()
        errors = loop.errors
        if errors.last is not None and (not replica.won_count or errors.count >= ERRORS_SAID):
            raise errors.last
        return replica.won_count

    async def state(self) -> State:
        """Read the state in the register; a fresh one where there is none yet.

        Raises:
            FormatTooNew: newer code wrote it.
        """
        kept, codec = await self._replica.register.read(), self.plan.codec
        state: State = codec.fresh() if kept is None else codec.decode(bytes(kept.register.state), kept.register.schema)
        return state

    async def status(self) -> ProcessorStatus:
        """Where the processor is; lags are in cells."""
        replica = self._replica
        kept = await replica.register.read()
        register = Register() if kept is None else kept.register
        lag = {key: behind for key, (_, behind) in (await self._behind(register)).items()}
        phase: Literal["handling", "writing"] = "writing" if register.outs else "handling"
        return ProcessorStatus(
            self.name, register.serial, phase, lag, replica.won_count, replica.lost_count, register.failures
        )

    async def lags(self) -> dict[tuple[str, str], int]:
        """How many cells it has yet to read, by row (`LOG/0.0`) and its own name as a reader: for `Counts.lags`."""
        kept = await self._replica.register.read()
        behind = await self._behind(Register() if kept is None else kept.register)
        return {(row.removeprefix("log/"), f"processor/{self.name}"): lag for row, lag in behind.values()}

    async def _behind(self, register: Register) -> dict[str, tuple[str, int]]:
        """For each cursor the row that it is of, and how many of its cells are to be read."""
        found = {}
        for rows in self.plan.rows().values():
            for key, row in rows.items():
                at = register.cursors.get(key) or Position(await row.first())
                found[key] = (row.name, await row.end() - at.index)
        return found


def _check_options(name: str, handler: Handler, state: Any, retries: Any) -> None:
    """Check what else a processor is made of.

    Raises:
        NotRegistrable: it cannot be used.
    """
    if not callable(handler) or yields(handler):
        raise NotRegistrable(f"processor {name}: a handler is a function, sync or async, that does not yield; it emits")
    check_call(f"processor {name}: its handler", handler, "state", "inputs", "step")
    if not isinstance(state, type):
        raise NotRegistrable(f"processor {name}: state={state!r}: give the class")
    if retries is not None and not isinstance(retries, Retries):
        raise NotRegistrable(f"processor {name}: retries={retries!r}: give Retries(...)")


def _checked_state(name: str, codec: StateCodec) -> StateCodec:
    """A codec whose first state can be made, stored and read.

    Raises:
        NotRegistrable: it cannot.
    """
    try:
        codec.decode(codec.encode(codec.fresh()), codec.version)
    except Exception as error:
        raise NotRegistrable(
            f"processor {name}: {codec.codec.name}() must make the first state, which is stored and read: "
            f"{failure_text(error)}; give every field a default that can be stored"
        ) from error
    return codec


def check_pace(who: str, batch_max: Any, **seconds: Any) -> None:
    """Check how many entries are taken at once, and options in seconds, by their names.

    Raises:
        NotRegistrable: one cannot be.
    """
    for what, given in seconds.items():
        if not isinstance(given, int | float) or not given > 0:
            raise NotRegistrable(f"{who}: {what}={given!r}: seconds, more than 0")
    if not isinstance(batch_max, int) or not 1 <= batch_max <= ENTRIES_MAX:
        raise NotRegistrable(f"{who}: batch_max={batch_max!r}: 1 to {ENTRIES_MAX}")


class Errors:
    """Counts a loop's errors in a row: it waits after each, and raises one that no other try changes."""

    def __init__(self, what: str, until_s: float = math.inf) -> None:
        """Take the loop's name; no pause goes beyond `until_s` of the monotonic clock."""
        self._what = what
        self._until_s = until_s
        self._missing_count = 0
        self.count = 0
        self.last: Exception | None = None
        """Why the last turn failed; None: it did not."""

    def ended(self) -> None:
        """Note a turn that did not fail."""
        log_recovery(self._what, self.count)
        self.count, self.last, self._missing_count = 0, None, 0

    def failed(self, error: Exception) -> None:
        """Note a failure.

        Raises:
            OtherLog: that it was, or a cell was not there for the last time.
        """
        if isinstance(error, OtherLog):
            raise error
        self._missing_count = self._missing_count + 1 if isinstance(error, NotThere) else 0
        if self._missing_count >= LOOKS_MAX:
            raise OtherLog(str(error)) from error
        self.last = error

    async def pause(self) -> None:
        """Wait after a failure, for longer each time."""
        pause_s = min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(self.count, 10))
        self.count += 1
        await asyncio.sleep(max(0.0, min(pause_s, self._until_s - time.monotonic())))


class Loop:
    """A replica's loop: steps, pauses after a loss or an error, and waits while there is nothing to do."""

    def __init__(
        self, replica: Replica, poll_s_max: float, replica_wait_s: float | None, *, until_s: float = math.inf
    ) -> None:
        """Take the parts; no pause goes beyond `until_s` of the monotonic clock."""
        self.replica = replica
        self._until_s = until_s
        self._waiting = ChangeWait(poll_s_max)
        self._replica_wait_s = replica_wait_s
        self._took_s: deque[float] = deque(maxlen=MEASURED_COUNT)
        self.errors = Errors(f"processor {replica.plan.name}", until_s)
        self._is_behind = False
        """Whether another replica was first the last time."""
        self._failure: tuple[Failed | None, float] = None, 0.0
        """The failure that delays the next step, and when this loop first saw it, by the monotonic clock."""
        self._has_stepped = False
        self._throttle = LogThrottle(LOG_EVERY_MS, lambda: time.monotonic_ns() // 1_000_000)

    async def turn(self, *, pauses: bool = True) -> Progress:
        """One step, and what it asks for.

        Behind another replica it steps only where the register has stood still for as long as a step takes.
        """
        began_s = time.perf_counter()
        try:
            if (self._is_behind and pauses and await self._is_led()) or await self._is_early():
                return Progress.LOST
            self._has_stepped = True
            progress = await self.replica.step()
            if progress is Progress.IDLE and pauses:
                await self._rest()
        except FINAL:
            raise
        except (Refused, OutcomeUnknown) as error:
            self.replica.known = None
            self.errors.failed(error)
            if self._throttle.is_due(type(error).__name__):
                name = self.replica.plan.name
                fields = {"processor": name, "error": str(error)}
                log.warning("a step of processor %s failed; it is tried again: %s", name, error, extra=fields)
            await self.errors.pause()
            return Progress.LOST
        self.errors.ended()
        if progress is Progress.WON:
            self._is_behind = False
            self._took_s.append(time.perf_counter() - began_s)
            self._waiting.reset()
        elif progress is Progress.LOST:
            self._is_behind = True
        return progress

    async def _rest(self) -> None:
        """Wait for a change; where there is one at once, another may have swapped the register: it is read again."""
        began_s = time.monotonic()
        await self._waiting.wait(self.replica.seen(), at_most_s=self.replica.due_s())
        if time.monotonic() - began_s < AT_ONCE_S:
            self.replica.known = None

    async def _is_led(self) -> bool:
        """Whether another replica swaps the register while this one stays back."""
        before = self.replica.known or await self.replica.look()
        await asyncio.sleep(self._stay_back_s())
        return before != (await self.replica.look())

    async def for_ever(self) -> None:
        while goes_on():
            await self.turn()

    def _stay_back_s(self) -> float:
        if self._replica_wait_s is not None:
            return self._replica_wait_s
        return statistics.median(self._took_s) if self._took_s else PAUSE_S_FIRST

    async def _is_early(self) -> bool:
        """Whether the last step failed, whoever took it, and the next is not due; waits until it may be.

        Each loop waits from when it first saw that failure, so no two clocks need to agree; one that has just begun
        goes by the register's time, and waits no longer than the others do.  A replica that goes on ends the wait.
        """
        replica = self.replica
        known = replica.known or await replica.look_or_begin()
        wait_s = 0.0 if known is None else delay_s(replica.plan, known.register)
        if known is None or not wait_s:
            return False
        if self._failure[0] != known.register.failed:
            age_s = 0.0 if self._has_stepped else max(0.0, replica.age_s(known.register))
            self._failure = known.register.failed, time.monotonic() - age_s
        left_s = self._failure[1] + wait_s - time.monotonic()
        if left_s <= 0:
            return False
        at_most_s = max(0.001, min(left_s, self._until_s - time.monotonic()))
        await self._waiting.wait({replica.register.store: [(replica.register.key, known.version)]}, at_most_s=at_most_s)
        await replica.look()
        return True


def log_recovery(what: str, errors_in_a_row: int) -> None:
    """Log once that a replica, ingest or sink works again after several failures in a row."""
    if errors_in_a_row > 1:
        fields = {"recovered": what, "failures": errors_in_a_row}
        log.warning("%s goes on, after %d failures in a row", what, errors_in_a_row, extra=fields)


def goes_on() -> bool:
    """Whether nobody has cancelled this task, also where what it awaited has swallowed that."""
    task = asyncio.current_task()
    return task is not None and not task.cancelling()


def started(coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Start a task that runs until it is cancelled, and log at once why it stops before that."""
    task = asyncio.create_task(coroutine, name=name)
    task.add_done_callback(_log_stop)
    return task


def raise_from(task: asyncio.Task[None]) -> None:
    """Raise what stopped a task."""
    if (error := _reason(task)) is not None:
        raise error


def _reason(task: asyncio.Task[None]) -> BaseException | None:
    return task.exception() if task.done() and not task.cancelled() else None


def _log_stop(task: asyncio.Task[None]) -> None:
    if (error := _reason(task)) is not None:
        fields = {"stopped": task.get_name(), "error": str(error)}
        log.error("%s stopped for good: %s", task.get_name(), failure_text(error), extra=fields)


@dataclass(slots=True)
class Running:
    """Replicas under way."""

    loops: Sequence[Loop]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tasks = [started(loop.for_ever(), f"processor {loop.replica.plan.name}") for loop in self.loops]

    async def wait_stopped(self) -> None:
        """Wait until a replica stops for good, and raise why."""
        await asyncio.wait(self.tasks, return_when=asyncio.FIRST_COMPLETED)
        self.check()

    async def stop(self) -> None:
        """Stop all replicas, wherever they are: nothing needs to be finished."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what stopped a replica."""
        for task in self.tasks:
            raise_from(task)
