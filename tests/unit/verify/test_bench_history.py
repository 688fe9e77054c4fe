"""The benchmark of histories judges sound ones, and judging keeps the pace that the documentation names."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks import bench_history
from outbox.verify.guarantees import check
from outbox.verify.history import History


@pytest.mark.parametrize("batch", [1, 64])
def test_a_hundred_thousand_events_are_judged_within_six_cpu_seconds(batch: int, tmp_path: Path) -> None:
    """A million within a minute, at that rate."""
    path = tmp_path / "history.jsonl"
    count = bench_history.write_history(path, 100_000, batch)
    started_s = time.process_time()
    verdict = check(path)
    assert time.process_time() - started_s < 6
    assert verdict.ok and verdict.counts.events == count >= 100_000


def test_figures_are_published_for_recording_and_each_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_history, "SCRATCH", tmp_path)
    text = bench_history.publish(1, 2_000, 200, tmp_path / "out")
    assert "recording" in text and "64 messages a line" in text
    assert (tmp_path / "out" / "history.json").exists()


def test_a_broken_history_spoils_the_run(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History(path) as history:
        history.life()
    with pytest.raises(RuntimeError, match="bug"):
        bench_history._judged(path)
