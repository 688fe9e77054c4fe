"""The items of all containers, in the engine, read now or in the past, written one record at a time.

*Theory of operation.*  Everything here happens at once, on the engine's loop: a write looks at the items, decides and
logs one record, with nothing between.  What it did may be spoken of once the engine's gate is passed, which is the
server's business.  An item lives in a namespace of its container and partition key; the namespace keeps the order in
which items were made.  Whether an item has expired is judged when it is looked at, by its container's present
definition; expired ones are deleted in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from outbox.emulator.cosmos.catalog import EXPIRING_COUNT, Catalog, Container
from outbox.emulator.cosmos.history import Snapshots, StoredItem
from outbox.emulator.cosmos.requests import Call, Prepared
from outbox.emulator.cosmos.wire import FORBIDDEN, STORAGE_FULL, Rejection, bad, item_rid, rid_at, times_of
from outbox.emulator.faults import Faults
from outbox.engine.engine import Engine
from outbox.engine.log import records
from outbox.errors import EngineStopped, Refused

log = logging.getLogger(__name__)

PAGES_UNDER_WAY_MAX = 16
"""The pages made at a time: each may hold an item, its parsed form, and a page of results."""
SWEEP_COUNT_MAX = 5_000
_RID_TIME_BITS = 20


class Put(NamedTuple):
    """An item to write (`stored`) or to delete (None)."""

    id: str
    stored: bytes | None


class Store:
    """The items of an account."""

    def __init__(self, engine: Engine, catalog: Catalog, faults: Faults, history_s: float) -> None:
        self.engine = engine
        self.catalog = catalog
        self._faults = faults
        self._history_s = history_s
        self._last_rid = engine.now_ms() << _RID_TIME_BITS
        self.snapshots = Snapshots()
        self.pages = asyncio.Semaphore(PAGES_UNDER_WAY_MAX)
        """Has room for each page of a feed or query that may be made now."""
        for container in catalog.containers():
            self.index_expiry(container)

    # Reading

    def read(self, container: Container, key: str, id: str) -> StoredItem | None:
        """Read an item, or None where there is none."""
        found = self.engine.state.documents.spaces.get(container.prefix + key, _NOTHING).get(id)
        if found is None or (container.ttl_s is not None and self._is_over(container, found)):
            return None
        return found

    def id_of(self, container: Container, key: str, rid: str) -> str | None:
        """The id of the item with a resource id, or None where there is none."""
        items = self.engine.state.documents.spaces.get(container.prefix + key, _NOTHING)
        return next((id for id, item in items.items() if rid_at(item.value) == rid), None)

    def read_past(self, container: Container, key: str, id: str, lsn: int) -> StoredItem | None:
        """An item as it was at a freshness."""
        changed = container.history.changed_since(lsn)
        return changed[key, id] if (key, id) in changed else self.read(container, key, id)

    def items(self, container: Container, key: str) -> Mapping[str, StoredItem]:
        """The items of a partition key by id, in the order in which they were made."""
        found: Mapping[str, StoredItem] = self.engine.state.documents.spaces.get(container.prefix + key, _NOTHING)
        if container.ttl_s is None:
            return found
        return {id: item for id, item in found.items() if not self._is_over(container, item)}

    def items_past(self, container: Container, key: str, lsn: int) -> list[tuple[str, StoredItem]]:
        """The items of a partition key as they were at a freshness, in no order."""
        items: dict[str, StoredItem | None] = dict(self.items(container, key))
        for (of_key, id), item in container.history.changed_since(lsn).items():
            if of_key == key:
                items[id] = item
        return [(id, item) for id, item in items.items() if item is not None]

    def keys(self, container: Container, lsn: int) -> list[str]:
        """The partition keys that have, or at that freshness had, items."""
        past = {key for key, _ in container.history.changed_since(lsn)} if lsn < container.lsn else set()
        return sorted(container.keys | past)

    # Writing

    def fresh_rid(self, container: Container) -> str:
        """A resource id for a new item; later ones are greater."""
        self._last_rid += 1
        return item_rid(container.rid, self._last_rid)

    def commit(self, container: Container, key: str, puts: Sequence[Put]) -> int:
        """Write and delete items of one partition key as one record, and return the version of the writes.

        Raises:
            Rejection: 403, the engine holds all that it may; 400, what cannot be logged.
            EngineStopped: nothing was acknowledged.
        """
        engine, namespace = self.engine, container.prefix + key
        writes = [records.DocWrite(namespace, put.id, put.stored) for put in puts if put.stored is not None]
        gone = [records.DocRef(namespace, put.id, 1) for put in puts if self._is_anew(namespace, put)]
        if writes:
            self._check_room()
        before = self._before(container, key, [put.id for put in puts])
        now_ms = engine.now_ms()
        change = records.Modify(documents=writes, document_deletes=gone)
        try:
            version = engine.core.do(records.Modified(now_ms, change))
        except Refused as refused:
            raise bad(str(refused)) from refused
        container.version = version
        container.lsn += 1
        container.history.keep(container.lsn, now_ms, before)
        if writes:
            container.keys.add(key)
            if container.ttl_s is not None:
                for write in writes:
                    self._note_expiry(container, key, write.id, write.value)
        elif namespace not in engine.state.documents.spaces:
            container.keys.discard(key)
        return version

    def _is_anew(self, namespace: str, put: Put) -> bool:
        """Whether what has this id goes, though another item under it may come, which then is the newest."""
        if put.stored is None:
            return True
        old = self.engine.state.documents.spaces.get(namespace, _NOTHING).get(put.id)
        return old is not None and rid_at(old.value) != rid_at(put.stored)

    def _check_room(self) -> None:
        state, limit = self.engine.state, self.engine.core.limits.memory_bytes_max
        if state.held_bytes > limit:
            raise Rejection(
                FORBIDDEN,
                f"the engine holds {limit} bytes, all that it may; delete items or raise memory_bytes_max",
                substatus=STORAGE_FULL,
            )

    def _before(self, container: Container, key: str, ids: list[str]) -> dict[tuple[str, str], StoredItem | None]:
        """The items before a write, if they are to be remembered."""
        history = container.history
        if not self._history_s and not (self._faults and self._faults.has("stale-read")):
            if history.begin_lsn is not None:
                history.end()
            return {}
        history.begin(container.lsn)
        if self._history_s:
            history.forget(self.engine.now_ms() - round(self._history_s * 1_000))
        return {(key, id): self.read(container, key, id) for id in ids}

    # Expiry

    def _is_over(self, container: Container, item: StoredItem) -> bool:
        return 0 < _expires_ms(container, item.value) <= self.engine.now_ms()

    def _note_expiry(self, container: Container, key: str, id: str, stored: bytes) -> None:
        expires_ms = _expires_ms(container, stored)
        if not expires_ms:
            return
        heappush(container.expiring, (expires_ms, key, id))
        if len(container.expiring) > container.expiring_count_max:
            self.index_expiry(container)  # most of it is about items that were written again since

    def index_expiry(self, container: Container) -> None:
        """Look at every item's life anew, after the definition changed or at the start."""
        container.expiring = []
        if container.ttl_s is None:
            return
        for key in container.keys:
            for id, item in self.engine.state.documents.spaces.get(container.prefix + key, _NOTHING).items():
                expires_ms = _expires_ms(container, item.value)
                if expires_ms:
                    container.expiring.append((expires_ms, key, id))
        heapify(container.expiring)
        # So far off that looking at all items again costs each write until then next to nothing.
        container.expiring_count_max = EXPIRING_COUNT + 2 * len(container.expiring)

    def sweep(self) -> int:
        """Delete items whose time is over, some at a time; how many."""
        now_ms, count = self.engine.now_ms(), 0
        for container in self.catalog.containers():
            expiring, over = container.expiring, dict[str, dict[str, None]]()
            while expiring and expiring[0][0] <= now_ms and count < SWEEP_COUNT_MAX:
                _, key, id = heappop(expiring)
                found = self.engine.state.documents.spaces.get(container.prefix + key, _NOTHING).get(id)
                if found is not None and self._is_over(container, found) and id not in over.setdefault(key, {}):
                    over[key][id] = None
                    count += 1
            for key, ids in over.items():
                self.commit(container, key, [Put(id, None) for id in ids])
        return count

    def sweep_quietly(self) -> None:
        """The same, for a timer: that an engine has stopped is raised to callers, not here."""
        if self.engine.stopped is not None:
            return
        try:
            self.sweep()
        except EngineStopped:
            log.info("no items expire any more, the engine has stopped")


Do = Callable[[Store, Call], Prepared]
"""Prepares an operation that a call asks for."""
_NOTHING: dict[str, StoredItem] = {}


def _expires_ms(container: Container, stored: bytes) -> int:
    """When an item expires, 0 for never."""
    if container.ttl_s is None:
        return 0
    times = times_of(stored)
    ttl_s = container.ttl_s if times.ttl is None else times.ttl
    return 0 if ttl_s < 0 else (times.written_s + ttl_s) * 1_000
