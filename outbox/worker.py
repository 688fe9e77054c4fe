"""A worker: claims messages in batches, handles them, and releases the rest when it stops.

`concurrency` is how many messages may be at work.  A batch whose handlers do not wait is one turn of the loop and one
commit.  With 1 a batch is one message, and some may be claimed ahead of their turn, on an engine.  Any
number of workers may share a backend, in one process or in several.

Stopping (`drain`, or leaving the context): claim nothing more, wait `drain_s` seconds for messages in flight, cancel
the rest and release them uncounted.  A blocking handler in its thread cannot be cancelled and is abandoned: its message
is released as well, and nothing that it does afterwards is committed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Self
from uuid import uuid4

import msgspec

from outbox.app import App
from outbox.client import Client
from outbox.errors import EngineStopped, OutcomeUnknown, Refused
from outbox.ports import Backend, Delivery, Ports, StorePorts
from outbox.runtime.commit.handler_threads import THREAD_COUNT, HandlerThreads
from outbox.runtime.commit.loop_watch import LoopWatch
from outbox.runtime.commit.stepping import go_on
from outbox.runtime.counts import Counts
from outbox.runtime.delivery.claim_check import check_blobs
from outbox.runtime.delivery.intake import BusIntake, Intake
from outbox.runtime.delivery.retrying import Backoff
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.item_scope import ItemScope
from outbox.runtime.partition_scope import PartitionScope
from outbox.runtime.scopes import scope_over, stores_of
from outbox.runtime.shell import MARK_AFTER_S, Recovery, SignsOfLife, Tasks, signs_over
from outbox.runtime.start.notes import register_handlers, register_retention
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_scope import StoreScope

log = logging.getLogger("outbox.worker")

CLAIM_WAIT_S = 5.0
LOOK_EVERY_S = 2.0
LOOK_LEAST_S = 0.02
LOOKS_A_LOCK = 8
"""The looks at locks in the shortest known lock duration; at least one each `LOOK_EVERY_S`.  A lock is renewed at two
thirds."""
PORT_ERROR_PAUSE_S = 0.2
IDLE_POLL_S = 0.005
TURN_S = 0.005
"""How long a busy worker keeps the event loop before it yields."""
AHEAD_COUNT, AHEAD_S = 8, 0.001
"""The number of messages that a one-at-a-time worker claims together after as many quick batches, each below `AHEAD_S`.

Each of them is a commit of its own; only their claim is one record.  It waits for as many quick ones, because a claim
for each message costs less than eight claimed and six given back.
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """The counts of a worker since its start; the last three are of a store and a bus only.

    `unsent_count` counts failed pushes.  `fullest_state` heads for the largest share of its partition's limit,
    `fullest_share`, at its present rate; empty and 0 where the store has no limit.
    """

    handled_count: int
    unsent_count: int = 0
    fullest_state: str = ""
    fullest_share: float = 0.0


class _ClaimGroup:
    """Queues claimed together, and their deliveries in flight, by sequence."""

    def __init__(self, paths: list[str], *, may_claim_ahead: bool = False) -> None:
        self.paths = paths
        self.may_claim_ahead = may_claim_ahead
        self.quick_count = 0
        """How many batches in a row took no time worth mentioning."""
        self.in_flight: dict[int, Delivery] = {}
        self.ahead: deque[Delivery] = deque()
        """The deliveries in flight whose turn has not come."""
        self.has_capacity = asyncio.Event()
        self.claiming: asyncio.Task[None] | None = None
        """The claiming task; it also handles its batch, and a fresh task replaces it at the first wait."""


class Worker(Client):
    """Handles an application's messages on a backend; use it as an async context manager.

    `concurrency` limits the messages at work; over a store and a bus as many again may wait behind others of their key.
    With 1 on an engine, while handlers take less than a millisecond and no queue is ordered, eight are claimed at once
    and handled one after the other, each with its own commit; behind one that takes longer the rest are given back.  A
    process that is killed then has had a delivery of each of them, as it has of a batch; of a queue whose
    `max_delivery_count` is 1 each is claimed alone.
    `drain_s` limits the seconds that they may take when the worker stops, `threads` the concurrent blocking handlers.
    Workers of one process may share one `HandlerThreads`, and `counts`.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        concurrency: int = 64,
        drain_s: float = 30.0,
        threads: int | HandlerThreads = THREAD_COUNT,
        new_id: Callable[[], str] | None = None,
        new_tx: Callable[[], str] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
        counts: Counts | None = None,
    ) -> None:
        super().__init__(app, backend, new_id=new_id)
        if concurrency < 1:
            raise ValueError(f"concurrency={concurrency}: a worker handles at least one message at a time")
        check_blobs(app, self._ports.blobs)
        self._threads = HandlerThreads(threads) if isinstance(threads, int) else threads
        self._owns_threads = isinstance(threads, int)
        self._plan = compile_app(app, threads=self._threads, counts=Counts() if counts is None else counts)
        self.counts = self._plan.counts
        """The counts of its messages, and of other workers that share the object."""
        self._watch = LoopWatch(self._plan)
        self._concurrency = concurrency
        self._drain_s = drain_s
        self._monotonic_s = monotonic_s
        self._turn_ends_s = 0.0
        self._claim_groups = self._claim_groups_over(self._plan.paths)
        self._claim_group_of = {path: claim_group for claim_group in self._claim_groups for path in claim_group.paths}
        self._lock_ms: dict[str, int] = {}
        """The lock duration of each queue, by its newest claim."""
        self._shortest_ms = sys.maxsize
        self._look = asyncio.Event()
        self._draining = asyncio.Event()
        self._tasks = Tasks(app.name, ended=self._ended)
        self._upkeep: list[asyncio.Task[None]] = []
        """The tasks that renew locks, sweep and give signs of life."""
        self._failed: asyncio.Future[None] | None = None
        self.handled_count = 0
        """Deliveries that ended here: committed, released or lost."""
        ports = self._ports
        self._intake: Intake = ports.journal if isinstance(ports, Ports) else BusIntake(ports.bus)
        self._scope = scope_over(
            self._plan,
            ports,
            now_ms=self._operations.now_ms,
            backoff=Backoff(asyncio.sleep, pause=self._pause),
            spawn=self._tasks.start,
            settled=self._settled,
            is_stopping=self._draining.is_set,
            new_tx=new_tx or (lambda: uuid4().hex),
            failure_log=FailureLog(self._operations.now_ms),
            linger=lambda: self._pause(MARK_AFTER_S),
        )
        self._recovery: Recovery | None = None
        self._signs: SignsOfLife | None = None
        if isinstance(ports, StorePorts) and isinstance(self._scope, StoreScope):
            self._scope.on_waiting = self._wake_claims
            self._recovery = self._recovery_over(ports, self._scope)
            self._signs = signs_over(app.name, self._plan.paths, ports, self._scope, self.counts)

    def _recovery_over(self, ports: StorePorts, scope: StoreScope) -> Recovery:
        return Recovery(
            *(scope.protocol, stores_of(ports), scope.failed_pushes),
            now_ms=self._operations.now_ms,
            counts=self.counts,
            operations=ports.operations,
            queues=self._plan.paths,
        )

    async def __aenter__(self) -> Self:
        await self.declare()
        await register_handlers(self.app, self._operations)
        await register_retention(self.app.name, self._plan.retention, self._operations)
        self._failed = asyncio.get_running_loop().create_future()
        self._watch.start()
        if self._plan.paths:
            for claim_group in self._claim_groups:
                claim_group.claiming = self._tasks.start(self._claim_loop(claim_group), "claims")
            self._upkeep.append(self._tasks.start(self._renew_loop(), "renewals"))
        has_work = bool(self._plan.paths or self.app.routes)  # HTTP entries leave pending records as well
        if has_work and self._recovery is not None:
            self._upkeep.append(self._tasks.start(self._recovery.sweep_for_ever(), "sweeps"))
        if self._plan.paths and self._signs is not None:
            self._upkeep.append(self._tasks.start(self._signs.give_for_ever(), "signs of life"))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()
        if self._failed is not None and self._failed.done() and error is None:
            self._failed.result()

    @property
    def figures(self) -> Figures:
        """The counts of this worker."""
        if not isinstance(self._scope, StoreScope):
            return Figures(self.handled_count)
        protocol = self._scope.protocol
        fullest = protocol.fullness.fullest() if isinstance(protocol, PartitionScope | ItemScope) else ("", 0.0)
        return Figures(self.handled_count, self._scope.failed_pushes.count, *fullest)

    # Waiting

    async def drain(self) -> None:
        """Stop: claim nothing more, wait for messages in flight, release the rest."""
        self._draining.set()
        claiming = [claim_group.claiming for claim_group in self._claim_groups]
        loops = [loop for loop in (*claiming, *self._upkeep) if loop is not None]
        for loop in loops:
            loop.cancel()
        self._watch.stop()
        await asyncio.gather(*loops, return_exceptions=True)
        for claim_group in self._claim_groups:
            await self._give_back(claim_group)  # now: nothing renews their locks any more
        await self._tasks.drain(self._drain_s)
        if self._recovery is not None and not self._has_failed:
            await self._recovery.finish()
        if self._owns_threads:
            self._threads.close()
        left = [delivery for claim_group in self._claim_groups for delivery in claim_group.in_flight.values()]
        if left and not self._has_failed:
            log.warning("messages released unhandled", extra={"count": len(left)})
            await self._intake.release(left)
            self._settled(left)

    @property
    def _has_failed(self) -> bool:
        return self._failed is not None and self._failed.done()

    @property
    def _is_busy(self) -> bool:
        return any(claim_group.in_flight for claim_group in self._claim_groups)

    async def wait_idle(self, *, timeout_s: float = 30.0) -> None:
        """Wait until this application's queues are empty and idle; scheduled messages do not count.

        Raises:
            TimeoutError: it took longer.
        """
        async with asyncio.timeout(timeout_s):
            while self._is_busy or not await self._operations.is_idle(self._plan.paths):
                if self._failed is not None and self._failed.done():
                    self._failed.result()
                await asyncio.sleep(IDLE_POLL_S)

    async def wait_stopped(self) -> None:
        """Wait until the backend stops for good, and raise why."""
        assert self._failed is not None, "the worker was not started"
        await asyncio.shield(self._failed)

    # Claiming

    def _claim_groups_over(self, paths: list[str]) -> list[_ClaimGroup]:
        """A journal claims from all queues at once; a bus needs a wait for each queue."""
        if isinstance(self._ports, Ports):
            has_order = any(source.ordered for source in self._plan.sources.values())  # a turn may hold back the next
            return [_ClaimGroup(paths, may_claim_ahead=self._concurrency == 1 and not has_order)]
        return [_ClaimGroup([path]) for path in paths]

    async def _claim_loop(self, claim_group: _ClaimGroup) -> None:
        """Claim and handle batches up to the first that waits; then another loop continues."""
        while not self._draining.is_set():
            if claim_group.ahead and not claim_group.quick_count:
                await self._give_back(claim_group)
            free_count = self._free_count(claim_group)
            if free_count <= 0:
                claim_group.has_capacity.clear()
                await claim_group.has_capacity.wait()
                continue
            ahead = claim_group.ahead
            deliveries = [ahead.popleft()] if ahead else await self._claim(claim_group, free_count)
            if deliveries and not await self._take_on(claim_group, deliveries):
                return

    async def _claim(self, claim_group: _ClaimGroup, free_count: int) -> Sequence[Delivery]:
        """Claim a batch; of several messages that are claimed for one turn after the other, the first."""
        are_quick = claim_group.quick_count >= AHEAD_COUNT
        count_max = AHEAD_COUNT if are_quick and claim_group.may_claim_ahead else free_count
        try:
            deliveries = await self._intake.claim(claim_group.paths, count_max=count_max, wait_s=CLAIM_WAIT_S)
        except (Refused, OutcomeUnknown) as error:
            log.warning("claim failed", extra={"error": str(error)})
            await asyncio.sleep(PORT_ERROR_PAUSE_S)
            return ()
        self._note(claim_group, deliveries)
        if not claim_group.may_claim_ahead:
            return deliveries
        claim_group.ahead.extend(deliveries[1:])
        return deliveries[:1]

    async def _give_back(self, claim_group: _ClaimGroup) -> None:
        """Give back, uncounted, the deliveries claimed ahead, because another worker may be free while this one is
        busy."""
        deliveries = list(claim_group.ahead)
        if not deliveries:
            return
        claim_group.ahead.clear()
        for delivery in deliveries:
            del claim_group.in_flight[delivery.sequence]
        with suppress(Refused, OutcomeUnknown, EngineStopped):  # else their locks expire, or are void
            await self._intake.release(deliveries)

    def _free_count(self, claim_group: _ClaimGroup) -> int:
        """How many messages to claim: `concurrency` at work, and as many that wait behind others of their lanes.

        Those that wait run no handler; with them the next batch of a key is as large as the one before.
        """
        held_count = len(claim_group.in_flight) - len(claim_group.ahead)
        waiting = self._scope.waiting if isinstance(self._scope, StoreScope) else {}
        waiting_count = sum(waiting.get(path, 0) for path in claim_group.paths)
        return min(self._concurrency - held_count + waiting_count, 2 * self._concurrency - held_count)

    def _wake_claims(self) -> None:
        for claim_group in self._claim_groups:
            claim_group.has_capacity.set()

    async def _take_on(self, claim_group: _ClaimGroup, deliveries: Sequence[Delivery]) -> bool:
        """Handle a batch in this task; whether the task is free to claim again.

        A task for each batch would cost more than a small batch.  At the first wait, of a handler or a port, this task
        stays with the batch (a handler must end in the task that it began in) and a fresh task claims.
        """
        begun_s, attempt = self._monotonic_s(), self._scope.attempt(deliveries)
        try:
            waits_for = attempt.send(None)
        except StopIteration:
            now_s = self._monotonic_s()
            is_over = len(claim_group.in_flight) == len(claim_group.ahead)  # else it waits in a task of its own
            is_quick = is_over and now_s - begun_s < AHEAD_S
            claim_group.quick_count = claim_group.quick_count + 1 if is_quick else 0
            if now_s >= self._turn_ends_s:
                await asyncio.sleep(0)  # now and then; each turn of the event loop costs as much as several messages
                self._turn_ends_s = self._monotonic_s() + TURN_S
            return True
        claim_group.quick_count = 0
        claim_group.claiming = self._tasks.start(self._claim_loop(claim_group), "claims")
        await go_on(attempt, waits_for)
        return False

    def _settled(self, deliveries: Sequence[Delivery]) -> None:
        if not deliveries:
            return
        claim_group = self._claim_group_of[deliveries[0].queue]  # the deliveries of one call are of one group
        in_flight = claim_group.in_flight
        for delivery in deliveries:
            in_flight.pop(delivery.sequence, None)
        self.handled_count += len(deliveries)
        claim_group.has_capacity.set()

    # Renewing

    def _note(self, claim_group: _ClaimGroup, deliveries: Sequence[Delivery]) -> None:
        """Note deliveries in flight, and the lock duration of their queues: a fresh claim has all of it left."""
        now_ms, in_flight = self._operations.now_ms(), claim_group.in_flight
        queue = None
        for delivery in deliveries:
            in_flight[delivery.sequence] = delivery
            if delivery.queue != queue:  # the messages of one claim have equal locks
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
                for claim_group in self._claim_groups:
                    await self._renew_due(claim_group)
            except (Refused, OutcomeUnknown) as error:
                log.warning("renewal failed", extra={"error": str(error)})

    async def _renew_due(self, claim_group: _ClaimGroup) -> None:
        """Renew the locks with less than two thirds left."""
        now_ms, lock_ms, in_flight = self._operations.now_ms(), self._lock_ms, claim_group.in_flight
        due = [held for held in in_flight.values() if 3 * (held.locked_until_ms - now_ms) < 2 * lock_ms[held.queue]]
        if not due:
            return
        await self._intake.renew(due)
        for held in due:
            if in_flight.get(held.sequence) is held:  # else it was settled meanwhile
                until_ms = now_ms + lock_ms[held.queue]
                in_flight[held.sequence] = msgspec.structs.replace(held, locked_until_ms=until_ms)

    async def _pause(self, seconds: float) -> None:
        """Pause, or return early when the worker stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._draining.wait()

    # Tasks

    def _ended(self, task: asyncio.Task[None]) -> None:
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
                self._failed.exception()  # marks it as retrieved
        self._draining.set()
