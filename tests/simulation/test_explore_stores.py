"""Partition and item scope, every interleaving of small scopes: nothing is found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outbox import stored
from outbox.errors import CorruptRecord
from outbox.ports import Document, DocumentKey, Session
from outbox.runtime.scopes import store_protocol
from outbox.runtime.store_scope import StoreParts
from outbox.stored import STATE, Inline
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import FaultKind
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Report, search
from tests.simulation.explored import GIVEN, REFUSED, T1, T2, bank, clean, conserved, desk

pytestmark = pytest.mark.slow

PARTITION_FAULTS: tuple[FaultKind, ...] = ("crash", "lost", "delay", "error", "expire", "stale", "jump")


def explored(scope: str, **options: Any) -> Report:
    known: dict[str, Any] = {"app": desk(), "given": GIVEN, "invariant": conserved, "messages": [T1], "scope": scope}
    return search(Scenario(**(known | options)))


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_partition_scope_two_workers_and_a_duplicate_under_any_single_fault(fault: FaultKind) -> None:
    report = clean(explored("partition", messages=[T1, T2], copies=[2, 1], budgets=Budgets.any_of(1, fault)))
    assert report.states > 1_000


def test_partition_scope_keeps_its_promises_over_two_handlings() -> None:
    clean(explored("partition", app=bank(), copies=2, budgets=Budgets(crash=1)))


@pytest.mark.parametrize("options", [{"warm": True}, {"tells_current": True}, {"batch": 2}, {"sweepers": 1}], ids=str)
def test_partition_scope_keeps_its_promises_however_it_is_run(options: dict[str, Any]) -> None:
    workers = 1 if "sweepers" in options else 2
    clean(explored("partition", messages=[T1, T2], workers=workers, budgets=Budgets.any_of(1, "crash"), **options))


@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_warm_workers_that_take_two_at_a_time_keep_their_promises_under_any_single_fault(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], warm=True, batch=2, budgets=budgets))
    clean(explored("item", workers=1, copies=2, warm=True, budgets=budgets))


@pytest.mark.parametrize("options", [{"workers": 2}, {"workers": 1, "sweepers": 1}], ids=str)
@pytest.mark.parametrize("fault", PARTITION_FAULTS)
def test_marks_that_ride_in_later_batches_keep_every_promise_under_any_single_fault(
    fault: FaultKind, options: dict[str, Any]
) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("partition", messages=[T1, T2], copies=[2, 1], warm=True, lingers=True, budgets=budgets, **options))


@pytest.mark.parametrize("scope", ["partition", "item"])
def test_a_refusal_and_its_duplicate_end_in_one_verdict(scope: str) -> None:
    allow = frozenset({"dead-letter"})
    budgets = Budgets.any_of(1, "crash", "lost")
    clean(explored(scope, app=bank(), messages=[REFUSED], workers=1, copies=2, allow=allow, budgets=budgets))


INLINE_OR_STAGED = pytest.mark.parametrize("options", [{}, {"staged": True}], ids=["inline", "staged"])


@INLINE_OR_STAGED
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "stale", "jump"])
def test_item_scope_one_worker_and_a_duplicate_under_any_single_fault(
    fault: FaultKind, options: dict[str, Any]
) -> None:
    clean(explored("item", workers=1, copies=2, budgets=Budgets.any_of(1, fault), **options))


@INLINE_OR_STAGED
def test_item_scope_two_workers_and_a_duplicate(options: dict[str, Any]) -> None:
    clean(explored("item", copies=2, **options))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "error", "expire", "stale", "jump"])
def test_pointers_that_wait_for_the_next_swap_keep_every_promise_under_any_single_fault(fault: FaultKind) -> None:
    budgets = Budgets.any_of(1, fault)
    clean(explored("item", workers=1, messages=[T1, T2], copies=[2, 1], warm=True, lingers=True, budgets=budgets))
    clean(explored("item", workers=1, sweepers=1, messages=[T1, T2], warm=True, lingers=True, budgets=budgets))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_workers_that_stage_outputs_and_workers_that_do_not_keep_every_promise_together(fault: FaultKind) -> None:
    clean(explored("item", messages=[T1, T2], staged=True, mixed=True, budgets=Budgets.any_of(1, fault)))


class EarlierStates:
    """The states as earlier versions of the code see them: what holds its outputs inside they cannot decode."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.capabilities, self.scan, self.unfinished = store.capabilities, store.scan, store.unfinished
        self.write = store.write

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found: Document | None = await self._store.read(key, session=session)
        if key.id == STATE and isinstance(stored.state_in(found).pending, Inline):
            raise CorruptRecord("document Account:alice/state is not a StateItem")
        return found


def earlier_where_staged(parts: StoreParts) -> Any:
    """The protocol of a worker; one that stages everything is of an earlier version."""
    ports = parts.ports
    if not ports.store.capabilities.inline_bytes_max:
        ports = replace(ports, store=EarlierStates(ports.store), infrastructure=ports.store)
    return store_protocol(replace(parts, ports=ports))


@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_workers_of_an_earlier_version_and_of_this_one_keep_every_promise_together(fault: FaultKind) -> None:
    known: dict[str, Any] = {"staged": True, "mixed": True, "symmetric": False, "make": earlier_where_staged}
    known |= {"pauses_max": 1, "budgets": Budgets.any_of(1, fault)}
    clean(explored("item", copies=2, lingers=True, warm=True, **known))
    clean(explored("item", sweepers=1, **known))


@INLINE_OR_STAGED
def test_item_scope_with_a_sweeper_leaves_nothing_behind_after_a_crash(options: dict[str, Any]) -> None:
    clean(explored("item", workers=1, sweepers=1, budgets=Budgets(crash=1), **options))


@INLINE_OR_STAGED
@pytest.mark.parametrize("fault", ["crash", "lost", "delay", "stale"])
def test_item_scope_keeps_its_promises_with_its_infrastructure_apart(fault: FaultKind, options: dict[str, Any]) -> None:
    clean(explored("item", apart=True, workers=1, copies=2, budgets=Budgets.any_of(1, fault), **options))


@INLINE_OR_STAGED
def test_item_scope_apart_keeps_its_promises_when_both_sides_are_swept(options: dict[str, Any]) -> None:
    clean(explored("item", apart=True, workers=1, sweepers=1, budgets=Budgets(crash=1), **options))


@pytest.mark.parametrize("scope", ["engine", "partition", "item"])
def test_a_good_end_can_be_reached_from_everywhere(scope: str) -> None:
    budgets = Budgets.any_of(1, "crash", "lost", "delay", "error", "expire")
    scenario = Scenario(desk(), [T1], GIVEN, workers=1, copies=2, scope=scope, budgets=budgets)
    clean(search(scenario, live=True))
