"""What explorations assume of a store is what Cosmos DB does, as far as its emulator does: drawn operations on both."""

from __future__ import annotations

import pytest

from tests.contract import model_duels
from tests.wire.on_azure.ground import cosmos_ground


@pytest.mark.parametrize("scope", ["partition", "item"])
@pytest.mark.parametrize("seed", range(6))
async def test_the_store_model_does_what_cosmos_does_through_the_sdk(scope: str, seed: int) -> None:
    async with cosmos_ground() as ground:
        store = ground.store(scope=scope)
        assert await model_duels.check_store_model(store, ground.wait, seed=seed) == 60


async def test_a_cosmos_that_does_not_look_at_etags_in_batches_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.emulator.cosmos.decisions._check_etag", lambda *_: None)
    with pytest.raises(AssertionError):
        for seed in range(20):
            async with cosmos_ground() as ground:
                await model_duels.check_store_model(ground.store(), ground.wait, seed=seed)
