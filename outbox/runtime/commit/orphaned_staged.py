"""Staged records of attempts that came to nothing: reclaimed by the worker that made them, when it can prove it.

One may go when its state was seen past the version that its attempt had loaded, with a pointer that is not its own,
because then its swap can not land any more.  What is not remembered here is found by the sweeper.
"""

from __future__ import annotations

from contextlib import suppress

from outbox.ports import Delete, DocumentKey, StateStore, Tag, Version
from outbox.runtime.commit.state_cache import CachedState
from outbox.runtime.commit.store_io import read
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.stored import staged_key

LEFT_COUNT_MAX = 10_000
"""Of how many states staged records of lost attempts are remembered; beyond it the sweeper finds them."""


class OrphanedStaged:
    """What one worker has staged and may come to nothing."""

    def __init__(self, infrastructure: StateStore) -> None:
        self._infrastructure = infrastructure
        self.by_state: dict[str, list[tuple[str, int]]] = {}
        """The transactions staged for each state, and the version that each had loaded."""

    def note(self, state_id: str, tx: str, version: int) -> None:
        """Remember what is about to be staged."""
        if len(self.by_state) < LEFT_COUNT_MAX:
            self.by_state.setdefault(state_id, []).append((tx, version))

    async def reclaim(self, state_id: str, state: CachedState, *, but: str) -> None:
        """Delete what lost attempts have staged for a state that is past them and points nowhere."""
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

    async def delete(self, key: DocumentKey, version: Version, tx: str) -> None:
        """Delete a staged record that nothing points to; if that fails the sweeper finds it."""
        with suppress(*MAY_RETRY):
            await self._infrastructure.write([Delete(key, version, Tag("unstage", (), tx))])
