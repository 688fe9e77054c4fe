"""The former name of `outbox.verify.recorded.definitions`."""

from outbox.verify.recorded.definitions import (
    FAIL,
    QUIESCE,
    System,
    came,
    decide,
    is_commutative,
    is_deterministic,
    went,
)

__all__ = ["FAIL", "QUIESCE", "System", "came", "decide", "is_commutative", "is_deterministic", "went"]
