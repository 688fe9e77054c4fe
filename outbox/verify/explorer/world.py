"""Worlds, the steps between them, and who watches: the words that every kind of search shares.

A world is a tuple of small numbers: what the monitor knows, the calls in flight, the faults that are left, the time,
each resource's state, each process's node.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple, Protocol

from outbox.verify.explorer.ops import FaultKind, Finding, Op, Outcome, Raised

World = tuple[int, ...]
GHOST, FLIGHT, BUDGET, TIME, RESOURCES = range(5)

UNKNOWN = Raised("OutcomeUnknown", "the reply did not come; read before acting")
THROTTLED = Raised("Throttled", "too many requests; nothing was written")


class Monitor(Protocol):
    """Watches the meaning of what is applied and says which promise was broken."""

    def initial(self) -> Hashable:
        """What is known at the beginning."""

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        """What an applied call means; None where it means nothing."""

    def step(self, ghost: Any, event: Any) -> Hashable:
        """What is known after it, or the `Finding`."""

    def check(self, ghost: Any, states: Sequence[Any]) -> Finding | None:
        """What is wrong with a world as it is."""

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        """Whether all that falls due later is blocked for good, so that waiting for it changes nothing."""

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        """What is missing when nothing more can happen."""

    def outcome(self, ghost: Any, states: Sequence[Any]) -> Hashable:
        """What outsiders see of a final world, whatever way led to it."""


class Move(NamedTuple):
    """A step of one process, a resource or the network, apart from the world that it is taken in."""

    cost: int
    resource: int
    state: int
    node: int
    event: int
    flight: tuple[int, ...]
    label: str
    fault: FaultKind | None = None
    op: int = -1
    """The call that is answered, by number."""


class Answer(NamedTuple):
    """What may become of a call, in numbers."""

    label: str
    state: int
    result: int
    fault: FaultKind | None
    event: int


Step = tuple[World, int, Move]
"""The world after a step, the place in the tuple of the process that took it (0: none did), and the step."""


def alike(names: Sequence[str], first: int) -> list[tuple[int, int]]:
    """The places of processes that run the same program, as ranges; the first process is at `first`."""
    found = []
    begin = 0
    for end in range(1, len(names) + 1):
        if end == len(names) or names[end] != names[begin]:
            if end - begin > 1:
                found.append((first + begin, first + end))
            begin = end
    return found
