"""The ids that a process has met in its rows, bounded for all rows together.

A row notes each id that it walks past, and a process may append to hundreds of rows, so a bound for each would be none.
The newest are kept in two halves: when the newer one is full, the older is forgotten.  So at least half of what is
allowed is remembered, and nothing is searched for the oldest.
"""

from __future__ import annotations

from itertools import count
from sys import getsizeof
from threading import Lock
from typing import Generic, TypeVar

V = TypeVar("V")

COUNT_MAX = 100_000
BYTES_MAX = 32 << 20
"""How many ids are remembered at most, and how many bytes they take, of all rows of a process together."""
ENTRY_BYTES = 250
"""The bytes of an id beside its text: its place in a dictionary, its key, and a value."""
_rows = count()


def row_number() -> int:
    """A number for a row that no other row of the process has."""
    return next(_rows)


class Recent(Generic[V]):
    """Values by row and id, the newest of all rows of a process."""

    def __init__(self, count_max: int = COUNT_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._count_max = count_max // 2
        self._bytes_max = bytes_max // 2
        self._newer: dict[tuple[int, str], V] = {}
        self._older: dict[tuple[int, str], V] = {}
        self._bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def get(self, row: int, id: str) -> V | None:
        """The value of an id; None where there is none, or it is forgotten."""
        key = row, id
        found = self._newer.get(key)
        return self._older.get(key) if found is None else found

    def put(self, row: int, id: str, value: V) -> None:
        """Remember a value."""
        with self._lock:
            self._newer[row, id] = value
            self._bytes += getsizeof(id) + ENTRY_BYTES
            if len(self._newer) >= self._count_max or self._bytes >= self._bytes_max:
                self._older, self._newer, self._bytes = self._newer, {}, 0

    def pop(self, row: int, id: str) -> None:
        """Forget a value."""
        with self._lock:
            self._newer.pop((row, id), None)
            self._older.pop((row, id), None)

    def of(self, row: int) -> list[str]:
        """The ids of a row."""
        with self._lock:
            return list(dict.fromkeys(id for owner, id in (*self._older, *self._newer) if owner == row))
