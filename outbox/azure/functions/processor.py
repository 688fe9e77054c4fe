"""An application at work in one process of a Functions host: invocations in, commits out.

*Theory of operation.*  Invocations of one process share one runtime: its cache of states, its lanes (messages of one
key follow each other, and are committed together where several wait), its marks.  An invocation hands its message to
the runtime and waits until that is through with it; it runs nothing itself, so an invocation that the host gives up
takes nobody else's message with it.  It ends in one of two ways:

    returns   what becomes of the message is committed, sent and, if it was refused, kept: the host completes it
    raises    nothing is known to be committed, or the message is to come again: the host abandons it

Both are safe at any moment and in any number, as every settlement is.  A message that comes again at once would use up
its deliveries within seconds, so what is given back rests first, under its lock, for a time that grows.

A message whose key stands still behind a dead letter can only wait for somebody to decide, and each delivery counts.
So its invocation stays for as long as the limits allow and looks now and then.  That costs no more than coming again at
once, because the host would start the next invocation in the same moment, and a limit of a hundred lasts for hours.
What is resubmitted meanwhile lies behind it in the session, of which the host hands out one message at a time; so it is
handled here, from where the resubmission was noted, and what comes by the bus later is a copy.

The backend is opened by the first invocation of an event loop and is not closed: what it holds may be cut at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Literal
from uuid import uuid4

import azure.functions as func

from outbox.app import App
from outbox.azure.functions.bus import Invocation, TriggerBus
from outbox.azure.functions.messages import to_delivery
from outbox.azure.functions.settings import FunctionsSettings
from outbox.client import Client
from outbox.errors import NotRegistrable
from outbox.http import Response
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import Backend, Delivery, StorePorts
from outbox.printable import printable
from outbox.runtime.commit.handler_threads import HandlerThreads
from outbox.runtime.commit.loop_watch import LoopWatch
from outbox.runtime.commit.sweeper import Swept
from outbox.runtime.delivery.blocked_sessions import BlockedSession
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.http.responses import unavailable
from outbox.runtime.scopes import scope_over, stores_of
from outbox.runtime.shell import FINISH_WITHIN_S, MARK_AFTER_S, Recovery, Tasks
from outbox.runtime.start.handler_names import register_handlers
from outbox.runtime.start.plan import compile_plan
from outbox.runtime.start.retention import register_retention
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreScope

log = logging.getLogger("outbox.functions")

REST_FIRST_S = 0.25
"""How long a message rests that is given back for the first time; each time twice as long."""
REST_DOUBLINGS_MAX = 7
LOOK_FIRST_S = 1.0
"""How long until a key that stands still is looked at again; each time twice as long."""
LOOK_MAX_S = 15.0
KEPT = "refused messages are kept"
"""The line that infra/modules/alerts.bicep watches, as long as there are any."""
KEPT_COUNT_MAX = 50
"""How far they are counted: each one is read for it, at every sweep."""
LEAST_S = 10.0
"""How much must be left for another attempt to begin; what it commits later is found by the next delivery."""
TELL_DELIVERIES = 90
"""From which delivery on a message that only waits is told each time: queues are made with a limit of 100."""


def pause_s(delivery_count: int, chance: float) -> float:
    """How long a message rests that cannot be handled now: longer with each delivery (from 1), and jittered."""
    return float(REST_FIRST_S * 2 ** min(delivery_count - 1, REST_DOUBLINGS_MAX) * (0.5 + chance))


class GivenBack(RuntimeError):
    """The message is to come again; its host logs this and abandons it."""


class Processor:
    """Handles an application's messages on one event loop."""

    def __init__(
        self,
        app: App,
        backend: Backend,
        settings: FunctionsSettings,
        *,
        new_tx: Callable[[], str] = lambda: uuid4().hex,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """Take an application and the backend that it runs on; nothing is opened yet.

        Raises:
            NotRegistrable: the backend has no store and bus of its own, or no blob store for handlers that write blobs.
        """
        ports = backend.ports()
        if not isinstance(ports, StorePorts):
            raise NotRegistrable(f"{type(backend).__name__} is served by a Worker; give azure.connect(...) here")
        self.app = app
        self.client = Client(app, backend)
        self._settings = settings
        self._chance = chance
        self._threads = HandlerThreads(settings.threads)
        self._plan = compile_plan(app, threads=self._threads, time_limit_s_max=settings.time_limit_s_max)
        self._watch = LoopWatch(self._plan)
        self._ports = ports
        self._operations = operations_over(ports)
        self._numbers = itertools.count(1)
        self._tasks = Tasks(app.name)
        stopping = {handler.source for handler in app.handlers if handler.on_dead_letter == "stop_key"}
        self._stopping = stopping & {path for path, source in self._plan.sources.items() if source.ordered}
        self._dead_letters = StoredDeadLetters(ports.infrastructure or ports.store, ports.blobs)
        self._bus = TriggerBus(ports.bus, self._dead_letters)
        failure_log = FailureLog(self._operations.now_ms)
        scope = scope_over(
            self._plan,
            StorePorts(ports.store, self._bus, ports.operations, ports.blobs, ports.infrastructure),
            now_ms=self._operations.now_ms,
            backoff=Backoff(asyncio.sleep),
            spawn=self._spawn,
            settled=self._bus.settled,
            is_stopping=lambda: False,
            new_tx=new_tx,
            failure_log=failure_log,
            linger=_linger,
        )
        assert isinstance(scope, StoreScope), "a store and a bus make lanes"
        self._scope = scope
        self._recovery = Recovery(scope.protocol, stores_of(ports), scope.failed_pushes, now_ms=self._operations.now_ms)
        protocol, spawn = scope.protocol, self._spawn_request
        self._entry = HttpEntry(
            app,
            backend,
            plan=self._plan,
            protocol=protocol,
            spawn=spawn,
            mark_after_s=MARK_AFTER_S,
            failure_log=failure_log,
        )

    async def open(self) -> None:
        """Look whether the backend is as the application needs it, and register what the application is.

        Raises:
            OutboxError: it cannot be used, or not reached now.
        """
        await self.client.declare()
        await register_handlers(self.app, self._operations)
        await register_retention(self.app.name, self._plan.retention, self._operations)
        self._watch.start()

    # Messages

    async def message(self, source: str, received: func.ServiceBusMessage) -> None:
        """Handle a message that a trigger of `source` was given; on return it may be completed.

        Raises:
            GivenBack: it must come again.
        """
        lock_ms, now_ms = round(self._settings.lock_s * 1_000), self._operations.now_ms()
        delivery = to_delivery(source, received, lock=next(self._numbers), lock_ms=lock_ms, now_ms=now_ms)
        invocation, why = await self._handled(delivery, self._settings.attempt_s)
        if not invocation.is_done:
            until_ms = now_ms + round((self._settings.attempt_s + self._settings.rest_s) * 1_000)
            match await self._stayed(delivery, until_ms):
                case "went on":
                    invocation, why = await self._handled(delivery, self._left_s(until_ms))
                case "":
                    await self._rest(invocation)
        if not invocation.is_done:
            where = f"{source}/{delivery.sequence} ({printable(delivery.message.identity) or 'without an id'})"
            raise GivenBack(f"{where}: {why}; it comes again")

    async def _handled(self, delivery: Delivery, within_s: float) -> tuple[Invocation, str]:
        """Have the runtime handle a delivery; how that ended, and why it is to come again if it is."""
        invocation = Invocation(delivery)
        self._bus.take(invocation)
        self._spawn(self._scope.attempt([delivery]))
        try:
            async with asyncio.timeout(within_s):
                await invocation.ended
        except TimeoutError:
            return invocation, f"not handled within {within_s:g} s"
        except RuntimeError as error:
            return invocation, str(error)
        finally:
            self._bus.unblock(invocation)
        return invocation, "not known to be committed, or to be tried again"

    # Keys that stand still

    async def _stayed(self, delivery: Delivery, until_ms: int) -> Literal["", "went on", "stands"]:
        """Stay while the key of a message stands still, for as long as there is; empty where it did not stand still."""
        if delivery.queue not in self._stopping:
            return ""
        behind: BlockedSession | None = None
        look_s, done_attempt = LOOK_FIRST_S, 0
        least_s = min(LEAST_S, self._settings.attempt_s / 2)
        while True:
            with suppress(NothingCommitted):  # else nothing is known to have changed
                found = await self._scope.blocked_behind(delivery)
                if found is None and behind is None:
                    return ""
                if found is None:
                    return "went on" if self._left_s(until_ms) >= least_s else "stands"
                if behind is None:
                    _tell_last_deliveries(delivery)
                behind = found
            if behind is None:
                return ""
            due_ms, again = 0, behind.again
            if again is not None and again.attempt > done_attempt:
                if self._left_s(until_ms) < least_s:
                    return "stands"  # the next delivery has the time for it
                resubmitted = await self._again(delivery, again, until_ms)
                if resubmitted.is_done:
                    done_attempt = again.attempt
                    continue
                due_ms = resubmitted.due_ms
            due_s = (due_ms - self._operations.now_ms()) / 1_000
            rest_s = min(max(look_s * (0.5 + self._chance()), due_s), self._left_s(until_ms))
            if rest_s <= 0:
                return "stands"
            await asyncio.sleep(rest_s)
            look_s = min(2 * look_s, LOOK_MAX_S)

    async def _again(self, behind: Delivery, message: Message, until_ms: int) -> Invocation:
        """Handle what was resubmitted, which no host has handed over: what settles it settles nothing but this."""
        lock, now_ms, locked_ms = next(self._numbers), self._operations.now_ms(), behind.locked_until_ms
        delivery = Delivery(behind.queue, 0, message, lock, now_ms, locked_ms, delivery_count=1)  # it may be on record
        invocation, _ = await self._handled(delivery, min(self._settings.attempt_s, self._left_s(until_ms)))
        return invocation

    def _left_s(self, until_ms: int) -> float:
        """How long until then."""
        return max(0.0, (until_ms - self._operations.now_ms()) / 1_000)

    async def _rest(self, invocation: Invocation) -> None:
        """Keep a message until it is due, or for longer each time that it comes; not for longer than there is."""
        if invocation.due_ms:
            rest_s = (invocation.due_ms - self._operations.now_ms()) / 1_000
        else:
            rest_s = pause_s(1 + invocation.delivery.delivery_count, self._chance())
        await asyncio.sleep(max(0.0, min(rest_s, self._settings.rest_s)))

    # Requests

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Answer a request to one of the HTTP entries; what is stored under its key is the answer to it for ever."""
        try:
            return await self._entry.handle(method, path, headers, body)
        except (Exception, SystemExit):
            log.exception("a request failed; the same request again is safe")
            return unavailable()

    # Sweeping

    async def sweep(self) -> Swept:
        """Finish what crashes have left, of this process or any other; log what could not be sent or was refused.

        Raises:
            Refused, OutcomeUnknown: the store cannot be asked.
        """
        swept = await self._recovery.sweep(grace_s=self._settings.sweep_grace_s)
        await self._count_kept()
        return swept

    async def _count_kept(self) -> None:
        """Log how many refused messages lie in the store: no metric of Azure counts them, and an alert reads this line.

        Raises:
            Refused, OutcomeUnknown: the store cannot be asked.
        """
        for path in self._plan.paths:
            count = await self._dead_letters.count(path, count_max=KEPT_COUNT_MAX)
            if count:
                log.error(KEPT, extra={"count": count, "queue": path})

    # Tasks

    async def finish(self) -> None:
        """Wait for what goes on behind invocations that have ended: marks.  Blocking handlers are left behind."""
        await self._tasks.wait(FINISH_WITHIN_S)
        self._watch.stop()
        self._threads.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.start(self._guarded(coroutine))

    def _spawn_request(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.start(_contained(coroutine), "requests")

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a part of the runtime; whatever comes out of it, the process and its other messages live on."""
        try:
            await coroutine
        except asyncio.CancelledError as error:  # the loop closes
            self._bus.fail(error)
        except BaseException as error:
            log.error(
                "runtime failed; the messages in hand will be redelivered", extra={"app": self.app.name}, exc_info=error
            )
            self._bus.fail(error)


def _tell_last_deliveries(delivery: Delivery) -> None:
    """Say that a message which can only wait is about to be dead-lettered by the broker, while somebody can decide."""
    if (count := delivery.delivery_count + 1) >= TELL_DELIVERIES:
        message = delivery.message
        fields = {"id": message.identity, "queue": delivery.queue, "session": message.session_id, "deliveries": count}
        log.error("a message behind a dead letter has few deliveries left; resubmit that, or discard it", extra=fields)


async def _contained(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run what answers a request; whoever waits for the answer has been told of what comes out of it."""
    try:
        await coroutine
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        log.error("a request failed", exc_info=error)


async def _linger() -> None:
    await asyncio.sleep(MARK_AFTER_S)
