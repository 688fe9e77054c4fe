"""`explore` with requests over HTTP: what is told of entries that are right, and of such as are not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from outbox import App, Context
from outbox.verify import explore
from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.replay import read, replay, scenario_of, write
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import search
from tests.simulation.explored import GIVEN, Account, asked, conserved, counter
from tests.simulation.shop import passes
from tests.unit.runtime.purse import Pay, Purse, paying

pytestmark = pytest.mark.slow

PAID = ("POST", "/payments", Pay("p", 5), "k1")


@dataclass
class Ask:
    name: str


@dataclass
class Seen:
    count: int = 0


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_an_entry_that_is_right_is_found_so(scope: str) -> None:
    report = explore(paying(), requests=[PAID], scope=scope)
    assert report.exhausted and not report.anomalies, report.text
    assert "2 workers, 1 request, 1 duplicate, crash 1" in report.scope


@pytest.mark.parametrize("scope", ["engine", "partition"])
def test_a_read_is_explored_beside_what_it_may_see(scope: str) -> None:
    passes(explore(paying(), requests=[PAID, ("GET", "/purses/p", None, "look")], scope=scope))


def test_an_entry_that_is_right_is_found_so_in_item_scope() -> None:
    passes(explore(paying(), requests=[PAID], scope="item", workers=1))


def test_requests_and_messages_are_explored_together_under_an_invariant() -> None:
    def is_kept(world: Any) -> bool:
        return bool(conserved(world))

    request = ("POST", "/transfers", asked("k1", 5).content, "k1")
    passes(explore(counter(), requests=[request], given=GIVEN, scope="partition", invariant=is_kept))


def test_an_invariant_that_a_request_breaks_is_reported() -> None:
    def is_rich(world: Any) -> bool:
        return all(account.balance > 7 for account in world.states(Account))

    request = ("POST", "/transfers", asked("k1", 5).content, "k1")
    (found,) = explore(counter(), requests=[request], given=GIVEN, invariant=is_rich).anomalies
    assert found.promise == "Invariant" and "front 1" in found.way


def odd(handle: Any) -> App:
    app = App("odd")
    app.http("POST", "/asks", key="name")(handle)
    return app


def told(app: App) -> Any:
    (found,) = explore(app, requests=[("POST", "/asks", Ask("a"), "k1")]).anomalies
    return found


def test_an_answer_that_differs_each_time_is_reported() -> None:
    def handle(message: Ask, seen: Seen) -> dict[str, float]:
        return {"lot": random.random()}

    found = told(odd(handle))
    assert (
        found.promise == "Deterministic" and "first it answered 200" in found.what and "it calls random" in found.what
    )


def test_a_call_that_is_made_twice_is_reported() -> None:
    async def handle(message: Ask, seen: Seen, ctx: Context) -> None:
        await ctx.call(lambda: 1)

    found = told(odd(handle))
    assert found.promise == "OneCall" and "take a request" in found.way


def test_an_entry_that_always_fails_is_reported_with_its_error() -> None:
    def handle(message: Ask, seen: Seen) -> None:
        raise OSError("the drawer is stuck")

    found = told(odd(handle))
    assert found.promise == "Progress" and "handle raises 'the drawer is stuck'" in found.what


def test_requests_whose_order_shows_are_reported() -> None:
    out = ("POST", "/payments", Pay("p", -5), "k2")
    (found,) = explore(paying(), requests=[PAID, out]).anomalies
    assert found.promise == "Order" and "POST /payments" in found.what
    passes(explore(paying(), requests=[PAID, out], allow={"order"}, given=[("p", Purse(1))]))


@pytest.mark.parametrize(
    ("requests", "error", "cure"),
    [
        ("x", TypeError, "give a list"),
        ([("POST", "/payments", Pay("p", 1))], TypeError, "all but the body as texts"),
        ([("POST", "/nowhere", Pay("p", 1), "k")], ValueError, "declare it with @app.http"),
        ([("POST", "/payments", Pay("", 1), "k")], ValueError, "has no key"),
        ([PAID, PAID], ValueError, "say duplicates=1"),
        ([], ValueError, "give 1 to"),
    ],
    ids=["no list", "no key", "nowhere", "no state's key", "twice", "nothing"],
)
def test_what_cannot_be_explored_is_refused_with_the_cure(requests: Any, error: type[Exception], cure: str) -> None:
    with pytest.raises(error, match=cure):
        explore(paying(), requests=requests)


def test_a_trace_with_requests_is_written_and_run_again() -> None:
    scenario = Scenario(
        counter(), (), GIVEN, workers=0, scope="partition", budgets=Budgets(crash=1), requests=[asked("k1", 5)]
    )
    (found,) = search(scenario).anomalies
    written = read(write(scenario, Finding(found.promise, found.text), found.trace))
    again = replay(scenario_of(written, counter()), written.steps)
    assert again.finding is not None and again.finding.promise == "NoLost", again.text
