"""The engine with a narrower scope: its documents and its queues as if they were two systems.

A store protocol runs on it as it would on Cosmos DB and Service Bus; for tests and explorations.  In item scope one
write changes one document.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

from outbox.engine.backend.apart import EngineStore
from outbox.engine.engine import Engine
from outbox.errors import TooLarge
from outbox.lineage import Key
from outbox.ports import (
    Backend,
    Lost,
    QueueRef,
    StateStore,
    StorePorts,
    Won,
    Write,
)

NarrowScope = Literal["partition", "item"]


class NarrowEngine:
    """An engine as a backend of partition or item scope."""

    def __init__(self, engine: Engine, scope: NarrowScope, *, dispatch_ledger: bool = False) -> None:
        if scope not in ("partition", "item"):
            raise ValueError(f'scope={scope!r}: "partition" or "item"; the engine itself is its own widest scope')
        self._engine = engine
        self._scope = scope
        self._dispatch_ledger = dispatch_ledger

    def ports(self) -> StorePorts:
        """The engine's documents, queues and blobs as ports of their own."""
        engine = self._engine
        store: StateStore = EngineStore(engine.core, engine.documents, dispatch_ledger=self._dispatch_ledger)
        if self._scope == "item":
            store = ItemStore(store)
        return replace(engine.apart(), store=store)

    def queue(
        self, name: str, *, key: Callable[[Any], Key] | None = None, type: str = "", version: int = 1
    ) -> QueueRef:
        """A queue or topic to send to, as an output of a processor; see `QueueRef`."""
        return self._engine.queue(name, key=key, type=type, version=version)


class ItemStore:
    """A state store of which only single documents are written."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self.capabilities = replace(store.capabilities, atomic_scope="item", batch_count_max=1, dispatch_ledger=False)
        """The store's capabilities, for one document at a time."""
        self.read, self.scan, self.unfinished = store.read, store.scan, store.unfinished

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if len(operations) != 1:
            raise TooLarge(f"{len(operations)} operations; this store writes one document at a time")
        return await self._store.write(operations)


_backend: type[Backend] = NarrowEngine
_store: type[StateStore] = ItemStore
