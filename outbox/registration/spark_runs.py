"""The handler of requests for Spark runs: it starts each once, and does not wait for its end.

The start is an external call, made at least once and idempotent by the run's id, which is the request's identity.  A
request with an unknown outcome is rescheduled uncounted, one that can never be started is dead-lettered with its
reason, and any other failure counts: then an operator has to fix the settings and resubmit.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from outbox.context import Context
from outbox.errors import OutcomeUnknown, Throttled
from outbox.retries import Reject, Retry
from outbox.spark import NotRunnable, RunPending, RunRequest, SparkRuns, run_id

T = TypeVar("T")

HANDLER_NAME = "submit_spark_job"
AGAIN_AFTER_S = 15.0
"""When a request with an unknown outcome is retried."""


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
