"""Marks: note on records that their outputs are pushed, and give them a time to live; off the critical path.

The marks of a partition are written together: a worker delays them for a moment, or until there are many.

A mark is only an optimization: without it the sweeper, or a redelivery, finds the record pending and pushes the outputs
again under the same ids.  So a failed mark is dropped.  It replaces the record under its known version, never creates
one, and costs one write a partition.  Spilled outputs are deleted after the mark: until then the record needs them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from outbox import stored
from outbox.errors import TooLarge
from outbox.ports import BlobStore, DocumentKey, Lost, Replace, StateStore, Tag, Version
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.start.plan import Plan
from outbox.stored import Record

DUE_COUNT_MAX = 10_000
DUE_BYTES_MAX = 64 << 20
"""How many marks may be due, and their bytes; beyond it the sweeper marks."""

FULL_COUNT = 32
"""How many marks of one partition are written at once."""

WRITING_COUNT_MAX = 8
"""How many partitions are written concurrently."""


class Mark(msgspec.Struct, frozen=True):
    """A record to mark, and the blob to delete afterwards (empty: none)."""

    write: Replace
    spilled: str = ""


class Marks:
    """The marks that are due, by partition."""

    def __init__(self, plan: Plan, store: StateStore, blobs: BlobStore) -> None:
        self._plan = plan
        self._store = store
        self._blobs = blobs
        self._count_max = store.capabilities.batch_count_max
        self._full_count = min(FULL_COUNT, self._count_max)
        self._due: dict[str, dict[DocumentKey, Mark]] = {}
        self._full: list[str] = []
        self.due_count = 0
        self._due_bytes = 0

    def add(self, key: DocumentKey, version: Version, record: Record, inbox: bytes) -> None:
        """Note that the outputs of a record are pushed; a second note of one record has no effect."""
        if self.due_count >= DUE_COUNT_MAX or not version or self.is_due(key):
            return
        ttl_s, body = self._plan.life_s(record.life_ms), stored.encode(record.marked())
        if self._due_bytes + len(body) > DUE_BYTES_MAX:
            return
        marks = self._due.setdefault(key.partition, {})
        marks[key] = Mark(Replace(key, body, version, ttl_s, Tag("mark", (inbox,), record.tx)), record.spilled)
        self.due_count += 1
        self._due_bytes += len(body)
        if len(marks) == self._full_count:
            self._full.append(key.partition)

    def is_due(self, key: DocumentKey) -> bool:
        """Whether the outputs of a record are pushed and its mark is not written yet."""
        return key in self._due.get(key.partition, ())

    def content(self) -> tuple[Mark, ...]:
        """The due marks, in an order that depends on nothing else."""
        return tuple(mark for _, marks in sorted(self._due.items()) for mark in marks.values())

    @property
    def partition_count(self) -> int:
        """In how many partitions marks are due; each costs a write."""
        return len(self._due)

    async def write(self) -> None:
        """Write all due marks; concurrent calls share the partitions."""
        while self._due:
            await self._write_partition(next(iter(self._due)))
        self._full.clear()

    async def write_full(self) -> None:
        """Write the due marks of full partitions."""
        while self._full:
            await self._write_partition(self._full.pop())

    async def _write_partition(self, partition: str) -> None:
        marks = list(self._due.pop(partition, {}).values())
        self.due_count -= len(marks)
        self._due_bytes -= sum(len(mark.write.body) for mark in marks)
        if marks:
            with suppress(*MAY_RETRY):  # the sweeper marks the rest
                for at in range(0, len(marks), self._count_max):
                    await self._write(marks[at : at + self._count_max])

    async def _write(self, marks: Sequence[Mark]) -> None:
        """Write the marks of one partition without those that lose: another worker has made them.

        Replies to requests stay in their records, so a batch of those may be too large: then it is written in halves.
        """
        left = list(marks)
        try:
            while left:
                answer = await self._store.write([mark.write for mark in left])
                if not isinstance(answer, Lost):
                    break
                del left[answer.operation]
        except TooLarge:
            if len(left) == 1:
                raise
            middle = len(left) // 2
            await self._write(left[:middle])
            await self._write(left[middle:])
            return
        for mark in left:
            if mark.spilled:
                await self._blobs.delete(mark.spilled)


class Marking(Protocol):
    """The marks of a commit protocol."""

    @property
    def unmarked_count(self) -> int:
        """How many writes `finish` would make."""

    async def finish(self, *, only_full: bool = False) -> None:
        """Mark pushed records, or only in full partitions."""


class Lingering:
    """Batches marks: they wait for others of their partitions during `pause`, or until there are many."""

    def __init__(self, protocol: Marking, pause: Callable[[], Awaitable[None]]) -> None:
        self._protocol = protocol
        self._pause = pause
        self._is_waiting = False

    async def write(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Write the marks of full partitions, and the rest after the pause."""
        await self._protocol.finish(only_full=True)
        if self._protocol.unmarked_count and not self._is_waiting:
            self._is_waiting = True
            spawn(self._write_later(spawn))

    async def _write_later(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        try:
            await self._pause()
        finally:
            self._is_waiting = False
        for _ in range(min(self._protocol.unmarked_count, WRITING_COUNT_MAX)):
            spawn(self._protocol.finish())
