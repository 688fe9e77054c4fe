"""The recent past of a container's items, for reads that are answered from it.

Nothing is kept unless it is asked for (a rule for stale reads, a window): then every write leaves what it
replaced, up to `CHANGE_COUNT_MAX` writes and `SIZE_MAX_BYTES`, oldest forgotten first.  The past begins with the first
write that was kept.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple, Protocol

CHANGE_COUNT_MAX = 10_000
SIZE_MAX_BYTES = 64 << 20


class StoredItem(Protocol):
    """An item as the engine keeps it."""

    @property
    def value(self) -> bytes: ...

    @property
    def version(self) -> int: ...


class Change(NamedTuple):
    """A write: the freshness that it led to, its time, and each touched item before (None: not there)."""

    lsn: int
    at_ms: int
    before: dict[tuple[str, str], StoredItem | None]
    size_bytes: int


class History:
    """The last writes of one container."""

    def __init__(self) -> None:
        self._changes: deque[Change] = deque()
        self._size_bytes = 0
        self.begin_lsn: int | None = None
        """The oldest freshness that a read can be answered with; None while nothing is kept."""

    def begin(self, lsn: int) -> None:
        """Keep the changes from now on."""
        if self.begin_lsn is None:
            self.begin_lsn = lsn

    def end(self) -> None:
        """Forget everything and keep nothing."""
        self._changes.clear()
        self._size_bytes = 0
        self.begin_lsn = None

    def keep(self, lsn: int, at_ms: int, before: dict[tuple[str, str], StoredItem | None]) -> None:
        """Remember what a write replaced; `before` by partition key and id."""
        if self.begin_lsn is None:
            return
        size_bytes = sum(0 if item is None else len(item.value) for item in before.values())
        self._changes.append(Change(lsn, at_ms, before, size_bytes))
        self._size_bytes += size_bytes
        while len(self._changes) > CHANGE_COUNT_MAX or self._size_bytes > SIZE_MAX_BYTES:
            self._forget_one()

    def forget(self, before_ms: int) -> None:
        """Forget the writes before a time."""
        while self._changes and self._changes[0].at_ms < before_ms:
            self._forget_one()

    def _forget_one(self) -> None:
        oldest = self._changes.popleft()
        self._size_bytes -= oldest.size_bytes
        self.begin_lsn = oldest.lsn

    def past(self, least_lsn: int, now_lsn: int, behind_count: int | None) -> int:
        """How old an answer may be: the freshness `behind_count` writes ago (None: as old as there is a memory).

        Never below what the session has seen, `least_lsn`.
        """
        if self.begin_lsn is None:
            return now_lsn
        oldest = self.begin_lsn
        if behind_count is not None and behind_count < len(self._changes):
            oldest = self._changes[-behind_count - 1].lsn
        return min(max(oldest, least_lsn), now_lsn)

    def changed_since(self, lsn: int) -> dict[tuple[str, str], StoredItem | None]:
        """The items written since then, as they were at that time."""
        found: dict[tuple[str, str], StoredItem | None] = {}
        for change in reversed(self._changes):  # newest first, so that what an item was earlier stands in the end
            if change.lsn <= lsn:
                break
            found.update(change.before)
        return found
