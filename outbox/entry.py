"""HTTP entries without HTTP: a request goes in, the response that its commit has stored comes out.

Theory of operation.  A request under an idempotency key becomes a `Work` and goes through the commit protocol of the
backend, as a message of a queue does; its reply is part of the same commit.  It is worked on in a task of its own, so
a client that hangs up cancels nothing, and whoever asks again meanwhile waits for that same task.  Requests of one
state take turns in this process; against other processes the protocols' conditions hold.  `request_count_max` bounds
the clients that wait, and the tasks: each counts until it ends, answered or not, at work or behind another's turn.

What is on record answers: the reply, or the refusal.  An outcome that nobody knows, a failure, a conflict that does
not end: nothing is kept, the response is 500 or 503 with `Retry-After`, and the same request again is safe.

    async with HttpEntry(app, backend) as entry:
        response = await entry.handle("POST", "/transfers", {"Idempotency-Key": "k1"}, body)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self
from uuid import uuid4

import msgspec

from outbox.app import App
from outbox.client import Client
from outbox.errors import CorruptRecord
from outbox.handlers import UNKEPT
from outbox.http import BODY_BYTES_MAX, Request, Response, Unfit, problem
from outbox.http_paths import Place, find
from outbox.ports import Backend, StorePorts
from outbox.runtime.commit.handler_threads import THREAD_COUNT, HandlerThreads
from outbox.runtime.commit.loop_watch import LoopWatch
from outbox.runtime.commit.marks import Lingering
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.delivery.claim_check import check_blobs
from outbox.runtime.delivery.lanes import Turns
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted, RetryError
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.http import responses as http_answers
from outbox.runtime.http.attempts import requests_over
from outbox.runtime.http.requests import Reader
from outbox.runtime.http.responses import RequestLog
from outbox.runtime.scopes import store_protocol
from outbox.runtime.shell import MARK_AFTER_S, Tasks, finish, log_unsent
from outbox.runtime.start.plan import Plan, compile_plan
from outbox.runtime.start.retention import register_retention
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_protocol import StoreProtocol
from outbox.runtime.work import Attempt, Later, Outcome, Work

log = logging.getLogger("outbox.http")

REQUEST_COUNT_MAX = 1_000
WAIT_S = 30.0


class Pending:
    """A request that is being worked on: its response, as soon as there is one, and the task that works on it."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def answer(self, response: Response) -> None:
        """Answer whoever waits; the first answer counts."""
        if not self.response.done():
            self.response.set_result(response)

    def fail(self, error: BaseException) -> None:
        """Let whoever waits know that there will be no answer."""
        if not self.response.done():
            self.response.set_exception(error)
            self.response.exception()  # somebody may look at it later, or nobody


class HttpEntry:
    """The HTTP entries of an application on a backend; use it as an async context manager.

    Beside a worker of the same backend it may share that one's `plan` and `protocol`, and so the states at hand.
    `backoff` says how often a commit that came to nothing is tried again, `threads` how many blocking handlers may run
    at a time, unless a `plan` says so.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        plan: Plan | None = None,
        protocol: StoreProtocol | None = None,
        wait_s: float = WAIT_S,
        drain_s: float = 30.0,
        body_bytes_max: int = BODY_BYTES_MAX,
        request_count_max: int = REQUEST_COUNT_MAX,
        mark_after_s: float = MARK_AFTER_S,
        new_tx: Callable[[], str] | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        backoff: Backoff | None = None,
        threads: int | HandlerThreads = THREAD_COUNT,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]] | None = None,
        failure_log: FailureLog | None = None,
    ) -> None:
        self.app = app
        self.body_bytes_max = body_bytes_max
        self._wait_s = wait_s
        self._drain_s = drain_s
        self._request_count_max = request_count_max
        self._sleep = sleep
        self._tasks = Tasks(app.name, ended=self._ended_task)
        self._spawn = spawn or partial(self._tasks.start, what="requests")
        self._client = Client(app, backend)
        self._threads = HandlerThreads(threads) if isinstance(threads, int) else threads
        self._owns_threads = isinstance(threads, int)
        self._watch: LoopWatch | None = None
        if plan is None:
            plan = compile_plan(app, threads=self._threads)
            self._watch = LoopWatch(plan)
        self._plan = plan
        routes = [replace(route, handler=plan.hosted(route.handler)) for route in app.routes]
        self._places = [Place(route.method, route.template, Reader(app, route)) for route in routes]
        self._backoff = backoff or Backoff(sleep)
        self._turns = Turns()
        self._pending: dict[tuple[bytes, bytes], Pending] = {}
        self._waiting_count = 0
        self._working: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        ports = backend.ports()
        check_blobs(app, ports.blobs)
        self._operations = operations_over(ports)
        self._now_ms = self._operations.now_ms
        self._life = Life(self._now_ms, lambda: self._is_stopping)
        self._log = RequestLog(self._now_ms, failure_log or FailureLog(self._now_ms))
        self._settlement: Settlement | None = None
        if protocol is None and isinstance(ports, StorePorts):
            protocol = self._own_protocol(ports, new_tx or (lambda: uuid4().hex))
        self._protocol = protocol
        linger = None if protocol is None or not mark_after_s else Lingering(protocol, lambda: sleep(mark_after_s))
        self._lingering = linger
        self._requests = requests_over(
            self._plan, ports, protocol, now_ms=self._now_ms, is_stopping=self._life.is_stopping
        )

    def _own_protocol(self, ports: StorePorts, new_tx: Callable[[], str]) -> StoreProtocol:
        """The protocol of a store and a bus, without a worker's deliveries."""
        now_ms, plan = self._now_ms, self._plan
        self._settlement = Settlement(
            plan, ports.bus, ports.blobs, backoff=self._backoff, now_ms=now_ms, new_tx=new_tx, settled=lambda _: None
        )
        return store_protocol(
            plan, ports, self._settlement, now_ms=now_ms, new_tx=new_tx, is_stopping=self._life.is_stopping
        )

    async def __aenter__(self) -> Self:
        await self._client.declare()
        await register_retention(self.app.name, self._plan.memory, self._operations)
        if self._watch is not None:
            self._watch.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Stop: take nothing on, let what is under way end for a time, and cancel the rest, which is safe to repeat."""
        self.stop()
        await self._tasks.drain(self._drain_s)
        if self._protocol is not None:
            await finish(self._protocol)
        self._log_unsent()
        if self._watch is not None:
            self._watch.stop()
        if self._owns_threads:
            self._threads.close()

    def stop(self) -> None:
        """Take nothing on any more; from here on a request that is cancelled is not its handler's failure."""
        self._is_stopping = True

    # One request

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Answer a request; `path` is as it was sent, with its query.  Names of headers may be in any case.

        HEAD is answered as GET is; whoever sends the response leaves the body out.

        Raises:
            EngineStopped: the backend stopped for good.
        """
        response, _ = await self.answered(method, path, headers, body)
        return response or http_answers.unavailable()

    async def answered(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[Response | None, asyncio.Task[None] | None]:
        """Answer a request; the response, and the task that may go on behind it with what the commit has emitted.

        None is the response to a request that was cut off, as when the process ends.
        """
        bare, _, query = path.partition("?")
        request = Request(method.upper(), bare, {name.lower(): text for name, text in headers.items()}, body, query)
        if self._is_stopping:
            return http_answers.unavailable(), None
        if self._waiting_count >= self._request_count_max:
            return self._too_many().response, None
        self._waiting_count += 1
        try:
            response, task = await self._answered(request)
        except Unfit as unfit:
            response, task = unfit.response, None
        finally:
            self._waiting_count -= 1
        return response, task

    async def _answered(self, request: Request) -> tuple[Response | None, asyncio.Task[None] | None]:
        found = find(self._places, request.method, request.path)
        reader = found.target
        if reader is None and found.allowed:
            allow = ", ".join(found.allowed)
            return problem(405, "method-not-allowed", f"this path takes {allow}", allow=allow), None
        if reader is None:
            return problem(404, "not-found", "nothing is served at this path"), None
        if len(request.body) > self.body_bytes_max:
            text = f"the body takes {len(request.body)} bytes, over {self.body_bytes_max}"
            return problem(413, "too-large", text), None
        caller = await reader.caller(request)
        if reader.route.is_read:
            pending, is_first = self._look(reader.look(request, found.parameters, caller, self._now_ms())), True
        else:
            pending, is_first = self._take_on(reader.work(request, found.parameters, caller, self._now_ms()))
        await asyncio.wait([pending.response], timeout=self._wait_s)
        if not pending.response.done():
            return (http_answers.unavailable() if is_first else http_answers.in_progress()), pending.task
        return None if pending.response.cancelled() else pending.response.result(), pending.task

    def _take_on(self, work: Work) -> tuple[Pending, bool]:
        """Work on a request, or join whoever is at it; whether it is the first."""
        name = work.inbox, work.fingerprint
        known = self._pending.get(name)
        if known is not None:
            return known, False
        self._check_room()
        pending = self._pending[name] = Pending()
        self._set_out(pending, self._write(work, pending, name))
        return pending, True

    def _look(self, work: Work) -> Pending:
        self._check_room()
        pending = Pending()
        self._set_out(pending, self._read(work, pending))
        return pending

    def _check_room(self) -> None:
        """Refuse a request that nobody works on yet, where as many are worked on as may be."""
        if len(self._working) >= self._request_count_max:
            raise self._too_many()

    def _too_many(self) -> Unfit:
        text = (
            f"{self._request_count_max} requests are under way, as many as are taken on; the same request again is safe"
        )
        return Unfit(503, "try-again", text, retry_after_s=http_answers.AGAIN_AFTER_S)

    def _set_out(self, pending: Pending, coroutine: Coroutine[Any, Any, None]) -> None:
        """Begin to work on a request, which counts as under way until its task ends."""
        task = pending.task = self._spawn(coroutine)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    # Requests that change something

    async def _write(self, work: Work, pending: Pending, name: tuple[bytes, bytes]) -> None:
        """Bring a request to its end; the answer may be known before."""
        attempt = Attempt(work, on_committed=lambda record: pending.answer(http_answers.answer_of(record)))
        try:
            pending.answer(await self._ended(attempt))
        except asyncio.CancelledError:
            pending.response.cancel()
            raise
        except BaseException as error:
            pending.fail(error)
            raise
        finally:
            self._pending.pop(name, None)
        await self._finish()

    async def _ended(self, attempt: Attempt) -> Response:
        """What becomes of a request, as far as anybody can tell now."""
        try:
            outcome = await self._tried(self._requests.begin, attempt) or await self._handled(attempt)
        except RetryError as error:
            return self._log.unavailable(error)
        except CorruptRecord as error:
            return self._log.put_off(error)
        self._log.ended(attempt, outcome)
        if attempt.record is not None:
            return http_answers.answer_of(attempt.record)
        if isinstance(outcome, Later):
            return http_answers.put_off(outcome, attempt.work)
        assert outcome is not None, "what was applied is on record"
        return http_answers.refused(outcome)

    async def _handled(self, attempt: Attempt) -> Outcome:
        """Handle a request, again while its handler fails and its entry declares that it may."""
        while True:
            async with self._turns.of(attempt.work.lane):
                outcome = await self._tried(self._requests.once, attempt)
            work = attempt.work
            has_failed = isinstance(outcome, Later) and outcome.failures > work.delivery.failures
            if not has_failed or work.handler is None or work.handler.retries is UNKEPT:
                return outcome
            assert isinstance(outcome, Later), "only that is a failure that is not the last"
            self._log.ended(attempt, outcome)
            await self._sleep(outcome.delay_s)
            delivery = msgspec.structs.replace(work.delivery, failures=outcome.failures)
            attempt.work = msgspec.structs.replace(work, delivery=delivery)

    async def _tried(self, step: Callable[[Attempt], Awaitable[Outcome]], attempt: Attempt) -> Outcome:
        """Make a step, again while nothing is known to have come of it."""
        with suppress(NothingCommitted):
            return await _made(step, attempt)
        async for turn in self._backoff.attempts():
            with turn:
                return await _made(step, attempt)
        raise AssertionError("the last attempt raises")

    async def _finish(self) -> None:
        """Mark what has left, soon."""
        if self._lingering is not None:
            await self._lingering.write(self._spawn)
        elif self._protocol is not None:
            await self._protocol.finish()
        self._log_unsent()

    def _log_unsent(self) -> None:
        """Log what could not be sent, unless that is the affair of the worker whose protocol this entry shares."""
        if self._settlement is not None:
            log_unsent(self._settlement.unsent)

    # Requests that read

    async def _read(self, work: Work, pending: Pending) -> None:
        try:
            pending.answer(await self._read_answer(work))
        except asyncio.CancelledError:
            pending.response.cancel()
            raise
        except BaseException as error:
            pending.fail(error)
            raise

    async def _read_answer(self, work: Work) -> Response:
        try:
            async for turn in self._backoff.attempts():
                with turn:
                    look = await self._requests.look(work)
        except RetryError as error:
            return self._log.unavailable(error)
        except CorruptRecord as error:
            return self._log.put_off(error)
        attempt = Attempt(work)
        outcome = await run_branch(self._plan, look, attempt, self._life)
        self._log.ended(attempt, outcome)
        if isinstance(outcome, Later):
            return http_answers.put_off(outcome, work)
        if outcome is not None:
            return http_answers.refused(outcome)
        if look.reply is None or (look.reply.status == 204 and not look.reply.headers):
            return problem(404, "not-found", "there is nothing under this name")
        return look.reply.response

    @staticmethod
    def _ended_task(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("request stopped", extra={"task": task.get_name()}, exc_info=task.exception())


async def _made(step: Callable[[Attempt], Awaitable[Outcome]], attempt: Attempt) -> Outcome:
    """Make a step; one that could only not push what it has committed is made, for the sweeper pushes that."""
    try:
        return await step(attempt)
    except NothingCommitted:
        if attempt.record is None:
            raise
        return attempt.record.refusal
