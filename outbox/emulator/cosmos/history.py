"""The recent past of a container's items, for reads that are answered from it.

Nothing is kept unless it is asked for (a rule for stale reads, a window): then every write leaves what it
replaced, up to `CHANGE_COUNT_MAX` writes and `SIZE_MAX_BYTES`, oldest forgotten first.  The past begins with the first
write that was kept.

*Rows of queries* that were put in order for one page are kept for the next ones: all of a query, as of one version of
its container.  A page after a write, or one whose snapshot had to make room, is computed anew and gives the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple, Protocol

from outbox.emulator.cosmos.query.values import SortKey

CHANGE_COUNT_MAX = 10_000
SIZE_MAX_BYTES = 64 << 20
SNAPSHOT_MAX_BYTES = 16 << 20
SNAPSHOT_ROW_COUNT_MAX = 50_000
ALL_MAX_BYTES = 64 << 20
ROW_BYTES = 400
"""The bytes of a row besides its result and the texts among its keys."""
Position = tuple[str, int, int]
"""A row's partition key, its item's place among those of that key, and its own place within the item."""


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


class FoundRow(NamedTuple):
    """A row: what orders it, where it is, and its result as JSON."""

    keys: tuple[SortKey, ...]
    position: Position
    result: bytes

    @property
    def size_bytes(self) -> int:
        """About what it takes in memory."""
        texts = sum(len(value) for _, value in self.keys if isinstance(value, str))
        return ROW_BYTES + len(self.result) + 4 * texts


class Snapshot(NamedTuple):
    """All rows of a query, in order, as of a version of its container."""

    version: int
    rows: list[FoundRow]
    size_bytes: int


class Snapshots:
    """The snapshots of one emulator, by query."""

    def __init__(self) -> None:
        self._by_query: OrderedDict[bytes, Snapshot] = OrderedDict()

    def get(self, query: bytes, version: int) -> list[FoundRow] | None:
        """The rows of a query, if they were kept at this version."""
        found = self._by_query.get(query)
        return found.rows if found is not None and found.version == version else None

    def keep(self, query: bytes, version: int, rows: list[FoundRow]) -> None:
        """Keep the rows of a query in place of older ones; those of queries kept longest ago make room."""
        self._by_query.pop(query, None)
        self._by_query[query] = Snapshot(version, rows, sum(row.size_bytes for row in rows))
        while sum(kept.size_bytes for kept in self._by_query.values()) > ALL_MAX_BYTES:
            self._by_query.popitem(last=False)


def put_in_order(rows: list[FoundRow], descending: tuple[bool, ...]) -> None:
    """Sort rows by their keys, each up or down, and then by where they are."""
    rows.sort(key=lambda row: row.position)
    for index in reversed(range(len(descending))):
        rows.sort(key=lambda row: row.keys[index], reverse=descending[index])
