"""Worlds too many to visit: ways drawn by a seed, and what is found made short.

Three ways of drawing.  `uniform` takes any step.  `pct` gives each process a priority and changes the order at a few
moments only, which finds what needs long stretches of one process.  `swarm` lets each run use only some kinds of
faults, drawn anew, because runs that use all kinds seldom get far with one.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Literal

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel, Prospect
from outbox.verify.explorer.ops import FAULT_KINDS, FaultKind, Finding
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.search import Anomaly, Report
from outbox.verify.explorer.shrink import missing_at, shrink, wrong_at
from outbox.verify.explorer.trace import Walk
from outbox.verify.explorer.world import Step

Style = Literal["uniform", "pct", "swarm"]
STEP_COUNT_MAX = 5_000
FAULT_SHARE = 0.08
"""How often a fault is taken where one can be."""

CHANGE_COUNT = 3
"""How often `pct` changes who goes first."""

KERNEL_LIFE = 50
"""After how many runs the tables are begun anew, so that they do not grow for ever."""


def sample(
    scenario: Scenario, *, seed: int = 0, runs: int = 100, style: Style = "swarm", cpu_s: float = 60.0
) -> Report:
    """Draw runs of a scenario until one breaks a promise; it is made short.  Never exhausted."""
    scenario = replace(scenario, symmetric=False, merges=False)
    report = Report(f"{scenario.describe()}, {style}, seed {seed}", stopped=f"{runs} runs were drawn")
    began_s = time.process_time()
    kernels: dict[Budgets, Kernel] = {}
    for number in range(runs):
        draw = random.Random(f"{seed}/{number}")  # the same seed draws the same runs
        budgets = drawn_budgets(scenario.budgets, draw) if style == "swarm" else scenario.budgets
        if number % KERNEL_LIFE == 0:
            kernels.clear()
        kernel = kernels.get(budgets)
        if kernel is None:
            kernel = kernels[budgets] = scenario.with_budgets(budgets).kernel()
        finding, walk = _run(kernel, draw, style)
        report.transitions += len(walk.steps)
        report.finals += 1
        report.depth = max(report.depth, len(walk.steps))
        if finding is not None:
            found = shrink(scenario.with_budgets(budgets), walk.steps, finding.promise)
            wrong, trace = found or (finding, walk.trace())  # a run without an end has none when it is walked again
            report.anomalies.append(Anomaly(wrong.promise, wrong.text, trace))
            report.stopped = f"run {number} of seed {seed} broke a promise"
            break
        if time.process_time() - began_s > cpu_s:
            report.stopped = f"the limit of {cpu_s:g} CPU seconds is reached after {number + 1} runs"
            break
    report.cpu_s = time.process_time() - began_s
    return report


def drawn_budgets(budgets: Budgets, draw: random.Random) -> Budgets:
    """Some of the faults that a scenario allows."""
    chosen: dict[FaultKind, int] = {kind: getattr(budgets, kind) if draw.random() < 0.5 else 0 for kind in FAULT_KINDS}
    return Budgets(**chosen, together=budgets.together)


def _run(kernel: Kernel, draw: random.Random, style: Style) -> tuple[Finding | None, Walk]:
    """One run to its end, or to where a promise breaks."""
    walk = Walk(kernel)
    places = range(kernel.first, len(kernel.start))
    order = draw.sample(places, len(places))
    changes = set(draw.sample(range(200), CHANGE_COUNT))
    for count in range(STEP_COUNT_MAX):
        if count in changes:
            order.append(order.pop(0))
        step = _choose(kernel.prospects(walk.world), draw, order if style == "pct" else [])
        if step is None:
            return missing_at(walk), walk
        walk.take(walk.describe(step), step)
        finding = wrong_at(walk)
        if finding is not None:
            return finding, walk
    return Finding("Progress", f"{STEP_COUNT_MAX} steps were taken, and there is no end"), walk


def _choose(prospects: list[Prospect], draw: random.Random, order: list[int]) -> Step | None:
    """The next step: a fault now and then, else any step, or one of the process that comes first."""
    free = [prospect for prospect in prospects if not prospect[0]]
    faults = [prospect for prospect in prospects if prospect[0]]
    if faults and (not free or draw.random() < FAULT_SHARE):
        return _tried(draw.choice(faults), draw) if free or draw.random() < 0.5 else None
    if not free:
        return None
    for place in order:
        own = [prospect for prospect in free if prospect[1] == place]
        if own:
            return _tried(draw.choice(own), draw)
    return _tried(draw.choice(free), draw)


def _tried(prospect: Prospect, draw: random.Random) -> Step:
    return draw.choice(prospect[2]())
