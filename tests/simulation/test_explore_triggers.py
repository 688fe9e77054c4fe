"""Messages under a Functions host, every interleaving of small scopes: what it completes is on record, or stored."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, REFUSED, T1, T2, bank, clean, desk
from tests.simulation.mutant_apps import scenario
from tests.simulation.trigger_host import TriggerHost

pytestmark = pytest.mark.slow

SCOPES = pytest.mark.parametrize("scope", ["partition", "item"])
FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump", "timeout")
DEAD = frozenset({"dead-letter"})


def explored(scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"app": desk(), "messages": [T1], "given": GIVEN, "workers": 1, "hosts": TriggerHost}
    return clean(search(Scenario(scope=scope, **(known | options))))


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_triggered_message_and_its_copy_take_effect_once(scope: str, fault: FaultKind) -> None:
    explored(scope, copies=2, budgets=Budgets.any_of(1, fault))


@SCOPES
def test_two_invocations_at_once_take_effect_once(scope: str) -> None:
    explored(scope, copies=2, workers=2)
    explored("partition", messages=[T1, T2], workers=2, budgets=Budgets.any_of(1, "crash", "lost"))


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_refused_message_is_stored_before_it_is_completed(scope: str, fault: FaultKind) -> None:
    explored(scope, app=bank(), messages=[REFUSED], allow=DEAD, budgets=Budgets.any_of(1, fault))


@SCOPES
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "stale"])
def test_a_stored_dead_letter_that_is_resubmitted_ends_again(scope: str, fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    explored(scope, app=bank(), messages=[REFUSED], allow=DEAD, resubmissions=1, budgets=budgets)


@SCOPES
def test_a_message_that_is_rescheduled_leaves_as_a_copy(scope: str) -> None:
    once = scenario(scope, "trying", amounts=(-50,), triggered=True, faults={"crash": 1, "lost": 1})
    clean(search(once))
