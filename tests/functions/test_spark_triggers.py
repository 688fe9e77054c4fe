"""Timers and HTTP requests that start Spark jobs: one trigger, one run."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import azure.functions as func
import pytest
from tenacity import wait_none

from function_app import spark
from outbox import App, Context, Engine, Worker
from outbox.azure import functions
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.spark import RunId, RunRequest, RunStatus
from tests.functions.test_indexing import deployed, index

NIGHT = datetime(2026, 11, 22, 3, 0, tzinfo=UTC)


class Runs:
    """Who starts runs, in memory."""

    def __init__(self) -> None:
        self.started: dict[str, RunRequest] = {}
        self.asked: list[str] = []
        self.cancelled: list[str] = []
        self.fails: list[Exception] = []

    async def submit(self, run: RunId, request: RunRequest) -> RunStatus:
        self.asked.append(run)
        self.started[run] = request
        return await self.status(run)

    async def status(self, run: RunId) -> RunStatus:
        if self.fails:
            raise self.fails.pop()
        request = self.started.get(run)
        return RunStatus(run=run, job="", phase="unknown") if request is None else self.known(run, request)

    async def cancel(self, run: RunId) -> RunStatus:
        self.cancelled.append(run)
        return RunStatus(run=run, job="feed", phase="cancelled")

    @staticmethod
    def known(run: RunId, request: RunRequest) -> RunStatus:
        return RunStatus(run=run, job=request.job, phase="running")


class Site:
    """The triggers as functions, on an engine."""

    def __init__(self, timers: dict[str, str]) -> None:
        self.engine = Engine.in_memory()
        self.backend = NarrowEngine(self.engine, "partition")
        self.runs, self.app = Runs(), App("triggered")
        spark.declare(self.app, lambda: self.runs)
        made = func.FunctionApp()
        made.register_functions(spark.timers(self.app, spark.timers_of(timers)))
        settings = functions.FunctionsSettings(lambda: self.backend, attempt_s=5, rest_s=0.01)
        made.register_functions(functions.blueprint(self.app, settings))
        self.functions = {one.get_function_name(): one for one in made.get_functions()}

    async def call(self, name: str, *arguments: Any) -> Any:
        return await self.functions[name].get_user_function()(*arguments)

    async def tick(self, job: str, due: str) -> None:
        await self.call(f"spark_{job}", Timer(due))

    async def ask(self, name: str, method: str, path: str, body: bytes = b"", key: str = "") -> tuple[int, Any]:
        headers = {"Idempotency-Key": key} if key else {}
        answer = await self.call(name, func.HttpRequest(method, f"http://h{path}", headers=headers, body=body))
        return answer.status_code, json.loads(answer.get_body() or b"null")

    async def work(self) -> None:
        async with Worker(self.app, self.backend) as worker:
            await worker.wait_idle(timeout_s=10)


class Timer:
    """What the host gives a timer's function."""

    def __init__(self, due: str) -> None:
        self.schedule_status = {"Last": "2026-11-21T03:00:00+00:00", "Next": due}


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    made = Site(
        {
            "OUTBOX_SPARK_SCHEDULE_FEED": "0 0 3 * * *",
            "OUTBOX_SPARK_ARGUMENTS_FEED": "--input '/data/a b.csv' --queue transfers",
        }
    )
    yield made
    await functions.close(made.app)
    made.engine.close()


async def test_a_timer_that_is_started_again_for_the_same_time_starts_one_run(site: Site) -> None:
    tonight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    last_night, long_ago = tonight - timedelta(days=1), tonight - timedelta(days=30)
    for due in (tonight, tonight, last_night, tonight.replace(tzinfo=None), long_ago):
        await site.tick("feed", due.isoformat())
    await site.work()
    feed = RunRequest("feed", ("--input", "/data/a b.csv", "--queue", "transfers"))
    assert site.runs.started == {f"feed-{due:%Y%m%d}T000000Z": feed for due in (tonight, last_night, long_ago)}
    assert len(site.runs.asked) == 3


class Away:
    """A client whose first sends fail."""

    def __init__(self, error: Exception) -> None:
        self._error = error
        self.asked: list[tuple[str, datetime | None]] = []

    async def send(self, queue: str, request: RunRequest, *, id: str, created: datetime | None) -> None:
        self.asked.append((id, created))
        if len(self.asked) < 3:
            raise self._error


def away(monkeypatch: pytest.MonkeyPatch, error: Exception) -> Away:
    """What timers send by then."""
    client = Away(error)

    async def processor_of(app: App) -> Any:
        return SimpleNamespace(client=client)

    monkeypatch.setattr(functions, "processor_of", processor_of)
    monkeypatch.setattr(spark, "wait_random_exponential", lambda **_: wait_none())
    return client


@pytest.mark.parametrize("error", [OutcomeUnknown("no answer"), Throttled("busy", retry_after_s=1)])
async def test_a_timer_asks_again_for_the_same_run_while_the_bus_is_away(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    client, due = away(monkeypatch, error), datetime.now(UTC).replace(microsecond=0)
    run = await spark.trigger(App("shop"), RunRequest("feed", ()), due)
    assert client.asked == [(run, due)] * 3


@pytest.mark.parametrize(("late", "counts"), [(timedelta(hours=23), True), (timedelta(hours=25), False)])
async def test_a_timer_that_is_made_up_for_within_a_day_counts_from_when_it_was_due(
    monkeypatch: pytest.MonkeyPatch, late: timedelta, counts: bool
) -> None:
    client, due = away(monkeypatch, Throttled("busy")), (datetime.now(UTC) - late).replace(microsecond=0)
    run = await spark.trigger(App("shop"), RunRequest("feed", ()), due)
    assert client.asked == [(run, due if counts else None)] * 3


async def test_a_timer_gives_up_after_two_minutes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert spark.SEND_S == 120
    monkeypatch.setattr(spark, "SEND_S", 0.0)
    client = away(monkeypatch, Throttled("busy"))
    with pytest.raises(Throttled, match="busy"):
        await spark.trigger(App("shop"), RunRequest("feed", ()), datetime.now(UTC))
    assert len(client.asked) == 1


def test_all_questions_of_an_application_ask_the_same_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_jobs.submitting.settings.runs_over", lambda settings, environ: object())
    runs, others = spark.runs_of({}), spark.runs_of({})
    assert runs() is runs() is not others()


async def test_a_timer_that_is_refused_does_not_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    client = away(monkeypatch, Refused("there is no such queue"))
    with pytest.raises(Refused, match="no such queue"):
        await spark.trigger(App("shop"), RunRequest("feed", ()), datetime.now(UTC))
    assert len(client.asked) == 1


def test_jobs_are_started_where_the_setting_says_something() -> None:
    assert [spark.is_on(each) for each in ({}, {"OUTBOX_SPARK": " "}, {"OUTBOX_SPARK": "local"})] == [
        False,
        False,
        True,
    ]


def test_only_jobs_with_a_schedule_have_a_timer(site: Site) -> None:
    timers = [name for name in map(str, site.functions) if name.startswith("spark_")]
    assert timers == ["spark_feed"]
    trigger = site.functions["spark_feed"].get_dict_repr()["bindings"][0]
    assert (trigger["schedule"], trigger["useMonitor"], trigger["runOnStartup"]) == ("0 0 3 * * *", True, False)


@pytest.mark.parametrize(
    ("status", "now", "due"),
    [
        ({"Next": "2026-11-22T03:00:00+00:00"}, NIGHT.replace(second=1), NIGHT),
        ({"Next": "2026-11-22T03:00:00.1234567Z"}, NIGHT.replace(hour=9), NIGHT),  # past due, after an outage
        ({"Next": "2026-11-22T04:00:00+01:00"}, NIGHT.replace(second=1), NIGHT),
        ({"Next": "2026-11-22T03:00:00"}, NIGHT.replace(hour=2, minute=59, second=59), NIGHT),  # started a little early
        ({"Next": "2026-11-22T03:00:00"}, NIGHT.replace(hour=2, minute=59, second=5), NIGHT),
        ({"Next": "2026-11-23T03:00:00Z"}, NIGHT.replace(minute=10, second=29), NIGHT.replace(minute=10)),  # by hand
        ({"Next": "2026-11-23T03:00:00Z"}, NIGHT.replace(minute=10, second=31), NIGHT.replace(minute=11)),
        ({}, NIGHT.replace(second=20), NIGHT),
        ({"Next": "soon"}, NIGHT.replace(second=20), NIGHT),
    ],
)
def test_for_when_a_timer_was_due(
    monkeypatch: pytest.MonkeyPatch, status: dict[str, str], now: datetime, due: datetime
) -> None:
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "TST-9")  # the host's times are UTC wherever the process is
        time.tzset()
        found = spark.due_of(status, now)
    time.tzset()
    assert found.isoformat() == due.isoformat()  # which names the run


async def test_a_request_under_one_key_starts_one_run_and_gets_the_same_answer(site: Site) -> None:
    body = b'{"arguments": ["--input", "x.csv"]}'
    answers = [await site.ask("http_post_spark_job", "POST", "/spark/feed", body, "k1") for _ in range(3)]
    assert answers[0] == answers[1] == answers[2] and answers[0][0] == 202
    await site.work()
    assert site.runs.started == {answers[0][1]["run"]: RunRequest("feed", ("--input", "x.csv"))}
    assert len(site.runs.asked) == 1


async def test_a_run_is_shown_and_cancelled(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    call, told = Context.call, list[Any]()

    def noted(ctx: Context, function: Any, **options: Any) -> Any:
        told.append(options)
        return call(ctx, function, **options)

    monkeypatch.setattr(Context, "call", noted)
    _, started = await site.ask("http_post_spark_job", "POST", "/spark/reconcile", b"{}", "k1")
    run = started["run"]
    assert (await site.ask("http_get_spark_runs_run", "GET", f"/spark/runs/{run}"))[0] == 404  # not started yet
    await site.work()
    status, shown = await site.ask("http_get_spark_runs_run", "GET", f"/spark/runs/{run}")
    assert (status, shown["phase"], shown["job"]) == (200, "running", "reconcile")
    cancel = ("http_post_spark_runs_run_cancel", "POST", f"/spark/runs/{run}/cancel", b"{}", "k2")
    assert (await site.ask(*cancel))[1]["phase"] == "cancelled"
    await site.ask(*cancel)
    assert site.runs.cancelled == [run]
    assert told == [{"idempotent": True}] * 2  # what the explorer goes by


async def test_a_status_that_is_unknown_now_is_asked_for_again(site: Site) -> None:
    site.runs.fails = [OutcomeUnknown("no answer")]
    assert (await site.ask("http_get_spark_runs_run", "GET", "/spark/runs/r1"))[0] == 503


@pytest.mark.parametrize(
    ("job", "body", "text"),
    [
        ("sleep", b"{}", "feed, consume"),
        ("feed", b'{"arguments": ["--connection=Endpoint=sb://b/;SharedAccessKey=abc"]}', "Key Vault"),
    ],
)
async def test_what_can_never_run_is_refused_at_once(job: str, body: bytes, text: str, site: Site) -> None:
    status, answer = await site.ask("http_post_spark_job", "POST", f"/spark/{job}", body, "k1")
    assert status == 409 and text in answer["code"] + answer["detail"]
    await site.work()
    assert site.runs.asked == []


def test_arguments_that_cannot_be_taken_end_the_start() -> None:
    with pytest.raises(Refused, match="OUTBOX_SPARK_ARGUMENTS_CONSUME"):
        spark.timers_of({"OUTBOX_SPARK_ARGUMENTS_CONSUME": "--connection 'SharedAccessKey=abc'"})
    with pytest.raises(Refused, match="OUTBOX_SPARK_ARGUMENTS_FEED"):
        spark.timers_of({"OUTBOX_SPARK_ARGUMENTS_FEED": "--input 'open"})


def test_settings_that_are_missing_are_named_when_the_first_run_is_asked_for() -> None:
    with pytest.raises(Refused, match="local or synapse"):
        spark.runs_of({"OUTBOX_SPARK": "databricks"})
    runs = spark.runs_of({"OUTBOX_SPARK": "synapse", "OUTBOX_COSMOS": "AccountEndpoint=https://b;AccountKey=k"})
    with pytest.raises(Refused, match="OUTBOX_SPARK_WORKSPACE, OUTBOX_SPARK_POOL, OUTBOX_SPARK_FILE"):
        runs()


def test_what_is_deployed_starts_spark_jobs_where_the_settings_say_so(tmp_path: Path) -> None:
    folder = deployed(tmp_path)
    found = index("library", folder, OUTBOX_SPARK="local", OUTBOX_SPARK_SCHEDULE_SWEEP="0 0 4 * * *")
    assert {"http_post_spark_job", "http_get_spark_runs_run", "http_post_spark_runs_run_cancel"} <= found.keys()
    assert found["queue_spark-runs"][0]["queueName"] == "spark-runs"
    assert found["spark_sweep"][0]["schedule"] == "0 0 4 * * *" and "spark_feed" not in found
    assert not any("spark" in name for name in index("library", folder))
