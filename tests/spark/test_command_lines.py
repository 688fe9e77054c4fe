"""What is written behind a job's name is what the job is given; without a Spark session."""

from __future__ import annotations

import json
import signal
from argparse import Namespace
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest

from outbox.errors import OutcomeUnknown
from spark_jobs import consume, feed, sweep
from spark_jobs.common import arguments
from spark_jobs.common.arguments import CONNECTION_VARIABLE, ended, silent, start, to_stderr
from spark_jobs.common.folder import Folder
from spark_jobs.common.patience import GaveUpError
from spark_jobs.consume import ConsumeReport
from spark_jobs.feed import FeedReport, Pace
from spark_jobs.feeding.plan import Target
from spark_jobs.reading.judging import BODY_BYTES_MAX, Judge, Shape
from spark_jobs.reading.source import Dialect, Source
from spark_jobs.sweep import SweepReport

CONNECTION = "Endpoint=sb://bank;SharedAccessKey=k"


def report_of(kind: Any, **told: Any) -> Any:
    """A report of nothing."""
    empty = {"quarantined": {}, "troubles": [], "is_whole": True, "progress": ""}
    return kind(**{field.name: empty.get(field.name, 0) for field in fields(kind)} | told)


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CONNECTION_VARIABLE, CONNECTION)
    for job in (feed, consume, sweep):
        monkeypatch.setattr(job, "start", lambda name, arguments, environ: (name, arguments.master))


@pytest.mark.parametrize("is_long", [True, False])
def test_a_feed_is_what_its_command_line_says(
    is_long: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, read = list[Any](), list[tuple[Source, Judge]]()

    def run(spark: Any, job: Any, *_: Any) -> FeedReport:
        given.append(job)
        return report_of(FeedReport, rows=9)  # type: ignore[no-any-return]  # of this kind

    monkeypatch.setattr(feed, "run", run)
    there: Any = SimpleNamespace(name="in.csv", check=lambda: None)
    monkeypatch.setattr(feed, "files_at", lambda *given: there)
    monkeypatch.setattr(feed, "Input", lambda spark, source, judge, files: read.append((source, judge)))
    short = "--input /data/in.csv/ --queue q --type T"
    long = (
        " --id a --id b --format json --schema x --separator ; --quote ' --escape ! --encoding latin-1 --multiline"
        " --created at --session account --order step"
        " --quarantine /bad --progress /kept --body-bytes-max 7 --bad-max 0.5 --chunks 3 --tasks 4 --rate 5"
        " --timeout-s 6 --quiet --json"
    )
    assert feed.main((short + long * is_long).split()) == 0
    [job], [(source, judge)], out = given, read, capsys.readouterr().out
    if is_long:
        assert source == Source("/data/in.csv/", "json", "x", Dialect(";", "'", "!", "latin-1", True))
        assert json.loads(out)["rows"] == 9 and judge == Judge(("a", "b"), Shape("at", "account", "step", 7))
        assert job.target == Target("q", "T", ("a", "b"), Shape("at", "account", "step", 7))
        assert (str(job.progress.path), str(job.quarantine.path)) == ("/kept", "/bad")
        assert job.pace == Pace(tasks=4, chunks=3, rate_per_s=5, timeout_s=6, bad_ratio_max=0.5) and job.say is silent
    else:
        assert source == Source("/data/in.csv/") and job.target == Target("q", "T", ("id",), Shape())
        assert (str(job.progress.path), str(job.quarantine.path)) == ("/data/in.csv.feed/q", "/data/in.csv.quarantine")
        assert (job.pace, job.say, Shape().body_bytes_max) == (Pace(), to_stderr, BODY_BYTES_MAX)
        assert job.source.address == CONNECTION and out.startswith("rows")


def test_an_option_of_the_reader_that_was_is_refused_with_the_one_that_is(capsys: pytest.CaptureFixture[str]) -> None:
    assert feed.main(["--input", "in.csv", "--queue", "q", "--type", "T", "--option", "sep=;"]) == 1
    assert (
        "--option sep=; was for Spark's reader, which reads no more; there are --separator" in capsys.readouterr().err
    )


def test_an_identity_that_gets_no_token_ends_a_job_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise GaveUpError("no token for the lake")

    assert ended("feed", fails) == 1 and capsys.readouterr().err == "feed: no token for the lake\n"


def test_an_interrupt_ends_a_job_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    assert ended("feed", interrupted) == 130
    assert capsys.readouterr().err == "feed: interrupted; the same command goes on where it was\n"


def test_an_interrupt_ends_the_process_while_spark_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception inside of PySpark's launch would leave its Java behind."""
    seen, given = list[Any](), Namespace(master=None)
    monkeypatch.setattr(arguments, "session", lambda *_, **__: seen.append(signal.getsignal(signal.SIGINT)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        start("feed", given, {arguments.SUBMITTED_VARIABLE: "1"})
        assert seen == [signal.SIG_DFL] and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        start("feed", given, {arguments.SUBMITTED_VARIABLE: "1"})
        assert seen[1:] == [signal.SIG_IGN]
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_drain_is_what_its_command_line_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = list[dict[str, Any]]()

    def run(spark: Any, **options: Any) -> ConsumeReport:
        given.append(options)
        return report_of(ConsumeReport, received=9)  # type: ignore[no-any-return]  # of this kind

    monkeypatch.setattr(consume, "consume", run)
    assert consume.main(["--queue", "q", "--output", "o"]) == 0
    assert capsys.readouterr().out.startswith("received")
    long = "--receivers 3 --count 4 --idle-s 5 --timeout-s 6 --sessions --quiet --json --connection other"
    assert consume.main(f"--queue q --output o {long}".split()) == 0
    assert json.loads(capsys.readouterr().out)["received"] == 9
    first = {"queue": "q", "output": "o", "connection": CONNECTION, "receivers": 2, "count": None, "sessions": False}
    second = {"receivers": 3, "count": 4, "idle_s": 5, "timeout_s": 6, "sessions": True, "say": silent}
    first |= {"until": None, "every_s": 30, "idle_s": 5}
    assert given == [first | {"timeout_s": 120, "say": to_stderr}, first | second | {"connection": "other"}]
    following = ["--follow", "--for-s", "7", "--count", "8", "--every-s", "9"]
    assert consume.main(["--queue", "q", "--output", "o", *following]) == 0
    until = given[2]["until"]
    assert (until.seconds, until.count, until.is_asked(), given[2]["every_s"]) == (7, 8, False, 9)
    capsys.readouterr()
    for wrong, text in (("--follow", "give --for-s SECONDS, --count COUNT"), ("--for-s 7", "without it the queue is")):
        assert consume.main(f"--queue q --output o {wrong}".split()) == 1 and text in capsys.readouterr().err
    assert len(given) == 3


@pytest.mark.parametrize(("left", "code"), [(0, 0), (1, 1)])
def test_a_sweep_is_what_its_command_line_says(
    left: int, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given = list[dict[str, Any]]()

    def run(spark: Any, connect: Any, **options: Any) -> SweepReport:
        given.append(options | {"connect": connect.func.__name__, **connect.keywords})
        return report_of(SweepReport, finished=2, left=left)  # type: ignore[no-any-return]  # of this kind

    monkeypatch.setattr(sweep, "sweep", run)
    monkeypatch.setenv("OUTBOX_COSMOS", "AccountKey=k")
    monkeypatch.delenv("OUTBOX_BLOBS", raising=False)
    long = "--tasks 3 --lanes 4 --grace-s 0 --limit-s 6 --quiet --json --container c --scope item"
    assert sweep.main(f"--database bank {long}".split()) == code
    assert json.loads(capsys.readouterr().out)["seen"] == 2 + left
    assert given == [
        {"grace_s": 0, "tasks": 3, "lanes": 4, "limit_s": 6, "say": silent, "connect": "connect", "scope": "item"}
        | {"cosmos": "AccountKey=k", "database": "bank", "servicebus": CONNECTION, "blobs": None, "container": "c"}
    ]
    for wrong in ("--tasks 0", "--lanes 0", "--grace-s -1"):
        assert sweep.main(f"--database bank {wrong}".split()) == 1
    assert len(given) == 1


def test_no_more_is_asked_of_all_receivers_together_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = list[Any]()

    class Numbers:
        def mapInArrow(self, task: Any, schema: str) -> Any:  # noqa: N802 - as Spark has it
            seen.append(task.args[0])
            return SimpleNamespace(collect=list)

    spark: Any = SimpleNamespace(range=lambda *given: Numbers() if given == (0, 3, 1, 3) else pytest.fail())
    source: Any = SimpleNamespace(access=lambda: "a token of its own")
    job = consume.Drain(source, "q", Folder("/out"), receivers=3, count=12, idle_s=4, timeout_s=5, sessions=True)
    consume.drain_round(spark, job, 1)
    [settings] = seen
    assert (settings.access, settings.queue, str(settings.place)) == ("a token of its own", "q", "/out/_landing")
    assert settings.budgets == (4, 4, 3) and settings.sessions
    assert (settings.idle_s, settings.deadline_s, settings.timeout_s, settings.goes_on) == (4, 60, 5, False)


def test_leftovers_that_cannot_be_removed_are_said_and_stop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()

    def fails(place: object) -> int:
        raise OutcomeUnknown("vacuum stopped half-way")

    for sweeping in (fails, lambda place: 3, lambda place: 0):
        monkeypatch.setattr(consume, "sweep", sweeping)
        consume.say_swept(Folder("/out"), said.append)
    assert said == [
        "consume: leftovers of earlier runs stay: vacuum stopped half-way",
        "consume: 3 leftovers of earlier runs removed",
    ]
