"""The embedded engine: open, commit, modify, read, close.

One process owns a folder.  Everything it acknowledges is in one write-ahead log, and what is in the log is what
comes back: `Engine.open` reads the newest snapshot and the records behind it, becomes the writer of a new epoch
(which voids every lock of the older ones) and writes a new snapshot unless told not to.

Semantics follow EntroQ (claims, `modify` over tasks and documents by id and version); the queues behave as Azure
Service Bus does.  Source: github.com/shiblon/entroq.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self

from outbox.engine import records, snapshot
from outbox.engine.adapters import ports
from outbox.engine.blobs import FolderBlobStore, MemoryBlobStore
from outbox.engine.checks import check_clock
from outbox.engine.core import SyncPolicy, SystemClock
from outbox.engine.dead_letters import DeadLetters
from outbox.engine.disk import Disk, FolderDisk
from outbox.engine.documents import Documents
from outbox.engine.limits import EngineLimits
from outbox.engine.segments import Limits, Recovery
from outbox.engine.state import State
from outbox.engine.topology import Topology
from outbox.engine.wal import Log
from outbox.errors import EngineStopped
from outbox.ports import BlobStore, Clock, Ports, StateDocument

TICK_S = 0.05
_IDLE_TICKS = 4
_WITNESS_TICKS = 20
"""A witness takes some 4 kB of the log: at most one for each second in which nothing else was logged."""
_ADOPT_TICKS = 200


class Engine(Topology):
    """Queues, documents and markers in memory, durable by a log.  Use it as an async context manager."""

    def __init__(
        self,
        state: State,
        log: Log | None,
        *,
        clock: Clock,
        sync: SyncPolicy,
        limits: EngineLimits,
        folder: Path | None,
    ) -> None:
        super().__init__(state, log, clock, sync)
        self.limits = limits
        self.folder = folder
        self._disk: Disk | None = None
        self._documents = Documents(self)
        self._timekeeper: asyncio.Task[None] | None = None
        self.__post_init__()
        self.do(records.Opened(self.now_ms()))
        self.flush()
        state.rebuild()

    @classmethod
    def in_memory(cls, *, clock: Clock | None = None, limits: EngineLimits | None = None) -> Self:
        """An engine without a log: the same semantics, nothing durable."""
        return cls(
            State(), None, clock=clock or SystemClock(), sync=SyncPolicy(), limits=limits or EngineLimits(), folder=None
        )

    @classmethod
    def open(
        cls,
        folder: str | os.PathLike[str] | Disk,
        *,
        sync: SyncPolicy | str = "every",
        clock: Clock | None = None,
        limits: EngineLimits | None = None,
        compact: bool = True,
        accept_clock: bool = False,
        log_id: bytes | None = None,
    ) -> Self:
        """Open a folder's log, or start one; `accept_clock` confirms a wall clock far ahead of the log.

        Raises:
            AlreadyOpen: another process holds the folder.
            CorruptRecord: damage that cannot be unsynced tail; salvage what is left.
        """
        clock, limits = clock or SystemClock(), limits or EngineLimits()
        path = Path(folder) if isinstance(folder, str | os.PathLike) else None
        disk: Disk = FolderDisk(path) if path is not None else folder  # type: ignore[assignment]  # the other half of the union
        states: list[State] = []
        added = False

        def confirm(found: Recovery) -> None:
            """Look at what was recovered before anything is written."""
            nonlocal added
            added = bool(found.records)
            states.append(snapshot.replay(found))
            if not accept_clock:
                check_clock(max(found.clock_ms, states[0].time_ms), clock, limits)

        log = Log.open(
            disk,
            log_id=log_id or os.urandom(16),
            clock_ms=clock.wall_ms,
            limits=Limits(segment_size_bytes=limits.segment_bytes_max),
            accept_snapshot=snapshot.accept,
            confirm=confirm,
        )
        try:
            (state,) = states
            if compact and added:
                snapshot.store(log, state, log.recovered.last_ordinal)
            policy = SyncPolicy.parse(sync) if isinstance(sync, str) else sync
            engine = cls(state, log, clock=clock, sync=policy, limits=limits, folder=path)
        except BaseException:
            log.close()
            raise
        engine._disk = disk
        return engine

    def ports(self) -> Ports:
        """The ports through which the runtime uses this engine."""
        return ports(self, self.blobs)

    @cached_property
    def blobs(self) -> BlobStore:
        """Where large bodies and written blobs go: a folder beside the log, or memory."""
        return MemoryBlobStore() if self.folder is None else FolderBlobStore(self.folder / "blobs")

    @property
    def log(self) -> Log | None:
        """The log, where there is one."""
        return self._log

    async def __aenter__(self) -> Self:
        self._timekeeper = asyncio.create_task(self._keep_time(), name="engine timekeeper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._timekeeper
        self.close()

    def close(self) -> None:
        """Flush, let the folder go and acknowledge nothing more."""
        if self._stopped is None:
            with suppress(EngineStopped):
                self.flush()
            self._stop(EngineStopped("the engine is closed; open it again"))
        if self._log is not None:
            self._log.close()

    async def _keep_time(self) -> None:
        idle_ticks = seen = ticks = 0
        while self._stopped is None:
            await asyncio.sleep(TICK_S)
            try:
                self.write()  # so that the buffer has room for what the time brings
                self.tick()
                ticks += 1
                if ticks % _ADOPT_TICKS == 0:
                    self.adopt()
                if self._log is not None:
                    idle_ticks = idle_ticks + 1 if self._log.appended == seen else 0
                    self.flush_when_due(idle=idle_ticks >= _IDLE_TICKS)
                    if idle_ticks >= _WITNESS_TICKS and self._log.synced:
                        self.witness()
                    seen = self._log.appended
            except EngineStopped:
                return
            except Exception as error:  # without time no lock runs out and nothing scheduled comes: better to stop
                self._stop(EngineStopped(f"the engine's time stands still ({error!r}); open it again and report this"))
                return

    def witness(self) -> None:
        """Put on record that the newest flush is durable, so that damage to it cannot pass as unsynced tail."""
        if self._log is not None and self._log.synced == self._log.appended and not self._log.witnessed:
            self._guarded(self._log.witness)
            self.flush()

    # Modify

    def modify(self, change: records.Modify) -> list[int] | None:
        """Apply a modification whole, or nothing of it: the sequences of what was inserted, or None if it lost.

        The same `operation_id` again gives the first answer.  It loses when a task or document is not at the version
        that was named, or a receiver has claimed a task.
        """
        return self._documents.modify(change)

    def document(self, namespace: str, id: str) -> StateDocument | None:
        """A document, or None where there is none or it has expired."""
        return self._documents.read(namespace, id)

    def document_version(self, namespace: str, id: str) -> int:
        """A document's version; 0 where there is none."""
        return self._documents.version(namespace, id)

    # Dead letters

    def resubmit(self, path: str, sequence: int) -> None:
        """Send a dead letter of the queue `path` back to it, as a new attempt with its first time.

        Other copies of it go.  Of one that was `too-old` it is unknown whether it had been applied before: look at its
        state first.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
            Refused: the record of its refusal is gone, so it could only be refused as too old.
        """
        DeadLetters(self).resubmit(path, sequence)

    def discard(self, path: str, sequence: int) -> None:
        """Delete a dead letter of the queue `path`.

        Raises:
            LookupError: there is no such dead letter, or a receiver has claimed it.
        """
        DeadLetters(self).discard(path, sequence)

    # Compaction

    def compact(self) -> int:
        """Seal the log, snapshot what the engine holds and drop the segments before it; the snapshot's ordinal."""
        if self._log is None:
            return 0
        ordinal = 0

        def step() -> None:
            nonlocal ordinal
            assert self._log is not None
            ordinal = self._log.seal()
            snapshot.store(self._log, self.state, ordinal)

        self._guarded(step)
        return ordinal

    async def compact_in_background(self) -> int:
        """The same while the engine goes on: a thread replays the sealed part of the log; the snapshot's ordinal.

        It takes the memory of a second state meanwhile.
        """
        if self._log is None or self._disk is None:
            return 0
        self._guarded(self._log.seal)
        await asyncio.to_thread(snapshot.compact_sealed, self._disk)
        return self.adopt()

    def adopt(self) -> int:
        """Take over a snapshot that a separate job wrote of this log's sealed part; its ordinal, 0 without one."""
        log, ordinal = self._log, 0

        def step() -> None:
            nonlocal ordinal
            assert log is not None
            ordinal = snapshot.adopt(log)

        if log is not None:
            self._guarded(step)
        return ordinal
