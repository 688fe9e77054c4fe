"""Every fault planted where no exploration reaches is found by the test that names it."""

from __future__ import annotations

import pytest

from tests.simulation.direct_mutants import TABLE
from tests.simulation.planted import ALL_WITHIN_S, Found, check_found, outcomes
from tests.simulation.planting import Mutant

LEAST_COUNT = 150


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    return outcomes("tests.simulation.direct_mutants", request)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", TABLE.mutants, ids=lambda mutant: mutant.name)
def test_a_fault_planted_where_no_exploration_reaches_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    check_found(mutant, found)


def test_every_edge_has_faults_planted() -> None:
    assert len({mutant.name for mutant in TABLE.mutants}) == len(TABLE.mutants) >= LEAST_COUNT
    about = {
        "trigger",
        "letters",
        "settlement",
        "ages",
        "threads",
        "judge",
        "ops",
        "emulator",
        "jobs",
        "steps",
        "rules",
        "telemetry",
    }
    assert {mutant.scope for mutant in TABLE.mutants} == about
