"""A submitted batch takes its run's lease before it works, renews it, and stops where it is not alone."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.ports import Version
from outbox.spark import RunId, RunRequest
from spark_jobs import submitted
from spark_jobs.submitted import LeaseKeeper, LeaseTimes, Turned, again, fetch_secrets, holder_of, keep, put_settings
from spark_jobs.submitting.documents import FolderRuns, RunDocument, Seen, change, ended

RUN = RunId("nightly-1")


class Hand:
    """A clock that is moved by hand."""

    ms = 1_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
async def documents(tmp_path: Path) -> FolderRuns:
    made = FolderRuns(tmp_path / "runs")
    assert await made.write(RUN, RunDocument(job="feed", asked_ms=1), "")
    return made


async def test_of_two_batches_of_a_run_the_second_is_turned_away(documents: FolderRuns) -> None:
    now = Hand()
    await LeaseKeeper(documents, RUN, "one", now_ms=now).take()
    with pytest.raises(Turned, match="another process") as turned:
        await LeaseKeeper(documents, RUN, "two", now_ms=now).take()
    assert turned.value.code == 0


async def test_a_hundred_batches_at_once_are_one_that_works(documents: FolderRuns) -> None:
    takes = [LeaseKeeper(documents, RUN, f"app-{n}", now_ms=Hand()).take() for n in range(100)]
    results = await asyncio.gather(*takes, return_exceptions=True)
    assert sum(isinstance(result, RunDocument) for result in results) == 1


async def test_a_lease_that_ran_out_is_taken_over_and_its_first_holder_stops(documents: FolderRuns) -> None:
    now = Hand()
    first, second = (LeaseKeeper(documents, RUN, name, now_ms=now) for name in ("one", "two"))
    await first.take()
    now.ms += 299_999
    with pytest.raises(Turned, match="another process"):
        await second.take()
    now.ms += 1
    await second.take()
    with pytest.raises(Turned, match="another process"):
        await first.renew()
    await first.end("failed", "too late")
    seen = await documents.read(RUN)
    assert seen is not None and seen.document.ended is None


async def test_a_second_attempt_of_the_same_application_goes_on(documents: FolderRuns) -> None:
    ids = [f"container_e17_1699999999999_0042_0{attempt}_000001" for attempt in (1, 2)]
    first, second = (holder_of({"CONTAINER_ID": id}) for id in ids)
    assert first == second == "application_1699999999999_0042"
    for holder in (first, second):
        await LeaseKeeper(documents, RUN, holder, now_ms=Hand()).take()
    assert holder_of({}) != holder_of({})


@pytest.mark.parametrize(
    ("changed", "text", "code"),
    [
        (lambda now: ended(now, "succeeded"), "over: succeeded", 0),
        (lambda now: ended(now, "failed"), "over: failed", 1),
        (lambda now: ended(now, "cancelled"), "over: cancelled", 0),
        (lambda now: structs.replace(now, is_cancelled=True), "was cancelled", 0),
    ],
)
async def test_a_run_that_is_over_is_not_run_again(
    changed: Callable[[RunDocument], RunDocument], text: str, code: int, documents: FolderRuns
) -> None:
    await change(documents, RUN, changed)
    with pytest.raises(Turned, match=text) as turned:
        await LeaseKeeper(documents, RUN, "one", now_ms=Hand()).take()
    seen = await documents.read(RUN)
    assert turned.value.code == code and seen is not None and seen.document.lease is None


async def test_a_job_whose_lease_is_lost_stops(documents: FolderRuns) -> None:
    keeper = LeaseKeeper(documents, RUN, "one", now_ms=Hand(), times=LeaseTimes(0.4, 0.01, 0.1))
    await keeper.take()
    told: list[str] = []
    renewing = asyncio.create_task(keep(keeper, told.append))
    await asyncio.sleep(0.05)
    assert told == []
    await change(documents, RUN, lambda now: ended(now, "cancelled"))
    await asyncio.wait_for(renewing, 2)
    assert told == ["run nightly-1 is over: cancelled"]


async def test_a_job_whose_run_is_cancelled_stops_at_its_next_renewal(documents: FolderRuns) -> None:
    keeper = LeaseKeeper(documents, RUN, "one", now_ms=Hand())
    await keeper.take()
    await change(documents, RUN, lambda now: structs.replace(now, is_cancelled=True))
    with pytest.raises(Turned, match="was cancelled"):
        await keeper.renew()


class Unreachable:
    """Documents that nobody can ask."""

    async def read(self, run: RunId) -> Seen | None:
        raise OutcomeUnknown("no answer")

    async def write(self, run: RunId, document: RunDocument, version: Version) -> bool:
        raise OutcomeUnknown("no answer")


async def test_a_job_that_cannot_renew_its_lease_stops_before_it_runs_out() -> None:
    told: list[str] = []
    times = LeaseTimes(lease_s=0.5, renew_s=0.1, spare_s=0.2)
    began_s = asyncio.get_running_loop().time()
    await asyncio.wait_for(keep(LeaseKeeper(Unreachable(), RUN, "one", now_ms=Hand(), times=times), told.append), 2)
    assert asyncio.get_running_loop().time() - began_s < times.lease_s
    assert len(told) == 1 and "cannot be renewed" in told[0]


@pytest.mark.parametrize(
    ("failures", "outcome", "slept_count"),
    [
        ([OutcomeUnknown("no answer"), Throttled("busy", retry_after_s=0.0)], "done", 2),
        ([OutcomeUnknown("no answer")] * 99, "OutcomeUnknown", 30),
        ([Refused("no")], "Refused", 0),
    ],
    ids=["in the end", "never", "not at all"],
)
async def test_what_nobody_can_tell_is_asked_again_for_so_long(
    failures: list[Exception], outcome: str, slept_count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, left = [100.0], list(failures)

    async def sleep(pause_s: float) -> None:
        now_s[0] += pause_s

    async def call() -> str:
        if left:
            raise left.pop()
        return "done"

    monkeypatch.setattr(submitted, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(submitted, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    [found] = await asyncio.gather(again(call, 30), return_exceptions=True)
    assert (found if isinstance(found, str) else type(found).__name__) == outcome
    assert now_s[0] == 100 + slept_count


# The main definition


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """A job that remembers its arguments; its exit code is the first of them."""
    seen: list[list[str]] = []

    def main(arguments: list[str]) -> int:
        seen.append(arguments)
        if arguments[0] == "raise":
            raise RuntimeError("broken at AccountKey=k3y")
        if arguments[0] == "usage":
            raise SystemExit(2)
        if arguments[0] == "bare":
            raise SystemExit
        if arguments[0] == "words":
            raise SystemExit("no such file")
        return int(arguments[0])

    module = ModuleType("spark_jobs.probe")
    monkeypatch.setattr(module, "main", main, raising=False)
    monkeypatch.setitem(sys.modules, "spark_jobs.probe", module)
    return seen


def ran(folder: Path, *arguments: str, run: str = RUN, options: Sequence[str] = ()) -> int:
    return submitted.main(["--run", run, *options, "--runs", str(folder), "probe", *arguments])


def kept(folder: Path) -> RunDocument:
    seen = asyncio.run(FolderRuns(folder).read(RUN))
    assert seen is not None
    return seen.document


@pytest.mark.parametrize(
    ("argument", "code", "phase"),
    [
        ("0", 0, "succeeded"),
        ("1", 1, "failed"),
        ("bare", 0, "succeeded"),
        ("usage", 2, "failed"),
        ("words", 1, "failed"),
    ],
)
def test_how_a_job_ended_is_written_down(
    argument: str, code: int, phase: str, job: list[list[str]], tmp_path: Path
) -> None:
    asyncio.run(FolderRuns(tmp_path).write(RUN, RunDocument(job="probe", asked_ms=1), ""))
    assert ran(tmp_path, argument, "--option", "x") == code
    assert (kept(tmp_path).ended, kept(tmp_path).lease) == (phase, None)
    assert ran(tmp_path, argument) == (0 if code == 0 else 1)
    assert job == [[argument, "--option", "x"]]


def test_the_lease_is_renewed_while_the_job_works_and_no_longer(
    job: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, begun = list[str](), threading.Event()

    async def kept_up(keeper: LeaseKeeper, stop: Callable[[str], None]) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            seen.append("given up")

    def work(arguments: list[str]) -> int:
        assert begun.wait(10) and kept(tmp_path).lease is not None
        return 0

    monkeypatch.setattr(submitted, "keep", kept_up)
    monkeypatch.setattr(sys.modules["spark_jobs.probe"], "main", work)
    assert ran(tmp_path, options=["--begin"]) == 0
    assert seen == ["given up"] and kept(tmp_path).ended == "succeeded"


def test_a_process_that_lost_its_lease_ends_where_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    submitted.stop_process("run nightly-1 is in the hands of another process")
    assert codes == [3]


def test_a_job_finds_its_settings_and_secrets_in_its_environment(
    job: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environ: dict[str, str] = {}
    monkeypatch.setattr(os, "environ", environ)
    credentials = SimpleNamespace(getSecret=lambda *where: "/".join(where))
    utils = SimpleNamespace(mssparkutils=SimpleNamespace(credentials=credentials))
    monkeypatch.setitem(sys.modules, "notebookutils", utils)
    options = ["--begin", "--setting", "OUTBOX_DATABASE=bank", "--secret", "OUTBOX_COSMOS=vault/cosmos"]
    assert ran(tmp_path, "0", options=options) == 0
    assert environ == {"OUTBOX_DATABASE": "bank", "OUTBOX_COSMOS": "vault/cosmos"}
    assert ran(tmp_path, "0", run="other", options=["--begin", "--setting", "PATH=/"]) == 1
    assert "Refused: --setting takes" in capsys.readouterr().err and len(job) == 1


def test_a_job_that_breaks_is_a_failed_run(job: list[list[str]], tmp_path: Path) -> None:
    asyncio.run(FolderRuns(tmp_path).write(RUN, RunDocument(job="probe", asked_ms=1), ""))
    with pytest.raises(RuntimeError):
        ran(tmp_path, "raise")
    assert (kept(tmp_path).ended, kept(tmp_path).detail) == ("failed", "RuntimeError; its log says more")


def test_a_run_without_a_request_is_not_run(
    job: list[list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ran(tmp_path, "0", run="another") == 1
    assert job == [] and "not known" in capsys.readouterr().err


def test_a_pipelines_batch_begins_its_run_and_its_second_attempt_is_turned_away(
    job: list[list[str]], tmp_path: Path
) -> None:
    assert ran(tmp_path, "0", options=["--begin"]) == 0
    assert kept(tmp_path).ended == "succeeded" and kept(tmp_path).request == RunRequest("probe", ("0",))
    assert ran(tmp_path, "0", options=["--begin"]) == 0
    assert job == [["0"]]


def test_a_batch_that_is_started_by_hand_is_a_run_of_its_own(job: list[list[str]], tmp_path: Path) -> None:
    for _ in range(2):
        assert submitted.main(["--begin", "--runs", str(tmp_path), "probe", "0"]) == 0
    assert len(job) == 2 and len(list(tmp_path.glob("*.json"))) == 2
    with pytest.raises(SystemExit):
        submitted.main(["--runs", str(tmp_path), "probe", "0"])


# Settings and secrets


def test_settings_are_put_into_the_environment_and_secrets_are_not_taken_for_them() -> None:
    environ: dict[str, str] = {}
    put_settings(["OUTBOX_COSMOS__accountEndpoint=https://b.documents.azure.com/"], environ)
    assert environ == {"OUTBOX_COSMOS__accountEndpoint": "https://b.documents.azure.com/"}
    for text in ("PATH=/tmp", "OUTBOX_COSMOS", "OUTBOX_COSMOS=AccountEndpoint=https://b;AccountKey=k3y"):
        with pytest.raises(Refused):
            put_settings([text], environ)


def test_secrets_come_from_key_vault_into_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def get_secret(*where: str) -> str:
        asked.append(where)
        return "Endpoint=sb://b/;SharedAccessKey=k"

    utils = SimpleNamespace(mssparkutils=SimpleNamespace(credentials=SimpleNamespace(getSecret=get_secret)))
    monkeypatch.setitem(sys.modules, "notebookutils", utils)
    environ: dict[str, str] = {}
    fetch_secrets(["OUTBOX_SERVICEBUS=vault/send-key/linked", "OUTBOX_COSMOS=vault/cosmos"], environ)
    assert asked == [("vault", "send-key", "linked"), ("vault", "cosmos")]
    assert environ.keys() == {"OUTBOX_SERVICEBUS", "OUTBOX_COSMOS"}


@pytest.mark.parametrize("text", ["OUTBOX_COSMOS=AccountKey=abc;", "OUTBOX_COSMOS", "x=vault/name", "A=b/c/d/e"])
def test_a_secret_itself_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(Refused, match="vault/name") as refused:
        fetch_secrets([text], {})
    assert text not in str(refused.value)


def test_secrets_outside_a_pool_are_refused_with_the_reason() -> None:
    with pytest.raises(Refused, match="pool only"):
        fetch_secrets(["OUTBOX_COSMOS=vault/name"], {})
