"""The benchmark of recovery: which pages are around a kill, and what is said of them."""

from __future__ import annotations

import pytest

from benchmarks.bench_recovery import judged, text_of


def test_pages_around_kills_are_judged_beside_those_that_nobody_disturbed() -> None:
    pages = [(at / 10, 0.004 if 29 <= at <= 50 else 0.002) for at in range(200)]
    found = judged(pages, [3.0], half_s=9.0)
    assert found["around kills"]["pages"] == 31 and found["around kills"]["p50_ms"] == pytest.approx(4.0)
    assert found["undisturbed"]["pages"] == 90 and found["p99_ratio"] == pytest.approx(2.0)
    text = text_of(found, {"state_s": 60.0, "open_s": 0.5, "behind_open_s": 0.75})
    assert "p99 around 1 kills over p99 undisturbed: 2.00" in text and "0.75 s behind the engine's own opening" in text
    seconds = [(row["second"], row["kills"], row["max_ms"]) for row in found["seconds"]]
    assert seconds[2:4] == [(2, 0, pytest.approx(4.0)), (3, 1, pytest.approx(4.0))] and len(seconds) == 20
