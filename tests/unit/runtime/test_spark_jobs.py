"""`ctx.submit_spark_job`: a run is asked for with its handler's commit or never, and once, however often it runs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest

from outbox import App, Context, Reject, Retries, UnknownDestination
from outbox.errors import NotRegistrable, OutcomeUnknown, Refused, Throttled
from outbox.spark import (
    ARGUMENT_BYTES_MAX,
    ARGUMENT_COUNT_MAX,
    SPARK_RUNS,
    NotRunnable,
    RunId,
    RunPending,
    RunRequest,
    RunStatus,
    run_request,
)
from outbox.testing import Harness
from outbox.verify.faults import Faults
from tests.unit.messages import resubmit
from tests.unit.runtime.jobs import Job, ran, running


@dataclass
class Asked:
    """Who starts runs, and remembers which; the first calls may fail."""

    fails: list[Exception] = field(default_factory=list)
    asked: Counter[str] = field(default_factory=Counter)
    requests: dict[str, RunRequest] = field(default_factory=dict)

    async def submit(self, run: RunId, request: RunRequest) -> RunStatus:
        self.asked[run] += 1
        if self.fails:
            raise self.fails.pop(0)
        assert self.requests.setdefault(run, request) == request
        return await self.status(run)

    async def status(self, run: RunId) -> RunStatus:
        return RunStatus(run=run, phase="submitted" if run in self.requests else "unknown")

    async def cancel(self, run: RunId) -> RunStatus:
        raise AssertionError("nobody cancels here")


def nightly(job: Job, ctx: Context) -> None:
    ctx.submit_spark_job("feed", ["--input", job.key])


async def test_a_run_is_asked_for_with_the_commit_and_its_id_is_the_messages() -> None:
    told: list[str] = []

    def act(job: Job, ctx: Context) -> None:
        ctx.send("out", job)
        told.append(ctx.submit_spark_job("feed", ["--input", "a.csv"]))

    app = running(act)
    app.spark_jobs("feed")
    async with Harness(app) as world:
        await ran(world)
        [record] = world.sent_records(SPARK_RUNS)
        assert record.message == RunRequest("feed", ("--input", "a.csv"))
        assert {record.id} == set(told)


async def test_a_handler_that_raises_asks_for_no_run() -> None:
    def act(job: Job, ctx: Context) -> None:
        ctx.submit_spark_job("feed")
        raise Reject("no")

    app = running(act)
    app.spark_jobs("feed")
    async with Harness(app) as world:
        await ran(world)
        assert world.sent(SPARK_RUNS) == []


@pytest.mark.parametrize("seed", range(12))
async def test_a_handler_that_is_handled_again_after_crashes_submits_one_run(seed: int) -> None:
    app, runs = running(nightly), Asked()
    app.spark_jobs("feed", runs=lambda: runs)
    faults = Faults.drawn(seed=seed, crashes=2, lost=2, duplicates=2, within=16)
    async with Harness(app, faults=faults, seed=seed) as world:
        for key in ("a", "b"):
            await world.send("q", Job(key), id=key)
        await world.advance(hours=1)
        assert sorted(request.arguments[1] for request in runs.requests.values()) == ["a", "b"]
        assert {record.id for record in world.sent_records(SPARK_RUNS)} == runs.requests.keys()
        assert world.faults_fired > 0


@pytest.mark.parametrize(
    "failure",
    [RunPending("somebody is at it", after_s=90), Throttled("slow", retry_after_s=9), OutcomeUnknown("lost")],
)
async def test_a_start_of_unknown_outcome_is_repeated_under_its_id_and_not_counted(failure: Exception) -> None:
    app, runs = running(nightly, retry=Retries(limit=1)), Asked(fails=[failure] * 4)
    app.spark_jobs("feed", runs=lambda: runs)
    async with Harness(app) as world:
        await ran(world)
        await world.advance(hours=1)
        assert list(runs.asked.values()) == [5]
        assert len(runs.requests) == 1 and world.dead_letters(SPARK_RUNS) == []


@pytest.mark.parametrize(
    ("failure", "reason"), [(NotRunnable("no such job"), "no such job"), (Refused("no right to it"), "failed")]
)
async def test_a_run_that_cannot_be_started_is_a_dead_letter_that_says_why(failure: Exception, reason: str) -> None:
    app, runs = running(nightly, retry=Retries(limit=1)), Asked(fails=[failure])
    app.spark_jobs("feed", runs=lambda: runs)
    async with Harness(app) as world:
        await ran(world)
        [dead_letter] = world.dead_letters(SPARK_RUNS)
        assert dead_letter.reason == reason and str(failure) in f"{dead_letter.reason} {dead_letter.description}"
        await resubmit(world, SPARK_RUNS, dead_letter.id)
        assert list(runs.requests) == [dead_letter.id]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (None, r"app\.spark_jobs\('sweep'\)"),
        (["x" * 40_000], "pass its name"),
        (["x"] * 201, "201 arguments"),
        (["--connection", "Endpoint=sb://b/;SharedAccessKeyName=n;SharedAccessKey=abc="], "Key Vault"),
        (["--connection", "user=a;pw=b"], "Key Vault"),
        (["--input", "https://a.blob.core.windows.net/c/f?sv=1&sig=abc"], "Key Vault"),
        ("--input", "a list of texts"),
        (["--input", "\ud800"], "surrogate pair"),
    ],
)
async def test_a_job_never_declared_and_arguments_that_cannot_be_taken_are_refused_where_they_are_given(
    arguments: list[str] | None, text: str
) -> None:
    def act(job: Job, ctx: Context) -> None:
        with pytest.raises(UnknownDestination if arguments is None else NotRunnable, match=text):
            ctx.submit_spark_job("sweep" if arguments is None else "feed", arguments or [])
        ctx.send("out", job)

    app = running(act)
    app.spark_jobs("feed")
    async with Harness(app) as world:
        await ran(world)
        assert world.sent(SPARK_RUNS) == [] and world.sent("out") == [Job("a")]


def test_a_run_takes_as_many_arguments_as_its_limits_say() -> None:
    assert len(run_request("feed", ["a"] * ARGUMENT_COUNT_MAX).arguments) == ARGUMENT_COUNT_MAX
    assert run_request("feed", ["a" * (ARGUMENT_BYTES_MAX - 3)])
    for over in (["a"] * (ARGUMENT_COUNT_MAX + 1), ["a" * (ARGUMENT_BYTES_MAX - 2)]):
        with pytest.raises(NotRunnable, match="write what the job needs to a file or blob"):
            run_request("feed", over)


def test_jobs_may_be_declared_in_several_places_and_started_by_one() -> None:
    app = App("declared")
    app.spark_jobs("feed")
    app.spark_jobs("consume", runs=Asked)
    assert app.jobs == {"feed", "consume"}
    with pytest.raises(NotRegistrable, match="twice"):
        app.spark_jobs(runs=Asked)
