"""The time of a harness: it moves only on demand."""

from __future__ import annotations

START_S = 1_767_225_600.0
"""When a harness's time begins: 2026-01-01 00:00 UTC, in seconds since 1970."""


class VirtualClock:
    """Time that moves only on demand."""

    def __init__(self, start_s: float) -> None:
        self.seconds = start_s

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""
        return round(self.seconds * 1_000)

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""
        return self.seconds
