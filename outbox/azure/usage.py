"""Counts of the adapters' requests to Azure: requests, request units, and failures by operation and reason.

A request here is one call of an SDK.  What an SDK adds of its own accord (reading the account, the partition map, a
re-send after throttling) only the service sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from outbox.errors import LockLost, OutboxError, OutcomeUnknown, Throttled, TooLarge, Unreachable


class Used(msgspec.Struct, frozen=True, gc=False):
    """The use by one kind of operation: its number, its request units, and how often it had no effect."""

    count: int = 0
    charge_ru: float = 0.0
    failed_count: int = 0


_NONE = Used()


@dataclass(slots=True)
class Usage:
    """Counts what an adapter asks for; `reasons` has, by kind of operation, why some of it came to nothing.

    Every retry has one of them as its reason: `conflict` (a condition did not hold: a copy of the
    message, or another worker), `throttled`, `stale` (a read could not be as fresh as its session), `timeout`, `no
    answer`, `status` (one that leaves the outcome unknown), `cancelled`, `lock lost`, `refused` or `too large`.
    """

    by_kind: dict[str, Used] = field(default_factory=dict)
    reasons: dict[tuple[str, str], int] = field(default_factory=dict)

    def note(self, kind: str, charge_ru: float = 0.0, *, failed: bool = False, reason: str = "") -> None:
        """Count one request, and why it came to nothing, if it did."""
        known = self.by_kind.get(kind, _NONE)
        self.by_kind[kind] = Used(known.count + 1, known.charge_ru + charge_ru, known.failed_count + failed)
        if reason:
            self.reasons[kind, reason] = self.reasons.get((kind, reason), 0) + 1

    @property
    def request_count(self) -> int:
        """All requests since the start or the last reset."""
        return sum(used.count for used in self.by_kind.values())

    @property
    def charge_ru(self) -> float:
        """All request units since the start or the last reset."""
        return sum(used.charge_ru for used in self.by_kind.values())

    def reset(self) -> None:
        """Count from zero."""
        self.by_kind.clear()
        self.reasons.clear()


def charge_of(headers: Mapping[str, str] | None) -> float:
    """The request units that an answer of Cosmos DB names; 0 where it names none."""
    try:
        return max(0.0, float((headers or {}).get("x-ms-request-charge", 0.0)))
    except ValueError:
        return 0.0


def reason_of(meant: OutboxError, error: BaseException, *, status: int = 0) -> str:
    """Why a request came to nothing, in a word or two: what an error means, and what it came from."""
    match meant:
        case Unreachable():
            return "no answer"
        case Throttled():
            return "stale" if status == 404 else "throttled"
        case LockLost():
            return "lock lost"
        case TooLarge():
            return "too large"
        case OutcomeUnknown() if status:
            return "status"
        case OutcomeUnknown():
            return "timeout" if "Timeout" in type(error).__name__ else "no answer"
    return "refused"
