"""The search of every world, by distance: the first finding has a shortest way to it, and a readable trace.

Where worlds are too many to visit, ways are drawn by a seed, and short ways to their findings are looked for.  Each run
uses only some kinds of faults, drawn anew, because runs that use all kinds seldom get far with one.

A long way to a wrong world is made short: steps are left out as long as the same promise breaks.  A shortened list of
steps is followed leniently: what cannot be taken is passed over, and when the list is at its end the processes go on
without faults, each in turn, so that what is only missing at the end can show.
"""

from __future__ import annotations

import gc
import random
import resource
import time
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal

from outbox.verify.explorer.budgets import Budgets
from outbox.verify.explorer.kernel import Kernel, Prospect
from outbox.verify.explorer.ops import FAULT_KINDS, GHOST, RESOURCES, Finding, Move, Step, World
from outbox.verify.explorer.scenario import Scenario


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: the process (from 1; 0: none), its action, the outcome, and the fault if it is one."""

    who: int
    what: str
    outcome: str = ""
    fault: str = ""

    def describe(self) -> str:
        """The step in one line."""
        if self.fault == "crash":
            return "*** CRASH ***"
        return f"{'!! ' if self.fault else ''}{self.what} {self.outcome}".strip()


@dataclass(frozen=True, slots=True)
class Trace:
    """A way through worlds: who takes part, the steps, and what the resources hold at its end."""

    names: tuple[str, ...]
    steps: tuple[TraceStep, ...]
    left: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The steps, one to a line, each after its process, then the end state."""
        width = max((len(name) for name in self.names), default=0)
        lines = [
            f"{number:4}  {self.names[step.who - 1] if step.who else '~':{width}}  {step.describe()}"
            for number, step in enumerate(self.steps, start=1)
        ]
        return "\n".join([*lines, *(f"      {line}" for line in self.left)])


class Walk:
    """A way through worlds in the making; it knows which process is which, whatever places they have."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.world = kernel.start
        self._who = list(range(len(self.world) - kernel.first))
        self.steps: list[TraceStep] = []

    def options(self) -> list[tuple[TraceStep, Step]]:
        """The possible next steps."""
        return [(self.describe(step), step) for step in self.kernel.successors(self.world)[0]]

    def take(self, seen: TraceStep, step: Step) -> None:
        """Take a step."""
        world, place, move = step
        if place:
            self._follow(world, place, move)
        self.world = world
        self.steps.append(seen)

    def trace(self) -> Trace:
        """The steps so far, as a trace for a reader."""
        kernel = self.kernel
        programs = [kernel.trie.programs[node.program].name for node in kernel.nodes(kernel.start)]
        programs = sorted(programs, key=programs.index)
        names = tuple(f"{name} {programs[: i + 1].count(name)}" for i, name in enumerate(programs))
        now_ms = kernel.now_ms(self.world)
        left = [
            line
            for model, state in zip(kernel.models, kernel.resource_states(self.world), strict=True)
            for line in (model.show(state, now_ms) if hasattr(model, "show") else ())  # a model of one's own need not
        ]
        return Trace(names, tuple(self.steps), tuple(left))

    def describe(self, step: Step) -> TraceStep:
        """A step as a trace shows it."""
        _, place, move = step
        if not place:
            return TraceStep(0, move.label, "", move.fault or "")
        mover = self._who[place - self.kernel.first] + 1
        what = "" if move.op < 0 else self.kernel.describe(move.op).strip()
        return TraceStep(mover, what, move.label, move.fault or "")

    def _follow(self, after: World, place: int, move: Move) -> None:
        """Find who is at each place after a step: places are sorted, processes are not."""
        first = self.kernel.first
        left = dict(zip(self._who, self.world[first:], strict=True))
        left[self._who[place - first]] = move.node
        placed = []
        for number in after[first:]:
            process = next(p for p in sorted(left) if left[p] == number)
            del left[process]
            placed.append(process)
        self._who = placed


def trace_of(kernel: Kernel, worlds: Sequence[World]) -> Trace:
    """The trace along worlds, each a successor of the one before."""
    walk = Walk(kernel)
    for world in worlds[1:]:
        walk.take(*next((seen, step) for seen, step in walk.options() if step[0] == world))
    return walk.trace()


Hashing = Literal["exact", "64"]
LOOK_EVERY = 4_096
"""The number of worlds between two checks of the limits."""
COLLECT_EVERY = 5_000
"""After how many runs of code their garbage is collected: it is some ten thousand bytes each, in cycles."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a search gives up: worlds, CPU seconds, bytes of the process's memory."""

    states: int = 5_000_000
    cpu_s: float = 120.0
    memory_bytes: int = 3 << 30


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A promise that was broken, and a shortest way to where it shows."""

    promise: str
    text: str
    trace: Trace

    @property
    def steps(self) -> int:
        """How many steps lead to it."""
        return len(self.trace.steps)


@dataclass(slots=True)
class Report:
    """The report of an exploration.  `exhausted` says that there is nothing else within its scope."""

    scope: str
    exhausted: bool = False
    anomalies: list[Anomaly] = field(default_factory=list)
    states: int = 0
    transitions: int = 0
    runs: int = 0
    depth: int = 0
    finals: int = 0
    cpu_s: float = 0.0
    stopped: str = ""
    outcomes: frozenset[Hashable] = field(default=frozenset(), repr=False)
    """The final worlds as outsiders see them."""

    @property
    def text(self) -> str:
        """The whole as text."""
        rate = self.transitions / self.cpu_s if self.cpu_s else 0.0
        head = (
            f"{self.scope}: {self.states} worlds, {self.transitions} transitions, {self.finals} ends, "
            f"depth {self.depth}, {self.runs} runs of code, {self.cpu_s:.2f} CPU s ({rate:.0f}/s)"
        )
        verdict = "exhausted" if self.exhausted else f"not exhausted: {self.stopped}"
        lines = [head, verdict if not self.anomalies else f"{len(self.anomalies)} promise(s) broken"]
        for anomaly in self.anomalies:
            lines += ["", f"{anomaly.promise}: {anomaly.text}", anomaly.trace.text]
        return "\n".join(lines)


def search(
    scenario: Scenario,
    *,
    limits: Limits | None = None,
    hashing: Hashing = "exact",
    live: bool = False,
) -> Report:
    """Explore a scenario breadth first, up to the first anomalies.

    `hashing` "exact" keeps every world; "64" keeps that many bits of it and may, very rarely, take one world for
    another.  `live` also asks that from every world a good end can be reached without further faults.
    """
    return Search(scenario, limits or Limits(), hashing, live=live).run()


@contextmanager
def without_collections() -> Iterator[None]:
    """Collect no garbage meanwhile: nearly all that a search or a run makes stays until it is over."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Search:
    """One search, under way."""

    def __init__(self, scenario: Scenario, limits: Limits, hashing: Hashing, *, live: bool) -> None:
        self.kernel: Kernel = scenario.kernel()
        self.limits = limits
        self._key = _KEYS[hashing]
        self._seen: dict[Hashable, int] = {}
        self._parents = array("q")
        self._frontier: list[tuple[int, World]] = []
        self._outcomes: set[Hashable] = set()
        self._checked: dict[tuple[int, ...], Finding | None] = {}
        self._edges: list[array[int]] | None = [] if live else None
        self._good = bytearray()
        self._collected_count = 0
        self.report = Report(scenario.describe())

    @without_collections()
    def run(self) -> Report:
        began_s = time.process_time()
        report = self.report
        self._meet(self.kernel.start, self._key(self.kernel.start), -1)
        frontier, self._frontier = self._frontier, []
        while frontier and not self._is_over(began_s):
            if not self._expand(frontier, began_s):
                break
            frontier, self._frontier = self._frontier, []
            report.depth += bool(frontier)
        report.exhausted = not frontier and not report.stopped and not report.anomalies
        if report.exhausted and self._edges is not None:
            self._find_trapped(self._edges)
        report.states, report.runs = len(self._parents), self.kernel.trie.run_count
        report.outcomes = frozenset(self._outcomes)
        report.cpu_s = time.process_time() - began_s
        return report

    def _expand(self, frontier: list[tuple[int, World]], began_s: float) -> bool:
        """Take every step from every world of a level; False when the search is over."""
        kernel, seen, key_of, report = self.kernel, self._seen, self._key, self.report
        successors, edges = kernel.successors, self._edges
        for count, (index, world) in enumerate(frontier, start=1):
            steps, is_free = successors(world)
            report.transitions += len(steps)
            if not is_free:
                self._end(index, world)
            for step in steps:
                after = step[0]
                key = key_of(after)
                if key not in seen:
                    self._meet(after, key, index)
            if edges is not None:
                while len(edges) <= index:
                    edges.append(array("q"))
                edges[index].extend(seen[key_of(step[0])] for step in steps if not step[2].cost)
            if report.anomalies or (count % LOOK_EVERY == 0 and self._is_over(began_s)):
                return False
        return True

    def _meet(self, world: World, key: Hashable, parent: int) -> None:
        """Take in a world that was not seen before, by its key; one that is wrong is not followed."""
        index = len(self._parents)
        self._seen[key] = index
        self._parents.append(parent)
        finding = self.kernel.ghosts[world[GHOST]] if world[GHOST] in self.kernel.bad else self._check(world)
        if finding is None:
            self._frontier.append((index, world))
        else:
            self._found(finding, index, world)

    def _check(self, world: World) -> Finding | None:
        kernel = self.kernel
        key = (world[GHOST], *world[RESOURCES : kernel.first])
        try:
            return self._checked[key]
        except KeyError:
            found = kernel.monitor.check(kernel.ghosts[world[GHOST]], kernel.resource_states(world))
            self._checked[key] = found
            return found

    def _end(self, index: int, world: World) -> None:
        kernel = self.kernel
        self.report.finals += 1
        ghost, states = kernel.ghosts[world[GHOST]], kernel.resource_states(world)
        findings = kernel.monitor.final(ghost, states, kernel.now_ms(world))
        if findings:
            self._found(findings[0], index, world)
        elif self._edges is not None:
            self._good.extend(b"\0" * (index + 1 - len(self._good)))
            self._good[index] = 1
        self._outcomes.add(kernel.monitor.outcome(ghost, states))

    def _found(self, finding: Finding, index: int, world: World) -> None:
        report = self.report
        if any(known.promise == finding.promise for known in report.anomalies):
            return
        report.states = len(self._parents)
        report.anomalies.append(Anomaly(finding.promise, finding.text, trace_of(self.kernel, self._way(index))))

    def _way(self, index: int) -> list[World]:
        """The worlds from the first to this one, made anew step by step: only their parents are kept."""
        chain = [index]
        while self._parents[chain[-1]] >= 0:
            chain.append(self._parents[chain[-1]])
        worlds = [self.kernel.start]
        for number in chain[-2::-1]:
            steps, _ = self.kernel.successors(worlds[-1])
            worlds.append(next(step[0] for step in steps if self._seen.get(self._key(step[0])) == number))
        return worlds

    def _is_over(self, began_s: float) -> bool:
        report, limits = self.report, self.limits
        if self.kernel.trie.run_count - self._collected_count >= COLLECT_EVERY:
            self._collected_count = self.kernel.trie.run_count
            gc.collect()
        if len(self._parents) >= limits.states:
            report.stopped = f"the limit of {limits.states} worlds is reached"
        elif time.process_time() - began_s >= limits.cpu_s:
            report.stopped = f"the limit of {limits.cpu_s:g} CPU seconds is reached"
        elif resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 >= limits.memory_bytes:
            report.stopped = f"the limit of {limits.memory_bytes >> 20} MiB of memory is reached"
        return bool(report.stopped)

    def _find_trapped(self, edges: list[array[int]]) -> None:
        """Worlds from which no good end can be reached any more, however lucky the rest goes."""
        count = len(self._parents)
        back: list[list[int]] = [[] for _ in range(count)]
        for index, targets in enumerate(edges):
            for target in targets:
                back[target].append(index)
        reached = bytearray(count)
        todo = [index for index in range(len(self._good)) if self._good[index]]
        for index in todo:
            reached[index] = 1
        while todo:
            for source in back[todo.pop()]:
                if not reached[source]:
                    reached[source] = 1
                    todo.append(source)
        trapped = reached.find(0)
        if trapped >= 0:
            text = f"{reached.count(0)} of {count} worlds never reach a good end; this is the nearest"
            self._found(Finding("Progress", text), trapped, self.kernel.start)


_KEYS: dict[Hashing, Callable[[World], Hashable]] = {"exact": lambda world: world, "64": hash}


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
