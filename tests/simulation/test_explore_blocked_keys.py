"""A key that is blocked until records are gone, every interleaving of a small scope, with a leap of time anywhere.

The first message is applied and a copy of it waits behind the second, which blocks the key, is resubmitted and applied.
The record of the first is gone by then, if time leaps; nothing but a record of the copy's own exempts it from the age
fence.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from outbox import App, Context, Reject
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import START_MS, Scenario
from outbox.verify.explorer.search import Limits, Report, search
from outbox.verify.promises.view import Invariant, View
from tests.simulation import mutant_apps
from tests.simulation.mutant_apps import Add
from tests.simulation.resubmission_mutants import BLOCKED

SCOPES = pytest.mark.parametrize("scope", ["engine", "partition", "item"])
CPU_S_MAX = 60
RETENTION_S = 20


@dataclass
class Line:
    texts: str = ""
    is_late: bool = False


def writing() -> App:
    """Writes in order, and notes what it writes when retention is over; its first line is refused until then."""
    app = App(
        "writing",
        retention=timedelta(seconds=RETENTION_S),
        margin=timedelta(seconds=10),
        clock_skew=timedelta(seconds=5),
    )
    app.queue("adds", "per_key")

    @app.handler("adds", key="account", on_dead_letter="stop_key")
    def add(message: Add, line: Line, ctx: Context) -> None:
        is_over = ctx.now() - START_MS / 1_000 >= RETENTION_S
        if message.amount < 0 and not is_over:
            raise Reject("not yet")
        line.texts += "-" if message.amount < 0 else "+"
        line.is_late |= is_over and message.amount > 0

    return app


def explored(scenario: Scenario) -> Report:
    return search(scenario, limits=Limits(cpu_s=CPU_S_MAX), hashing="64")


def is_put_to_the_test(outcome: Any) -> bool:
    """Whether the key went on, and the copy behind it was refused for its age: its record was gone."""
    states, _, _, dead = outcome
    totals = [json.loads(value)["total"] for _, (value, _) in states]
    return totals == [14] and ("m1", "too-old") in dead


def none_is_late(world: View) -> bool:
    return not any(line.is_late for line in world.states(Line))


def in_order(world: View) -> bool:
    return all("-+".startswith(line.texts) for line in world.states(Line))


@SCOPES
def test_a_copy_of_what_was_applied_before_a_block_is_never_applied_again(scope: str) -> None:
    report = explored(mutant_apps.scenario(scope, "blocking", **BLOCKED))
    assert report.exhausted and not report.anomalies, report.text
    assert any(is_put_to_the_test(outcome) for outcome in report.outcomes)


@SCOPES
def test_what_waits_behind_a_block_is_applied_in_order_though_retention_is_over(scope: str) -> None:
    def worlds(invariant: Invariant) -> Report:
        messages: list[Any] = [("adds", Add("a", -1), "m1"), ("adds", Add("a", 5), "m2")]
        known: dict[str, Any] = {"workers": 1, "resubmissions": 1, "budgets": Budgets(jump=1), "batch": 2}
        known |= {"allow": frozenset({"dead-letter"}), "given": [("a", Line())], "patience_ms": 60_000}
        return explored(Scenario(writing(), messages, scope=scope, invariant=invariant, **known))

    report = worlds(in_order)
    assert report.exhausted and not report.anomalies, report.text
    late = worlds(none_is_late)
    assert [anomaly.promise for anomaly in late.anomalies] == ["Invariant"], late.text
