"""A broker with duplicate detection: what is sent again on purpose is not what it drops.

The window does not end within an exploration, so a delayed copy or a resubmission under an id of before would be lost.
"""

from __future__ import annotations

from typing import Any

import pytest

from outbox import App, Context, Reject, Retries, Retry
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Limits, search
from tests.simulation.explored import clean
from tests.simulation.mutant_apps import Add, Count

pytestmark = pytest.mark.slow

SCOPES = ("partition", "item")
FAULTS: tuple[dict[str, int], ...] = ({}, {"crash": 1}, {"lost": 1}, {"delay": 1}, {"error": 1}, {"expire": 1})


def failing() -> App:
    """Fails below nothing, asks for time at nothing, refuses what is large."""
    app = App("failing", retry=Retries(limit=3, delays_s=(10,)))
    app.queue("added")

    @app.handler("adds", key="account")
    def add(message: Add, count: Count, ctx: Context) -> None:
        count.total += message.amount
        if count.total < 0:
            raise ValueError("not below nothing")
        if count.total == 0:
            raise Retry("not to nothing", after_s=10)
        if message.amount > 100:
            raise Reject("too much")
        ctx.send("added", message)

    return app


def explored(scope: str, amounts: tuple[int, ...], faults: dict[str, int], **options: Any) -> None:
    scenario = Scenario(
        failing(),
        [("adds", Add("a", amount), f"m{n}") for n, amount in enumerate(amounts, 1)],
        [("a", Count(10))],
        scope=scope,
        budgets=Budgets(**faults),
        allow=frozenset({"dead-letter"}),
        patience_ms=60_000,
        drops_duplicates=True,
        **options,
    )
    clean(search(scenario, limits=Limits(cpu_s=60)))


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: "-".join(faults) or "none")
@pytest.mark.parametrize("scope", SCOPES)
def test_a_failed_message_is_redelivered_though_its_id_was_seen(scope: str, faults: dict[str, int]) -> None:
    explored(scope, (-50,), faults, workers=1)


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: "-".join(faults) or "none")
@pytest.mark.parametrize("scope", SCOPES)
def test_a_rescheduled_message_is_redelivered_though_its_id_was_seen(scope: str, faults: dict[str, int]) -> None:
    explored(scope, (-10, 5), faults, workers=1)


@pytest.mark.parametrize("faults", FAULTS[:3], ids=lambda faults: "-".join(faults) or "none")
@pytest.mark.parametrize("scope", SCOPES)
def test_a_resubmission_is_applied_though_its_id_was_seen(scope: str, faults: dict[str, int]) -> None:
    explored(scope, (200,), faults, workers=1, resubmissions=1)


@pytest.mark.parametrize("scope", SCOPES)
def test_two_workers_push_the_same_output_and_one_arrives(scope: str) -> None:
    explored(scope, (5,), {"crash": 1}, workers=2)
