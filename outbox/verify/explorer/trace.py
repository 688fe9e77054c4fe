"""A readable way from the first world to a wrong one: processes, steps, their outcomes, the end state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.ops import Move, Step, World

NO_PROCESS = 0


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
        """The way so far."""
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
            return TraceStep(NO_PROCESS, move.label, "", move.fault or "")
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
