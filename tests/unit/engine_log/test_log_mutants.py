"""Every fault planted in the engine and its log is found by the test that names it."""

from __future__ import annotations

import pytest

from tests.simulation.planted import ALL_WITHIN_S, Found, check_found, outcomes
from tests.simulation.planting import Mutant
from tests.unit.engine_log.log_mutants import TABLE


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    return outcomes("tests.unit.engine_log.log_mutants", request)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", TABLE.mutants, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_the_log_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    check_found(mutant, found)


def test_no_fault_has_the_name_of_another() -> None:
    assert len({mutant.name for mutant in TABLE.mutants}) == len(TABLE.mutants)
