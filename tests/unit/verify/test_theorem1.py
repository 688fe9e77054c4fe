"""Nothing leaves while what it depends on could still be lost, at whatever distance; told in linear time."""

from __future__ import annotations

import time

from outbox.verify.guarantees import check
from outbox.verify.recorded.events import Durable, Event, Left, Life, Quiesce, Result
from outbox.verify.recorded.verdict import Verdict


def judged(*events: Event) -> Verdict:
    return check([Life(), *events, Quiesce(queues=[])])


def test_an_output_may_leave_once_its_result_is_recoverable() -> None:
    z = Result(id="z")
    assert judged(z, Durable(id="z"), Left(id="y", parents=["z"])).ok
    found = judged(z, Left(id="y", parents=["z"]), Durable(id="z")).findings[0]
    assert (found.what, found.line, found.against, found.ids) == ("left early", 3, 2, ("y", "z"))


def test_a_result_that_could_be_lost_is_named_once() -> None:
    verdict = judged(Result(id="z"), *(Left(id=f"y{n}", parents=["z"]) for n in range(3)))
    assert [finding.ids for finding in verdict.findings] == [("y0", "z")]


def test_results_that_commute_or_are_ordered_need_not_be_recoverable() -> None:
    assert judged(Result(id="z", is_commutative=True), Left(id="y", parents=["z"])).ok
    assert judged(Result(id="z", is_ordered=True), Left(id="y", parents=["z"])).ok


def test_a_result_far_behind_counts_as_well() -> None:
    chain = [Result(id="z0"), *(Result(id=f"z{n}", parents=[f"z{n - 1}"], is_ordered=True) for n in range(1, 50))]
    found = judged(*chain, Left(id="y", parents=["z49"])).findings[0]
    assert found.ids == ("y", "z0") and found.line == 52
    assert judged(*chain, Durable(id="z0"), Left(id="y", parents=["z49"])).ok


def test_a_result_behind_another_that_became_recoverable_is_still_looked_at() -> None:
    events = [Result(id="a"), Result(id="b", parents=["a"]), Durable(id="b"), Left(id="y", parents=["b"])]
    assert judged(*events).findings[0].ids == ("y", "a")


def test_diamonds_and_circles_end() -> None:
    events = [Result(id="a", parents=["c"]), Result(id="b", parents=["a"]), Result(id="c", parents=["a", "b"])]
    verdict = judged(*events, Left(id="y", parents=["c"]))
    assert {finding.ids[1] for finding in verdict.findings} == {"a", "b", "c"}


def test_what_is_safe_once_is_not_looked_behind_again() -> None:
    """Each output depends on everything before it: looking behind every time would be quadratic."""
    events: list[Event] = []
    for n in range(20_000):
        events += [Result(id=f"z{n}", parents=[f"z{n - 1}"]), Durable(id=f"z{n}"), Left(id=f"y{n}", parents=[f"z{n}"])]
    started_s = time.perf_counter()
    assert judged(*events).ok
    assert time.perf_counter() - started_s < 5
