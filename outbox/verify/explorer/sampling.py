"""Worlds too many to visit: ways drawn by a seed, and what is found made short.

Each run uses only some kinds of faults, drawn anew, because runs that use all kinds seldom get far with one.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel, Prospect
from outbox.verify.explorer.ops import FAULT_KINDS, Finding
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, Report
from outbox.verify.explorer.shrink import missing_at, shrink, wrong_at
from outbox.verify.explorer.trace import Walk
from outbox.verify.explorer.world import Step

STEP_COUNT_MAX = 5_000
FAULT_SHARE = 0.08
"""How often a fault is taken where one can be."""

KERNEL_LIFE = 50
"""After how many runs the tables are begun anew, so that they do not grow for ever."""


def sample(scenario: Scenario, *, seed: int = 0, runs: int = 100, cpu_s: float = 60.0) -> Report:
    """Draw runs of a scenario until one breaks a promise; it is made short.  Never exhausted."""
    scenario = replace(scenario, symmetric=False, merges=False)
    report = Report(f"{scenario.describe()}, swarm, seed {seed}", stopped=f"{runs} runs were drawn")
    began_s = time.process_time()
    kernels: dict[Budgets, Kernel] = {}
    for number in range(runs):
        draw = random.Random(f"{seed}/{number}")  # the same seed draws the same runs
        drawn = {kind: getattr(scenario.budgets, kind) if draw.random() < 0.5 else 0 for kind in FAULT_KINDS}
        budgets = Budgets(**drawn, together=scenario.budgets.together)
        if number % KERNEL_LIFE == 0:
            kernels.clear()
        kernel = kernels.get(budgets)
        if kernel is None:
            kernel = kernels[budgets] = replace(scenario, budgets=budgets).kernel()
        finding, walk = _run(kernel, draw)
        report.transitions += len(walk.steps)
        report.finals += 1
        report.depth = max(report.depth, len(walk.steps))
        if finding is not None:
            found = shrink(replace(scenario, budgets=budgets), walk.steps, finding.promise)
            wrong, trace = found or (finding, walk.trace())  # a run without an end has none when it is walked again
            report.anomalies.append(Anomaly(wrong.promise, wrong.text, trace))
            report.stopped = f"run {number} of seed {seed} broke a promise"
            break
        if time.process_time() - began_s > cpu_s:
            report.stopped = f"the limit of {cpu_s:g} CPU seconds is reached after {number + 1} runs"
            break
    report.cpu_s = time.process_time() - began_s
    return report


def _run(kernel: Kernel, draw: random.Random) -> tuple[Finding | None, Walk]:
    """One run to its end, or to where a promise breaks."""
    walk = Walk(kernel)
    for _ in range(STEP_COUNT_MAX):
        step = _choose(kernel.prospects(walk.world), draw)
        if step is None:
            return missing_at(walk), walk
        walk.take(walk.describe(step), step)
        finding = wrong_at(walk)
        if finding is not None:
            return finding, walk
    return Finding("Progress", f"{STEP_COUNT_MAX} steps were taken, and there is no end"), walk


def _choose(prospects: list[Prospect], draw: random.Random) -> Step | None:
    """The next step: a fault now and then, else any step."""
    free = [tried for cost, tried in prospects if not cost]
    faults = [tried for cost, tried in prospects if cost]
    if faults and (not free or draw.random() < FAULT_SHARE):
        return draw.choice(draw.choice(faults)()) if free or draw.random() < 0.5 else None
    return draw.choice(draw.choice(free)()) if free else None
