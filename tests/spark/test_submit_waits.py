"""How long the command that starts a run asks and waits, and what its exit code says."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from outbox.errors import OutcomeUnknown, Refused, Throttled
from outbox.spark import RunId, RunPending, RunRequest, RunStatus
from spark_jobs import submit

RUN, REQUEST = RunId("nightly-1"), RunRequest("feed", ())


class Runs:
    """Answers in their order, the last one again and again."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[Any] = []

    async def submit(self, run: RunId, request: RunRequest) -> RunStatus:
        self.asked.append((run, request))
        return await self.status(run)

    async def status(self, run: RunId) -> RunStatus:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return RunStatus(run=run, phase=answer)

    async def cancel(self, run: RunId) -> RunStatus:
        self.asked.append("cancel")
        return await self.status(run)


@pytest.fixture
def slept_s(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of this module, which take no time; servers of other tests pause in threads of their own."""
    found = list[float]()

    async def sleep(pause_s: float) -> None:
        found.append(pause_s)

    monkeypatch.setattr(submit, "time", SimpleNamespace(monotonic=lambda: 50.0 + sum(found)))
    monkeypatch.setattr(submit, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": sleep}))
    return found


@pytest.mark.parametrize(
    ("answers", "within_s", "outcome", "pauses_s"),
    [
        (["submitted"], 0, "submitted", []),
        (
            [RunPending("claimed", after_s=20.0), Throttled("busy", retry_after_s=1.0), "submitted"],
            60,
            "submitted",
            [20, 5],
        ),
        ([OutcomeUnknown("no answer")], 12, "OutcomeUnknown", [5, 5]),
        ([RunPending("claimed", after_s=20.0)], 30, "RunPending", [20]),
        ([Refused("no")], 60, "Refused", []),
    ],
    ids=["at once", "in the end", "never", "not in time", "refused"],
)
async def test_a_start_is_asked_for_again_while_nobody_can_tell(
    answers: list[Any], within_s: float, outcome: str, pauses_s: list[float], slept_s: list[float]
) -> None:
    runs: Any = Runs(*answers)
    [found] = await asyncio.gather(submit.started(runs, RUN, REQUEST, within_s=within_s), return_exceptions=True)
    assert (found.phase if isinstance(found, RunStatus) else type(found).__name__) == outcome
    assert slept_s == pauses_s and runs.asked == [(RUN, REQUEST)] * (len(pauses_s) + 1)


@pytest.mark.parametrize(
    ("phases", "phase", "pauses_s"),
    [
        (["waiting", "running", "failed", "running"], "failed", [5, 5]),
        (["running"], "running", [5, 5]),
        (["succeeded"], "succeeded", []),
    ],
)
async def test_a_run_is_waited_for_until_it_is_over_or_the_time_is(
    phases: list[str], phase: str, pauses_s: list[float], slept_s: list[float]
) -> None:
    runs: Any = Runs(*phases)
    assert (await submit.waited(runs, RUN, within_s=12)).phase == phase and slept_s == pauses_s


@pytest.mark.parametrize(
    ("words", "answers", "code"),
    [
        (["feed"], ["submitted"], 0),
        (["feed"], ["failed"], 1),
        (["feed"], [Refused("no")], 1),
        (["feed", "--wait", "9"], ["running"], 1),
        (["feed", "--wait", "9"], ["submitted", "running", "succeeded"], 0),
        (["status", RUN], ["running"], 0),
        (["status", RUN], ["unknown"], 1),
        (["status", RUN, "--wait", "9"], ["running", "cancelled"], 1),
        (["cancel", RUN], ["cancelled"], 0),
    ],
)
def test_the_exit_code_says_what_became_of_the_run(
    words: list[str], answers: list[Any], code: int, slept_s: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, chosen = Runs(*answers), list[Any]()

    def over(settings: Any, environ: Any) -> Runs:
        chosen.append((settings.target, settings.runs))
        return runs

    monkeypatch.setattr(submit, "runs_over", over)
    monkeypatch.setenv("OUTBOX_SPARK", "synapse")
    assert submit.main([*words, "--runs", "kept", "--", "--input", "x", "--", "y"]) == code
    assert chosen == [("synapse", "kept")]
    if words[0] == "feed":
        assert runs.asked[0][1] == RunRequest("feed", ("--input", "x", "--", "y"))
    else:
        assert runs.asked == ["cancel"] * (words[0] == "cancel")


def test_a_run_is_printed_for_people_or_for_programs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(submit, "runs_over", lambda *_: Runs("running"))
    assert submit.main(["feed", "--run", RUN]) == 0
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == (f"{RUN}  -  running  batch -\n", f"submit: run {RUN}\n")
    assert submit.main(["status", RUN, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": RUN, "phase": "running"} | dict.fromkeys(
        ("job", "batch", "detail"), ""
    )
    status = RunStatus(run=RUN, job="feed", phase="failed", batch="7", detail="exit code 1")
    assert submit.text_of(status) == f"{RUN}  feed  failed  batch 7  exit code 1"
    for usage in (["status"], ["feed", RUN], ["cancel", "--", RUN]):
        with pytest.raises(SystemExit, match="2"):
            submit.main(usage)
