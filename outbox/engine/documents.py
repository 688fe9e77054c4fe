"""Documents, and the modification that changes documents and tasks together: whole, or nothing of it.

Decides whether a modification's conditions hold, before the one record that it becomes; what the record does to memory
is `state`'s part.  Semantics follow EntroQ.  Source: github.com/shiblon/entroq.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from outbox.engine.broker import Broker
from outbox.engine.core import Core, check_deletes
from outbox.engine.log import records
from outbox.errors import OutboxError
from outbox.ports import StateDocument


class Documents:
    """The documents of the engine."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker
        self._watchers: dict[tuple[str, str], set[asyncio.Future[None]]] = {}
        """The waiters for a document's next change, by namespace and id."""

    def read(self, namespace: str, id: str) -> StateDocument | None:
        """A document, or None where there is none or it has expired."""
        found = self._core.state.documents.spaces.get(namespace, {}).get(id)
        if found is None or (found.expires_ms and found.expires_ms <= self._core.now_ms()):
            return None
        return found

    def version(self, namespace: str, id: str) -> int:
        """A document's version; 0 where there is none."""
        found = self.read(namespace, id)
        return 0 if found is None else found.version

    def modify(self, change: records.Modify) -> list[int] | None:
        """Apply a whole modification and return the sequences of inserted tasks; None, with nothing applied, if it
        lost.

        The same `operation_id` again gives the first answer.  It loses when a task or document is not at the version
        that was named, or a receiver has claimed a task.
        """
        state = self._core.state
        if change.operation_id and (done := state.operations.get(change.operation_id)) is not None:
            return list(done[1])
        if not self._holds(change):
            return None
        first = state.sequence + 1
        self.apply(change)
        return list(range(first, state.sequence + 1))

    def apply(self, change: records.Modify) -> int:
        """Apply a modification whose conditions were just seen to hold; the version of what it wrote."""
        version = self._core.do(records.Modified(self._core.now_ms(), change))
        self._broker.wake()
        if self._watchers:
            self._wake_watchers(change)
        return version

    async def wait_changed(self, seen: Sequence[tuple[str, str, int]], timeout_s: float) -> None:
        """Wait until one of these documents (namespace, id, version) has another version, or the time is over."""
        if any(self.version(namespace, id) != version for namespace, id, version in seen):
            return
        watcher = asyncio.get_running_loop().create_future()
        names = [(namespace, id) for namespace, id, _ in seen]
        for name in names:
            self._watchers.setdefault(name, set()).add(watcher)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await watcher
        finally:
            for name in names:
                self._watchers[name].discard(watcher)
                if not self._watchers[name]:
                    del self._watchers[name]

    def _wake_watchers(self, change: records.Modify) -> None:
        names = [(put.namespace, put.id) for put in change.documents]
        for name in [*names, *((ref.namespace, ref.id) for ref in change.document_deletes)]:
            for watcher in self._watchers.get(name, ()):
                if not watcher.done():
                    watcher.set_result(None)

    def _holds(self, change: records.Modify) -> bool:
        for path in [*(i.path for i in change.inserts), *(c.to_path for c in change.changes if c.to_path is not None)]:
            self._broker.queue(path)
        refs = [records.TaskRef(c.path, c.sequence, c.version) for c in change.changes]
        tasks = [*change.deletes, *change.depends, *refs]
        puts = [records.DocRef(d.namespace, d.id, d.version) for d in change.documents]
        documents = [*puts, *change.document_deletes, *change.document_depends]
        named = [(ref.path, ref.sequence) for ref in [*change.deletes, *refs]]
        written = [(ref.namespace, ref.id) for ref in [*puts, *change.document_deletes]]
        if len(set(named)) < len(named) or len(set(written)) < len(written):
            raise OutboxError("a modification names one task or document twice; say each once")
        check_deletes(change.document_deletes)
        return all(self._task_is_at(ref.path, ref.sequence, ref.version) for ref in tasks) and all(
            self.version(ref.namespace, ref.id) == ref.version for ref in documents
        )

    def _task_is_at(self, path: str, sequence: int, version: int) -> bool:
        task = self._broker.queue(path).tasks.get(sequence)
        return task is not None and task.version == version
