"""The faults of each kind that an exploration may use, as one number, cheap to compare and to reduce."""

from __future__ import annotations

from dataclasses import dataclass

from outbox.verify.explorer.ops import FAULT_KINDS, FaultKind

_FIELD_BITS = 5
_FIELD_MAX = 15
GUARDS = sum(16 << _FIELD_BITS * i for i in range(len(FAULT_KINDS) + 1))
"""One bit above each field: a budget that would go below nothing sets it."""


@dataclass(frozen=True, slots=True)
class Budgets:
    """How often each kind of fault may happen, and (`together`) all of them in one run."""

    crash: int = 0
    lost: int = 0
    delay: int = 0
    error: int = 0
    expire: int = 0
    stale: int = 0
    jump: int = 0
    timeout: int = 0
    power: int = 0
    together: int = _FIELD_MAX

    def __post_init__(self) -> None:
        for kind in (*FAULT_KINDS, "together"):
            if not 0 <= getattr(self, kind) <= _FIELD_MAX:
                raise ValueError(f"{kind}={getattr(self, kind)}: between 0 and {_FIELD_MAX} faults of a kind")

    @classmethod
    def any_of(cls, count: int, *kinds: FaultKind) -> Budgets:
        """Up to `count` faults, each of any of these kinds (default: of any at all)."""
        return cls(**dict.fromkeys(kinds or FAULT_KINDS, count), together=count)

    def packed(self) -> int:
        """The whole as one number."""
        fields = [*(getattr(self, kind) for kind in FAULT_KINDS), self.together]
        return sum(count << _FIELD_BITS * i for i, count in enumerate(fields))

    def describe(self) -> str:
        """Describe the allowed faults in a line."""
        named = ", ".join(f"{kind} {n}" for kind in FAULT_KINDS if (n := getattr(self, kind)))
        bound = f", {self.together} together" if self.together < _FIELD_MAX else ""
        return f"{named or 'no faults'}{bound}"


def cost_of(kind: FaultKind | None) -> int:
    """The number that a fault takes from a packed budget."""
    if kind is None:
        return 0
    return (1 << _FIELD_BITS * FAULT_KINDS.index(kind)) + (1 << _FIELD_BITS * len(FAULT_KINDS))
