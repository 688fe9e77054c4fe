"""A player who acts by chance, drawn from a seed."""

from __future__ import annotations

import random

from outbox.ops.play.gate import DECISIONS
from outbox.ops.play.world import ORDER_COUNT_MAX, Act, World

FAULT_COUNT = 200
FAULT_SHARE = 0.3
"""The share of calls that fail, while faults are left."""
CROWD_COUNT = 3
"""How many orders may wait before the player sends no more."""


class ChancePlayer:
    """Acts by chance until at least `fault_count` faults have happened in a world, then lets everything finish."""

    def __init__(self, seed: int, fault_count: int = FAULT_COUNT) -> None:
        self._draw = random.Random(seed)  # chosen by a seed on purpose
        self.fault_count = fault_count

    def next_act(self, world: World) -> Act | None:
        """The next action; None: the faults are over, and nothing is on its way."""
        is_over = world.fault_count >= self.fault_count or world.is_full
        if is_over and world.is_quiet:
            return None
        if not is_over and (act := self._send(world) or self._disturb(world)) is not None:
            return act
        able = world.able()
        if not able:
            return self._unblock(world)
        process = self._draw.choice(able)
        is_fault = not is_over and self._draw.random() < FAULT_SHARE
        return Act(self._draw.choice(DECISIONS[1:]) if is_fault else "go", worker=process.number)

    def _send(self, world: World) -> Act | None:
        """A new order or a copy, where few wait; new ones are spread over all faults."""
        waiting = len(world.waiting_orders())
        if waiting >= CROWD_COUNT or (waiting and self._draw.random() < 0.8):
            return None
        share = world.fault_count / self.fault_count
        if not world.orders or len(world.orders) < min(ORDER_COUNT_MAX, 1 + share * ORDER_COUNT_MAX):
            return Act("send")
        return Act("duplicate", id=self._draw.choice(list(world.orders)))

    def _disturb(self, world: World) -> Act | None:
        """A start of a missing worker, a minute in which a lock runs out, or a sweep."""
        missing = _missing(world)
        if missing and self._draw.random() < 0.4:
            return Act("start", worker=missing[0])
        if any(map(world.holder, world.waiting_orders())) and self._draw.random() < 0.05:
            return Act("time")
        return Act("sweep") if world.orders and self._draw.random() < 0.02 else None

    def _unblock(self, world: World) -> Act:
        missing = _missing(world)
        is_locked = any(map(world.holder, world.waiting_orders()))
        return Act("start", worker=missing[0]) if missing and not is_locked else Act("time")


def _missing(world: World) -> list[int]:
    """The workers that are not there, or dead."""
    return [number for number in (1, 2) if (found := world.workers.get(number)) is None or found.gate.is_dead]
