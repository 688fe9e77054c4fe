"""A worker's cache of states: bytes and versions (ETags), never objects that a handler could have changed.

Filled by reads and confirmed commits only, never with a lower version than is known; dropped on every error and every
unknown outcome.  A stale entry costs a retry, because each commit is conditional; a shared object would cost
correctness: a handler that changes its state and then raises would show the change to the next message.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from outbox.ports import Document, Session, Version
from outbox.stored import StateItem, state_in

STATE_COUNT_MAX = 10_000
STATE_BYTES_MAX = 64 << 20


class CachedState(msgspec.Struct, frozen=True):
    """A state as last seen: its document and its version (empty: there is none)."""

    item: StateItem = StateItem()
    version: Version = ""
    session: Session = ""


NO_STATE = CachedState()


def cached_state(document: Document | None) -> CachedState:
    """The state in a document that was read; `NO_STATE` for none."""
    if document is None:
        return NO_STATE
    return CachedState(state_in(document), document.version, document.session)


class StateCache:
    """The states used last, within limits of count and bytes."""

    def __init__(self, *, count_max: int = STATE_COUNT_MAX, bytes_max: int = STATE_BYTES_MAX) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._states: OrderedDict[str, CachedState] = OrderedDict()
        self._bytes = 0
        self.hit_count = 0
        self.miss_count = 0

    def find(self, state_id: str) -> CachedState | None:
        """The cached state; None: read it."""
        found = self._states.get(state_id)
        if found is None:
            self.miss_count += 1
        else:
            self.hit_count += 1
            self._states.move_to_end(state_id)
        return found

    def remember(self, state_id: str, state: CachedState) -> None:
        """Cache the state of a read or a confirmed commit, unless a newer one is cached."""
        known = self._states.get(state_id)
        if known is not None and known.item.version > state.item.version:
            return
        self.forget(state_id)
        self._states[state_id] = state
        self._bytes += len(state.item.value)
        while len(self._states) > self._count_max or self._bytes > self._bytes_max:
            self.forget(next(iter(self._states)))

    def forget(self, state_id: str | None) -> None:
        known = self._states.pop(state_id, None) if state_id is not None else None
        if known is not None:
            self._bytes -= len(known.item.value)

    def content(self) -> tuple[tuple[str, CachedState], ...]:
        """All entries, in an order that depends on nothing else."""
        return tuple(sorted(self._states.items(), key=lambda entry: entry[0]))
