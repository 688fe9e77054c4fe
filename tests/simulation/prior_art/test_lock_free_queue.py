"""Lock-free queues over compare-and-swap: the known mistakes are found, the repaired queues pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.search import Report
from tests.simulation.prior_art.keyvalue import KeyValue
from tests.simulation.prior_art.lockfree import Cleaner, Counter, Door, Producer, QueueMonitor, Replica, Sameness
from tests.simulation.prior_art.small import broken, clean, explored

ALL_BUT_THE_INDEX = ("NoDuplicate", "NoLost", "NoHole", "EveryMessageEnds")
"""What is promised to users: the index is a hint."""


def queue(*programs: Program, promises: Sequence[str] = (), **faults: int) -> Report:
    store = KeyValue(sessions="stale" in faults)
    return explored((store, Door()), programs, QueueMonitor(*promises), Budgets(**faults))


def producers(count: int, **options: Any) -> Sequence[Producer]:
    return [Producer(name, **options) for name in "abc"[:count]]


def replicas(count: int, sameness: Sameness, inputs: int = 1) -> Sequence[Replica]:
    return [Replica("h", ["v"] * inputs, sameness)] * count


# Pushing


@pytest.mark.parametrize(("count", "crashes"), [(2, 0), (2, 2), (3, 1)])
def test_producers_that_swap_the_cell_first_leave_no_hole_and_lose_nothing(count: int, crashes: int) -> None:
    clean(queue(*producers(count), crash=crashes))


def test_an_index_that_is_raised_first_leaves_a_hole_after_a_crash() -> None:
    clean(queue(*producers(2, index_first=True), promises=ALL_BUT_THE_INDEX))
    broken(queue(*producers(1, index_first=True), promises=ALL_BUT_THE_INDEX, crash=1), "NoHole", steps=6)


def test_a_push_that_is_repeated_after_a_lost_answer_writes_its_element_twice() -> None:
    broken(queue(*producers(1), lost=1), "NoDuplicate", steps=11)


def test_a_push_that_knows_its_own_element_may_be_repeated_after_a_lost_answer() -> None:
    clean(queue(*producers(2, knows_its_own=True), lost=2))


def test_a_push_that_begins_again_after_a_crash_writes_its_element_twice() -> None:
    broken(queue(*producers(1, returns=True), crash=1), "NoDuplicate", steps=9)


# Handlers that are several replicas


def test_replicas_that_do_not_look_what_lies_in_the_cell_write_it_twice() -> None:
    broken(queue(*replicas(2, "none")), "NoDuplicate", steps=22)


def test_replicas_of_one_handler_may_compare_values() -> None:
    clean(queue(*replicas(2, "value", 2)))


def test_two_handlers_that_compare_values_lose_an_element_to_an_equal_one() -> None:
    found = queue(Replica("g", ["v"], "value"), Replica("h", ["v"], "value"))
    broken(found, "NoLost", steps=17)


def test_two_handlers_that_compare_identities_lose_nothing() -> None:
    clean(queue(Replica("g", ["v"] * 2, "identity"), Replica("h", ["v"] * 2, "identity")))


@pytest.mark.parametrize(("crash", "lost"), [(1, 1), (2, 0)])
def test_replicas_that_compare_identities_bear_crashes_and_lost_answers(crash: int, lost: int) -> None:
    clean(queue(*replicas(2, "identity", 2), crash=crash, lost=lost))


def test_a_stale_look_into_the_cell_after_a_lost_swap_writes_an_element_twice() -> None:
    broken(queue(*replicas(2, "identity"), stale=1), "NoDuplicate", steps=22)


def test_a_store_that_returns_what_a_swap_lost_to_may_be_stale_otherwise() -> None:
    clean(queue(*replicas(2, "reply"), stale=2))


# Cleaning up


def test_a_cell_that_is_used_again_takes_an_element_twice() -> None:
    broken(queue(*replicas(2, "identity"), Cleaner(leaves_tombstones=False)), "NoDuplicate", steps=24)


def test_a_tombstone_keeps_its_cell_from_being_used_again() -> None:
    clean(queue(*replicas(2, "identity"), Cleaner(leaves_tombstones=True), crash=1))


# The handler that writes to a database


def test_a_counter_that_goes_on_before_it_knows_loses_an_element() -> None:
    broken(queue(*producers(1), Counter(waits=False)), "NoLost", steps=10)


def test_a_counter_that_waits_for_the_cell_counts_every_element() -> None:
    clean(queue(*producers(2), Counter(waits=True), crash=1))
