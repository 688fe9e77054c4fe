"""Every fault planted in an adapter is found by the test that names it, through the real SDKs and over the wire."""

from __future__ import annotations

import pytest

from tests.simulation.planted import ALL_WITHIN_S, Found, check_found, outcomes
from tests.simulation.planting import Mutant
from tests.wire.on_azure.adapter_mutants import TABLE

FOUND_WITHIN_CPU_S = 20.0
"""Most take less than one; a run without an end counts as one that has used all of its time."""
LEAST_COUNT = 40


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    return outcomes("tests.wire.on_azure.adapter_mutants", request)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", TABLE.mutants, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_an_adapter_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    check_found(mutant, found)
    assert found[mutant.name]["cpu_s"] < FOUND_WITHIN_CPU_S


def test_every_service_has_faults_planted() -> None:
    assert len({mutant.name for mutant in TABLE.mutants}) == len(TABLE.mutants) >= LEAST_COUNT
    assert {mutant.scope for mutant in TABLE.mutants} == {"cosmos", "bus", "blobs"}
