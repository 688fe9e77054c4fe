"""Ordered logs and processors: every interleaving of replicas, producers, a trimmer and one kind of fault."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest

from outbox.streams import Inputs, Step
from outbox.verify.explorer.search import Report
from tests.simulation.explored import clean
from tests.simulation.streamed import (
    Number,
    Scope,
    Total,
    Withdraw,
    alarmed,
    alike,
    failing,
    failing_alarm,
    failing_alarm_once,
    first_reader,
    funds,
    in_one_cell,
    ingested,
    law,
    leaving,
    overflowing,
    paused,
    paused_replicas,
    produced,
    registering,
    repeated,
    replicas_over,
    resting,
    sharded,
    small,
    to_a_queue,
    trimmed,
    trimmed_blobs,
    two_stores,
    two_timers,
)

FAULTS: tuple[dict[str, Any], ...] = (
    {},
    {"crash": 2},
    {"lost": 1},
    {"delay": 1},
    {"stale": 1},
    {"error": 1},
    {"jump": 1},
)
IDS = ["calm", *(kind for faults in FAULTS for kind in faults)]
KINDS = ("crash", "lost", "delay", "stale", "error", "jump")
PAIRED: dict[str, Callable[[], Scope]] = {
    "producers": produced,
    "beginning together": lambda: replicas_over([1], began=False),
    "warm": lambda: replicas_over([1, 2], warm=True, batch_max=1),
    "trimmed": lambda: trimmed(replicas=1),
    "three stores": two_stores,
    "to a queue": to_a_queue,
    "sharded": sharded,
    "overflowing": overflowing,
    "taken in": lambda: ingested(copies=2, look_count=2),
    "funds": lambda: funds(Withdraw("t1", "alice", "bob", 3), replicas=1),
    "failing": failing,
    "alarmed": alarmed,
}

BRIEF: dict[str, Callable[[], Scope]] = {
    "beginning together": lambda: replicas_over([1], began=False),
    "one output": lambda: alike(replicas=1, upkeep=True),
    "trimmed": lambda: resting(upkeep=True),
    "in one cell": lambda: in_one_cell(upkeep=True),
    "to a queue": lambda: to_a_queue(replicas=1),
    "taken in": lambda: ingested(messages=1, copies=2),
}
"""Scopes that are small enough for pairs of faults in every run."""


EACH: dict[str, Callable[[], Scope]] = {
    "two producers and two replicas": produced,
    "replicas that begin together": PAIRED["beginning together"],
    "warm replicas": PAIRED["warm"],
    "three stores": two_stores,
    "to a queue": to_a_queue,
    "of several writers for several readers": sharded,
    "entries in blobs": overflowing,
    "two timers": two_timers,
    "a first reader and a trim": first_reader,
    "another reader and a trim": registering,
    "a reader that leaves and a trim": leaving,
}
ONCE: dict[str, Callable[[], Scope]] = {
    "two processors and a trim": PAIRED["trimmed"],
    "a replica that rests": resting,
    "messages with copies": lambda: ingested(copies=2),
    "begun anew at one output": BRIEF["one output"],
    "begun anew and trimmed": BRIEF["trimmed"],
    "begun anew in one cell": BRIEF["in one cell"],
    "each cell counts as a reader begins": lambda: small("registering"),
    "each cell counts as a reader leaves": lambda: small("leaving"),
    "each cell counts in reports": lambda: small("resting", report_every=1),
}
"""With one crash, not with two."""


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize("name", [*EACH, *ONCE])
def test_one_kind_of_fault_breaks_no_promise(name: str, faults: dict[str, Any]) -> None:
    if name in ONCE:
        faults = dict.fromkeys(faults, 1)
    clean((EACH | ONCE)[name]().explored(**faults))


ALONE: dict[str, Callable[[], Report]] = {
    "replicas leave no blob of a cell that was trimmed": lambda: trimmed_blobs().explored(),
    "a register that is read again and stale takes no entry with it": lambda: ingested(messages=3).explored(stale=1),
    "two processes take each message in once": lambda: ingested(copies=2, processes=2).explored(),
    "a lock that ends lets another take the message in": lambda: ingested(processes=2, expire=True).explored(expire=1),
    "what a write lost to is told, and not read again": lambda: produced(tells_current=True).explored(stale=2),
    "a batch of cells is one step or several": lambda: replicas_over([1, 2, 3], batch_max=2).explored(crash=1),
}


@pytest.mark.parametrize("name", ALONE)
def test_a_scope_of_its_own_breaks_no_promise(name: str) -> None:
    clean(ALONE[name]())


@pytest.mark.parametrize("also", ["lost", "jump", "error"])
@pytest.mark.parametrize("name", BRIEF)
def test_a_lost_answer_and_another_fault_of_the_same_call_break_no_promise(name: str, also: str) -> None:
    faults: dict[str, Any] = {"lost": 2} if also == "lost" else {"lost": 1, also: 1}
    clean(BRIEF[name]().explored(**faults))


@pytest.mark.soak
@pytest.mark.parametrize("pair", combinations(KINDS, 2), ids="-".join)
@pytest.mark.parametrize("name", PAIRED)
def test_two_faults_of_different_kinds_break_no_promise(name: str, pair: tuple[str, str]) -> None:
    faults: dict[str, Any] = dict.fromkeys(pair, 1)
    clean(PAIRED[name]().explored(cpu_s=300, **faults))


@pytest.mark.parametrize("faults", [{"jump": 1}, {"jump": 2}], ids=["a pause", "two pauses"])
def test_producers_that_are_paused_within_an_append_lose_nothing(faults: dict[str, Any]) -> None:
    clean(paused().explored(**faults))


@pytest.mark.parametrize("beside", ["jump", "error", "stale", "lost"])
def test_replicas_that_are_paused_within_an_append_write_everything_once(beside: str) -> None:
    faults: dict[str, Any] = {"jump": 2} if beside == "jump" else {"jump": 1, beside: 1}
    clean(paused_replicas().explored(**faults))


@pytest.mark.parametrize("of", ["produced", "repeated"])
def test_with_all_thresholds_at_one_cell_each_append_is_there_once(of: str) -> None:
    clean(small(of).explored())


@pytest.mark.soak
@pytest.mark.parametrize("beside", ["error", "lost"])
def test_producers_that_are_paused_beside_another_fault_lose_nothing(beside: str) -> None:
    faults: dict[str, Any] = {"jump": 1, beside: 1}
    clean(paused().explored(cpu_s=300, **faults))


@pytest.mark.parametrize("faults", [{}, {"lost": 1}, {"stale": 1}], ids=["calm", "lost", "stale"])
def test_idle_registers_follow_the_end_of_an_output_that_others_write(faults: dict[str, Any]) -> None:
    clean(alike(replicas=1, upkeep=True, warm=True).explored(**faults))


@pytest.mark.parametrize("kind", ["calm", "lost", "stale", "error", "jump"])
def test_a_large_entry_that_is_appended_twice_has_a_blob_for_each_cell_and_leaves_none(kind: str) -> None:
    faults: dict[str, Any] = {} if kind == "calm" else {kind: 1}
    clean(repeated(tries=3).explored(**faults))


@pytest.mark.parametrize("faults", [{}, {"crash": 1}, {"lost": 1}], ids=["calm", "crash", "lost"])
@pytest.mark.parametrize("target", ["bob", "carol"], ids=["paid", "refunded"])
def test_money_is_conserved_in_every_world(target: str, faults: dict[str, Any]) -> None:
    clean(funds(Withdraw("t1", "alice", target, 3), replicas=1).explored(invariant=law, **faults))


def test_a_withdrawal_over_the_balance_is_refused_and_moves_nothing() -> None:
    scope = funds(Withdraw("t1", "alice", "bob", 4), Withdraw("t2", "alice", "bob", 4), replicas=1)

    def refused_alone(world: Any) -> bool:
        return law(world) and len(world.entries("west")) <= 1

    clean(scope.explored(invariant=refused_alone, crash=1))


def test_an_invariant_is_judged_in_every_world() -> None:
    def never_three(view: Any) -> bool:
        return bool(view.state("p").sum != 3)

    report = replicas_over([1, 2]).explored(invariant=never_three)
    assert [anomaly.promise for anomaly in report.anomalies] == ["Invariant"], report.text


def test_a_handler_that_looks_at_something_else_is_not_consistent() -> None:
    calls = []

    def counts_calls(total: Total, inputs: Inputs, step: Step) -> None:
        calls.append(1)
        step.emit("sums", Number(len(calls)))

    scope = Scope()
    logs = {"in": scope.log("in", 1)}, {"sums": scope.log("sums")}
    scope.processor("p", *logs, handler=counts_calls)
    report = scope.explored()
    assert {anomaly.promise for anomaly in report.anomalies} <= {"ConsistentOutput", "Deterministic"}, report.text
    assert report.anomalies


@pytest.mark.parametrize("faults", FAULTS, ids=IDS)
@pytest.mark.parametrize(
    "scope",
    [
        lambda: failing(traffic=(4, 5)),
        lambda: failing(busy=(9,), given=(-2,)),
        lambda: failing(given=(3, -2, -5, 4), traffic=()),
        alarmed,
        failing_alarm,
        failing_alarm_once,
    ],
    ids=[
        "beside traffic",
        "beside one that fails once",
        "two in a row",
        "between alarms",
        "at a failing alarm",
        "at an alarm that fails once",
    ],
)
def test_what_fails_is_refused_once_and_everything_else_handled_once(
    scope: Callable[[], Scope], faults: dict[str, Any]
) -> None:
    clean(scope().explored(live=True, **faults))


def test_an_entry_that_is_refused_goes_to_its_log_once() -> None:
    def refuses_two(total: Total, inputs: Inputs, step: Step) -> None:
        for entry in inputs:
            if entry.value.n == 2:
                raise ValueError("no two")
            total.seen.append(entry.value.n)

    scope = Scope()
    scope.refusing("p", {"in": scope.log("in", 1, 2, 3)}, handler=refuses_two)

    def at_most_one(view: Any) -> bool:
        return len(view.entries("refused")) <= 1 and 2 not in view.state("p").seen

    clean(scope.explored(invariant=at_most_one, crash=1))
