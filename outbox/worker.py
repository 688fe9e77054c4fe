"""A worker: claims messages in batches, handles them, and leaves none behind when it stops.

`concurrency` is how many messages may be in flight.  A batch whose handlers do not wait is one turn of the loop and
one commit.  Any number of workers may share a backend, in one process or in several.

Stopping (`drain`, or leaving the context): claim nothing more, let what is in flight end for `drain_s` seconds, cancel
the rest and give it back uncounted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from outbox.app import App
from outbox.client import Client
from outbox.errors import EngineStopped, OutcomeUnknown, Refused
from outbox.ports import Backend, Delivery
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.plan import compile_plan
from outbox.runtime.stepping import go_on

log = logging.getLogger("outbox.worker")

CLAIM_WAIT_S = 5.0
LOOK_EVERY_S = 2.0
LOOK_LEAST_S = 0.02
LOOKS_A_LOCK = 8
"""Locks are looked at every two seconds, and as often in the shortest that is known; one is renewed at two thirds."""
PORT_ERROR_PAUSE_S = 0.2
IDLE_POLL_S = 0.005
TURN_S = 0.005
"""How long a worker that always finds something to do keeps the loop to itself."""


class Worker(Client):
    """Handles an application's messages on a backend; use it as an async context manager."""

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        concurrency: int = 64,
        drain_s: float = 30.0,
        new_id: Callable[[], str] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(app, backend, new_id=new_id)
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: a worker handles at least one message at a time")
        self._plan = compile_plan(app)
        self._concurrency = concurrency
        self._drain_s = drain_s
        self._monotonic_s = monotonic_s
        self._turn_ends_s = 0.0
        self._in_flight: dict[int, Delivery] = {}
        self._lock_ms: dict[str, int] = {}
        """How long a lock of each queue is, as its newest claim told."""
        self._shortest_ms = sys.maxsize
        self._look = asyncio.Event()
        self._draining = asyncio.Event()
        self._room = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._claiming: asyncio.Task[None] | None = None
        """The task that claims; it handles what it has claimed, and another takes its place when that has to wait."""
        self._renewing: asyncio.Task[None] | None = None
        self._failed: asyncio.Future[None] | None = None
        self.handled_count = 0
        """Deliveries that ended here: committed, given back or lost."""
        self._scope = EngineScope(
            self._plan,
            self._ports.journal,
            self._ports.blobs,
            now_ms=self._ports.operations.now_ms,
            sleep=asyncio.sleep,
            spawn=self._spawn,
            settled=self._settled,
            is_stopping=self._draining.is_set,
        )

    async def __aenter__(self) -> Self:
        await self.declare()
        self._failed = asyncio.get_running_loop().create_future()
        if self._plan.paths:
            self._claiming = self._start(self._claim_loop(), "claims")
            self._renewing = self._start(self._renew_loop(), "renewals")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()
        if self._failed is not None and self._failed.done() and error is None:
            self._failed.result()

    # Waiting

    async def drain(self) -> None:
        """Stop: claim nothing more, let what is in flight end, give back what does not."""
        self._draining.set()
        loops = [loop for loop in (self._claiming, self._renewing) if loop is not None]
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._drain_s)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        left = list(self._in_flight.values())
        if left and not self._has_failed:
            log.warning("given back undone", extra={"count": len(left)})
            await self._ports.journal.release(left)
            self._settled(left)

    @property
    def _has_failed(self) -> bool:
        return self._failed is not None and self._failed.done()

    async def wait_idle(self, *, timeout_s: float = 30.0) -> None:
        """Wait until nothing of this application's queues waits or is being handled; scheduled messages do not count.

        Raises:
            TimeoutError: it took longer.
        """
        async with asyncio.timeout(timeout_s):
            while self._in_flight or not await self._ports.operations.is_idle(self._plan.paths):
                if self._failed is not None and self._failed.done():
                    self._failed.result()
                await asyncio.sleep(IDLE_POLL_S)

    async def wait_stopped(self) -> None:
        """Wait until the backend stops for good, and raise why."""
        assert self._failed is not None, "the worker was not started"
        await asyncio.shield(self._failed)

    # Claiming

    async def _claim_loop(self) -> None:
        """Claim and handle one batch after the other, up to one that has to wait: another loop goes on after that."""
        journal, paths = self._ports.journal, self._plan.paths
        while not self._draining.is_set():
            room = self._concurrency - len(self._in_flight)
            if room <= 0:
                self._room.clear()
                await self._room.wait()
                continue
            try:
                deliveries = await journal.claim(paths, count_max=room, wait_s=CLAIM_WAIT_S)
            except (Refused, OutcomeUnknown) as error:
                log.warning("claim failed", extra={"error": str(error)})
                await asyncio.sleep(PORT_ERROR_PAUSE_S)
                continue
            if deliveries and not await self._take_on(deliveries):
                return

    async def _take_on(self, deliveries: Sequence[Delivery]) -> bool:
        """Handle a batch in this very task; whether the task is free to claim again.

        A task of its own for each batch would cost a small one more than its handling.  At the first wait, be it a
        handler's or a port's, this task stays with the batch (a handler must end in the task that it began in) and a
        fresh one claims.
        """
        self._note(deliveries)
        attempt = self._scope.attempt(deliveries)
        try:
            waits_for = attempt.send(None)
        except StopIteration:
            await self._yield_when_due()
            return True
        self._claiming = self._start(self._claim_loop(), "claims")
        await go_on(attempt, waits_for)
        return False

    async def _yield_when_due(self) -> None:
        """Let whoever else runs on this loop have a turn, every so often: a turn costs as much as several messages."""
        if self._monotonic_s() >= self._turn_ends_s:
            await asyncio.sleep(0)
            self._turn_ends_s = self._monotonic_s() + TURN_S

    def _settled(self, deliveries: Sequence[Delivery]) -> None:
        in_flight = self._in_flight
        for delivery in deliveries:
            in_flight.pop(delivery.sequence, None)
        self.handled_count += len(deliveries)
        self._room.set()

    # Renewing

    def _note(self, deliveries: Sequence[Delivery]) -> None:
        """Note what is in flight, and how long the locks of these queues are: of one just claimed all is left."""
        now_ms, in_flight = self._ports.operations.now_ms(), self._in_flight
        queue = None
        for delivery in deliveries:
            in_flight[delivery.sequence] = delivery
            if delivery.queue != queue:  # the messages of one claim share their lock
                queue = delivery.queue
                self._lock_ms[queue] = lock_ms = delivery.locked_until_ms - now_ms
                if lock_ms < self._shortest_ms:
                    self._shortest_ms = lock_ms
                    self._look.set()

    async def _renew_loop(self) -> None:
        while True:
            look_s = max(LOOK_LEAST_S, min(LOOK_EVERY_S, self._shortest_ms / 1_000 / LOOKS_A_LOCK))
            with suppress(TimeoutError):
                async with asyncio.timeout(look_s):
                    await self._look.wait()
            self._look.clear()
            self._shortest_ms = min(self._lock_ms.values(), default=sys.maxsize)
            try:
                await self._renew_due()
            except (Refused, OutcomeUnknown) as error:
                log.warning("renewal failed", extra={"error": str(error)})

    async def _renew_due(self) -> None:
        """Renew the locks of which less than two thirds is left."""
        now_ms, lock_ms, in_flight = self._ports.operations.now_ms(), self._lock_ms, self._in_flight
        due = [held for held in in_flight.values() if 3 * (held.locked_until_ms - now_ms) < 2 * lock_ms[held.queue]]
        if not due:
            return
        await self._ports.journal.renew(due)
        for held in due:
            if in_flight.get(held.sequence) is held:  # else it was settled meanwhile
                until_ms = now_ms + lock_ms[held.queue]
                in_flight[held.sequence] = msgspec.structs.replace(held, locked_until_ms=until_ms)

    # Tasks

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._start(coroutine, "messages")

    def _start(self, coroutine: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine, name=f"{self.app.name} {name}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            if self._draining.is_set():
                return
            error: BaseException | None = RuntimeError("a handler cancelled the task that claims; it must not")
        else:
            error = task.exception()
        if error is None:
            return
        if not self._draining.is_set() or isinstance(error, EngineStopped):
            log.error("worker stopped", extra={"app": self.app.name}, exc_info=error)
            if self._failed is not None and not self._failed.done():
                self._failed.set_exception(error)
                self._failed.exception()  # somebody may look at it later, or nobody
        self._draining.set()
        self._room.set()
