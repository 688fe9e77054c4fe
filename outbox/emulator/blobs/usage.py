"""How many requests there were by operation, and how many bytes they carried."""

from __future__ import annotations

from collections import Counter

import msgspec


class Usage(msgspec.Struct, frozen=True):
    """The use by one kind of operation."""

    count: int
    failed_count: int
    """Answered with a status of 400 or more, or not at all."""
    received_bytes: int
    """Of the bodies of requests."""
    sent_bytes: int
    """Of the bodies of answers."""


class Meter:
    """Counts requests by operation."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._received_bytes: Counter[str] = Counter()
        self._sent_bytes: Counter[str] = Counter()

    def count(self, operation: str, status: int, received_bytes: int, sent_bytes: int) -> None:
        """Add one request; status 0 for one that got no answer."""
        self._counts[operation] += 1
        self._failed[operation] += not 0 < status < 400
        self._received_bytes[operation] += received_bytes
        self._sent_bytes[operation] += sent_bytes

    def usage(self) -> dict[str, Usage]:
        """The use by operation, since the start or the last reset."""
        return {
            name: Usage(count, self._failed[name], self._received_bytes[name], self._sent_bytes[name])
            for name, count in sorted(self._counts.items())
        }

    def reset(self) -> None:
        """Count from zero."""
        for counter in (self._counts, self._failed, self._received_bytes, self._sent_bytes):
            counter.clear()
