"""The write-ahead log: records go in at one end, `sync` says how many of them can no longer be lost.

It decides when bytes reach the disk and what an open may serve; when to sync, and what the payloads mean, is the
engine's part.  Everything is synchronous.

Theory of operation.  `append` numbers and encodes a record in memory; `write` hands everything buffered to the
operating system in one call; `sync` makes what was written survive.  A record also tells which ordinal was synced
when it was encoded, which is what lets the next open tell unsynced tail from lost data (`segments`).  A segment that
is full is synced before the next one, whose header is synced under a temporary name first, gets its name.  An open
writes the last segment anew (bytes that an earlier process wrote may be in the page cache only, and marked clean by a
sync that failed), then starts a segment of its own with a greater epoch.  Behind the live segment's last record its
file holds zeros for the next ones to overwrite (`Preallocation`); they are cut off by the sync that seals it.  After
any failed call the log is dead: what reached the disk is unknown until the next open has looked.

The newest record shares a delimiter and a block with the one behind it, so one bad block could take both and pass for
unsynced tail.  A witness is therefore two records: one padded to more than a block and an empty one behind it, of
which at least one is left to say what was synced.  A close leaves a mark as well (`closed`), against truncation.

Assumed of the disk: bytes once synced survive a torn overwrite of the block that they share with a later record.

Threads: everything belongs to one thread, except that `write`, `sync`, `flush`, `store_snapshot` and `retire` may run
in others while it appends.  All but the last exclude each other.  A retirement keeps none of them waiting, because it
touches nothing that they use: it only removes files below the live segment, and a large one takes its time.  A close
waits for it, so that the folder is not given back with a removal under way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from itertools import pairwise
from typing import TypeVar

from outbox.engine.log.closed import CLOSED_NAME, Closed, remove_closed, store_closed
from outbox.engine.log.disk import TEMPORARY, Disk, DiskFile, replace_file
from outbox.engine.log.framing import DELIMITER, HEADER_SEED, encode_record, seed_of
from outbox.engine.log.memory_disk import NO_ROOM
from outbox.engine.log.segments import (
    LOG_ID_SIZE,
    TYPE_HEADER,
    TYPE_WITNESS,
    AcceptSnapshot,
    Header,
    Limits,
    Recovery,
    RestoreSnapshot,
    recover,
    segment_name,
    segment_ordinals,
    set_aside,
    snapshot_name,
    snapshot_ordinals,
)
from outbox.errors import EngineStopped, OutboxError, Throttled, TooLarge

T = TypeVar("T")

_PADDING = bytes(4096)
"""A block, the largest that a file system loses as a whole; a record around it is longer than that."""
_BOUNDARY = b""
"""In the buffer: a segment starts here; its header is encoded when the one before it is synced."""


class Log:
    """An open log; made by `Log.open`."""

    def __init__(self, disk: Disk, recovered: Recovery, limits: Limits, clock_ms: Callable[[], int]) -> None:
        self.recovered = recovered
        self.epoch = recovered.epoch + 1
        self._disk = disk
        self._limits = limits
        self._clock_ms = clock_ms
        self._seed = seed_of(recovered.log_id)
        self._stopped: str | None = None
        self._io = threading.RLock()
        self._retiring = threading.Lock()
        self._buffer: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._released_bytes = 0
        self._planned_bytes = 0
        self._last_is_witness = False
        self._holds_folder = True
        self.appended = recovered.last_ordinal
        """The last ordinal handed out."""
        self.written = recovered.last_ordinal
        """The last ordinal that survives the end of this process."""
        self.synced = recovered.last_ordinal
        """The last ordinal that survives a power loss."""
        self._writing, self._syncing = _DiskCalls(self, "write"), _DiskCalls(self, "sync")
        self._flushing = _DiskCalls(self, "flush")
        self._sizes_bytes = dict(recovered.sizes_bytes)
        self._first = recovered.last_segment
        """The ordinal of the live segment's header: everything below it is sealed and synced."""
        self._retired_to = recovered.snapshot
        self._file: DiskFile | None = None
        self._room = Preallocation(limits.room_bytes, limits.segment_size_bytes)

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        log_id: bytes,
        clock_ms: Callable[[], int],
        limits: Limits | None = None,
        accept_snapshot: AcceptSnapshot | None = None,
        restore_snapshot: RestoreSnapshot | None = None,
        confirm: Callable[[Recovery], None] | None = None,
        new: bool = False,
    ) -> Log:
        """Take the folder, read its log, make that durable, and start a segment with a new epoch.

        `log_id` (16 random bytes) names the log if the folder is empty.  `clock_ms` is logged at each segment's start.
        `accept_snapshot` tells whether a snapshot (ordinal, bytes) decodes; the newest accepted one counts.
        `restore_snapshot` does so too, piece by piece, and keeps what it read: a large one is decoded once.
        `confirm` sees the recovery before anything is written and raises to leave the folder as it was.
        `new` begins a log in a folder that has lost its own; what is left of that one is renamed.

        Raises:
            AlreadyOpen: another process holds the folder.
            CorruptRecord: something acknowledged may be missing; nothing was changed.
            FormatTooNew: a later version wrote it.
            Refused: a `new` log is to begin, and there is one.
            EngineStopped: the disk failed.
        """
        if len(log_id) != LOG_ID_SIZE:
            raise ValueError(f"log_id: {LOG_ID_SIZE} random bytes are needed, not {len(log_id)}")
        limits = limits or Limits()
        disk.lock()
        try:
            if new:
                set_aside(disk, clock_ms())
            recovered = recover(disk, limits, accept=accept_snapshot, restore=restore_snapshot, new=new)
            recovered.log_id = recovered.log_id or log_id
            if confirm is not None:
                confirm(recovered)
            log = cls(disk, recovered, limits, clock_ms)
            log._take_over()
        except OSError as error:
            disk.unlock()
            raise EngineStopped(_cure(disk, f"opening failed ({error})")) from error
        except BaseException:
            disk.unlock()
            raise
        return log

    @property
    def size_bytes(self) -> int:
        """The bytes on disk of the segments' records behind the last snapshot, the buffer not counted."""
        live = self._file.size_bytes if self._file is not None else 0
        return sum(tuple(self._sizes_bytes.values())) + live  # a copy: another thread may be retiring

    @property
    def segment_count(self) -> int:
        """How many segments there are behind the last snapshot, the live one included."""
        return len(self._sizes_bytes) + 1

    @property
    def live_name(self) -> str:
        """The name of the segment that is written to."""
        return segment_name(self._first)

    @property
    def stopped(self) -> str | None:
        """Why the log is dead, or None."""
        return self._stopped

    @property
    def witnessed(self) -> bool:
        """Whether the newest record holds nothing of the caller's, so that its loss would cost nothing."""
        return self._last_is_witness or self.appended == self._first

    def append(self, kind: int, payload: bytes) -> int:
        """Buffer one record (type 1..254) and return its ordinal; no system call.

        Raises:
            TooLarge: the payload is above the limit; nothing was buffered.
            Throttled: the buffer is full; write first.
            EngineStopped: the log is dead or closed.
        """
        if self._stopped is not None:
            raise EngineStopped(self._stopped)
        size_bytes, limits = len(payload), self._limits
        if size_bytes > limits.record_size_max_bytes:
            raise TooLarge(
                f"record of type {kind}: {size_bytes} bytes, at most {limits.record_size_max_bytes} fit into one log "
                "record; commit fewer messages at once or move large bodies to the blob store"
            )
        if self._buffered_bytes - self._released_bytes + size_bytes > limits.buffer_size_max_bytes:
            raise Throttled(f"{self._disk.where}: the log's buffer is full; await the flush, then try again")
        if self._planned_bytes >= limits.segment_size_bytes:
            self._plan_segment()
        ordinal = self.appended + 1
        encoded = encode_record(ordinal, self.synced, self.epoch, kind, payload, self._seed)
        self._planned_bytes += len(encoded)
        self._buffered_bytes += len(encoded)
        self._last_is_witness = False
        self._buffer.append(encoded)
        self.appended = ordinal
        return ordinal

    def witness(self) -> None:
        """Buffer records whose only content is the synced ordinal, so that damage to the newest flush cannot pass as
        tail.

        They take 4.2 kB.  For an engine that goes idle: when all is synced, `witness`, `write`, `sync`.  Does nothing
        where the newest record already tells it, or where something is still to be synced.
        """
        if not self.witnessed and self.synced == self.appended:
            self.append(TYPE_WITNESS, _PADDING)
            self.append(TYPE_WITNESS, b"")
            self._last_is_witness = True

    def write(self) -> None:
        """Hand everything buffered to the operating system, in one call unless a segment is full.

        Raises:
            EngineStopped: the disk failed; the log is dead.
        """
        with self._writing:
            self._write_buffered()

    def flush(self) -> None:
        """`write`, then `sync`, in one go.

        Raises:
            EngineStopped: the disk failed; the log is dead.
        """
        calls = self._flushing
        with calls:
            calls.verb = "write"
            self._write_buffered()
            calls.verb = "sync"
            self._sync_written()

    def _write_buffered(self) -> None:
        count = len(self._buffer)
        if count:
            chunks = [self._buffer.popleft() for _ in range(count)]
            while _BOUNDARY in chunks:
                index = chunks.index(_BOUNDARY)
                self._write(chunks[:index])
                self._start_segment()
                chunks = chunks[index + 1 :]
            self._write(chunks)

    def sync(self) -> None:
        """Make everything that was written before this call survive a power loss.

        Raises:
            EngineStopped: the disk failed; the log is dead.
        """
        with self._syncing:
            self._sync_written()

    def _sync_written(self) -> None:
        mark, file = self.written, self._file
        if file is not None and mark != self.synced:
            file.sync()
            self.synced = mark

    def seal(self) -> int:
        """Write and sync everything, start a new segment, and return the last ordinal before it.

        That ordinal is a position for a snapshot.  No segment is started where the live one is empty.
        """
        with _DiskCalls(self, "seal"):
            if self.appended != self._first:
                self._plan_segment()
                self.write()
            return self._first - 1

    def store_snapshot(self, ordinal: int, data: bytes | Iterable[bytes]) -> str:
        """Store a snapshot of everything up to a sealed ordinal, read back and synced; return its name."""
        with _DiskCalls(self, "snapshot"):
            if ordinal >= self._first:
                raise ValueError(f"snapshot at {ordinal}: the live segment begins at {self._first}; seal the log first")
            return store_snapshot(self._disk, ordinal, data)

    def read_snapshot(self, ordinal: int, read: Callable[[Iterator[bytes]], T]) -> T:
        """Let `read` have what the folder holds of a snapshot now, whoever wrote it last, piece by piece."""
        with _DiskCalls(self, "read"):
            return read(self._disk.pieces(snapshot_name(ordinal)))

    def newest_snapshot(self) -> int:
        """The newest snapshot that another process wrote since the last retirement; 0 without one."""
        with _DiskCalls(self, "read"):
            found = snapshot_ordinals(self._disk.names())
            return max((n for n in found if self._retired_to < n < self._first), default=0)

    def retire(self, upto: int) -> None:
        """Remove what the snapshot at `upto`, which was read back whole, makes unnecessary; keeps no writer waiting.

        Removes older snapshots and the segments that end at or below it, oldest first.
        """
        with self._retiring:
            with _DiskCalls(self, "retire"):
                names, first = self._disk.names(), self._first
            if upto < self._retired_to:
                return
            if snapshot_name(upto) not in names:
                raise ValueError(f"{self._disk.where}: no snapshot at {upto}; store and verify it before retiring")
            snapshots = [snapshot_name(ordinal) for ordinal in snapshot_ordinals(names) if ordinal < upto]
            segments = [
                ordinal
                for ordinal, following in pairwise(segment_ordinals(names))
                if following <= upto + 1 and following <= first
            ]
            if snapshots or segments:
                self._remove(snapshots, segments)
            self._retired_to = upto

    def _remove(self, snapshots: list[str], segments: list[int]) -> None:
        """Remove files for good, behind a snapshot whose name is known to last."""
        try:
            self._disk.sync_dir()  # the snapshot may be another process's, whose rename is not synced yet
            for name in snapshots:
                self._disk.remove(name)
            for ordinal in segments:
                self._disk.remove(segment_name(ordinal))
                self._sizes_bytes.pop(ordinal, None)
            self._disk.sync_dir()
        except OSError as error:
            self._stopped = self._stopped or _cure(self._disk, f"retire failed ({error})")
            raise EngineStopped(self._stopped) from error

    def abandon(self, reason: str) -> None:
        """Never write the buffer: the log is dead, for a reason that its owner found."""
        with self._io:
            self._stopped = self._stopped or f"{self._disk.where}: {reason}"

    def close(self) -> None:
        """Flush everything, leave the mark of a clean close and release the folder; a dead log only releases it."""
        with self._retiring, self._io:
            try:
                if self._stopped is None:
                    self.write()
                    self.sync()
                    self.witness()
                    self.write()
                    with _DiskCalls(self, "close") as live:
                        self._room.give_back(live)
                    self.sync()
                    with _DiskCalls(self, "close") as live:
                        self._leave_mark(live.size_bytes)
            finally:
                self._stopped = self._stopped or f"{self._disk.where}: the log was closed; open it again"
                file, self._file = self._file, None
                if file is not None:
                    file.close()
                if self._holds_folder:
                    self._holds_folder = False
                    self._disk.unlock()

    def _leave_mark(self, size_bytes: int) -> None:
        """Mark the log's length at its close; a full disk leaves it without the mark, but whole."""
        try:
            store_closed(self._disk, Closed(self._first, self.epoch, size_bytes, self.synced), self.recovered.log_id)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise

    def _take_over(self) -> None:
        """Make the recovered log durable, then fence its former writer by a segment with a greater epoch."""
        names, recovered = self._disk.names(), self.recovered
        for name in names:
            if name.endswith(TEMPORARY):
                self._disk.remove(name)
        if recovered.last_segment:
            replace_file(self._disk, segment_name(recovered.last_segment), recovered.tail).close()
            recovered.tail = b""
        self._plan_segment()
        self._buffer.clear()
        self._start_segment()
        if CLOSED_NAME in names:  # until here it said how long the segment before is
            remove_closed(self._disk)

    def _plan_segment(self) -> None:
        self._buffer.append(_BOUNDARY)
        self.appended += 1
        self._planned_bytes = 0
        self._last_is_witness = False

    def _write(self, chunks: list[bytes]) -> None:
        if chunks and self._file is not None:
            data = b"".join(chunks)
            self._room.take(self._file, len(data))
            self._file.write(data)
            self.written += len(chunks)
            self._released_bytes += len(data)

    def _start_segment(self) -> None:
        """Sync the live segment, then put one behind it whose header is synced before it has a name."""
        if self._file is not None:
            self._room.give_back(self._file)
            self._file.sync()
            if segment_ordinals(self._disk.names())[-1:] != [self._first]:  # opened by another behind a broken lock
                raise OSError("another process opened the folder with a greater epoch")
            self._sizes_bytes[self._first] = self._file.size_bytes
            self._file.close()
            self._file = None
        ordinal = self.written + 1
        header = Header(self.recovered.log_id, self._clock_ms())
        data = DELIMITER + encode_record(ordinal, ordinal - 1, self.epoch, TYPE_HEADER, header.encoded(), HEADER_SEED)
        self._file = replace_file(self._disk, segment_name(ordinal), data, reserve_bytes=self._room.begin(len(data)))
        self._first = self.written = self.synced = ordinal


class Preallocation:
    """The live segment's room; `step_bytes` 0 takes none, and a segment is not given more than its own size.

    A sync that must store a file's new size and new blocks writes the file system's journal too, and takes twice as
    long as one that only has data to flush.  So the live segment's file is filled with zeros ahead of its records, a
    step at a time, and records overwrite them.

    Theory of operation.  Zeros behind the last record and no zeros there read the same (`segments`), so a crash before,
    within or after any of these calls leaves a log that means the same, whether it keeps the file's old size, its new
    one or any page of either.  Room is taken before the records that need it, none of which is written when that fails;
    where there is none to be had, records are appended without for the rest of the segment.  It is given back by the
    same sync that seals the segment, which comes before the next segment has a name: only the last one can have room.
    """

    def __init__(self, step_bytes: int, segment_size_bytes: int) -> None:
        self._step_bytes = step_bytes
        self._segment_size_bytes = segment_size_bytes
        self._end_bytes = 0

    def begin(self, size_bytes: int) -> int:
        """Start a segment whose first record ends here; return the size to create its file with."""
        self._end_bytes = self._beyond(size_bytes)
        return self._end_bytes

    def take(self, file: DiskFile, size_bytes: int) -> None:
        """Grow the file ahead of records of this size if they do not fit, before any of them is written."""
        end_bytes = file.size_bytes + size_bytes
        if end_bytes <= self._end_bytes:
            return
        target_bytes = self._beyond(end_bytes)
        if target_bytes > end_bytes:
            self._end_bytes = target_bytes if file.reserve(target_bytes) else self._segment_size_bytes

    def give_back(self, file: DiskFile) -> None:
        """Cut the zeros off; the file's next sync makes that last."""
        if self._end_bytes:
            file.trim()
            self._end_bytes = 0

    def _beyond(self, end_bytes: int) -> int:
        return min(end_bytes + self._step_bytes, self._segment_size_bytes) if self._step_bytes else 0


class _DiskCalls:
    """Holds a log's disk for one call, any failure of which kills the log.

    A class, because a generator costs several times as much and a batch needs two.
    """

    __slots__ = ("_log", "verb")

    def __init__(self, log: Log, verb: str) -> None:
        self._log = log
        self.verb = verb
        """The action under way, for the error."""

    def __enter__(self) -> DiskFile:
        log = self._log
        log._io.acquire()
        if log._stopped is None and log._file is not None:
            return log._file
        log._io.release()
        raise EngineStopped(log._stopped or f"{log._disk.where}: the log was closed; open it again")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        log = self._log
        if error is None:
            log._io.release()
            return
        try:
            if not isinstance(error, OutboxError | ValueError):
                log._stopped = _cure(log._disk, f"{self.verb} failed ({error})")
                if isinstance(error, OSError):
                    raise EngineStopped(log._stopped) from error
        finally:
            log._io.release()


def store_snapshot(disk: Disk, ordinal: int, data: bytes | Iterable[bytes]) -> str:
    """Store a snapshot so that a crash leaves it whole or absent; also for a compaction beside a running host."""
    written, read = sha256(), sha256()

    def told() -> Iterator[bytes]:
        for piece in (data,) if isinstance(data, bytes) else data:
            written.update(piece)
            yield piece

    def check(found: Iterable[bytes]) -> None:
        for piece in found:
            read.update(piece)
        if read.digest() != written.digest():
            raise OSError(f"the snapshot at {ordinal} reads back differently")

    name = snapshot_name(ordinal)
    replace_file(disk, name, told(), check).close()
    return name


def _cure(disk: Disk, what: str) -> str:
    return (
        f"{disk.where}: {what}; nothing more is acknowledged. Free or replace the disk, then start again: "
        "opening the log recovers everything that was acknowledged"
    )
