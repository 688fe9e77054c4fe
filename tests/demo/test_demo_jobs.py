"""What the demo says of a comparison that runs: each step once, as the folder of its steps shows it."""

from __future__ import annotations

from pathlib import Path

from tools.demo.jobs import PLANNING, STARTING, StepLines, step_of


def test_the_step_under_way_is_read_from_the_folder_of_the_comparison(tmp_path: Path) -> None:
    progress = tmp_path / "reconcile.progress"
    assert step_of(progress) == (STARTING, 0)
    comparison = progress / "0123456789abcdef"
    (comparison / "inputs-4f2a").mkdir(parents=True)
    (comparison / "inputs.begun").touch()
    assert step_of(progress) == ("inputs", 0)
    (comparison / "inputs.json").touch()
    assert step_of(progress) == (PLANNING, 1)
    (comparison / "accounts-2-buckets.begun").touch()
    assert step_of(progress) == ("accounts-2-buckets", 1)


def test_each_step_is_reported_once_with_the_seconds_since_the_first() -> None:
    said: list[str] = []
    times_s = iter((100.0, 100.0, 112.0, 131.0))
    lines = StepLines(said.append, lambda: next(times_s))
    for step in (STARTING, STARTING, "inputs", PLANNING, "inputs", "accounts-2-buckets"):
        lines.look(step, 0)
    assert said == [
        "     0 s  Spark starts",
        "    12 s  every input against the postings that name it",
        "    31 s  sums of postings against balances",
    ]
