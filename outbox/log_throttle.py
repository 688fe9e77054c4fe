"""Log each subject at most once within a period, and count the lines left out."""

from __future__ import annotations

from collections.abc import Callable

SUBJECT_COUNT_MAX = 10_000
LOG_EVERY_MS = 60_000
"""The period of lines about a state that lasts."""


class LogThrottle:
    """The subjects logged within the last `every_ms`; beyond 10,000 the oldest is forgotten."""

    def __init__(self, every_ms: int, now_ms: Callable[[], int]) -> None:
        self._every_ms = every_ms
        self._now_ms = now_ms
        self._due: dict[str, tuple[int, int]] = {}
        """When each subject is due again, and how many of its lines were left out."""

    def is_due(self, subject: str) -> bool:
        """Whether to log this subject now."""
        return self.due(subject)[0]

    def due(self, subject: str) -> tuple[bool, int]:
        """Whether to log this subject now, and the number of its lines left out since the last (this one too)."""
        now_ms = self._now_ms()
        due_ms, count = self._due.get(subject, (0, 0))
        if now_ms < due_ms:
            self._due[subject] = due_ms, count + 1
            return False, count + 1
        self._due.pop(subject, None)
        self._due[subject] = now_ms + self._every_ms, 0
        if len(self._due) > SUBJECT_COUNT_MAX:
            del self._due[next(iter(self._due))]
        return True, count
