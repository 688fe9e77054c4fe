"""Worlds too many to visit: ways drawn by a seed, and short ways to their findings.

Each run uses only some kinds of faults, drawn anew, because runs that use all kinds seldom get far with one.

A long way to a wrong world is made short: steps are left out as long as the same promise breaks.  A shortened list of
steps is followed leniently: what cannot be taken is passed over, and when the list is at its end the processes go on
without faults, each in turn, so that what is only missing at the end can show.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel, Prospect
from outbox.verify.explorer.ops import FAULT_KINDS, GHOST, Finding, Step
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, Report, without_collections
from outbox.verify.explorer.trace import Trace, TraceStep, Walk

STEP_COUNT_MAX = 5_000
FAULT_SHARE = 0.08
"""How often a fault is taken where one can be."""

KERNEL_LIFE = 50
"""After how many runs the tables are begun anew, so that they do not grow for ever."""


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """One drawn run: the faults that it could take, the steps that it took, and the promise that it broke."""

    number: int
    budgets: Budgets
    kernel: Kernel = field(repr=False)
    steps: Sequence[Step] = field(repr=False)
    finding: Finding | None

    def trace(self) -> Trace:
        """The way through its worlds, for a person; it is told only of runs that break a promise."""
        walk = Walk(self.kernel)
        for step in self.steps:
            walk.take(walk.describe(step), step)
        return walk.trace()


def sample(scenario: Scenario, *, seed: int = 0, runs: int = 100, cpu_s: float = 60.0) -> Report:
    """Draw runs of a scenario until one breaks a promise; it is made short.  Never exhausted."""
    report = Report(f"{_distinct(scenario).describe()}, swarm, seed {seed}", stopped=f"{runs} runs were drawn")
    began_s = time.process_time()
    for run in drawn_runs(scenario, seed=seed, runs=runs):
        report.transitions += len(run.steps)
        report.finals += 1
        report.depth = max(report.depth, len(run.steps))
        if run.finding is not None:
            report.anomalies.append(shortened(scenario, run))
            report.stopped = f"run {run.number} of seed {seed} broke a promise"
            break
        if time.process_time() - began_s > cpu_s:
            report.stopped = f"the limit of {cpu_s:g} CPU seconds is reached after {run.number + 1} runs"
            break
    report.cpu_s = time.process_time() - began_s
    return report


def drawn_runs(scenario: Scenario, *, seed: int, runs: int) -> Iterator[DrawnRun]:
    """Draw runs of a scenario, whatever they find; the same seed draws the same runs."""
    scenario = _distinct(scenario)
    kernels: dict[Budgets, Kernel] = {}
    for number in range(runs):
        draw = random.Random(f"{seed}/{number}")
        drawn = {kind: getattr(scenario.budgets, kind) if draw.random() < 0.5 else 0 for kind in FAULT_KINDS}
        budgets = Budgets(**drawn, together=scenario.budgets.together)
        if number % KERNEL_LIFE == 0:
            kernels.clear()
        kernel = kernels.get(budgets)
        if kernel is None:
            kernel = kernels[budgets] = replace(scenario, budgets=budgets).kernel()
        with without_collections():
            steps, finding = _run(kernel, draw)
        yield DrawnRun(number, budgets, kernel, steps, finding)


def shortened(scenario: Scenario, run: DrawnRun) -> Anomaly:
    """The finding of a run, with the shortest way to it that can be had."""
    assert run.finding is not None, "a run that broke no promise has nothing to be shown"
    trace = run.trace()
    found = shrink(replace(_distinct(scenario), budgets=run.budgets), trace.steps, run.finding.promise)
    wrong, way = found or (run.finding, trace)  # a run without an end has none when it is walked again
    return Anomaly(wrong.promise, wrong.text, way)


def _distinct(scenario: Scenario) -> Scenario:
    """A scenario without the reductions that serve visiting every world."""
    return replace(scenario, symmetric=False, merges=False)


def _run(kernel: Kernel, draw: random.Random) -> tuple[list[Step], Finding | None]:
    """The steps of one run to its end, or to where a promise breaks."""
    walk, steps = Walk(kernel), list[Step]()
    for _ in range(STEP_COUNT_MAX):
        step = _choose(kernel.prospects(walk.world), draw)
        if step is None:
            return steps, missing_at(walk)
        walk.world = step[0]
        steps.append(step)
        finding = wrong_at(walk)
        if finding is not None:
            return steps, finding
    return steps, Finding("Progress", f"{STEP_COUNT_MAX} steps were taken, and there is no end")


def _choose(prospects: list[Prospect], draw: random.Random) -> Step | None:
    """The next step: a fault now and then, else any step."""
    free = [tried for cost, tried in prospects if not cost]
    faults = [tried for cost, tried in prospects if cost]
    if faults and (not free or draw.random() < FAULT_SHARE):
        return draw.choice(draw.choice(faults)()) if free or draw.random() < 0.5 else None
    return draw.choice(draw.choice(free)()) if free else None


SETTLE_COUNT_MAX = 2_000
"""How many steps are taken behind the list."""


def shrink(scenario: Scenario, steps: Sequence[TraceStep], promise: str) -> tuple[Finding, Trace] | None:
    """A shorter way to where a promise breaks; None where these steps do not lead there."""
    kernel = scenario.kernel()
    finding, trace = followed(kernel, steps)
    if finding is None or finding.promise != promise:
        return None
    best = finding, trace
    kept, parts = list(trace.steps), 2
    while len(kept) >= 2 and parts <= len(kept):
        size = -(-len(kept) // parts)
        for begin in range(0, len(kept), size):
            found, way = followed(kernel, kept[:begin] + kept[begin + size :])
            if found is not None and found.promise == promise and len(way.steps) < len(kept):
                best, kept, parts = (found, way), list(way.steps), max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return best


def followed(kernel: Kernel, steps: Sequence[TraceStep]) -> tuple[Finding | None, Trace]:
    """Follow the steps that can be taken, then go to an end; return the finding and the way."""
    walk = Walk(kernel)
    for wanted in steps:
        found = next((option for option in walk.options() if option[0] == wanted), None)
        if found is None:
            continue
        walk.take(*found)
        finding = wrong_at(walk)
        if finding is not None:
            return finding, walk.trace()
    for _ in range(SETTLE_COUNT_MAX):
        options = [option for option in walk.options() if not option[1][2].cost]
        if not options:
            break
        walk.take(*options[0])
        finding = wrong_at(walk)
        if finding is not None:
            return finding, walk.trace()
    return missing_at(walk), walk.trace()


def wrong_at(walk: Walk) -> Finding | None:
    """The finding in a world at this moment."""
    kernel, world = walk.kernel, walk.world
    ghost = kernel.ghosts[world[GHOST]]
    return ghost if isinstance(ghost, Finding) else kernel.monitor.check(ghost, kernel.resource_states(world))


def missing_at(walk: Walk) -> Finding | None:
    """The finding of something missing in a world where nothing more can happen without a fault."""
    kernel, world = walk.kernel, walk.world
    if kernel.successors(world)[1]:
        return None
    missing = kernel.monitor.final(kernel.ghosts[world[GHOST]], kernel.resource_states(world), kernel.now_ms(world))
    return missing[0] if missing else None
