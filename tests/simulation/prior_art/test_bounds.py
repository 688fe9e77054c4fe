"""One contract for watermarks and for the acker: the bound passes nothing that is under way, and comes to the end."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.prior_art.bounds import Acked, Bounds, Fans, Watermarks, walked
from tests.simulation.prior_art.flamestream import REPAIRED

FANS: list[Fans] = [(1,), (2, 0, 1), (0, 0, 2), (1, 1, 1, 1)]


@pytest.mark.parametrize("fans", FANS, ids=str)
@pytest.mark.parametrize("way", [Watermarks, Acked])
def test_a_bound_passes_no_record_and_comes_to_the_end(way: type[Watermarks | Acked], fans: Fans) -> None:
    assert walked(way(fans)) == (set(), {len(fans)})


def test_a_shared_slot_tells_no_bound_too_early() -> None:
    assert walked(Acked((2, 1, 1), rules=replace(REPAIRED, bounded=False))) == (set(), {3})


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Acked((1, 1), rules=replace(REPAIRED, heartbeats_follow=False)), id="heartbeat-before-its-record"),
        pytest.param(Acked((1, 1), rules=replace(REPAIRED, children_first=False)), id="parent-before-its-child"),
        pytest.param(Watermarks((1, 1), least=max), id="greatest-of-the-watermarks"),
        pytest.param(Watermarks((1, 1), overtakes=True), id="watermark-before-its-records"),
    ],
)
def test_without_a_rule_the_bound_passes_a_record(broken: Bounds) -> None:
    assert walked(broken)[0]
