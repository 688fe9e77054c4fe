"""What a line of the log may hold, and how often: one for each subject within a time."""

from __future__ import annotations

from collections.abc import Callable

SUBJECT_COUNT_MAX = 10_000


class Seldom:
    """Which subjects are due to be told of again."""

    def __init__(self, every_ms: int, now_ms: Callable[[], int]) -> None:
        self._every_ms = every_ms
        self._now_ms = now_ms
        self._due: dict[str, int] = {}

    def is_due(self, subject: str) -> bool:
        """Whether a subject is to be told of now; if so, not again for a while."""
        now_ms = self._now_ms()
        if now_ms < self._due.get(subject, 0):
            return False
        self._due[subject] = now_ms + self._every_ms
        if len(self._due) > SUBJECT_COUNT_MAX:
            del self._due[next(iter(self._due))]
        return True


def printable(text: str) -> str:
    """A text on one line: what a terminal would obey, and what would begin a line of its own, is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
