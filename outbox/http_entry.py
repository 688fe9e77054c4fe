"""HTTP entries without a server: requests in, the responses stored by their commits out.

Theory of operation.  A request under an idempotency key becomes a `Work` and goes through the commit protocol of the
backend, like a message of a queue; its reply is part of the same commit.  It runs in a task of its own, so that a
client that hangs up cancels nothing, and a repetition meanwhile waits for the same task.  Requests of one state take
turns in this process; against other processes the protocols' conditions hold.  `request_count_max` limits the waiting
clients, and the tasks: each counts until it ends, answered or not, running or waiting for its turn.

The record answers: the reply, or the refusal.  After an unknown outcome, a failure, or a conflict that persists nothing
is recorded, the response is 500 or 503 with `Retry-After`, and the same request again is safe.

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
from outbox.http import BODY_BYTES_MAX, Request, Response, Unfit, problem
from outbox.ports import Backend, StorePorts
from outbox.registration.handlers import UNKEPT
from outbox.registration.routes import Place, find
from outbox.runtime.commit.handler_threads import THREAD_COUNT, HandlerThreads
from outbox.runtime.commit.loop_watch import LoopWatch
from outbox.runtime.commit.marks import Lingering
from outbox.runtime.commit.run_handler import Life, run_branch
from outbox.runtime.counts import Counts, counted
from outbox.runtime.delivery.claim_check import check_blobs
from outbox.runtime.delivery.intake import Turns
from outbox.runtime.delivery.retrying import Backoff, NothingCommitted, RetryError
from outbox.runtime.delivery.settlement import Settlement
from outbox.runtime.failures.failure_log import FailureLog
from outbox.runtime.http import responses
from outbox.runtime.http.attempts import requests_over
from outbox.runtime.http.requests import Reader
from outbox.runtime.http.responses import RequestLog
from outbox.runtime.scopes import store_protocol
from outbox.runtime.shell import MARK_AFTER_S, Tasks, finish, log_failed_pushes
from outbox.runtime.start.notes import register_retention
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox.runtime.store_operations import operations_over
from outbox.runtime.store_scope import StoreParts, StoreProtocol
from outbox.runtime.work import Attempt, Later, Outcome, Work

log = logging.getLogger("outbox.http")

REQUEST_COUNT_MAX = 1_000
WAIT_S = 30.0


class Pending:
    """A request in progress: its future response, and its task."""

    def __init__(self) -> None:
        self.response: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self.task: asyncio.Task[None] | None = None

    def answer(self, response: Response) -> None:
        """Set the response; the first one counts."""
        if not self.response.done():
            self.response.set_result(response)

    async def take(self, respond: Callable[[], Awaitable[Response]]) -> None:
        """Set the response that this gives; whatever it raises fails the waiting clients too."""
        try:
            self.answer(await respond())
        except asyncio.CancelledError:
            self.response.cancel()
            raise
        except BaseException as error:
            if not self.response.done():
                self.response.set_exception(error)
                self.response.exception()  # marks it as retrieved
            raise


class HttpEntry:
    """The HTTP entries of an application on a backend; use it as an async context manager.

    Beside a worker of the same backend it may share the worker's `plan` and `protocol`, with the state cache.
    `backoff` limits the attempts of a commit, `threads` the concurrent blocking handlers, unless `plan` has threads.
    """

    def __init__(
        self,
        app: App,
        backend: Backend,
        *,
        plan: CompiledApp | None = None,
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
        counts: Counts | None = None,
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
            plan = compile_app(app, threads=self._threads, counts=Counts() if counts is None else counts)
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
        ports = counted(ports, plan.counts)
        self._settlement = Settlement(
            plan, ports.bus, ports.blobs, backoff=self._backoff, now_ms=now_ms, new_tx=new_tx, settled=lambda _: None
        )
        return store_protocol(StoreParts(plan, ports, self._settlement, now_ms, new_tx, self._life.is_stopping))

    async def __aenter__(self) -> Self:
        await self._client.declare()
        await register_retention(self.app.name, self._plan.retention, self._operations)
        if self._watch is not None:
            self._watch.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Stop: refuse new requests, wait `drain_s` for those in progress, cancel the rest, which is safe to repeat."""
        self.stop()
        await self._tasks.drain(self._drain_s)
        if self._protocol is not None:
            await finish(self._protocol)
        self._log_failed_pushes()
        if self._watch is not None:
            self._watch.stop()
        if self._owns_threads:
            self._threads.close()

    def stop(self) -> None:
        """Refuse new requests; from here on a cancelled request is not its handler's failure."""
        self._is_stopping = True

    # One request

    async def handle(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Response:
        """Answer a request; `path` is as sent, with its query.  Header names may be in any case.

        HEAD is answered like GET; the server leaves the body out.

        Raises:
            EngineStopped: the backend stopped for good.
        """
        response, _ = await self.answered(method, path, headers, body)
        return response or responses.unavailable()

    async def answered(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes = b""
    ) -> tuple[Response | None, asyncio.Task[None] | None]:
        """Answer a request; the response, and its task, which may still push the outputs.

        The response is None for a request that was cancelled, as when the process ends.
        """
        bare, _, query = path.partition("?")
        request = Request(method.upper(), bare, {name.lower(): text for name, text in headers.items()}, body, query)
        if self._is_stopping:
            return responses.unavailable(), None
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
            pending, is_first = self._look(reader.read_work(request, found.parameters, caller, self._now_ms())), True
        else:
            pending, is_first = self._take_on(reader.work(request, found.parameters, caller, self._now_ms()))
        await asyncio.wait([pending.response], timeout=self._wait_s)
        if not pending.response.done():
            return (responses.unavailable() if is_first else responses.in_progress()), pending.task
        return None if pending.response.cancelled() else pending.response.result(), pending.task

    def _take_on(self, work: Work) -> tuple[Pending, bool]:
        """Start a request, or join it in progress; whether it is the first."""
        name = work.inbox, work.fingerprint
        known = self._pending.get(name)
        if known is not None:
            return known, False
        self._check_limit()
        pending = self._pending[name] = Pending()
        self._set_out(pending, self._write(work, pending, name))
        return pending, True

    def _look(self, work: Work) -> Pending:
        self._check_limit()
        pending = Pending()
        self._set_out(pending, pending.take(partial(self._read_answer, work)))
        return pending

    def _check_limit(self) -> None:
        """Refuse a new request above the limit of tasks."""
        if len(self._working) >= self._request_count_max:
            raise self._too_many()

    def _too_many(self) -> Unfit:
        text = f"{self._request_count_max} requests are in progress, which is the limit; the same request again is safe"
        return Unfit(503, "try-again", text, retry_after_s=responses.AGAIN_AFTER_S)

    def _set_out(self, pending: Pending, coroutine: Coroutine[Any, Any, None]) -> None:
        """Start the task of a request, which counts until it ends."""
        task = pending.task = self._spawn(coroutine)
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    # Requests that change something

    async def _write(self, work: Work, pending: Pending, name: tuple[bytes, bytes]) -> None:
        """Handle a request; the response may be set before its end."""
        attempt = Attempt(work, on_committed=lambda record: pending.answer(responses.answer_of(record)))
        try:
            await pending.take(partial(self._counted, attempt))
        finally:
            self._pending.pop(name, None)
        await self._finish()

    async def _counted(self, attempt: Attempt) -> Response:
        """The response to a request, which is counted."""
        response = await self._ended(attempt)
        self._plan.counts.request(attempt, response.status)
        return response

    async def _ended(self, attempt: Attempt) -> Response:
        """The response to a request, by its record or its outcome."""
        try:
            outcome = await self._tried(self._requests.begin, attempt) or await self._handled(attempt)
        except RetryError as error:
            return self._log.unavailable(error)
        except CorruptRecord as error:
            return self._log.unreadable(error)
        self._log.ended(attempt, outcome)
        if attempt.record is not None:
            return responses.answer_of(attempt.record)
        if isinstance(outcome, Later):
            return responses.failed(outcome, attempt.work)
        assert outcome is not None, "what was applied is on record"
        return responses.refused(outcome)

    async def _handled(self, attempt: Attempt) -> Outcome:
        """Handle a request, with the retries that its entry declares."""
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
        """Make a step, with retries while nothing is known to be committed."""
        with suppress(NothingCommitted):
            return await _made(step, attempt)
        async for turn in self._backoff.attempts():
            with turn:
                return await _made(step, attempt)
        raise AssertionError("the last attempt raises")

    async def _finish(self) -> None:
        if self._lingering is not None:
            await self._lingering.write(self._spawn)
        elif self._protocol is not None:
            await self._protocol.finish()
        self._log_failed_pushes()

    def _log_failed_pushes(self) -> None:
        """Log failed pushes, unless the worker that shares the protocol does."""
        if self._settlement is not None:
            log_failed_pushes(self._settlement.failed_pushes)

    # Requests that read

    async def _read_answer(self, work: Work) -> Response:
        try:
            async for turn in self._backoff.attempts():
                with turn:
                    transaction = await self._requests.read(work)
        except RetryError as error:
            return self._log.unavailable(error)
        except CorruptRecord as error:
            return self._log.unreadable(error)
        attempt = Attempt(work)
        outcome = await run_branch(self._plan, transaction, attempt, self._life)
        self._log.ended(attempt, outcome)
        if isinstance(outcome, Later):
            return responses.failed(outcome, work)
        if outcome is not None:
            return responses.refused(outcome)
        return responses.read_answer(transaction.reply)

    @staticmethod
    def _ended_task(task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None:
            log.error("request stopped", extra={"task": task.get_name()}, exc_info=task.exception())


async def _made(step: Callable[[Attempt], Awaitable[Outcome]], attempt: Attempt) -> Outcome:
    """Make a step; a failed push after the commit counts as done, because the sweeper pushes again."""
    try:
        return await step(attempt)
    except NothingCommitted:
        if attempt.record is None:
            raise
        return attempt.record.refusal
