"""Worlds too many to visit: ways drawn by a seed, and short ways to their findings.

Each run uses only some kinds of faults, drawn anew, because runs that use all kinds seldom get far with one.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel, Prospect
from outbox.verify.explorer.ops import FAULT_KINDS, Finding
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, Report, without_collections
from outbox.verify.explorer.shrink import missing_at, shrink, wrong_at
from outbox.verify.explorer.trace import Trace, Walk
from outbox.verify.explorer.world import Step

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
