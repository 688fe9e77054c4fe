"""The registered queues, handlers and HTTP entries of an application, and the handlers that the framework makes.

*Answering.*  The commit protocols ignore a handler's return value.  So a wrapper encodes that of an HTTP entry within
the attempt: a reply that cannot be stored fails the handler, and nothing of it takes effect.

*Spark runs.*  The handler of requests for them starts each once, and does not wait for its end.  The start is an
external call, made at least once and idempotent by the run's id, which is the request's identity.  A request with an
unknown outcome is rescheduled uncounted, one that can never be started is dead-lettered with its reason, and any other
failure counts: then an operator has to fix the settings and resubmit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from inspect import isawaitable
from typing import Any, Literal, TypeVar

from outbox.codec import StateCodec
from outbox.context import Context
from outbox.encoding import encoded
from outbox.errors import OutcomeUnknown, Throttled
from outbox.generators import check_result
from outbox.http import Request, reply_of
from outbox.registration.binding import Binding
from outbox.registration.routes import READS, Template
from outbox.retries import Reject, Retries, Retry
from outbox.spark import NotRunnable, RunPending, RunRequest, SparkRuns, run_id

Ordering = Literal["unordered", "per_key"]
Caller = Callable[[Request], str | Awaitable[str]]

NO_KEY = "-"
"""The key name of a handler without a key."""


UNKEPT = Retries(limit=1 << 31, delays_s=())
"""The retries of an HTTP entry without `retries=`: no failure is the last, so none is recorded; the caller retries."""


TIME_LIMIT_S = 120.0
"""A handler's default time limit, in seconds: below the 150 s of an invocation of a Functions host."""
T = TypeVar("T")
AGAIN_AFTER_S = 15.0
"""When a request with an unknown outcome is retried."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A declared queue; `identity` is the policy for messages without an id."""

    name: str
    ordering: Ordering = "unordered"
    identity: Literal["required", "sequence-number"] = "required"
    read_elsewhere: bool = False
    """Whether another receiver takes its messages, so that it is no mistake that no handler here does."""


@dataclass(frozen=True, slots=True)
class Handler:
    """A registered handler, ready to run."""

    name: str
    source: str
    binding: Binding
    key: Callable[[Any], Any] | None
    state: StateCodec | None
    on_dead_letter: Literal["continue", "stop_key"]
    prefix: bytes = field(repr=False)
    key_name: str = NO_KEY
    """The registered name of the key, which is part of message identity."""
    key_kind: str = ""
    """The type of the key: `text`, `int` or `uuid`; empty if unknown."""
    retries: Retries | None = None
    """Its own retries; None: the application's."""
    time_limit_s: float = TIME_LIMIT_S
    """The time limit of one attempt, in seconds; beyond it the attempt has failed."""
    blocking: bool = False
    """Whether it runs in a thread, where its host has threads."""
    guards: tuple[Any, ...] = ()
    """Its breaker and its rate limit, as declared."""
    find_guard: Callable[[Any], Any] | None = None
    """The guard of a declaration in this process, for its calls; None: they are not guarded."""
    middleware: tuple[Any, ...] = ()
    """The middleware of its own declaration, as functions that return a context manager."""


def over_limit_text(name: str, limit_s: float, what: str = "its time limit (time_limit_s=)") -> str:
    """The error text of a handler past its time limit."""
    return f"handler {name} had not ended after {limit_s:g} s, {what}; nothing of it is committed"


@dataclass(frozen=True, slots=True)
class HttpRoute:
    """A registered HTTP entry: name, method, path, handler, and the function that returns the caller."""

    name: str
    method: str
    template: Template
    handler: Handler
    caller: Caller | None

    @property
    def is_read(self) -> bool:
        """Whether it only reads, and needs no idempotency key."""
        return self.method in READS


def answering(binding: Binding) -> Binding:
    """A handler whose return value becomes its context's reply."""
    call = binding.call

    async def wait(returned: Awaitable[Any], context: Context) -> None:
        _answer(await returned, context)

    def answer(message: Any, state: Any, context: Context) -> Awaitable[None] | None:
        returned = call(message, state, context)
        if isawaitable(returned):
            return wait(returned, context)
        _answer(returned, context)
        return None

    return replace(binding, wants_context=True, is_async=False, call=answer)


def _answer(returned: Any, context: Context) -> None:
    check_result(f"handler {context.work.handler.name}", returned)
    context.answer = reply_of(returned, encoded)
    context.is_plain = False  # a reply is more than the fast path commits


SPARK_HANDLER_NAME = "submit_spark_job"


def submitting(runs: Callable[[], SparkRuns]) -> Callable[[RunRequest, Context], Awaitable[None]]:
    """A handler of requests; `runs` is called at the first request."""

    async def submit(request: RunRequest, ctx: Context) -> None:
        await heeded(ctx.call(lambda: runs().submit(run_id(ctx.message_id), request), idempotent=True))

    return submit


async def heeded(asked: Awaitable[T]) -> T:
    """Await a call of `SparkRuns`, and translate its errors.

    Raises:
        Retry: ask again later.
        Reject: the run can never be started.
    """
    try:
        return await asked
    except RunPending as pending:
        raise Retry(str(pending), after_s=pending.after_s) from pending
    except Throttled as throttled:
        raise Retry(str(throttled), after_s=throttled.retry_after_s or AGAIN_AFTER_S) from throttled
    except OutcomeUnknown as unknown:
        raise Retry(str(unknown), after_s=AGAIN_AFTER_S) from unknown
    except NotRunnable as refused:
        raise Reject(str(refused)) from refused
