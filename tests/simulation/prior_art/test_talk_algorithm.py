"""The published algorithm of the Exactly-Once talk: its known counter-examples are found, its repairs pass.

The explorer proves itself here: each hole was known before, with the length of its shortest trace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.run import Program
from outbox.verify.explorer.search import Report
from tests.simulation.prior_art.inbox import Inbox
from tests.simulation.prior_art.keyvalue import KeyValue
from tests.simulation.prior_art.small import broken, clean, explored
from tests.simulation.prior_art.talk import PUBLISHED, REPAIRED, Host, Rules, Sweeper, TalkMonitor

ALL_BUT_STAGED = ("NoDuplicate", "NoGhost", "ConsistentOutput", "NoLost", "EveryMessageEnds")
"""What holds without a sweeper: a crash leaves what it has staged."""


def talk(
    rules: Rules,
    *promises: str,
    copies: Mapping[str, int],
    hosts: int = 1,
    sweepers: int = 0,
    is_new: bool = False,
    **budgets: int,
) -> Report:
    given: dict[str, dict[str, Any]] = {} if is_new else {"account": {"state": ((), "", 0)}}
    models = (KeyValue(given, sessions="stale" in budgets), Inbox(copies))
    programs: list[Program] = [*[Host(rules)] * hosts, *[Sweeper()] * sweepers]
    return explored(models, programs, TalkMonitor(list(copies), *promises), Budgets(**budgets))


# B1: a swap whose answer is lost, and a staged result that is deleted upon it


@pytest.mark.parametrize("rules", [PUBLISHED, replace(REPAIRED, keeps=False)], ids=["published", "one-rule-off"])
def test_a_swap_with_a_lost_answer_changes_the_state_twice_if_its_staged_result_is_deleted(rules: Rules) -> None:
    broken(talk(rules, "NoDuplicate", copies={"m": 1}, lost=1), "NoDuplicate", steps=19)


def test_a_swap_that_lands_late_finds_its_staged_result_deleted() -> None:
    broken(talk(PUBLISHED, "NoDuplicate", copies={"m": 2}, delay=1), "NoDuplicate", steps=20)


@pytest.mark.parametrize(("lost", "delay"), [(1, 0), (0, 1)])
def test_a_staged_result_that_is_kept_survives_an_unknown_swap(lost: int, delay: int) -> None:
    clean(talk(REPAIRED, *ALL_BUT_STAGED, copies={"m": 2}, hosts=2, lost=lost, delay=delay))


# B2, B3: the first write of a state, which overwrites whatever is there


@pytest.mark.parametrize("rules", [PUBLISHED, replace(REPAIRED, creates=False)], ids=["published", "one-rule-off"])
def test_a_first_write_that_overwrites_leaves_a_ghost_of_the_message_before(rules: Rules) -> None:
    found = talk(rules, "NoGhost", copies={"m": 1, "n": 1}, hosts=2, is_new=True)
    broken(found, "NoGhost", steps=14 + rules.looks_again * 2)


@pytest.mark.parametrize("rules", [PUBLISHED, replace(REPAIRED, creates=False)], ids=["published", "one-rule-off"])
def test_a_first_write_that_overwrites_sends_two_results_for_one_message(rules: Rules) -> None:
    found = talk(rules, "ConsistentOutput", copies={"m": 2}, hosts=2, is_new=True)
    broken(found, "ConsistentOutput", steps=18 + rules.looks_again * 2)


@pytest.mark.parametrize("copies", [{"m": 1, "n": 1}, {"m": 2}], ids=["two-messages", "one-twice"])
def test_a_first_write_that_creates_loses_to_the_one_before(copies: dict[str, int]) -> None:
    clean(talk(REPAIRED, copies=copies, hosts=2, is_new=True))


# B4: the state is read as it is, the outbox as it was


@pytest.mark.parametrize("rules", [PUBLISHED, replace(REPAIRED, looks_again=False)], ids=["published", "one-rule-off"])
def test_a_stale_look_for_the_result_applies_a_message_twice(rules: Rules) -> None:
    broken(talk(rules, "NoDuplicate", copies={"m": 2}, hosts=2, stale=1), "NoDuplicate", steps=13)


# B5: a staged result that another host cannot see yet is taken for one that has gone


@pytest.mark.parametrize(
    "rules",
    [replace(PUBLISHED, looks_again=True), replace(REPAIRED, carries_token=False)],
    ids=["published", "one-rule-off"],
)
def test_a_stale_look_for_what_is_staged_loses_it_and_applies_the_message_again(rules: Rules) -> None:
    broken(talk(rules, "NoDuplicate", copies={"m": 2}, hosts=2, stale=1), "NoDuplicate", steps=21)


@pytest.mark.parametrize("is_new", [False, True], ids=["known-state", "new-state"])
def test_reads_as_fresh_as_the_writes_that_they_rest_on_may_be_stale_otherwise(is_new: bool) -> None:
    clean(talk(REPAIRED, copies={"m": 2}, hosts=2, stale=2, is_new=is_new))


# B6: what a crash leaves staged


def test_a_crash_leaves_what_it_has_staged_for_ever() -> None:
    broken(talk(PUBLISHED, "StagedVanish", copies={"m": 1}, crash=1), "StagedVanish", steps=16)


def test_a_sweeper_reclaims_what_the_state_is_past() -> None:
    clean(talk(REPAIRED, copies={"m": 2}, sweepers=1, crash=1))
    clean(talk(REPAIRED, copies={"m": 1}, sweepers=1, lost=1, crash=1))


# All repairs together


def test_the_repaired_algorithm_bears_a_crash_and_a_lost_answer_at_once() -> None:
    clean(talk(REPAIRED, *ALL_BUT_STAGED, copies={"m": 2}, hosts=2, is_new=True, crash=1, lost=1))


def test_the_repaired_algorithm_bears_a_crash_that_forgets_its_session() -> None:
    clean(talk(REPAIRED, *ALL_BUT_STAGED, copies={"m": 2}, is_new=True, crash=1, stale=2))
