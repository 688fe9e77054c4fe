"""What explorations assume of a bus is what Service Bus does, as far as its emulator does: drawn operations on both."""

from __future__ import annotations

import pytest

from outbox.azure.servicebus.links import Link
from outbox.errors import OutboxError
from outbox.ports import Settle
from tests.wire.on_azure.bus_duel import SIDES, Side, fight

STEP_COUNT = 25
LEAST_COUNT = 12


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("seed", range(3))
async def test_the_bus_model_does_what_service_bus_does_through_the_sdk(side: Side, seed: int) -> None:
    assert await fight(side, seed, STEP_COUNT) >= LEAST_COUNT


async def test_a_bus_that_takes_a_lost_lock_for_held_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = Link.settle

    async def deaf(link: Link, message: object, how: Settle) -> None:
        try:
            await settle(link, message, how)  # type: ignore[arg-type]  # it is handed on as it came
        except OutboxError:
            return

    monkeypatch.setattr(Link, "settle", deaf)
    with pytest.raises(AssertionError, match="LockLost"):
        for seed in range(6):
            await fight("service bus", seed, STEP_COUNT)
