"""Handle messages and requests in one process of a Functions host: invocations in, commits out.

*Theory of operation.*  The invocations of one process share one runtime: its state cache, its lanes (messages of one
key run one after another, and are committed together where several wait) and its marks.  An invocation hands its
message to the runtime and waits for the settlement; it runs nothing itself, so cancelling it stops no other message.
It ends in one of two ways:

    returns   the outcome is committed, pushed and, for a refusal, stored: the host completes the message
    raises    nothing is known to be committed, or the message is to be redelivered: the host abandons it

Both are safe at any moment and in any number, as every settlement is.  The host redelivers an abandoned message at once
and would use up its deliveries within seconds, so before it raises an invocation waits, under the lock, longer with
each delivery.

A message behind a blocked key can only wait for an operator, and each delivery counts.  So its invocation waits for as
long as the limits allow and looks at the block now and then; the host would start the next invocation in the same
moment, and this way a limit of a hundred deliveries lasts for hours.  A resubmission lies behind that message in the
session, and the host delivers one message of a session at a time.  So the waiting invocation handles it, from the note
that the resubmission left, and the copy that the bus delivers later is a duplicate.

The first invocation of an event loop opens the backend.  Nothing closes it: the host may end the process at any time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal
from uuid import uuid4

import azure.functions as func

from outbox.app import App
from outbox.azure.functions.bus import Invocation, TriggerBus, to_delivery
from outbox.azure.functions.settings import FunctionsSettings
from outbox.client import Client
from outbox.errors import NotRegistrable
from outbox.escape import printable
from outbox.http import Response
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.ports import Backend, Delivery, StorePorts
from outbox.runtime.commit.handler_threads import HandlerThreads
from outbox.runtime.commit.loop_watch import LoopWatch
from outbox.runtime.commit.sweeper import Swept
from outbox.runtime.counts import Counts
from outbox.runtime.delivery.blocked_sessions import BlockedSession
from outbox.runtime.delivery.retrying import REST_FIRST_S, Backoff, NothingCommitted
from outbox.runtime.delivery.stored_dead_letters import StoredDeadLetters
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.http.responses import unavailable
from outbox.runtime.scopes import scope_over, stores_of
from outbox.runtime.shell import FINISH_WITHIN_S, MARK_AFTER_S, Recovery, Tasks, signs_over
from outbox.runtime.start.notes import register_handlers, register_retention
from outbox.runtime.start.plan import compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreScope

log = logging.getLogger("outbox.functions")

REST_DOUBLINGS_MAX = 7
LOOK_FIRST_S = 1.0
"""How long until a blocked key is read again; twice as long each time."""
LOOK_MAX_S = 15.0
KEPT = "refused messages are kept"
"""The log line that infra/modules/alerts.bicep watches, logged as long as there are any."""
KEPT_COUNT_MAX = 50
"""The limit of that count: each one costs a read at every sweep."""
LEAST_S = 10.0
"""The least time left in which another attempt begins; the next delivery finds what it commits later."""
WARN_DELIVERIES = 90
"""The delivery of a message behind a blocked key from which on each is logged: queues allow 100."""


def pause_s(delivery_count: int, chance: float) -> float:
    """How long to wait before a message is abandoned: longer with each delivery (from 1), and jittered."""
    return float(REST_FIRST_S * 2 ** min(delivery_count - 1, REST_DOUBLINGS_MAX) * (0.5 + chance))


class GivenBack(RuntimeError):
    """The message must be redelivered; the host logs this and abandons it."""


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
        """Handle the messages of `app` on `backend`; nothing is opened yet.

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
        counts = Counts() if settings.telemetry is None else settings.telemetry.counts
        limit_s = settings.time_limit_s_max
        self._plan = compile_app(app, threads=self._threads, time_limit_s_max=limit_s, counts=counts)
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
            _triggered(ports, self._bus, settings),
            now_ms=self._operations.now_ms,
            backoff=Backoff(asyncio.sleep),
            spawn=self._spawn,
            settled=self._bus.settled,
            is_stopping=lambda: False,
            new_tx=new_tx,
            failure_log=failure_log,
            linger=lambda: asyncio.sleep(MARK_AFTER_S),
        )
        assert isinstance(scope, StoreScope), "a store and a bus make lanes"
        self._scope = scope
        self._recovery = self._recovery_of(scope, ports)
        self._signs = signs_over(app.name, self._plan.paths, ports, scope, self._plan.counts)
        self._entry = HttpEntry(
            app,
            backend,
            plan=self._plan,
            protocol=scope.protocol,
            spawn=lambda answering: self._tasks.start(_contained(answering), "requests"),
            mark_after_s=MARK_AFTER_S,
            failure_log=failure_log,
        )

    def _recovery_of(self, scope: StoreScope, ports: StorePorts) -> Recovery:
        return Recovery(
            *(scope.protocol, stores_of(ports), scope.failed_pushes),
            now_ms=self._operations.now_ms,
            counts=self._plan.counts,
            operations=ports.operations,
            queues=self._plan.paths,
        )

    async def open(self) -> None:
        """Declare what the application needs, and register its handlers and its retention.

        Raises:
            OutboxError: the backend cannot be used, or not reached now.
        """
        await self.client.declare()
        await register_handlers(self.app, self._operations)
        await register_retention(self.app.name, self._plan.retention, self._operations)
        self._watch.start()

    # Messages

    async def message(self, source: str, received: func.ServiceBusMessage) -> None:
        """Handle a message that a trigger of `source` received; on return it may be completed.

        Raises:
            GivenBack: it must be redelivered.
        """
        lock_ms, now_ms = round(self._settings.lock_s * 1_000), self._operations.now_ms()
        delivery = to_delivery(source, received, lock=next(self._numbers), lock_ms=lock_ms, now_ms=now_ms)
        invocation, why = await self._handled(delivery, self._settings.attempt_s)
        if not invocation.is_done:
            until_ms = now_ms + round((self._settings.attempt_s + self._settings.rest_s) * 1_000)
            match await self._wait_unblocked(delivery, until_ms):
                case "unblocked":
                    invocation, why = await self._handled(delivery, self._left_s(until_ms))
                case "":
                    await self._rest(invocation)
        if not invocation.is_done:
            where = f"{source}/{delivery.sequence} ({printable(delivery.message.identity) or 'without an id'})"
            raise GivenBack(f"{where}: {why}; it will be redelivered")

    async def _handled(self, delivery: Delivery, within_s: float) -> tuple[Invocation, str]:
        """Have the runtime handle a delivery; the invocation, and why the message must be redelivered, if it must."""
        if self._signs.is_due:
            self._spawn(self._signs.give())
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
            self._bus.forget(invocation)
        return invocation, "nothing is known to be committed, or it is to be retried"

    # Blocked keys

    async def _wait_unblocked(self, delivery: Delivery, until_ms: int) -> Literal["", "unblocked", "blocked"]:
        """Wait while the key of a message is blocked, at most until then; empty where it was not blocked."""
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
                    return "unblocked" if self._left_s(until_ms) >= least_s else "blocked"
                if behind is None:
                    _log_last_deliveries(delivery)
                behind = found
            if behind is None:
                return ""
            due_ms, again = 0, behind.again
            if again is not None and again.attempt > done_attempt:
                if self._left_s(until_ms) < least_s:
                    return "blocked"  # the next delivery has the time for it
                resubmitted = await self._handle_resubmission(delivery, again, until_ms)
                if resubmitted.is_done:
                    done_attempt = again.attempt
                    continue
                due_ms = resubmitted.due_ms
            due_s = (due_ms - self._operations.now_ms()) / 1_000
            rest_s = min(max(look_s * (0.5 + self._chance()), due_s), self._left_s(until_ms))
            if rest_s <= 0:
                return "blocked"
            await asyncio.sleep(rest_s)
            look_s = min(2 * look_s, LOOK_MAX_S)

    async def _handle_resubmission(self, behind: Delivery, message: Message, until_ms: int) -> Invocation:
        """Handle a resubmission that the host has not delivered: its settlement ends this invocation only."""
        lock, now_ms, locked_ms = next(self._numbers), self._operations.now_ms(), behind.locked_until_ms
        delivery = Delivery(behind.queue, 0, message, lock, now_ms, locked_ms, delivery_count=1)  # it may be on record
        invocation, _ = await self._handled(delivery, min(self._settings.attempt_s, self._left_s(until_ms)))
        return invocation

    def _left_s(self, until_ms: int) -> float:
        """The seconds until then, not below 0."""
        return max(0.0, (until_ms - self._operations.now_ms()) / 1_000)

    async def _rest(self, invocation: Invocation) -> None:
        """Wait under the lock until a message is due, or longer with each delivery; at most `rest_s`."""
        rest_s = (
            (invocation.due_ms - self._operations.now_ms()) / 1_000
            if invocation.due_ms
            else pause_s(1 + invocation.delivery.delivery_count, self._chance())
        )
        await asyncio.sleep(max(0.0, min(rest_s, self._settings.rest_s)))

    # Requests

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Response:
        """Answer a request to one of the HTTP entries; every repetition gets the stored response."""
        try:
            return await self._entry.handle(method, path, headers, body)
        except (Exception, SystemExit):
            log.exception("a request failed; the same request again is safe")
            return unavailable()

    # Sweeping

    async def sweep(self) -> Swept:
        """Push and mark pending documents of any process; log failed pushes and the count of stored dead letters.

        Raises:
            Refused, OutcomeUnknown: the store cannot be read.
        """
        await self._signs.give()
        swept = await self._recovery.sweep(grace_s=self._settings.sweep_grace_s)
        for path in self._plan.paths:  # no metric of Azure counts them
            if count := await self._dead_letters.count(path, count_max=KEPT_COUNT_MAX):
                log.error(KEPT, extra={"count": count, "queue": path})
        return swept

    # Tasks

    async def finish(self) -> None:
        """Wait for the tasks that outlive their invocations, such as marks; blocking handlers are abandoned."""
        await self._tasks.wait(FINISH_WITHIN_S)
        self._watch.stop()
        self._threads.close()

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.start(self._guarded(coroutine))

    async def _guarded(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a task of the runtime; whatever it raises, the process goes on with its other messages."""
        try:
            await coroutine
        except (asyncio.CancelledError, GeneratorExit) as error:  # the loop closes
            self._bus.fail(error)
        except BaseException as error:
            log.error(
                "runtime failed; the messages in hand will be redelivered", extra={"app": self.app.name}, exc_info=error
            )
            self._bus.fail(error)


def _log_last_deliveries(delivery: Delivery) -> None:
    """Log that the broker is about to dead-letter a message behind a blocked key, while an operator can still act."""
    if (count := delivery.delivery_count + 1) >= WARN_DELIVERIES:
        message = delivery.message
        fields = {"id": message.identity, "queue": delivery.queue, "session": message.session_id, "deliveries": count}
        log.error("a message behind a dead letter has few deliveries left; resubmit that, or discard it", extra=fields)


async def _contained(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run the task of a request; its client gets what it raises, so it is only logged here."""
    try:
        await coroutine
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        log.error("a request failed", exc_info=error)


def _triggered(ports: StorePorts, bus: TriggerBus, settings: FunctionsSettings) -> StorePorts:
    """The ports behind triggers, traced where the settings say so."""
    triggered = replace(ports, bus=bus)
    return triggered if settings.telemetry is None else settings.telemetry.traced_ports(triggered)
