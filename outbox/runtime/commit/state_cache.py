"""A worker's cache of states: bytes and versions (ETags), never objects that a handler could have changed.

Filled by reads and confirmed commits only, never with a lower version than is known; dropped on every error and every
unknown outcome.  A stale entry costs a retry, because each commit is conditional; a shared object would cost
correctness: a handler that changes its state and then raises would show the change to the next message.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import nlargest
from typing import NamedTuple

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
NEW_COUNT_ENOUGH = 32
"""The number of a type's states in a row that were not there, after which the next is not read."""


class Loaded(NamedTuple):
    """The state that an attempt starts from, and how it was found."""

    state: CachedState
    is_warm: bool = False
    """Whether it was at hand, because its key recurs."""
    is_assumed: bool = False
    """Whether it was not read, because it is expected to be new."""


def cached_state(document: Document | None) -> CachedState:
    """The state in a document that was read; `NO_STATE` for none."""
    if document is None:
        return NO_STATE
    return CachedState(state_in(document), document.version, document.session)


class NewStates:
    """The types whose states are new every time, as an order's are and an account's are not.

    A state that is expected to be new is not read.  That can be wrong, and is no worse than a stale read, because the
    commit creates the state: it loses where there is one, and from then on the states of its type are read again.
    """

    def __init__(self, *, enough: int = NEW_COUNT_ENOUGH, first: int = 0) -> None:
        """`first` is how many new ones a type is taken to have had that was never looked for."""
        self._enough = enough
        self._first = first
        self._counts: dict[str, int] = {}
        """How many states of a type were new in a row."""

    def expects(self, state_id: str) -> bool:
        """Whether a state is likely to be new."""
        return self._counts.get(_type_of(state_id), self._first) >= self._enough

    def note(self, state_id: str, *, is_new: bool) -> None:
        """Note whether a state was new."""
        name = _type_of(state_id)
        self._counts[name] = min(self._counts.get(name, self._first) + 1, self._enough) if is_new else 0

    def content(self) -> tuple[str, ...]:
        """The types of which something else is expected than of one that was never looked for."""
        by_default = self._first >= self._enough
        return tuple(sorted(name for name, count in self._counts.items() if (count >= self._enough) != by_default))


def _type_of(state_id: str) -> str:
    return state_id.partition(":")[0]


class StateCache:
    """The states used last, within limits of count and bytes."""

    def __init__(self, *, count_max: int = STATE_COUNT_MAX, bytes_max: int = STATE_BYTES_MAX) -> None:
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._states: OrderedDict[str, CachedState] = OrderedDict()
        self._bytes = 0

    def find(self, state_id: str) -> CachedState | None:
        """The cached state; None: read it."""
        found = self._states.get(state_id)
        if found is not None:
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

    def largest(self, above_bytes: int, count_max: int) -> dict[str, int]:
        """The ids and sizes of the largest states above `above_bytes`, the largest first."""
        sizes = ((len(each.item.value), id) for id, each in self._states.items())
        return {id: size for size, id in nlargest(count_max, (each for each in sizes if each[0] > above_bytes))}

    def content(self) -> tuple[tuple[str, CachedState], ...]:
        """All entries, in an order that depends on nothing else."""
        return tuple(sorted(self._states.items(), key=lambda entry: entry[0]))
