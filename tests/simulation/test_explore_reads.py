"""Reads over HTTP, every interleaving of small scopes: each is answered from a state that was committed."""

from __future__ import annotations

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import search
from tests.simulation.explored import GIVEN, T1, asked, clean, counter

pytestmark = pytest.mark.slow

SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])
LOOK = ClientRequest("GET /accounts/alice", "look", None)


@SCOPES
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "stale", "jump"])
def test_a_read_beside_a_request_is_answered_from_a_committed_state(scope: str, fault: FaultKind) -> None:
    scenario = Scenario(
        counter(),
        (),
        GIVEN,
        workers=0,
        scope=scope,
        requests=[asked("k1", 5), LOOK],
        fronts=1 if scope == "item" else 2,
        sweepers=int(scope != "engine"),
        budgets=Budgets.any_of(1, fault),
    )
    clean(search(scenario))


@SCOPES
def test_a_read_beside_a_message_is_answered_from_a_committed_state(scope: str) -> None:
    scenario = Scenario(counter(), [T1], GIVEN, workers=1, scope=scope, requests=[LOOK], budgets=Budgets(lost=1))
    clean(search(scenario))


def test_a_read_of_what_is_not_there_is_answered_too() -> None:
    nobody = ClientRequest("GET /accounts/nobody", "look", None)
    clean(search(Scenario(counter(), (), GIVEN, workers=0, requests=[nobody], budgets=Budgets(crash=1))))
