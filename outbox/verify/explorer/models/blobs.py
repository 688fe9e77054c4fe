"""A blob store as a model: bytes under names, written once."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from outbox.verify.explorer.ops import NO_LOCKS, Event, Locks, Op, Outcome, Raised, Reach

BlobState = tuple[tuple[str, bytes], ...]


class BlobModel:
    """Write-once bytes."""

    name = "blobs"

    def initial(self) -> BlobState:
        return ()

    def reach(self, verb: str) -> Reach:
        return "read" if verb == "read" else "write"

    def is_private(self, op: Op) -> bool:
        return False

    def is_spent(self, state: BlobState, op: Op) -> bool:
        return False

    def outcomes(self, state: BlobState, op: Op, now_ms: int, in_use: Locks = NO_LOCKS) -> list[Outcome]:
        blobs = dict(state)
        name = op.args[0]
        match op.verb:
            case "read":
                found = blobs.get(name)
                if found is not None and len(found) > op.args[1]:
                    return [Outcome("-> too large", state, Raised("TooLarge", f"blob {name} is over {op.args[1]}"))]
                return [Outcome("-> nothing" if found is None else "", state, found)]
            case "write":
                if name in blobs:
                    return [Outcome("-> exists", state, False)]
                return [Outcome("", tuple(sorted((*state, (name, op.args[1])))), True)]
        blobs.pop(name, None)
        return [Outcome("", tuple(sorted(blobs.items())), None)]

    def tokens(self, result: Any) -> frozenset[Hashable]:
        return frozenset()

    def events(self, state: BlobState, now_ms: int) -> list[Event]:
        return []

    def due_ms(self, state: BlobState, now_ms: int) -> int | None:
        return None

    def moments_ms(self, state: BlobState, now_ms: int) -> tuple[int, ...]:
        return ()

    def describe(self, op: Op) -> str:
        return f"{op.verb} blob {op.args[0]}"

    def show(self, state: BlobState, now_ms: int) -> list[str]:
        return [f"blob {name}, {len(data)} bytes" for name, data in state]
