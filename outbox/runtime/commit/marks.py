"""Marks: records whose outputs have left say so, and get their time to live; off the critical path.

Those of a partition are written together: a worker lets them wait for others for a moment, or until they are many.

A mark is only ever an improvement: without it the sweeper sends the outputs again under the same ids, and a copy of
the message that comes back finds them pending and does the same.  So a mark that fails is dropped.  It replaces the
record under the version that was seen, never writes one that is not there, and is one write a partition.  Outputs that
lay in a blob are deleted behind it, not before: until then the record needs them.
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
"""How many marks may be due, and what they may take; beyond it new ones are left to the sweeper."""

FULL_COUNT = 32
"""How many marks of one partition wait for no others."""


WRITING_COUNT_MAX = 8
"""How many partitions are written side by side."""


class Mark(msgspec.Struct, frozen=True):
    """A record to be marked, and the blob that it does not need afterwards (empty: none)."""

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
        """Note that the outputs of a record have left; whoever else has followed it may have noted so before."""
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
        """Whether the outputs of a record are known to have left, though it does not say so yet."""
        return key in self._due.get(key.partition, ())

    def content(self) -> tuple[Mark, ...]:
        """What is due; the same for workers that have the same to do."""
        return tuple(mark for _, marks in sorted(self._due.items()) for mark in marks.values())

    @property
    def partition_count(self) -> int:
        """In how many partitions something is due; each is a write."""
        return len(self._due)

    async def write(self) -> None:
        """Write what is due; several may do so side by side, each partition is written by one."""
        while self._due:
            await self._write_partition(next(iter(self._due)))
        self._full.clear()

    async def write_full(self) -> None:
        """Write what is due where it is much."""
        while self._full:
            await self._write_partition(self._full.pop())

    async def _write_partition(self, partition: str) -> None:
        marks = list(self._due.pop(partition, {}).values())
        self.due_count -= len(marks)
        self._due_bytes -= sum(len(mark.write.body) for mark in marks)
        if marks:
            with suppress(*MAY_RETRY):  # the sweeper will find what is left
                for at in range(0, len(marks), self._count_max):
                    await self._write(marks[at : at + self._count_max])

    async def _write(self, marks: Sequence[Mark]) -> None:
        """Write the marks of one partition; one that lost was made by somebody else, the others go on without it.

        Answers to requests stay in their records, so a few of those may be too large together: then in halves.
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
    """A commit protocol, as far as it marks."""

    @property
    def unmarked_count(self) -> int:
        """How many writes `finish` would make."""

    async def finish(self, *, only_full: bool = False) -> None:
        """Mark what has left, or only where that is much."""


class Lingering:
    """Marks that wait for others of their partitions: as long as `pause` does, or until they are many."""

    def __init__(self, protocol: Marking, pause: Callable[[], Awaitable[None]]) -> None:
        self._protocol = protocol
        self._pause = pause
        self._is_waiting = False

    async def write(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Write what waits for no others, and see to it that the rest is written soon."""
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
