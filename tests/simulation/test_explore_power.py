"""Loss of power, every interleaving of small scopes: nothing was told that is gone with what was not synced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outbox.runtime.commit.engine_transaction import EngineTransaction
from outbox.runtime.commit.store_transaction import never_durable
from outbox.runtime.engine_scope import EngineScope
from outbox.runtime.work import Work
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import search
from tests.simulation.explored import GIVEN, T1, T2, asked, bank, clean, conserved, counter, desk
from tests.simulation.mutant_apps import scenario

pytestmark = pytest.mark.slow

LOOK = ClientRequest("GET /accounts/alice", "look", None)
FAULTS = [{"power": 1}, {"power": 1, "crash": 1}, {"power": 2, "lost": 1}, {"power": 1, "expire": 1}]


@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_messages_are_handled_once_though_power_is_lost(faults: dict[str, int]) -> None:
    clean(search(Scenario(desk(), [T1, T2], GIVEN, copies=[2, 1], budgets=Budgets(**faults))))


def test_two_handlings_and_a_batch_survive_a_loss_of_power() -> None:
    known: dict[str, Any] = {"invariant": conserved, "budgets": Budgets(power=1)}
    clean(search(Scenario(bank(), [T1], GIVEN, **known), live=True))
    clean(search(Scenario(desk(), [T1, T2], GIVEN, batch=2, budgets=Budgets(power=1)), live=True))


@pytest.mark.parametrize("faults", FAULTS, ids=str)
def test_what_a_client_was_answered_is_there_after_power_was_lost(faults: dict[str, int]) -> None:
    known: dict[str, Any] = {"requests": [asked("k1", 5), LOOK], "asked_times": [2, 1], "fronts": 2, "workers": 0}
    clean(search(Scenario(counter(), (), GIVEN, budgets=Budgets(**faults), **known), live=True))


def test_a_loss_of_power_takes_what_was_written_and_not_synced() -> None:
    calm = search(Scenario(desk(), [T1], GIVEN, workers=1))
    lost = search(Scenario(desk(), [T1], GIVEN, workers=1, budgets=Budgets(power=1)))
    assert lost.states > 2 * calm.states
    assert lost.outcomes == calm.outcomes


class CallsEarly(EngineScope):
    """Lets a handler call outside before what it has seen is synced."""

    async def _load(self, works: Sequence[Work]) -> EngineTransaction:
        group = await super()._load(works)
        group.durable = never_durable
        return group


def test_a_call_over_a_commit_that_is_not_synced_is_found() -> None:
    early = scenario("engine", "ringing", amounts=(5, -3), workers=2, faults={"power": 1}, make=CallsEarly)
    (anomaly,) = search(early).anomalies
    assert anomaly.promise == "NothingLeavesEarly" and "not synced" in anomaly.text and anomaly.steps <= 5
