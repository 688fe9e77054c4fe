"""Replicas of a pipeline in this process: their turns, their checkpoints, pauses after errors, and their end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from outbox.errors import NotRegistrable, OutcomeUnknown, Refused
from outbox.lineage import Key, as_key
from outbox.log_throttle import LOG_EVERY_MS, LogThrottle
from outbox.runtime.counts import PipelineFigures
from outbox.streams.cells import Position
from outbox.streams.log_places import ChangeWait, Place, place_of
from outbox.streams.pipeline.figures import figures_of
from outbox.streams.pipeline.operators import Operator
from outbox.streams.pipeline.plan import PipelinePlan
from outbox.streams.pipeline.replica import FINAL, PipelineReplica
from outbox.streams.pipeline.tasks import BeginAgain, Frozen
from outbox.streams.pipeline.workers import WorkerDied, Workers
from outbox.streams.processor import PAUSE_S_FIRST, PAUSE_S_MAX, log_recovery, raise_from, started

log = logging.getLogger("outbox.streams")

END_S = 5.0
"""How long the last checkpoint may take."""
WORKERS_MAX = 64
INCARNATIONS_MAX = 20
"""How often a replica begins again without a checkpoint between, before it stops."""


class PipelineLoop:
    """One replica's loop: it begins, takes turns, makes checkpoints beside them, and begins again."""

    def __init__(self, plan: PipelinePlan, place: Place, checkpoint_s: float, workers: Workers | None = None) -> None:
        self.plan = plan
        self.place = place
        self.released = Position(0)
        """The position of the source below which everything has left, as far as this replica knows."""
        self.waiting: list[asyncio.Future[None]] = []
        """Waiters for a change of `released` or `replica`."""
        self.replica: PipelineReplica | None = None
        """The incarnation under way; None while one begins."""
        self._checkpoint_s = checkpoint_s
        self.workers = workers
        self._throttle = LogThrottle(LOG_EVERY_MS, lambda: time.monotonic_ns() // 1_000_000)
        self._errors_in_a_row = 0
        self._begun_count = 0
        self._frozen = Frozen()

    async def for_ever(self) -> None:
        """Run until it is cancelled.

        Raises:
            OutboxError: what stops the pipeline for good.
        """
        try:
            await self._incarnations()
        finally:
            if self.workers is not None:
                await self.workers.stop()

    async def _incarnations(self) -> None:
        while True:
            try:
                await self._incarnation()
            except WorkerDied as error:  # `Workers` counts them
                log.warning("%s; all begin again", error, extra={"pipeline": self.plan.name})
            except BeginAgain:
                self._begun_count += 1
            except FINAL:
                raise
            except (Refused, OutcomeUnknown) as error:
                await self._pause_after(error)
            if self._begun_count > INCARNATIONS_MAX:
                raise Refused(f"pipeline {self.plan.name} began {INCARNATIONS_MAX} times, and was overtaken each time")

    async def _incarnation(self) -> None:
        replica = PipelineReplica(self.plan, self.place, workers=self.workers)
        tasks: list[asyncio.Task[None]] = []
        try:
            await replica.begin(again=self._begun_count % 2 == 1)
            tasks = [asyncio.create_task(run(replica)) for run in (self._turns, self._checkpoints)]
            tasks += replica.tasks.beside
            self._say_moved(replica, self.released)
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.replica = None
            replica.end()
            for task in (*tasks, *replica.tasks.beside):
                task.cancel()
            await asyncio.gather(*tasks, *replica.tasks.beside, return_exceptions=True)
            self._frozen.end()
        for task in tasks:
            raise_from(task)

    async def _turns(self, replica: PipelineReplica) -> None:
        waiting = ChangeWait(replica.plan.source.log.poll_s_max)
        while True:
            try:
                has_more = await replica.turn()
            except FINAL:
                raise
            except (Refused, OutcomeUnknown) as error:
                await self._pause_after(error)
                continue
            log_recovery(f"pipeline {self.plan.name}", self._errors_in_a_row)
            self._errors_in_a_row = 0
            if replica.released > self.released:
                self._say_moved(replica, replica.released)
                await asyncio.sleep(0)  # whoever waits for what has left goes first
            self._frozen.take()
            if has_more:
                waiting.reset()
            else:
                await waiting.wait(replica.seen())

    def _say_moved(self, replica: PipelineReplica, released: Position) -> None:
        self.replica, self.released = replica, released
        self.wake()

    def wake(self) -> None:
        """Wake whoever waits, to look again."""
        for future in self.waiting:
            if not future.done():
                future.set_result(None)

    async def turn(self) -> bool:
        """One turn of a replica that begins where there is none yet, without a wait; whether there was anything."""
        if self.replica is None:
            replica = PipelineReplica(self.plan, self.place)
            await replica.begin()
            self.replica = replica
        has_more = await self.replica.turn()
        self.released = self.replica.released
        return has_more

    async def _checkpoints(self, replica: PipelineReplica) -> None:
        while True:
            await asyncio.sleep(self._checkpoint_s)
            await replica.fed.wait()
            replica.fed.clear()
            try:
                if await replica.checkpoint():
                    self._begun_count = 0
                    if self.workers is not None:
                        self.workers.restarts = 0
            except FINAL:
                raise
            except (Refused, OutcomeUnknown) as error:
                self._say(error, "a checkpoint")
            if replica.holds_back:
                replica.fed.set()
            if replica.released > self.released:
                self._say_moved(replica, replica.released)

    async def _pause_after(self, error: BaseException) -> None:
        self._say(error, "a turn")
        await asyncio.sleep(min(PAUSE_S_MAX, PAUSE_S_FIRST * 2 ** min(self._errors_in_a_row, 10)))
        self._errors_in_a_row += 1

    def _say(self, error: BaseException, what: str) -> None:
        if self._throttle.is_due(type(error).__name__):
            fields = {"pipeline": self.plan.name, "error": str(error)}
            log.warning("%s of pipeline %s failed; it is tried again: %s", what, self.plan.name, error, extra=fields)


class RunningPipeline:
    """Replicas under way."""

    def __init__(self, loops: Sequence[PipelineLoop]) -> None:
        self.loops = loops
        self.tasks = [started(loop.for_ever(), f"pipeline {loop.plan.name}") for loop in loops]
        for task in self.tasks:
            task.add_done_callback(lambda _: loops[0].wake())

    async def until(self, at: Position) -> None:
        """Wait until everything below a position of the source has left; raise what stops the pipeline before."""
        await self._wait(lambda: self._released >= at)

    async def _wait(self, is_there: Callable[[], bool]) -> None:
        """Wait until something is there; raise what stops the pipeline before."""
        self.check()
        while not is_there():
            if any(task.done() for task in self.tasks):
                raise Refused(f"pipeline {self.loops[0].plan.name} has been stopped; run it again")
            future = asyncio.get_running_loop().create_future()
            for loop in self.loops:
                loop.waiting.append(future)
            try:
                await future
            finally:
                for loop in self.loops:
                    loop.waiting.remove(future)
            self.check()

    async def get(self, operator: Operator, key: Key) -> tuple[Any, Position] | None:
        """The state of a key, None without one, and the position of the source that it rests on.

        It answers when all below that position has left, so an answer never speaks of what may still be lost, and
        never of less than has left: a replica that begins again is waited for.
        """
        while True:  # as often as a replica begins, which is limited
            replica = await self._replica()
            try:
                return await replica.state(_name_of(operator), as_key(key), self._released)
            except BeginAgain:
                await self._wait(lambda ended=replica: ended not in self._begun)  # type: ignore[misc]  # mypy infers no lambda with a default

    async def items(self, operator: Operator) -> AsyncIterator[tuple[Key, Any]]:
        """All keys of an operator and their states, a slot at a time.

        Raises:
            Refused: the replica that was asked has begun again meanwhile; ask again.
        """
        try:
            async for item in (await self._replica()).items(_name_of(operator), self._released):
                yield item
        except BeginAgain:
            raise Refused("the replica that was asked has begun again meanwhile; ask for the items again") from None

    @property
    def _released(self) -> Position:
        """The position of the source below which everything has left, as far as any replica here has known."""
        return max(loop.released for loop in self.loops)

    async def figures(self) -> PipelineFigures:
        """How far the pipeline is; `counts.pipelines["index"] = await running.figures()` makes metrics of it."""
        replica = await self._replica()
        assert replica.known is not None
        sinks = {name: row.cells for name, row in replica.plan.sink_rows().items()}
        return await figures_of(replica.known.register.stands, replica.plan.source_row().cells, sinks)

    async def _replica(self) -> PipelineReplica:
        """The replica that is furthest, as soon as one has begun."""
        await self._wait(lambda: bool(self._begun))
        return max(self._begun, key=lambda replica: replica.released)

    @property
    def _begun(self) -> list[PipelineReplica]:
        return [loop.replica for loop in self.loops if loop.replica is not None]

    async def checkpoint(self) -> None:
        """Make a last checkpoint, if that works soon: it shortens the next beginning, and nothing depends on it."""
        replica = self.loops[0].replica
        if replica is not None:
            with suppress(Refused, OutcomeUnknown, BeginAgain, TimeoutError):
                async with asyncio.timeout(END_S):
                    await replica.checkpoint()

    async def stop(self) -> None:
        """Stop all replicas, wherever they are: nothing needs to be finished."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def check(self) -> None:
        """Raise what stopped a replica."""
        for task in self.tasks:
            raise_from(task)


def _name_of(operator: Operator) -> str:
    if not isinstance(operator, Operator):
        raise NotRegistrable(f"{operator!r} is no operator; give what `pipeline.reduce(...)(function)` has returned")
    return operator.name


@asynccontextmanager
async def run(
    plan: PipelinePlan,
    place: object,
    *,
    checkpoint_s: float,
    replicas: int,
    workers: int = 0,
    imported: str = "",
) -> AsyncIterator[RunningPipeline]:
    """Run replicas until the context ends, and raise then what stopped them.

    Raises:
        NotRegistrable: an option cannot be used.
    """
    if not isinstance(checkpoint_s, int | float) or not checkpoint_s > 0:
        raise NotRegistrable(f"pipeline {plan.name}: checkpoint_s={checkpoint_s!r}: seconds, more than 0")
    if not isinstance(replicas, int) or not 1 <= replicas <= 64:
        raise NotRegistrable(f"pipeline {plan.name}: replicas={replicas!r}: 1 to 64")
    plan.check_release(checkpoint_s)
    if not isinstance(workers, int) or not 0 <= workers <= WORKERS_MAX:
        raise NotRegistrable(f"pipeline {plan.name}: workers={workers!r}: 0 to {WORKERS_MAX}")
    if workers and not imported:
        raise NotRegistrable(
            f"pipeline {plan.name}: workers import it by name, and no module of its operators has it; give "
            'imported="module:attribute", a pipeline at the top of a module or what makes one of a place'
        )
    found = place_of(place)
    of_each = [Workers(plan, imported, workers) if workers else None for _ in range(replicas)]
    running = RunningPipeline(
        [PipelineLoop(plan.on(lambda log: log.place), found, checkpoint_s, each) for each in of_each]
    )
    try:
        yield running
        await running.checkpoint()
    finally:
        await running.stop()
    running.check()


async def run_until_idle(plan: PipelinePlan, place: object, *, seconds: float) -> Position:
    """Take turns until there is nothing to do or `seconds` have passed, and make a checkpoint.

    Returns the position of the source below which everything has left.

    Raises:
        Refused, OutcomeUnknown: a store failed up to the end.
        ReleaseRefused: the release does not fit.
    """
    plan.check_release()
    loop, until_s = PipelineLoop(plan.on(lambda log: log.place), place_of(place), seconds), time.monotonic() + seconds
    while True:
        failed: Exception | None = None
        try:
            has_more = await loop.turn()
            if loop.replica is not None and (not has_more or time.monotonic() >= until_s):
                await loop.replica.checkpoint()
                loop.released = loop.replica.released
        except BeginAgain:
            loop.replica, has_more = None, True
        except FINAL:
            raise
        except (Refused, OutcomeUnknown) as error:
            failed, has_more = error, True
            await asyncio.sleep(PAUSE_S_FIRST)
        if not has_more or time.monotonic() >= until_s:
            break
    if failed is not None:
        raise failed
    return loop.released
