"""How many requests there were by operation, and how many bytes they carried."""

from __future__ import annotations

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
        self._used: dict[str, Usage] = {}

    def count(self, operation: str, status: int, received_bytes: int, sent_bytes: int) -> None:
        """Add one request; status 0 for one that got no answer."""
        used, failed_count = self._used.get(operation, Usage(0, 0, 0, 0)), not 0 < status < 400
        self._used[operation] = Usage(
            used.count + 1,
            used.failed_count + failed_count,
            used.received_bytes + received_bytes,
            used.sent_bytes + sent_bytes,
        )

    def usage(self) -> dict[str, Usage]:
        """The use by operation, since the start or the last reset."""
        return dict(sorted(self._used.items()))

    def reset(self) -> None:
        """Count from zero."""
        self._used.clear()
