"""Programs as tries: code runs once for each distinct log, calls that are given up are known, replays are compared."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Hashable
from typing import Any

import pytest

from outbox.errors import OutcomeUnknown, Throttled
from outbox.verify.explorer.budgets import GUARDS, Budgets, cost_of
from outbox.verify.explorer.ops import FAULT_KINDS, Raised
from outbox.verify.explorer.run import TIMER, Calls
from outbox.verify.explorer.trie import Node, Trie

START_MS = 1_000


class Reading:
    """Reads twice, and hands on what it saw."""

    name = "reading"

    def __init__(self) -> None:
        self.begun = 0

    async def run(self, calls: Calls, carried: Any) -> Hashable:
        self.begun += 1
        first = await calls(0, "read", "a")
        second = await calls(0, "read", first)
        return (first, second)


def trie(program: Any) -> Trie:
    return Trie([program], lambda op, result: frozenset(), start_ms=START_MS)


def told(found: Trie, node: Node, value: Any, now_ms: int = START_MS, position: int = 0) -> Node:
    return found.child(node, position, found.result(value), now_ms)


def test_equal_logs_are_one_node_and_run_once() -> None:
    program = Reading()
    found = trie(program)
    node = told(found, found.root(0), "x")
    assert told(found, found.root(0), "x") is node and program.begun == 1
    assert told(found, found.root(0), "y") is not node and program.begun == 2


def test_an_attempt_that_ends_begins_anew_with_what_it_hands_on() -> None:
    found = trie(Reading())
    end = told(found, told(found, found.root(0), "x"), "y")
    assert end.parent is None and end.carried == ("x", "y")


def test_the_time_is_that_of_the_last_answer() -> None:
    class Asking:
        name = "asking"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            await calls(0, "read", calls.now_ms())
            await calls(0, "read", calls.now_ms())
            return None

    found = trie(Asking())
    node = told(found, found.root(0), None, now_ms=5_000)
    assert [found.ops[op].args for op in node.ops] == [(5_000,)]


@pytest.mark.parametrize("error", [OutcomeUnknown, Throttled])
def test_an_answer_may_be_an_error(error: type[Exception]) -> None:
    class Catching:
        name = "catching"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            try:
                await calls(0, "write")
            except error as caught:
                return str(caught)
            return None

    found = trie(Catching())
    assert told(found, found.root(0), Raised(error.__name__, "told")).carried == "told"


def test_calls_that_wait_side_by_side_are_answered_in_any_order() -> None:
    class Both:
        name = "both"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            order: list[str] = []

            async def one(name: str) -> None:
                await calls(0, "read", name)
                order.append(name)

            await asyncio.gather(one("a"), one("b"))
            return tuple(order)

    found = trie(Both())
    ends = {told(found, told(found, found.root(0), 1, position=p), 2).carried for p in (0, 1)}
    assert ends == {("a", "b"), ("b", "a")}


def test_a_call_that_is_given_up_is_known_to_be() -> None:
    class Impatient:
        name = "impatient"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            try:
                async with asyncio.timeout(1):
                    await calls(0, "write")
            except TimeoutError:
                return "late"
            return "done"

    found = trie(Impatient())
    root = found.root(0)
    assert root.timer
    node = found.child(root, TIMER, 0, START_MS)
    assert node.dropped == root.ops and found.after(node).carried == "late"


def test_a_program_with_a_memory_of_its_own_is_found() -> None:
    counter = itertools.count()

    class Counting:
        name = "counting"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            await calls(0, "read")
            await calls(0, "write", next(counter))
            await calls(0, "read")
            return None

    found = trie(Counting())
    node = told(found, told(found, found.root(0), "x"), "y")
    told(found, node, "z")
    other = told(found, told(found, found.root(0), "x"), "other")
    assert other.finding is not None and other.finding.promise == "Deterministic", other


def test_an_attempt_that_fails_is_a_finding() -> None:
    class Failing:
        name = "failing"

        async def run(self, calls: Calls, carried: Any) -> Hashable:
            await calls(0, "read")
            raise KeyError("gone")

    found = trie(Failing())
    finding = told(found, found.root(0), 1).finding
    assert finding is not None and finding.promise == "AttemptEnds" and "KeyError" in finding.text


@pytest.mark.parametrize("kind", FAULT_KINDS)
def test_a_budget_is_spent_once_for_each_fault(kind: Any) -> None:
    budget = Budgets.any_of(2, kind).packed()
    once = budget - cost_of(kind)
    assert not once & GUARDS and not (once - cost_of(kind)) & GUARDS
    assert (once - 2 * cost_of(kind)) & GUARDS
    others = [other for other in FAULT_KINDS if other != kind]
    assert all((budget - cost_of(other)) & GUARDS for other in others)


def test_faults_together_are_bounded_too() -> None:
    budget = Budgets(crash=3, lost=3, together=2).packed() - cost_of("crash") - cost_of("lost")
    assert (budget - cost_of("crash")) & GUARDS
