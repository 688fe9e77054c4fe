"""The dispatch ledger under every fault, where a message is dead once its lock has run out: only sweepers are left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import search
from tests.simulation.drawers import LARGE, PUT, Drawer, drawers
from tests.simulation.explore import asking
from tests.simulation.explored import T1, T2, clean
from tests.simulation.test_explore_stores import PARTITION_FAULTS, explored

GONE_SOON: dict[str, Any] = {"ledger": True, "delivery_count_max": 1, "allow": frozenset({"dead-letter"})}


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_what_was_committed_leaves_though_its_message_is_gone(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], workers=1, sweepers=1, budgets=budgets, **GONE_SOON))
    clean(explored("partition", workers=2, sweepers=1, copies=2, budgets=budgets, **GONE_SOON))


@pytest.mark.parametrize(
    "faults",
    [("crash", "lost"), ("crash", "delay"), ("crash", "stale"), ("delay", "stale"), ("crash", "error")],
    ids=str,
)
def test_two_faults_at_once_lose_nothing(faults: tuple[FaultKind, ...]) -> None:
    budgets = Budgets(**dict.fromkeys(faults, 1))
    clean(explored("partition", messages=[T1, T2], workers=1, sweepers=1, budgets=budgets, **GONE_SOON))


@pytest.mark.parametrize("fault", ["crash", "delay", "stale"])
def test_two_sweepers_and_a_ledger_that_is_saved_late_lose_nothing(fault: FaultKind) -> None:
    options = {"workers": 1, "sweepers": 2, "lingers": True, "budgets": Budgets.any_of(1, fault)}
    clean(explored("partition", messages=[T1, T2], **options, **GONE_SOON))


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_copies_are_recognised_and_push_again_under_the_same_ids(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], ledger=True, warm=True, budgets=budgets))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_workers_with_and_without_a_ledger_finish_what_the_other_began(fault: FaultKind) -> None:
    options = {"workers": 2, "sweepers": 1, "mixed": True, "symmetric": False, "budgets": Budgets.any_of(1, fault)}
    clean(explored("partition", messages=[T1, T2], **options, **GONE_SOON))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "stale"])
def test_what_a_resubmission_sends_leaves_though_its_message_is_gone(fault: FaultKind) -> None:
    budgets, given = Budgets.any_of(1, fault), [("a", Drawer(3))]
    known: dict[str, Any] = {"scope": "partition", "workers": 1, "sweepers": 1, "resubmissions": 1, "given": given}
    clean(search(Scenario(drawers(), (LARGE, PUT), budgets=budgets, **known, **GONE_SOON)))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "stale"])
def test_messages_that_commit_together_have_an_entry_each(fault: FaultKind) -> None:
    options = {"workers": 1, "sweepers": 1, "batch": 2, "warm": True, "lingers": True, "copies": [2, 1]}
    clean(explored("partition", messages=[T1, T2], budgets=Budgets.any_of(1, fault), **options, **GONE_SOON))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "stale", "jump"])
def test_what_a_request_sends_leaves_though_nobody_asks_again(fault: FaultKind) -> None:
    asked = asking({"scope": "partition", "asked": 2, "fronts": 1, "faults": {fault: 1}})
    clean(search(replace(asked, ledger=True)))


@pytest.mark.parametrize("fault", ["crash", "delay"])
def test_a_key_that_stops_goes_on_after_a_resubmission(fault: FaultKind) -> None:
    known: dict[str, Any] = {"workers": 1, "sweepers": 1, "resubmissions": 1, "patience_ms": 11_000, "ledger": True}
    known |= {"given": [("a", Drawer(3))], "allow": frozenset({"dead-letter"}), "scope": "partition"}
    clean(search(Scenario(drawers("stop_key"), (LARGE, PUT), budgets=Budgets.any_of(1, fault), **known)))


def test_what_no_sweep_finds_while_its_record_lives_is_lost() -> None:
    budgets = Budgets(crash=1, jump=1)
    report = explored("partition", workers=1, sweepers=1, budgets=budgets, **GONE_SOON)
    assert [anomaly.promise for anomaly in report.anomalies] == ["NoLost"], "what a ledger gives up; a mark does not"


def test_without_a_sweeper_a_crash_loses_what_it_has_left_unsent() -> None:
    report = explored("partition", workers=1, budgets=Budgets(crash=1), **GONE_SOON)
    assert [anomaly.promise for anomaly in report.anomalies] == ["NoLost"], report.text
