"""Every fault planted in the emulator of Blob Storage is found by the test that names it."""

from __future__ import annotations

import pytest

from tests.simulation.planted import ALL_WITHIN_S, Found, check_found, outcomes
from tests.simulation.planting import Mutant
from tests.wire.blobs.blob_mutants import TABLE

LEAST_COUNT = 36


@pytest.fixture(scope="module")
def found(request: pytest.FixtureRequest) -> dict[str, Found]:
    return outcomes("tests.wire.blobs.blob_mutants", request)


@pytest.mark.slow
@pytest.mark.planted
@pytest.mark.timeout(ALL_WITHIN_S)
@pytest.mark.parametrize("mutant", TABLE.mutants, ids=lambda mutant: mutant.name)
def test_a_fault_planted_in_the_emulator_is_found(mutant: Mutant, found: dict[str, Found]) -> None:
    check_found(mutant, found)


def test_every_rule_of_the_emulator_has_faults_planted() -> None:
    subjects = {mutant.name.partition(":")[0] for mutant in TABLE.mutants}
    assert len({mutant.name for mutant in TABLE.mutants}) == len(TABLE.mutants) >= LEAST_COUNT
    assert subjects == {
        "auth", "conditions", "leases", "blocks", "ranges", "lists", "batches", "understood", "lasting", "faults"
    }  # fmt: skip
