"""The gate: all small scopes of each protocol are exhausted, and nothing is found in any."""

from __future__ import annotations

import pytest

from outbox.verify.explorer.scenario import Scenario
from tests.simulation.explored import GIVEN, T1, T2, conserved, desk
from tests.simulation.lattice import scopes, search_lattice

pytestmark = pytest.mark.slow


ALLOW = frozenset({"alarm"})


def largest(scope: str, messages: int) -> Scenario:
    return Scenario(desk(), [T1, T2][:messages], GIVEN, scope=scope, copies=[2], invariant=conserved, allow=ALLOW)


def test_scopes_come_smallest_first_and_each_once() -> None:
    found = list(scopes(largest("engine", 2)))
    sizes = [len(s.messages) + s.workers + s.copy_counts[0] + (s.budgets.together == 1) for s in found]
    assert sizes == sorted(sizes) and len(found) == 2 * 2 * 2 * 8
    assert len({scenario.describe() for scenario in found}) == len(found)


@pytest.mark.parametrize(
    ("scope", "messages", "size"),
    [
        ("engine", 2, 7),
        ("partition", 2, 6),
        ("item", 2, 5),
        pytest.param("partition", 2, 7, marks=pytest.mark.soak),
        pytest.param("item", 2, 6, marks=pytest.mark.soak),
    ],
)
def test_all_small_scopes_are_exhausted_and_break_no_promise(scope: str, messages: int, size: int) -> None:
    report = search_lattice(largest(scope, messages), size_max=size, cpu_s=100)
    print(report.text)
    assert report.exhausted and not report.anomalies, report.text
    assert report.states > 3_000
