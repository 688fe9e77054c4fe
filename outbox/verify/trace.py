"""A way from the first world to a wrong one, for a person to read: who did what, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from outbox.verify.kernel import Kernel
from outbox.verify.run import TIMER
from outbox.verify.world import RESOURCES, Move, World


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step: whose (0: nobody's, else from 1), what was done, what came of it, and the fault if it is one."""

    who: int
    what: str
    outcome: str
    fault: str = ""

    def told(self) -> str:
        """The step in one line."""
        if self.fault == "crash":
            return "*** CRASH ***"
        marked = f"!! {self.what} {self.outcome}" if self.fault else f"{self.what} {self.outcome}"
        return marked.strip()


@dataclass(frozen=True, slots=True)
class Trace:
    """A way through worlds."""

    names: tuple[str, ...]
    steps: tuple[TraceStep, ...]

    @property
    def text(self) -> str:
        """The steps, one to a line, each under who took it."""
        width = max((len(name) for name in self.names), default=0)
        lines = []
        for number, step in enumerate(self.steps, start=1):
            who = self.names[step.who - 1] if step.who else "~"
            lines.append(f"{number:4}  {who:{width}}  {step.told()}")
        return "\n".join(lines)


def trace_of(kernel: Kernel, worlds: Sequence[World], workers: int) -> Trace:
    """The trace along worlds, each a successor of the one before."""
    trie = kernel.trie
    count = len(worlds[0]) - kernel.first
    programs = [trie.programs[node.program].name for node in kernel.nodes(worlds[0])]
    names = tuple(f"{name} {programs[: i + 1].count(name)}" for i, name in enumerate(programs))
    who = list(range(count))  # which process is at each place: places are sorted, processes are not
    steps = []
    for before, after in pairwise(worlds):
        found = next(step for step in kernel.successors(before)[0] if step[0] == after)
        _, place, move = found
        steps.append(_told(kernel, before, place, move, who))
        if place:
            who = _places(kernel, before, after, place, move, who)
    return Trace(names, tuple(steps))


def _told(kernel: Kernel, before: World, place: int, move: Move, who: list[int]) -> TraceStep:
    if not place:
        return TraceStep(0, move.label, "", move.fault or "")
    mover = who[place - kernel.first] + 1
    if move.fault == "crash":
        return TraceStep(mover, "", "", "crash")
    node = kernel.trie.nodes[before[place]]
    said = [kernel.told(op).strip() for op in node.ops if kernel.trie.ops[op].resource + RESOURCES == move.resource]
    what = ", ".join(said) if move.resource != TIMER else ""
    return TraceStep(mover, what, move.label, move.fault or "")


def _places(kernel: Kernel, before: World, after: World, place: int, move: Move, who: list[int]) -> list[int]:
    """Who is at each place after a step: a process keeps its number while its place may change."""
    now = dict(zip(who, before[kernel.first :], strict=True))
    now[who[place - kernel.first]] = move.node
    left = dict(now)
    placed = []
    for number in after[kernel.first :]:
        process = next(p for p in sorted(left) if left[p] == number)
        del left[process]
        placed.append(process)
    return placed
