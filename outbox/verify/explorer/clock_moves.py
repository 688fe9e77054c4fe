"""How time passes in worlds: by leaps, to moments at which something happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outbox.verify.explorer.budgets import cost_of
from outbox.verify.explorer.ops import FaultKind, Model, Table
from outbox.verify.explorer.world import Monitor, Move


class ClockMoves:
    """The moments that lie ahead."""

    def __init__(self, models: Sequence[Model], times: Table[int], monitor: Monitor, *, until_ms: int = 0) -> None:
        self._models = models
        self._monitor = monitor
        self._times = times
        self._until_ms = until_ms
        """After this no process waits any longer; 0: there is no end."""
        self._known: dict[tuple[int, ...], list[Move]] = {}

    def jumps(self, key: tuple[int, ...], states: Sequence[Any], now_ms: int) -> list[Move]:
        """Leaps to whatever expires: a fault, because no process does anything meanwhile; `key` tells the states."""
        found = self._known.get(key)
        if found is None:
            pairs = zip(self._models, states, strict=True)
            moments = {moment for model, state in pairs for moment in model.moments_ms(state, now_ms)}
            found = self._known[key] = [self._to(ms, now_ms, "jump") for ms in sorted(moments)]
        return found

    def due(self, ghost: Any, states: Sequence[Any], now_ms: int) -> Move | None:
        """Nothing else can happen: time goes on to what falls due next, if that changes anything."""
        pairs = zip(self._models, states, strict=True)
        due_ms = min((due for model, state in pairs if (due := model.due_ms(state, now_ms)) is not None), default=None)
        if due_ms is None or 0 < self._until_ms < due_ms or self._monitor.is_over(ghost, states, now_ms):
            return None
        return self._to(due_ms, now_ms, None)

    def _to(self, ms: int, now_ms: int, fault: FaultKind | None) -> Move:
        label = f"{(ms - now_ms) / 1_000:g} s pass"
        return Move(cost_of(fault), 0, self._times.number(ms, ms), 0, 0, (), label, fault)
