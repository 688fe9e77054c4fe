"""Orphaned staged records: a worker reclaims those of its own lost attempts, once their loss is proven.

The proof is a state past the version that the attempt loaded, with another pointer: then its swap can not land any
more.  The sweeper finds the rest.
"""

from __future__ import annotations

from contextlib import suppress

from outbox import stored
from outbox.ports import Delete, Document, DocumentKey, StateStore, Tag, Version
from outbox.runtime.commit.state_cache import CachedState, cached_state
from outbox.runtime.commit.store_io import read
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.stored import Staged, staged_key, state_key

LEFT_COUNT_MAX = 10_000
"""For how many states staged records are remembered; beyond it the sweeper finds them."""


class OrphanedStaged:
    """The staged records of one worker that may be orphans."""

    def __init__(self, states: StateStore, infrastructure: StateStore) -> None:
        self._states = states
        self._infrastructure = infrastructure
        self.by_state: dict[str, list[tuple[str, int]]] = {}
        """The transactions staged for each state, and the version that each loaded."""

    def note(self, state_id: str, tx: str, version: int) -> None:
        """Remember a transaction before it is staged."""
        if len(self.by_state) < LEFT_COUNT_MAX:
            self.by_state.setdefault(state_id, []).append((tx, version))

    async def reclaim(self, state_id: str, state: CachedState, *, but: str) -> None:
        """Delete the staged records of lost attempts, for a state past them and without a pointer."""
        left = self.by_state.pop(state_id, [])
        for tx, version in left:
            if tx == but:
                continue
            if version >= state.item.version:
                self.by_state.setdefault(state_id, []).append((tx, version))
                continue
            found = await read(self._infrastructure, staged_key(state_id, tx))
            if found is not None:
                await self.delete(found.key, found.version, tx)

    async def redo(self, document: Document) -> bool:
        """Delete a staged record whose state is past it and points elsewhere; whether it was.

        Raises:
            NothingCommitted: its state cannot be read now.
        """
        staged = stored.decode(document, Staged)
        state = cached_state(await read(self._states, state_key(staged.state)))
        if state.item.version <= staged.version or state.item.pointer == staged.pending:
            return False
        await self.delete(document.key, document.version, staged.pending)
        return True

    async def delete(self, key: DocumentKey, version: Version, tx: str) -> None:
        """Delete an orphaned staged record; if that fails the sweeper finds it."""
        with suppress(*MAY_RETRY):
            await self._infrastructure.write([Delete(key, version, Tag("unstage", (), tx))])
