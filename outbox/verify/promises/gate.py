"""The gate of an engine, watched: nothing is told to outsiders that a loss of power could still take.

What has happened is known twice: as of now, and as of what was synced.  A loss of power puts the second in place of the
first, but for what outsiders were told: that nobody takes back, so it has to be true already.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from outbox.verify.explorer.models.journal import PowerLost
from outbox.verify.explorer.ops import Finding, Op, Outcome
from outbox.verify.explorer.world import Monitor
from outbox.verify.promises.journal import JOURNAL
from outbox.verify.promises.ledger import Answered, Ledger, ReadAnswered
from outbox.verify.promises.side_effects import SideEffect


class Gated(msgspec.Struct, frozen=True):
    """The ledger by now, and the synced part of it."""

    now: Ledger
    synced: Ledger


class Synced(msgspec.Struct, frozen=True):
    """The meaning of a sync: all that was written before is there to stay."""


class GateMonitor:
    """Watches what leaves an engine against what it has synced; the rest is for the monitor of the scope."""

    def __init__(self, scope: Monitor) -> None:
        self._scope = scope

    def initial(self) -> Gated:
        ledger: Any = self._scope.initial()
        return Gated(ledger, ledger)

    def observe(self, op: Op, before: Any, outcome: Outcome, now_ms: int) -> Hashable:
        if op.resource == JOURNAL and op.verb == "durable":
            return Synced()
        return self._scope.observe(op, before, outcome, now_ms)

    def step(self, ghost: Gated, event: Any) -> Gated | Finding:
        if isinstance(event, Synced):
            return Gated(ghost.now, ghost.now)
        if isinstance(event, PowerLost):
            left = msgspec.structs.replace(ghost.synced, called=ghost.now.called)
            return Gated(left, left)
        now: Any = self._scope.step(ghost.now, event)
        if isinstance(now, Finding):
            return now
        if isinstance(event, Answered | ReadAnswered):
            told = self._scope.step(ghost.synced, event)
            if isinstance(told, Finding):
                return Finding("NothingLeavesEarly", f"{told.text}, or not synced")
        if isinstance(event, SideEffect) and ghost.now.applied != ghost.synced.applied:
            return Finding("NothingLeavesEarly", "a handler calls outside over a commit that is not synced")
        return Gated(now, ghost.synced)

    def check(self, ghost: Gated, states: Sequence[Any]) -> Finding | None:
        return self._scope.check(ghost.now, states)

    def is_over(self, ghost: Gated, states: Sequence[Any], now_ms: int) -> bool:
        return self._scope.is_over(ghost.now, states, now_ms)

    def final(self, ghost: Gated, states: Sequence[Any], now_ms: int) -> list[Finding]:
        return self._scope.final(ghost.now, states, now_ms)

    def outcome(self, ghost: Gated, states: Sequence[Any]) -> Hashable:
        return self._scope.outcome(ghost.now, states)
