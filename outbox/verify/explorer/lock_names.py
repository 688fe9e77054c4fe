"""Which locks are in use somewhere: a queue hands out the smallest name that is not.

Names that follow from what is in use now, and not from how often a message was handed out before, make one world of
many that differ in nothing else.  A lock is in use while a process holds it, and while an id that its holder made (a
transaction's) stands in a document, in a call in flight, or in an answer that a process has.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from outbox.verify.explorer.ops import NO_LOCKS, Locks, Table, canonical
from outbox.verify.explorer.trie import Trie
from outbox.verify.explorer.world import FLIGHT, RESOURCES, World


class LockNames:
    """The locks in use in a world."""

    def __init__(self, trie: Trie, states: Sequence[Table[Any]], flights: Table[tuple[int, ...]]) -> None:
        self._trie = trie
        self._states = states
        self._flights = flights
        self._first = RESOURCES + len(states)
        self._mentions: dict[tuple[int, int], Locks] = {}

    def of(self, world: World, resource: int) -> Locks:
        """Those of the resource at a place of the world, by the names that its model has for them."""
        nodes, number = self._trie.nodes, resource - RESOURCES
        found = NO_LOCKS.union(*[nodes[node].known for node in world[self._first :]])
        for where in (FLIGHT, *range(RESOURCES, self._first)):
            found |= self._mentioned(where, world[where])
        return frozenset(name for lock in found if (name := _of(lock, number)) is not None)

    def _mentioned(self, where: int, number: int) -> Locks:
        """The locks behind the ids in a resource's state, or in calls that are in flight."""
        found = self._mentions.get((where, number))
        if found is None:
            if where == FLIGHT:
                data = b"".join(self._trie.ops[op].key for op in self._flights[number])
            else:
                data = canonical(self._states[where - RESOURCES][number])
            found = self._mentions[where, number] = self._trie.mentioned(data)
        return found


def _of(lock: Hashable, number: int) -> Hashable:
    """A resource's own name for a lock; None where the lock is another's."""
    return lock[1] if isinstance(lock, tuple) and lock[0] == number else None
