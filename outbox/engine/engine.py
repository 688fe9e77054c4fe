"""The embedded engine: open, commit, modify, read, close.

One process owns a folder.  Everything it acknowledges is in one write-ahead log, and what is in the log is what
comes back: `Engine.open` reads the newest snapshot and the records behind it, becomes the writer of a new epoch
(which voids every lock of the older ones) and writes a new snapshot, but with `compact=False`.

Semantics follow EntroQ (claims, `modify` over tasks and documents by id and version); the queues behave as Azure
Service Bus does.  Source: github.com/shiblon/entroq.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from outbox.engine.backend.apart import EngineBus, EngineStore
from outbox.engine.backend.blobs import FolderBlobStore, MemoryBlobStore
from outbox.engine.backend.journal import EngineJournal
from outbox.engine.backend.operations import EngineOperations
from outbox.engine.broker import Broker
from outbox.engine.core import Core, SyncPolicy, SystemClock, check_clock
from outbox.engine.dead_letters import DeadLetters
from outbox.engine.documents import Documents
from outbox.engine.limits import EngineLimits
from outbox.engine.log import compaction_process, records, snapshot
from outbox.engine.log.disk import Disk, FolderDisk, keeps_modes, writable_by_others
from outbox.engine.log.segments import Limits, Recovery
from outbox.engine.log.wal import Log
from outbox.engine.sessions import Sessions
from outbox.engine.state.state import State
from outbox.engine.topology import Topology
from outbox.errors import EngineStopped, NotRegistrable, Refused
from outbox.lineage import Key
from outbox.ports import BlobStore, Clock, Ports, QueueRef, StateStore, StorePorts

_log = logging.getLogger("outbox.engine")
_OPEN_TO_ALL = "%s: any user of this machine may write to %s, and so change what is stored; run `chmod o-w` on it"
_AHEAD = (
    "%s: the log is ahead of the wall clock by %s, until that has caught up: what is due comes as much later, and what "
    "other clocks stamp may be too old. Mend the clock; if it is right, see 'Clock ahead' in docs/operate"
)

TICK_S = 0.05
_IDLE_TICKS = 4
_WITNESS_TICKS = 20
"""The ticks between two witnesses, each some 4 kB of the log, while nothing else is logged."""
_ADOPT_TICKS = 200


class Engine:
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
        self.core = core = Core(state, log, clock, sync, limits)
        self.state = state
        self.log = log
        self.broker = broker = Broker(core)
        self.sessions = Sessions(core, broker)
        self.topology = Topology(core, broker, self.sessions)
        self.documents = Documents(core, broker)
        self.dead_letters = DeadLetters(core, broker)
        self.declare = self.topology.declare
        self.rules = self.topology.rules
        self.now_ms = core.now_ms
        self.folder = folder
        self._disk: Disk | None = None
        self._timekeeper: asyncio.Task[None] | None = None
        self._compacting = asyncio.Lock()
        self._adopting: asyncio.Task[None] | None = None
        self._passed_over = 0
        """The last snapshot of a separate job that did not read back whole; it is not read again."""
        core.do(records.Opened(core.now_ms()))
        core.flush()
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
        accept_clock: timedelta = timedelta(0),
        log_id: bytes | None = None,
        new: bool = False,
    ) -> Self:
        """Open a folder's log, or start one.

        `accept_clock` confirms by how much the wall clock is ahead of the log, where that is more than 7 days.
        `new` begins a log in a folder that has lost its own: the old one's mark and blobs are renamed.

        Raises:
            AlreadyOpen: another process holds the folder.
            CorruptRecord: damage that cannot be unsynced tail, or a log that is gone; restore it or salvage the rest.
            Refused: a `new` log is to begin, and there is one.
        """
        clock, limits = clock or SystemClock(), limits or EngineLimits()
        path = Path(folder) if isinstance(folder, str | os.PathLike) else None
        disk: Disk = FolderDisk(path) if path is not None else folder  # type: ignore[assignment]  # the other half of the union
        open_to_all = [] if path is None else writable_by_others(path)
        restorer, added = snapshot.Restorer(), False

        def confirm(found: Recovery) -> None:
            """Check the recovered state before anything is written."""
            nonlocal added
            added = bool(found.records)
            snapshot.replay(found, restorer.state)
            check_clock(max(found.clock_ms, restorer.state.time_ms), clock, limits, accept_clock)

        log = Log.open(
            disk,
            log_id=log_id or os.urandom(16),
            clock_ms=clock.wall_ms,
            limits=Limits(segment_size_bytes=limits.segment_bytes_max),
            restore_snapshot=restorer.take,
            confirm=confirm,
            new=new,
        )
        try:
            state = restorer.state
            added = added or bool(log.recovered.refused_snapshots)
            if compact and added and snapshot.pays(log, restorer.size_bytes):
                snapshot.store(log, state, log.recovered.last_ordinal)
            elif compact and log.recovered.snapshot:  # which was just read whole
                log.retire(log.recovered.snapshot)
            policy = SyncPolicy.parse(sync) if isinstance(sync, str) else sync
            engine = cls(state, log, clock=clock, sync=policy, limits=limits, folder=path)
        except BaseException:
            log.close()
            raise
        engine._disk = disk
        engine._warn(disk.where, open_to_all)
        return engine

    def _warn(self, where: str, open_to_all: list[str]) -> None:
        """Log what somebody is to decide about a folder that opens."""
        if ahead_s := round(self.core.ahead_s()):
            _log.warning(_AHEAD, where, timedelta(seconds=ahead_s))
        if open_to_all and self.folder and self.log and keeps_modes(self.folder / self.log.live_name):
            _log.warning(_OPEN_TO_ALL, where, ", ".join(open_to_all))

    def ports(self) -> Ports:
        """The ports through which the runtime uses this engine."""
        core, broker = self.core, self.broker
        operations = EngineOperations(core, broker, self.topology, self.documents, self.dead_letters)
        return Ports(EngineJournal(core, broker), operations, self.blobs)

    def store(self) -> StateStore:
        """This engine's documents as a store of their own, for ordered logs and registers."""
        return EngineStore(self.core, self.documents)

    def queue(
        self, name: str, *, key: Callable[[Any], Key] | None = None, type: str = "", version: int = 1
    ) -> QueueRef:
        """A queue or topic to send to, as an output of a processor; see `QueueRef`.

        Raises:
            NotRegistrable: it is ordered by key, and there is no `key`.
        """
        if key is None and any(queue.settings.ordering == "per_key" for queue in self.state.routes.get(name, ())):
            raise NotRegistrable(f"{name!r} is ordered by key; say whose a message is: queue({name!r}, key=...)")
        return QueueRef(name, self.ports().operations.send, self.blobs, key, type, version)

    def apart(self) -> StorePorts:
        """This engine's documents and queues as ports of their own, as if they were two systems."""
        operations = EngineOperations(self.core, self.broker, self.topology, self.documents, self.dead_letters)
        return StorePorts(self.store(), EngineBus(self.core, self.broker), operations, self.blobs)

    @cached_property
    def blobs(self) -> BlobStore:
        """Where large bodies and written blobs go: a folder beside the log, or memory."""
        return MemoryBlobStore() if self.folder is None else FolderBlobStore(self.folder / "blobs")

    @property
    def stopped(self) -> EngineStopped | None:
        """Why the engine stopped, if it has."""
        return self.core.stopped

    async def __aenter__(self) -> Self:
        self._timekeeper = asyncio.create_task(self._keep_time(), name="engine timekeeper")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in (self._timekeeper, self._adopting):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        self.close()

    def close(self) -> None:
        """Flush, let the folder go and acknowledge nothing more."""
        if self.core.stopped is None:
            with suppress(EngineStopped):
                self.core.flush()
            self.core.stop(EngineStopped("the engine is closed; open it again"))
        if self.log is not None:
            self.log.close()

    # Time

    def tick(self) -> None:
        """Let everything happen that time has made due."""
        self.sessions.tick()
        self.broker.tick()

    def next_due_ms(self) -> int | None:
        """When `tick` will next have something to do."""
        times = (self.sessions.next_due_ms(), self.broker.next_due_ms())
        return min((due_ms for due_ms in times if due_ms is not None), default=None)

    async def _keep_time(self) -> None:
        idle_ticks = seen = ticks = 0
        while self.core.stopped is None:
            await asyncio.sleep(TICK_S)
            try:
                self.core.write()  # so that the buffer has room for what the time brings
                self.tick()
                ticks += 1
                if ticks % _ADOPT_TICKS == 0:
                    self._adopt_when_new()
                if self.log is not None:
                    idle_ticks = idle_ticks + 1 if self.log.appended == seen else 0
                    self.core.flush_when_due(idle=idle_ticks >= _IDLE_TICKS)
                    if idle_ticks >= _WITNESS_TICKS and self.log.synced:
                        self.witness()
                    seen = self.log.appended
            except EngineStopped:
                return
            except Exception as error:  # without time no lock runs out and nothing scheduled comes: better to stop
                self.core.stop(
                    EngineStopped(f"the engine's timekeeper failed ({error!r}); open it again and report this")
                )
                return

    def witness(self) -> None:
        """Put on record that the newest flush is durable, so that damage to it cannot pass as unsynced tail."""
        if self.log is not None and self.log.synced == self.log.appended and not self.log.witnessed:
            self.core.guarded(self.log.witness)
            self.core.flush()

    # Compaction

    def compact(self) -> int:
        """Seal the log, snapshot what the engine holds and drop the segments before it; the snapshot's ordinal."""
        log = self.log
        if log is None:
            return 0

        def step() -> int:
            ordinal = log.seal()
            snapshot.store(log, self.state, ordinal)
            return ordinal

        return self.core.guarded(step)

    async def compact_in_background(self) -> int:
        """The same while the engine goes on: a process replays the sealed part of the log; the snapshot's ordinal.

        It takes the memory of a second state meanwhile.  The loop waits for nothing but the start of a new segment.

        Raises:
            Refused: the process failed; the log is as it was.
        """
        log = self.log
        if log is None or self._disk is None:
            return 0
        async with self._compacting:
            self.core.guarded(log.seal)
            if self.folder is None:
                await asyncio.to_thread(snapshot.compact_sealed, self._disk)
                return self.adopt()
            return await self._adopt_beside(log, self.folder, await compaction_process.compact_sealed(self.folder))

    def adopt(self) -> int:
        """Take over a snapshot that a separate job wrote of this log's sealed part; its ordinal, 0 without one."""
        log = self.log
        return 0 if log is None else self.core.guarded(lambda: snapshot.adopt(log))

    def _adopt_when_new(self) -> None:
        """The same without keeping the loop waiting, where the log is in a folder."""
        if self.folder is None or self.log is None:
            self.adopt()
        elif not self._compacting.locked():
            ordinal = self.core.guarded(self.log.newest_snapshot)
            if ordinal not in (0, self._passed_over):
                self._adopting = asyncio.create_task(self._adopt_a_jobs(self.log, self.folder), name="engine adoption")

    async def _adopt_a_jobs(self, log: Log, folder: Path) -> None:
        async with self._compacting:
            with suppress(Refused, EngineStopped):
                await self._adopt_beside(log, folder, 0)

    async def _adopt_beside(self, log: Log, folder: Path, read_whole: int) -> int:
        """Retire, in a thread, what the newest snapshot replaces, once that was read whole."""
        ordinal = self.core.guarded(log.newest_snapshot)
        if not ordinal:
            return 0
        if ordinal != read_whole and not await compaction_process.is_whole(folder, ordinal):
            self._passed_over = ordinal
            return 0
        retiring = asyncio.ensure_future(asyncio.to_thread(log.retire, ordinal))
        await asyncio.wait([retiring])
        self.core.guarded(retiring.result)
        return ordinal
