"""Documents by namespace and id, the states of engine scope among them, and when they expire.

Whether a document may be written is for `modify` and the journal to say, before the record exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappop, heappush

from outbox.ports import StateChange, StateDocument

STATES = "state"
"""The namespace of the documents that engine scope commits."""


class DocumentSpaces:
    """Every namespace with its documents."""

    def __init__(self) -> None:
        self.spaces: dict[str, dict[str, StateDocument]] = {STATES: {}}
        self.value_bytes = 0
        """The bytes of their values."""
        self._other_count = 0  # documents that are no states
        self.expiring: list[tuple[int, str, str]] = []
        """Documents that expire, tombstones among them: when, namespace, id; soonest first."""

    @property
    def count(self) -> int:
        """How many documents there are."""
        return len(self.spaces[STATES]) + self._other_count

    def put(self, namespace: str, id: str, document: StateDocument) -> None:
        """Write a document in place of an older one."""
        space = self.spaces.setdefault(namespace, {})
        old = space.get(id)
        self._other_count += old is None and namespace != STATES
        self.value_bytes += len(document.value) - (0 if old is None else len(old.value))
        space[id] = document
        if document.expires_ms:
            heappush(self.expiring, (document.expires_ms, namespace, id))

    def save(self, changes: Mapping[str, StateChange], version: int, expires_ms: int) -> None:
        """Write the states of a commit; a living state as `put` would, written out for speed."""
        space, growth_bytes = self.spaces[STATES], 0
        for id, change in changes.items():
            value = change.value
            if not value:  # a tombstone
                self.put(STATES, id, StateDocument(value, version, change.schema, change.serial, expires_ms))
                continue
            old = space.get(id)
            growth_bytes += len(value) if old is None else len(value) - len(old.value)
            space[id] = StateDocument(value, version, change.schema, change.serial)
        self.value_bytes += growth_bytes

    def drop(self, namespace: str, id: str) -> None:
        """Delete a document, if it is there."""
        space = self.spaces.get(namespace, {})
        old = space.pop(id, None)
        if old is not None:
            self.value_bytes -= len(old.value)
            self._other_count -= namespace != STATES
        if not space and namespace != STATES:
            self.spaces.pop(namespace, None)

    def forget(self, now_ms: int) -> None:
        """Drop the documents whose time is over."""
        expiring = self.expiring
        while expiring and expiring[0][0] <= now_ms:
            _, namespace, id = heappop(expiring)
            found = self.spaces.get(namespace, {}).get(id)
            if found is not None and 0 < found.expires_ms <= now_ms:  # it may have been written again since
                self.drop(namespace, id)
