"""Another retention from now on: a worker of earlier code still runs for a margin, and its records live as they did."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outbox import App, Context
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Limits, search
from tests.simulation.explored import clean
from tests.simulation.mutant_apps import Add, Count

pytestmark = pytest.mark.slow

HOURS = [pytest.param(1, 3, id="raised"), pytest.param(3, 1, id="lowered")]
ALONE: dict[str, int] = {"jump": 1}
FAULTS = (ALONE, {"jump": 2}, *(ALONE | {kind: 1} for kind in ("crash", "lost", "expire")))
CELLS = [(scope, faults) for scope in ("engine", "partition") for faults in FAULTS] + [("item", ALONE)]


def counting(hours: int) -> App:
    app = App("counting", retention=timedelta(hours=hours))
    app.queue("added")

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        ctx.send("added", message)

    return app


@pytest.mark.parametrize(("before", "now"), HOURS)
@pytest.mark.parametrize(("scope", "faults"), CELLS, ids=lambda cell: cell if isinstance(cell, str) else "-".join(cell))
def test_a_copy_is_applied_once_whatever_retention_was(
    scope: str, before: int, now: int, faults: dict[str, int]
) -> None:
    scenario = Scenario(
        counting(now),
        [("adds", Add("a", 5), "m1")],
        [("a", Count(10))],
        copies=2,
        scope=scope,
        budgets=Budgets(**faults),
        allow=frozenset({"dead-letter"}),
        earlier_retention=timedelta(hours=before),
    )
    clean(search(scenario, limits=Limits(cpu_s=60)))
