"""Whatever breakers and rates decide, each message takes effect once and comes to its end, in all scopes.

Each decision of a guard, before a handler or one of its calls, is a choice of the explorer, so that this holds of every
policy that reschedules messages a number of times.  With one attempt allowed, whatever counted as one would be a dead
letter, which is a finding here.
"""

from __future__ import annotations

from typing import Any

import pytest

from outbox.verify.explorer.search import search
from outbox.verify.findings.exploration import explore
from outbox.verify.promises.view import View
from tests.simulation.mutant_apps import APPS, Add, Count, scenario
from tests.simulation.shop import passes

pytestmark = pytest.mark.slow
every_scope = pytest.mark.parametrize("scope", ["engine", "partition", "item"])

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "two calls": ("sparing", {"amounts": (5, -3), "reschedules": 3}),
    "a batch": ("sparing", {"amounts": (5, -3), "reschedules": 2, "batch": 2}),
    "in order": ("sparing_in_order", {"amounts": (5, -3), "reschedules": 3}),
    "in order, two workers": ("sparing_in_order", {"amounts": (5, -3), "reschedules": 1, "workers": 2}),
    "a handler that waits for nothing": ("sparing_plain", {"amounts": (5, -3), "reschedules": 2, "batch": 2}),
    "a copy": ("sparing", {"amounts": (-3,), "repeated": (1,), "reschedules": 2, "workers": 2}),
    "a crash": ("sparing", {"amounts": (-3,), "reschedules": 2, "workers": 2, "faults": {"crash": 1}}),
    "a lost reply": ("sparing", {"amounts": (-3,), "reschedules": 2, "faults": {"lost": 1}}),
    "a lock that runs out": ("sparing", {"amounts": (-3,), "reschedules": 1, "workers": 2, "faults": {"expire": 1}}),
    "one call": ("sparing_a_call", {"amounts": (5, -3), "reschedules": 3}),
}


@every_scope
@pytest.mark.parametrize("case", CASES)
def test_whatever_guards_decide_each_message_takes_effect_once_and_ends(case: str, scope: str) -> None:
    app, options = CASES[case]
    report = search(scenario(scope, app, allow=frozenset(), **options), live=True)
    assert report.exhausted and not report.anomalies, report.text
    without = search(scenario(scope, app, allow=frozenset(), **(options | {"reschedules": 0})), live=True)
    assert report.states > without.states, "nothing was rescheduled"
    assert set(without.outcomes) <= set(report.outcomes)


@every_scope
def test_in_order_no_decision_of_a_guard_lets_a_message_overtake(scope: str) -> None:
    def is_in_order(world: View) -> bool:
        return world.state(Count, "a") in [Count(10), Count(15), Count(12), Count(19)]

    options: dict[str, Any] = {"amounts": (5, -3, 7), "allow": frozenset(), "invariant": is_in_order}
    report = search(scenario(scope, "sparing_in_order", reschedules=2, **options))
    assert report.exhausted and not report.anomalies, report.text
    free = search(scenario(scope, "sparing", reschedules=2, **options))
    assert free.anomalies, "without an order they do overtake"


@every_scope
def test_a_user_explores_what_guards_may_decide(scope: str) -> None:
    messages = [("adds", Add("a", 5), "m1"), ("adds", Add("a", -3), "m2")]
    options: dict[str, Any] = {"given": [("a", Count(10))], "scope": scope, "workers": 1, "duplicates": 0, "crashes": 0}
    report = explore(APPS["sparing_in_order"](), messages, rescheduled=2, allow={"order"}, **options)
    assert report.exhausted and not report.anomalies and "rescheduled 2 times" in report.scope, report.text
    once = [("adds", Add("a", 5), "m1")]
    passes(explore(APPS["sparing_a_call"](), once, rescheduled=2, **options))


def test_a_call_that_is_made_before_one_is_rescheduled_is_shown_to_be_repeated() -> None:
    from outbox import App, Context
    from outbox.guards import Breaker

    app = App("twice")

    @app.handler("adds", key="account")
    async def add(message: Add, count: Count, ctx: Context) -> None:
        await ctx.call(lambda: None)
        await ctx.call(lambda: None, breaker=Breaker("there"))

    once = [("adds", Add("a", 5), "m1")]
    options: dict[str, Any] = {"workers": 1, "duplicates": 0, "crashes": 0}
    assert not explore(app, once, **options).anomalies
    found = explore(app, once, rescheduled=1, **options)
    assert found.anomalies and "ctx.call twice" in found.text, found.text
    with pytest.raises(ValueError, match="rescheduled=16"):
        explore(app, once, rescheduled=16)
