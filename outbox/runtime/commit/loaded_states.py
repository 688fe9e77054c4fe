"""Loaded states: the state that an attempt starts from is at hand, is read, or is assumed to be new.

It is not read where those of its type have all been new lately (`NewStates`).  The commit settles the doubt: it creates
the state, and loses where there is one.  A handler is not run on an assumed state where a guard counts tries, or where
a thread may go on after the first run.
"""

from __future__ import annotations

from outbox.ports import Lost, Session, StateStore, Won
from outbox.runtime.commit.state_cache import NO_STATE, CachedState, Loaded, NewStates, StateCache, cached_state
from outbox.runtime.commit.store_transaction import StoreTransaction
from outbox.runtime.delivery.retrying import read
from outbox.runtime.work import Later, Work
from outbox.stored import state_key

BEHIND_COUNT_MAX = 10_000
"""How many changed states are remembered; beyond it a stale read costs another attempt."""


class LoadedStates:
    """The states of one worker."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.cache = StateCache()
        self.new_states = NewStates()
        self._behind: dict[str, Session] = {}
        """States that changed under an attempt, and the session token of that loss: a read with it is fresh."""

    def remembered(self) -> tuple[object, ...]:
        """All that it knows, as plain data."""
        return self.cache.content(), sorted(self._behind.items()), self.new_states.content()

    async def load(self, state_id: str | None, *, first_of: Work | None = None, is_doubted: bool = False) -> Loaded:
        """Load a state: from the cache, by a read, or assumed to be new for a message's first attempt (`first_of`).

        One that `is_doubted` was assumed to be new, and the handler has to know whether it is.

        Raises:
            NothingCommitted: it cannot be read now.
        """
        if state_id is None:
            return Loaded(NO_STATE)
        if is_doubted:
            self.new_states.note(state_id, is_new=False)
        cached = self.cache.find(state_id)
        if cached is not None:
            return Loaded(cached, is_warm=True)
        if first_of is not None and _may_run_twice(first_of) and self.new_states.expects(state_id):
            return Loaded(NO_STATE, is_assumed=True)
        found = cached_state(await read(self._store, state_key(state_id), self._behind.pop(state_id, "")))
        self.new_states.note(state_id, is_new=not found.version)
        self.cache.remember(state_id, found)
        return Loaded(found)

    def settle(self, batch: StoreTransaction, state_id: str | None, end: Won | Lost | Later | None) -> None:
        """Keep the state that a batch has written, and forget it after any other end (None: unknown, or not written).

        After a loss to the state, or a failure on one that is there, those of its type are read again.
        """
        if state_id is None:
            return
        if isinstance(end, Won):
            self.cache.remember(state_id, CachedState(batch.state_after, end.versions[-1], end.session))
            return
        self.cache.forget(state_id)
        if isinstance(end, Later) and batch.loaded.version:
            self.new_states.note(state_id, is_new=False)  # it is there, and this worker knows it no more
        elif isinstance(end, Lost) and end.operation >= len(batch.entries):
            self.new_states.note(state_id, is_new=False)
            if end.session and len(self._behind) < BEHIND_COUNT_MAX:
                self._behind[state_id] = end.session


def _may_run_twice(work: Work) -> bool:
    """Whether a handler may run again, on a state that was read."""
    handler = work.handler
    return not work.delivery.failures and handler is not None and not handler.guards and not handler.blocking
