"""Marks: note on records that their outputs are pushed, and give them a time to live; off the critical path.

A mark rides in the next batch of its partition, where that comes soon: it costs no request then.  A worker delays the
others for a moment, longer where a key recurs, or until there are many, and writes those of a partition together.

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
from outbox.ports import BlobStore, DocumentKey, Lost, Replace, Session, StateStore, Tag, Version, Won, Write
from outbox.runtime.commit.dispatch_ledger import DispatchLedger
from outbox.runtime.delivery.retrying import MAY_RETRY
from outbox.runtime.start.plan import CompiledApp
from outbox.stored import Record

DUE_COUNT_MAX = 10_000
DUE_BYTES_MAX = 64 << 20
"""How many marks may be due, and their bytes; beyond it the sweeper marks."""

FULL_COUNT = 32
"""How many marks of one partition are written at once."""

RECURRING_PAUSES = 10
"""The number of pauses that marks of a recurring key wait for its next batch; other marks wait for one."""

WRITING_COUNT_MAX = 8
"""How many partitions are written concurrently."""


class Mark(msgspec.Struct, frozen=True):
    """A record to mark, and the blob to delete afterwards (empty: none)."""

    write: Replace
    spilled: str = ""


class Marks:
    """The marks that are due, by partition."""

    def __init__(
        self,
        plan: CompiledApp,
        store: StateStore,
        blobs: BlobStore,
        *,
        written: Callable[[Replace, Version, Session], None] | None = None,
    ) -> None:
        """Take the parts; `written` is told of each mark that is made, its version and session."""
        self._plan = plan
        self._store = store
        self._blobs = blobs
        self._written = written
        self._count_max = store.capabilities.batch_count_max
        self._full_count = min(FULL_COUNT, self._count_max) if self._count_max > 1 else FULL_COUNT
        self._due: dict[str, dict[DocumentKey, Mark]] = {}
        self._waiting: dict[str, int] = {}
        """For how many pauses the marks of a partition still wait."""
        self._full: list[str] = []
        self._ripe: list[str] = []
        self.due_count = 0
        self._due_bytes = 0

    def add(self, key: DocumentKey, version: Version, record: Record, inbox: bytes, *, recurs: bool = False) -> None:
        """Note that the outputs of a record are pushed; a second note of one record has no effect."""
        if not version:
            return
        ttl_s, body = self._plan.life_s(record.life_ms), stored.encode(record.marked())
        mark = Mark(Replace(key, body, version, ttl_s, Tag("mark", (inbox,), record.tx)), record.spilled)
        self.note(mark, recurs=recurs)

    def note(self, mark: Mark, *, recurs: bool = False) -> None:
        """Note a mark that is due."""
        pauses = RECURRING_PAUSES if recurs else 1
        key, size = mark.write.key, len(mark.write.body)
        if self.due_count >= DUE_COUNT_MAX or self.is_due(key) or self._due_bytes + size > DUE_BYTES_MAX:
            return
        marks = self._due.setdefault(key.partition, {})
        marks[key] = mark
        self._waiting.setdefault(key.partition, pauses)
        self.due_count += 1
        self._due_bytes += size
        if len(marks) == self._full_count:
            self._full.append(key.partition)

    def is_due(self, key: DocumentKey) -> bool:
        """Whether the outputs of a record are pushed and its mark is not written yet."""
        return key in self._due.get(key.partition, ())

    def content(self) -> tuple[Mark, ...]:
        """The due marks, in an order that depends on nothing else."""
        return tuple(mark for _, marks in sorted(self._due.items()) for mark in marks.values())

    # Riding in a batch

    async def write_with_riders(
        self, writes: Sequence[Write], partition: str | None, *, left_bytes: int, check: Callable[[], None]
    ) -> Won | Lost:
        """The answer to a batch, in which marks of its partition ride that are due; None: it has none.

        A mark that loses, because another has made it, makes the whole batch lose: it is written again without any,
        unless `check` raises.
        """
        if partition is not None:
            left_count = self._store.capabilities.batch_count_max - len(writes)
            riding = self.take(partition, count_max=left_count, bytes_max=left_bytes)
            if riding:
                answer = await self._write_riding(writes, riding)
                if answer is not None:
                    return answer
                check()
        return await self._store.write(writes)

    async def _write_riding(self, writes: Sequence[Write], riding: list[Mark]) -> Won | Lost | None:
        """The answer to a batch; None: nothing was written, because of its marks."""
        lost = -1
        try:
            answer = await self._store.write([*writes, *(mark.write for mark in riding)])
            if isinstance(answer, Won):
                riding = []
                return Won(answer.versions[: len(writes)], answer.session)
            lost = answer.operation - len(writes)
            return None if lost >= 0 else answer
        except TooLarge:
            return None
        finally:  # where the outcome is unknown, too: a mark that was written loses by its version
            self.put_back([mark for at, mark in enumerate(riding) if at != lost])

    def take(self, partition: str, *, count_max: int = 1, bytes_max: int = DUE_BYTES_MAX) -> list[Mark]:
        """Take due marks of a partition for a batch, but none of spilled outputs: their blob is deleted after."""
        taken: list[Mark] = []
        for mark in self._due.get(partition, {}).values():
            bytes_max -= len(mark.write.body)
            if bytes_max < 0 or len(taken) >= count_max:
                break
            if not mark.spilled:
                taken.append(mark)
        for mark in taken:
            self._remove(mark)
        return taken

    def put_back(self, marks: Sequence[Mark]) -> None:
        """Marks that were taken are due again: their batch was not written, or it is not known that it was."""
        for mark in marks:
            self.note(mark)

    def _remove(self, mark: Mark) -> None:
        key = mark.write.key
        marks = self._due[key.partition]
        del marks[key]
        self.due_count -= 1
        self._due_bytes -= len(mark.write.body)
        if not marks:
            del self._due[key.partition]
            self._waiting.pop(key.partition, None)

    # Writing the others

    @property
    def is_waiting(self) -> bool:
        """Whether marks wait for the next batch of their partition."""
        return bool(self._waiting)

    def ripen(self) -> int:
        """Count a pause; in how many partitions the marks have waited for long enough, and are to be written."""
        for partition, pauses in list(self._waiting.items()):
            if pauses > 1:
                self._waiting[partition] = pauses - 1
            else:
                del self._waiting[partition]
                self._ripe.append(partition)
        return len(self._ripe)

    async def write(self) -> None:
        """Write all due marks; concurrent calls share the partitions."""
        while self._due:
            await self._write_partition(next(iter(self._due)))
        self._full.clear()
        self._ripe.clear()

    async def write_full(self) -> None:
        """Write the due marks of full partitions."""
        while self._full:
            await self._write_partition(self._full.pop())

    async def write_ripe(self) -> None:
        """Write the marks that have waited for long enough; concurrent calls share the partitions."""
        while self._ripe:
            await self._write_partition(self._ripe.pop())

    async def _write_partition(self, partition: str) -> None:
        marks = list(self._due.get(partition, {}).values())
        for mark in marks:
            self._remove(mark)
        if marks:
            with suppress(*MAY_RETRY):  # the sweeper marks the rest
                for at in range(0, len(marks), self._count_max):
                    await self._write(marks[at : at + self._count_max])

    async def _write(self, marks: Sequence[Mark]) -> None:
        """Write the marks of one partition, leaving out each that loses, because another worker has made it.

        Replies to requests stay in their records, so a batch of those may be too large: then it is written in halves.
        """
        left = list(marks)
        try:
            while left:
                answer = await self._store.write([mark.write for mark in left])
                if not isinstance(answer, Lost):
                    self._tell(left, answer)
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

    def _tell(self, marks: Sequence[Mark], won: Won) -> None:
        if self._written is not None:
            for mark, version in zip(marks, won.versions, strict=True):
                self._written(mark.write, version, won.session)


class Marking(Protocol):
    """The marks and the dispatch ledger of a commit protocol."""

    @property
    def lingering(self) -> Sequence[Marks]:
        """The marks that are due, by store."""

    @property
    def ledger(self) -> DispatchLedger | None:
        """The dispatch ledger, where one is kept."""


class Delay(Protocol):
    """The policy that decides when marks are written."""

    async def write(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Write the marks that have waited long enough, and `spawn` the writes of the others."""


class Lingering:
    """Delays marks: they wait for a batch of their partition, or for others, during one `pause` or several."""

    def __init__(self, protocol: Marking, pause: Callable[[], Awaitable[None]]) -> None:
        self._marks = protocol.lingering
        self._ledger = protocol.ledger
        self._pause = pause
        self._is_waiting = False

    async def write(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        """Write the marks of full partitions, and the rest when they have waited; beside that a full ledger."""
        if self._ledger is not None and self._ledger.is_full:
            spawn(self._ledger.save())
        for marks in self._marks:
            await marks.write_full()
        if self._is_due and not self._is_waiting:
            self._is_waiting = True
            spawn(self._write_later(spawn))

    @property
    def _is_due(self) -> bool:
        return any(marks.is_waiting for marks in self._marks)

    async def _write_later(self, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        try:
            while self._is_due:
                await self._pause()
                for marks in self._marks:
                    for _ in range(min(marks.ripen(), WRITING_COUNT_MAX)):
                        spawn(marks.write_ripe())
        finally:
            self._is_waiting = False
