"""The published protocol of FlameStream: each known fault has a shortest trace, alone, and its repair none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.search import Report
from tests.simulation.prior_art.flamestream import (
    PUBLISHED,
    REPAIRED,
    Barrier,
    Cluster,
    Coordinator,
    FlowMonitor,
    Rules,
    Source,
    Task,
)
from tests.simulation.prior_art.small import broken, clean, explored

ALL_AT_ONCE = 9
"""A bundle that holds whatever is ready, and so splits no position."""


def flow(
    rules: Rules,
    *promises: str,
    records: int = 1,
    tasks: int = 1,
    children: int = 1,
    slots: int = 4,
    bundle_max: int = 1,
    commits: bool = False,
    hold: bool = False,
    crashes: int = 0,
) -> Report:
    programs: list[Program] = [Source(rules, records), *[Task(rules, index, children) for index in range(tasks)]]
    programs += [Barrier(rules, bundle_max), *[Coordinator()] * commits]
    monitor = FlowMonitor(*promises, records=records, tasks=tasks, children=children)
    cluster = Cluster(rules, tasks=tasks, slots=slots, hold=hold)
    return explored((cluster,), programs, monitor, Budgets(power=crashes))


# A commit beside the barrier


def test_a_commit_beside_the_barrier_loses_what_it_holds() -> None:
    scope: dict[str, Any] = {"commits": True, "crashes": 1}
    broken(flow(replace(REPAIRED, waits=False), "NoLost", **scope), "NoLost", steps=20)
    clean(flow(REPAIRED, **scope))


def test_a_commit_beside_the_barrier_leaves_a_hole() -> None:
    scope: dict[str, Any] = {"records": 2, "commits": True, "crashes": 1}
    broken(flow(replace(REPAIRED, waits=False), "NoHole", **scope), "NoHole", steps=25)
    clean(flow(REPAIRED, **scope))


# Recovery


def test_a_filter_by_position_loses_half_of_a_split_position() -> None:
    scope: dict[str, Any] = {"children": 2, "crashes": 1}
    broken(flow(replace(REPAIRED, by_path=False), "NoLost", **scope), "NoLost", steps=22)
    clean(flow(REPAIRED, **scope))


def test_a_filter_by_position_is_right_for_whole_positions() -> None:
    rules = replace(REPAIRED, by_path=False)
    clean(flow(rules, records=2, children=2, bundle_max=ALL_AT_ONCE, commits=True, crashes=1))


def test_a_bundle_noted_before_its_acknowledgement_is_lost() -> None:
    broken(flow(replace(REPAIRED, notes="before"), "NoLost", crashes=1), "NoLost", steps=20)
    clean(flow(REPAIRED, crashes=1))


def test_a_bundle_noted_after_its_acknowledgement_comes_twice() -> None:
    broken(flow(replace(REPAIRED, notes="after"), crashes=1), "NoDuplicate", steps=21)


# The acker


PASSES = [
    pytest.param(replace(REPAIRED, heartbeats_follow=False), 3, 12, 17, id="a-heartbeat-overtakes-its-record"),
    pytest.param(replace(REPAIRED, children_first=False), 6, 16, 18, id="a-parent-is-reported-before-its-child"),
]


@pytest.mark.parametrize(("rules", "passed", "hole", "lost"), PASSES)
def test_a_bound_that_passes_a_record_breaks_order_and_loses(rules: Rules, passed: int, hole: int, lost: int) -> None:
    broken(flow(rules, "BoundHolds"), "BoundHolds", steps=passed)
    broken(flow(rules, "NoHole", records=2, tasks=2), "NoHole", steps=hole)
    broken(flow(rules, "NoLost", commits=True, crashes=1), "NoLost", steps=lost)
    clean(flow(REPAIRED, records=2, tasks=2))
    clean(flow(REPAIRED, commits=True, crashes=1))


def test_a_heartbeat_ahead_of_its_record_commits_without_it() -> None:
    rules = replace(REPAIRED, heartbeats_follow=False)
    broken(flow(rules, "Recoverable", commits=True), "Recoverable", steps=13)


def test_a_shared_slot_stops_tasks_that_wait_for_the_bound() -> None:
    scope: dict[str, Any] = {"records": 2, "slots": 1, "hold": True}
    broken(flow(replace(REPAIRED, bounded=False), **scope), "EveryMessageEnds", steps=10)
    clean(flow(REPAIRED, **scope))


def test_a_shared_slot_is_only_late_where_no_task_waits() -> None:
    clean(flow(replace(REPAIRED, bounded=False), records=2, slots=1, commits=True, crashes=1))


# All together


@pytest.mark.parametrize(("promise", "steps"), [("NoLost", 27), ("NoHole", 28)])
def test_the_published_protocol_is_not_exactly_once(promise: str, steps: int) -> None:
    broken(flow(PUBLISHED, promise, records=2, children=2, commits=True, crashes=1), promise, steps=steps)


@pytest.mark.parametrize(
    ("records", "tasks", "children", "bundle_max", "crashes"), [(3, 1, 1, 1, 1), (2, 2, 2, ALL_AT_ONCE, 1)]
)
def test_the_repaired_protocol_is_exactly_once(
    records: int, tasks: int, children: int, bundle_max: int, crashes: int
) -> None:
    rest: dict[str, Any] = {"bundle_max": bundle_max, "commits": True, "crashes": crashes}
    clean(flow(REPAIRED, records=records, tasks=tasks, children=children, **rest))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("records", "tasks", "children", "slots"), [(3, 2, 2, 2), (4, 2, 2, 4), (4, 3, 1, 4)])
def test_larger_scopes_of_the_repaired_protocol(records: int, tasks: int, children: int, slots: int) -> None:
    rest: dict[str, Any] = {"slots": slots, "bundle_max": 2, "commits": True, "crashes": 2}
    clean(flow(REPAIRED, records=records, tasks=tasks, children=children, **rest))
