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
    """Watches the meaning of applied calls and names the promise that is broken."""

    def initial(self) -> Hashable:
        """The knowledge at the beginning."""

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        """The meaning of an applied call; None where it has none."""

    def step(self, ghost: Any, event: Any) -> Hashable:
        """The knowledge after an event, or the `Finding`."""

    def check(self, ghost: Any, states: Sequence[Any]) -> Finding | None:
        """The finding in a world at this moment."""

    def is_over(self, ghost: Any, states: Sequence[Any], now_ms: int) -> bool:
        """Whether all that falls due later is blocked for good, so that waiting for it changes nothing."""

    def final(self, ghost: Any, states: Sequence[Any], now_ms: int) -> list[Finding]:
        """The findings of missing effects when nothing more can happen."""

    def outcome(self, ghost: Any, states: Sequence[Any]) -> Hashable:
        """A final world as outsiders see it, whatever way led to it."""


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
    """A possible answer to a call, in numbers."""

    label: str
    state: int
    result: int
    fault: FaultKind | None
    event: int


Step = tuple[World, int, Move]
"""The world after a step, the place of its process in the tuple (0: none), and the step."""


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
