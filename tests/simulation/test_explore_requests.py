"""HTTP requests, every interleaving of small scopes: one effect and one answer for each key, whoever dies when."""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.programs import ClientRequest
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, T1, Deposit, asked, clean, counter

pytestmark = pytest.mark.slow

FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump", "timeout")
SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])


def explored(scope: str, *requests: ClientRequest, live: bool = True, **options: Any) -> Report:
    known: dict[str, Any] = {"messages": (), "workers": 0, "sweepers": int(scope != "engine"), "given": GIVEN}
    return search(Scenario(counter(), scope=scope, requests=requests, **(known | options)), live=live)


@SCOPES
@pytest.mark.parametrize("fault", FAULTS)
def test_a_request_asked_twice_at_once_has_one_effect_and_one_answer(scope: str, fault: FaultKind) -> None:
    fronts = 1 if scope == "item" else 2
    budgets = Budgets.any_of(1, fault)
    clean(explored(scope, asked("k1", 5), asked_times=2, fronts=fronts, budgets=budgets, live=fault != "jump"))


@SCOPES
@pytest.mark.parametrize("other", [asked("k1", 6), asked("k1", 5, "bob")], ids=["another payload", "of another state"])
def test_another_request_under_the_same_key_is_refused(scope: str, other: ClientRequest) -> None:
    fronts = 1 if scope == "item" else 2
    clean(explored(scope, asked("k1", 5), other, fronts=fronts, budgets=Budgets.any_of(1, "crash", "lost")))


@SCOPES
def test_requests_of_one_state_take_effect_one_after_the_other(scope: str) -> None:
    budgets = Budgets() if scope == "item" else Budgets.any_of(1, "crash", "lost")
    clean(explored(scope, asked("k1", 5), asked("k2", 3), fronts=1 if scope == "item" else 2, budgets=budgets))


@SCOPES
def test_a_rejected_request_is_rejected_for_every_repetition(scope: str) -> None:
    clean(explored(scope, asked("k1", -1), asked_times=2, budgets=Budgets.any_of(1, "crash", "lost")))


@SCOPES
def test_a_request_without_a_state_takes_effect_once(scope: str) -> None:
    bell = ClientRequest("POST /bell", "b", Deposit("t", "bob", 1))
    clean(explored(scope, bell, asked_times=2, fronts=2, budgets=Budgets.any_of(1, "crash", "lost", "delay")))


@SCOPES
def test_a_request_asked_twice_of_one_process_is_worked_on_once(scope: str) -> None:
    budgets = Budgets() if scope == "item" else Budgets(crash=1)
    clean(explored(scope, asked("k1", 5), asked_times=2, front_batch=2, budgets=budgets))


@pytest.mark.parametrize("scope", ["engine", "partition"])  # item scope: 40 s, in `make explore`
def test_two_requests_of_one_state_in_one_process_take_effect_in_turn(scope: str) -> None:
    budgets = Budgets.any_of(1, "crash", "lost", "error", "timeout") if scope == "engine" else Budgets()
    clean(explored(scope, asked("k1", 5), asked("k2", 3), front_batch=2, sweepers=0, budgets=budgets))


@SCOPES
def test_requests_and_messages_of_one_state_do_not_harm_each_other(scope: str) -> None:
    calm = {"budgets": Budgets(), "sweepers": 0} if scope == "item" else {"budgets": Budgets(crash=1)}
    clean(explored(scope, asked("k1", 5), messages=[T1], workers=1, **calm))


@pytest.mark.parametrize("scope", ["partition", "item"])
def test_what_an_answered_request_has_emitted_needs_a_sweeper_when_its_process_dies(scope: str) -> None:
    report = explored(scope, asked("k1", 5), sweepers=0, budgets=Budgets(crash=1))
    (anomaly,) = report.anomalies
    assert anomaly.promise == "NoLost" and "answer k1 200" in anomaly.trace.text
