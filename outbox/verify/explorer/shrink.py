"""A long way to a wrong world, made short: steps are left out as long as the same promise breaks.

A shortened list of steps is followed leniently: what cannot be taken is passed over, and when the list is at its end
the processes go on without faults, each in turn, so that what is only missing at the end can show.
"""

from __future__ import annotations

from collections.abc import Sequence

from outbox.verify.explorer.kernel import Kernel
from outbox.verify.explorer.ops import Finding
from outbox.verify.explorer.scenario import Scenario
from outbox.verify.explorer.trace import Trace, TraceStep, Walk
from outbox.verify.explorer.world import GHOST

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
