"""What a line of the log may hold, and how often: one for each subject within a time."""

from __future__ import annotations

from collections.abc import Callable

SUBJECT_COUNT_MAX = 10_000


class Seldom:
    """Which subjects are due to be told of again."""

    def __init__(self, every_ms: int, now_ms: Callable[[], int]) -> None:
        self._every_ms = every_ms
        self._now_ms = now_ms
        self._due: dict[str, tuple[int, int]] = {}
        """Until when a subject is left out, and how often it was."""

    def is_due(self, subject: str) -> bool:
        """Whether a subject is to be told of now; if so, not again for a while."""
        return self.left_out(subject) is not None

    def left_out(self, subject: str) -> int | None:
        """How many lines of a subject were left out since its last one, if one is due now; None while none is."""
        now_ms = self._now_ms()
        until_ms, count = self._due.get(subject, (0, 0))
        if now_ms < until_ms:
            self._due[subject] = until_ms, count + 1
            return None
        self._due[subject] = now_ms + self._every_ms, 0
        if len(self._due) > SUBJECT_COUNT_MAX:
            del self._due[next(iter(self._due))]
        return count


def printable(text: str) -> str:
    """A text on one line: what a terminal would obey, and what would begin a line of its own, is escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
