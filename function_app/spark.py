"""Triggers of Spark jobs, where OUTBOX_SPARK says that this application starts any: timers and HTTP.

    POST /spark/{job}               {"arguments": [...]} under an Idempotency-Key starts a run; 202 and its id
    GET  /spark/runs/{run}          what became of it
    POST /spark/runs/{run}/cancel   end it

    OUTBOX_SPARK_SCHEDULE_FEED      when a timer starts a run of feed, say 0 0 3 * * *; so for each job
    OUTBOX_SPARK_ARGUMENTS_FEED     the arguments of that run, as on a command line

A run's id follows from its trigger: the request's key, or the job and the time for which the timer was due.  The host
starts a timer's function again where it cannot tell whether it ended, and for the same due time; that is the same run.
What else there is to set is in spark_jobs/submitting/settings.py.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import azure.functions as func
from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_delay, wait_random_exponential

from outbox import App, Context, Reject, Response
from outbox.azure import functions
from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.registration.handlers import heeded
from outbox.spark import SPARK_RUNS, NotRunnable, RunRequest, RunStatus, SparkRuns, run_id, run_request

JOBS = ("feed", "consume", "reconcile", "sweep", "pipeline")
EARLY = timedelta(minutes=1)
"""The time before its due time at which a timer may be started; earlier ones were started by hand."""
OUTAGE = timedelta(days=1)
"""A timer that is made up for after a longer one counts from now."""
SEND_S = 120.0
"""How long a timer's function tries to send its request; its next start is the schedule's."""

Runs = Callable[[], SparkRuns]


@dataclass
class StartRun:
    """Start a job with these arguments."""

    job: str
    arguments: list[str] = field(default_factory=list)


@dataclass
class RunQuery:
    """Ask for a run, or end it."""

    run: str


@dataclass(frozen=True, slots=True)
class Scheduled:
    """A timer of a job."""

    schedule: str
    request: RunRequest


def is_on(environ: Mapping[str, str]) -> bool:
    """Whether this application starts Spark jobs."""
    return bool(environ.get("OUTBOX_SPARK", "").strip())


def runs_of(environ: Mapping[str, str]) -> Runs:
    """Make the runs by the environment's settings, when they are first asked for.

    Raises:
        Refused: a setting cannot be meant.
    """
    from spark_jobs.submitting.settings import SparkSettings, runs_over  # not part of what is imported without Spark

    settings, copy = SparkSettings.of(environ), dict(environ)
    return functools.cache(lambda: runs_over(settings, copy))


def timers_of(environ: Mapping[str, str]) -> list[Scheduled]:
    """The timers that an environment names.

    Raises:
        Refused: the arguments of one cannot be taken.
    """
    found = []
    for job in JOBS:
        schedule = environ.get(f"OUTBOX_SPARK_SCHEDULE_{job.upper()}", "").strip()
        name = f"OUTBOX_SPARK_ARGUMENTS_{job.upper()}"
        try:
            request = run_request(job, shlex.split(environ.get(name, "")))
        except (NotRunnable, ValueError) as error:
            raise Refused(f"app setting {name}: {error}") from error
        if schedule:
            found.append(Scheduled(schedule, request))
    return found


def declare(app: App, runs: Runs) -> None:
    """Let an application start runs, and be asked for them over HTTP."""
    app.spark_jobs(*JOBS, runs=runs)

    @app.http("POST", "/spark/{job}", name="start spark job")
    def start(wanted: StartRun, ctx: Context) -> Response:
        if wanted.job not in JOBS:
            raise Reject(f"there is no job {wanted.job[:60]!r}; the jobs are {', '.join(JOBS)}")
        try:
            run = ctx.submit_spark_job(wanted.job, wanted.arguments)
        except NotRunnable as error:
            raise Reject(str(error)) from error
        return Response(202, {"location": f"/spark/runs/{run}"}, {"run": run})

    @app.http("GET", "/spark/runs/{run}", name="show spark run")
    async def show(query: RunQuery) -> RunStatus | None:
        status = await heeded(_asked(lambda: runs().status(run_id(query.run))))
        return status if status.job else None

    @app.http("POST", "/spark/runs/{run}/cancel", name="cancel spark run")
    async def cancel(query: RunQuery, ctx: Context) -> RunStatus:
        return await heeded(ctx.call(lambda: runs().cancel(run_id(query.run)), idempotent=True))


async def _asked(ask: Callable[[], Awaitable[RunStatus]]) -> RunStatus:
    """An answer in a coroutine of its own, so that a wrong question raises where it is awaited."""
    return await ask()


def timers(app: App, scheduled: list[Scheduled]) -> func.Blueprint:
    """A function for each timer."""
    made = func.Blueprint()  # type: ignore[no-untyped-call]  # the SDK gives its constructor no types
    for one in scheduled:
        _add_timer(made, app, one)
    return made


def _add_timer(made: func.Blueprint, app: App, scheduled: Scheduled) -> None:
    async def handle(timer: func.TimerRequest) -> None:
        await trigger(app, scheduled.request, due_of(getattr(timer, "schedule_status", {}), datetime.now(UTC)))

    timed = made.timer_trigger(arg_name="timer", schedule=scheduled.schedule, run_on_startup=False, use_monitor=True)
    made.function_name(f"spark_{scheduled.request.job}")(timed(handle))


async def trigger(app: App, request: RunRequest, due: datetime) -> str:
    """Ask for the run of a due time, again while nobody can tell whether that was done; its id.

    Raises:
        OutcomeUnknown, Throttled: nobody could within two minutes.
    """
    run = run_id(f"{request.job}-{due:%Y%m%dT%H%M%SZ}")
    created = due if datetime.now(UTC) - due < OUTAGE else None  # what is older than retention would be refused
    client = (await functions.processor_of(app)).client
    async for attempt in AsyncRetrying(
        retry=retry_if_exception_type((OutcomeUnknown, Throttled)),
        stop=stop_after_delay(SEND_S),
        wait=wait_random_exponential(max=10),
        reraise=True,
    ):
        with attempt:
            await client.send(SPARK_RUNS, request, id=run, created=created)
    return run


def due_of(status: Mapping[str, Any], now: datetime) -> datetime:
    """For when a timer's function was due: as the host has it written down, else this minute.

    What the host writes down as next is the occurrence that it starts, until the function has ended; so an invocation
    that comes again after a crash has the same.  One that is started by hand has one that lies ahead.
    """
    try:
        due = datetime.fromisoformat(str(status.get("Next", "")))
    except ValueError:
        due = now + 2 * EARLY
    if due.tzinfo is None:
        due = due.replace(tzinfo=UTC)
    if due > now + EARLY:
        due = (now + timedelta(seconds=30)).replace(second=0, microsecond=0)
    return due.astimezone(UTC).replace(microsecond=0)
