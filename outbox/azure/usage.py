"""What the adapters ask of Azure, counted: requests, request units and failures by kind of operation.

A request here is one call of an SDK.  What an SDK adds of its own accord (reading the account, the partition map, a
re-send after throttling) only the service sees.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec


class Used(msgspec.Struct, frozen=True, gc=False):
    """What one kind of operation came to: how often, in request units, and how often it did not take effect."""

    count: int = 0
    charge_ru: float = 0.0
    failed_count: int = 0


_NONE = Used()


@dataclass(slots=True)
class Usage:
    """Counts what an adapter asks for."""

    by_kind: dict[str, Used] = field(default_factory=dict)

    def note(self, kind: str, charge_ru: float = 0.0, *, failed: bool = False) -> None:
        """Count one request."""
        known = self.by_kind.get(kind, _NONE)
        self.by_kind[kind] = Used(known.count + 1, known.charge_ru + charge_ru, known.failed_count + failed)

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


def charge_of(headers: Mapping[str, str] | None) -> float:
    """The request units that an answer of Cosmos DB tells; 0 where it tells none."""
    try:
        return max(0.0, float((headers or {}).get("x-ms-request-charge", 0.0)))
    except ValueError:
        return 0.0
