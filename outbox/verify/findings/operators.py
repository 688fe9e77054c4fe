"""`check_operator`: whether an operator of a pipeline is pure, and whether the order of its inputs shows.

    report = check_operator(words, [page1, page2])
    assert report.pure, report.text

A pipeline relies on pure operators: every replica makes what has left, or stops.  So the operator is run again under
another seed, on other days where it asks for the time, and in other processes under other hash seeds, which import it
by its name.  Then any two of the inputs are exchanged: where neither outputs nor states show it, it is commutative.

Source: definition 9 of the FlameStream paper, at the states that these inputs lead to.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, zip_longest
from typing import Any

import msgspec

from outbox.streams.pipeline.operators import Operator
from outbox.verify.findings.nondeterminism import AHEADS, ProfiledCalls, shifted_clock
from outbox.verify.findings.operator_runs import Asked, Inputs, Name, Outcome, found_by, outcome_of
from outbox.verify.findings.rehearsal import opened
from outbox.verify.promises.reference import SideEffects

INPUTS_MAX = 32
HASH_SEEDS = ("1", "2", "3")
"""A set of two strings has the same order under all of these and one's own once in eight times."""
CHILD_S_MAX = 60
CHILD = "from outbox.verify.findings.operator_runs import answer; answer()"


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """The result of `check_operator`; `text` says it for a person, with the first output that differs."""

    pure: bool
    commutative: bool
    text: str


def check_operator(operator: Operator, values: Sequence[Any]) -> OperatorReport:
    """Decide whether an operator is pure, and whether it is commutative, as far as these inputs show it.

    The values are what it takes, 1 to 32 of them, in an order that may come.  They fall into one window.  The report
    has `pure`, `commutative`, and a `text` with the first output that differs.

    Raises:
        ValueError: another process cannot find the operator or its key by name, there are too many values, or it is a
            window with `time=`.
        OperatorFailed: it raises for one of the values.
        PoisonMessage: a value cannot be stored.
    """
    if not 1 <= len(values) <= INPUTS_MAX:
        raise ValueError(f"{len(values)} values: give 1 to {INPUTS_MAX}")
    if operator.upstream is not None and operator.upstream.kind == "time":
        raise ValueError(f"{operator.name} is a window by a time of its values; try it as one by the log's time")
    inputs, before = Inputs.of(values), random.getstate()
    try:
        wrong = _impure(operator, inputs)
        shows = wrong or _order_that_shows(operator, inputs)
    finally:
        random.setstate(before)
    if wrong:
        return OperatorReport(False, False, f"{operator.name} is not pure: {wrong}")
    end = f"not commutative: {shows}" if shows else f"as far as {len(values)} inputs show it, it is commutative"
    return OperatorReport(True, not shows, f"{operator.name} is pure; {end}")


def _impure(operator: Operator, inputs: Inputs) -> str:
    """How an operator is not pure; empty where it is, as far as one can see."""
    order = range(len(inputs.raws))
    asked = msgspec.json.encode(_asked(operator, inputs))
    calls, watch = ProfiledCalls(), SideEffects()
    outcomes: list[Outcome] = []
    for seed in range(2):
        random.seed(seed)
        with calls, watch:  # the second time what is imported is imported
            outcomes.append(outcome_of(operator, inputs, order))
    first, again = outcomes
    outside = next(iter(watch.side_effects), None)
    named = [name.partition(" ")[0] for name in calls.names]
    end = f"; it calls {', '.join(named)}" if named else ""
    if first != again:
        return _difference(inputs, first, again, "when it is run again") + end
    if outside is not None:
        return f"it {opened(outside)}"
    for ahead in AHEADS if calls.clock_readers else ():
        with shifted_clock(calls.clock_readers, ahead):
            later = outcome_of(operator, inputs, order)
        if later != first:
            return _difference(inputs, first, later, "on another day") + end
    for hash_seed, other in zip(HASH_SEEDS, _in_other_processes(operator, asked), strict=False):
        if other != first:
            return _difference(inputs, first, other, f"in a process with PYTHONHASHSEED={hash_seed}") + end
    return ""


def _order_that_shows(operator: Operator, inputs: Inputs) -> str:
    """Two inputs whose order shows behind those before them; empty where there are none."""
    for one, other in combinations(range(len(inputs.raws)), 2):
        given = [outcome_of(operator, inputs, [*range(one), *pair]) for pair in ((one, other), (other, one))]
        first, second = (Outcome(sorted((-1, text) for _, text in each.outputs), each.states) for each in given)
        if first != second:
            exchanged = f"when {inputs.shown(one)} and {inputs.shown(other)} are exchanged"
            return _difference(inputs, first, second, exchanged)
    return ""


def _difference(inputs: Inputs, first: Outcome, second: Outcome, when: str) -> str:
    """The first output that differs, or else the first state."""
    texts = [[text + inputs.of_text(index) for index, text in each.outputs] for each in (first, second)]
    for what, one, other in (("output", *texts), ("state", first.states, second.states)):
        for number, (a, b) in enumerate(zip_longest(one, other, fillvalue="nothing")):
            if a != b:
                return f"{what} {number} is {a}, and {b} {when}"
    return ""


# Other processes


def _asked(operator: Operator, inputs: Inputs) -> Asked:
    function = _name(operator, operator.function)
    is_named = found_by(function) is operator
    return Asked(
        function,
        operator.kind,
        None if is_named or operator.key is None else _name(operator, operator.key),
        None if operator.codec is None else _name(operator, operator.codec.codec.type),
        None if operator.window is None else operator.window[:2],
        [_name(operator, kind) for kind in inputs.types],
        inputs.raws,
        inputs.names,
    )


def _name(operator: Operator, given: Any) -> Name:
    """A name by which another process finds a function or a class."""
    module, name = given.__module__, given.__qualname__
    if module == "__main__" or "<" in name:
        raise ValueError(
            f"operator {operator.name}: another process cannot find {name} of {module}; define it at the top of a "
            "module that can be imported, or the operator itself, by its decorator"
        )
    return module, name


def _in_other_processes(operator: Operator, asked: bytes) -> Iterator[Outcome]:
    """The outcomes under other hash seeds, each in a process of its own."""
    for seed in HASH_SEEDS:
        settings = [f"PYTHONHASHSEED={seed}", f"PYTHONPATH={os.pathsep.join(path or '.' for path in sys.path)}"]
        command = ["env", *settings, sys.executable, "-c", CHILD]
        done = subprocess.run(command, input=asked, capture_output=True, timeout=CHILD_S_MAX, check=False)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
            raise ValueError(f"operator {operator.name} does not run in another process: {why}")
        yield msgspec.json.decode(done.stdout, type=Outcome)
