"""What requests cost: estimates of request units by kind and size, and how many there were of each.

The figures follow what Microsoft publishes for items of 1 KB and 100 KB under the default indexing (a point read 1 and
10, a write about 5 and 50, a replace about twice a write); the service counts indexed paths, which is not done here.
"""

from __future__ import annotations

from collections import Counter

import msgspec

KIB = 1024
QUERY_RU = 2.3
EXAMINED_RU = 0.02
METADATA_RU = 1.0


def read_ru(size_bytes: int) -> float:
    """Of a point read."""
    return 1.0 + 0.09 * _further_kib(size_bytes)


def write_ru(kind: str, size_bytes: int) -> float:
    """Of a write of one item by its kind: create, replace, patch or delete."""
    if kind in ("replace", "patch"):
        return 10.0 + 0.9 * _further_kib(size_bytes)
    return 5.5 + 0.45 * _further_kib(size_bytes)


def query_ru(examined_count: int, size_bytes: int) -> float:
    """Of a page of a query: documents looked at, and bytes returned."""
    return QUERY_RU + EXAMINED_RU * examined_count + 0.05 * (size_bytes // KIB)


def _further_kib(size_bytes: int) -> float:
    return max(0, size_bytes - 1) // KIB


class Usage(msgspec.Struct, frozen=True):
    """What one kind of operation came to."""

    count: int
    charge_ru: float
    failed_count: int
    """Answered with a status of 400 or more, or not at all."""


class Meter:
    """Counts requests and request units by operation."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._charges: dict[str, float] = {}

    def count(self, operation: str, status: int, charge_ru: float) -> None:
        """Add one request; status 0 for one that got no answer."""
        self._counts[operation] += 1
        self._charges[operation] = self._charges.get(operation, 0.0) + charge_ru
        if not 0 < status < 400:
            self._failed[operation] += 1

    def usage(self) -> dict[str, Usage]:
        """What there was since the start or the last reset, by operation."""
        return {
            name: Usage(count, round(self._charges[name], 2), self._failed[name])
            for name, count in sorted(self._counts.items())
        }

    def reset(self) -> None:
        """Count from zero."""
        self._counts.clear()
        self._failed.clear()
        self._charges.clear()
