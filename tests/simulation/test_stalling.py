"""Replicas hinder nobody: one that stalls or dies anywhere costs no time, and n of them stall together with p^n."""

from __future__ import annotations

from random import Random

import pytest

from tests.simulation.stalling import Line, late_share


@pytest.mark.parametrize(("replicas", "stalls"), [(1, 0.1), (2, 0.1), (1, 0.03)])
def test_an_output_is_late_where_all_replicas_stall_at_once(replicas: int, stalls: float) -> None:
    expected = stalls**replicas
    assert expected / 2 <= late_share(replicas, stalls, 2_000, seed=1) <= expected * 2


@pytest.mark.parametrize("turns", range(16))
def test_a_replica_that_dies_before_any_of_its_calls_delays_no_output(turns: int) -> None:
    line, random = Line(2), Random(turns)
    dying, other = line.walkers
    for n in range(3):
        line.feed(n)
    for _ in range(turns):
        dying.goes_on()
    line.go_on([other], random)
    assert line.end == 3


@pytest.mark.parametrize("turns", range(16))
def test_a_replica_that_wakes_up_much_later_writes_nothing_twice(turns: int) -> None:
    line, random = Line(2), Random(turns)
    paused, other = line.walkers
    line.feed(0)
    for _ in range(turns):
        paused.goes_on()
    for n in range(1, 6):
        line.feed(n)
        line.go_on([other], random)
    line.go_on([paused], random)
    assert line.end == 6
