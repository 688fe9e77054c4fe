"""What the emulator of Blob Storage answers is what Azurite answers."""

from __future__ import annotations

import pytest

from outbox.emulator.blobs import conditions
from tests.wire.on_azure.blob_duel import against_azurite

STEP_COUNT = 90


@pytest.mark.parametrize("seed", range(4))
async def test_drawn_operations_come_to_what_azurite_says(of_azurite: str, seed: int) -> None:
    assert await against_azurite(of_azurite, seed, STEP_COUNT) > 0


async def test_an_emulator_that_ignores_etags_is_caught(of_azurite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, "_may_proceed", lambda wanted, blob: True)
    with pytest.raises(AssertionError, match="ConditionNotMet"):
        for seed in range(6):
            await against_azurite(of_azurite, seed, STEP_COUNT)
