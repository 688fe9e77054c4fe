"""Segments of a folder: their names, the header record, and the bytes that are the log.  Reads only.

A segment is named ``%016x.log`` by its first ordinal, a snapshot ``%016x.snapshot`` by the last ordinal it contains;
both get their name only after their bytes are synced, so a named file has a whole first record, and a named snapshot
is complete.  Every segment but the last was synced before the next one got its name.

Theory of operation.  Ordinals are compact: one record, one ordinal, segment headers included.  Each record tells the
greatest ordinal known to be synced when it was written; the greatest such claim anywhere (`durable`) decides:

    damage, a missing ordinal, a stale epoch
        in a sealed segment, in a header, or at or below `durable`  refused: acknowledged records may be gone
        above `durable`, in the last segment                        cut, with every valid record behind it: pages reach
                                                                    a disk in any order, nobody was told of these
    a duplicate ordinal, a missing segment, another log's segment   refused wherever it is
    any difference from the mark of a clean close (`closed`)        refused
    no log at all, where a mark, a key or blobs show one was   refused, until `new` sets them aside

Zeros at the end of a file are room that the writer took ahead of its records: every record ends in a delimiter, so no
record is among them, and they are neither damage nor cut.  Where records should be they are a missing ordinal.

What a snapshot contains is not read again, so gaps among segments that a half-done retirement left do not matter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import ne
from struct import Struct as Layout

from outbox.engine.log.closed import CLOSED_NAME, Closed, read_closed
from outbox.engine.log.disk import Disk
from outbox.engine.log.framing import DELIMITER, HEADER_SEED, Damage, Record, Scan, decode_record, end_of, scan, seed_of
from outbox.errors import CorruptRecord, FormatTooNew, Refused

FORMAT_VERSION = 1
TYPE_HEADER = 0
TYPE_WITNESS = 255
OWN_TYPES = frozenset((TYPE_HEADER, TYPE_WITNESS))
LOG_ID_SIZE = 16

_HEADER = Layout("<H16sQ")
_BLOCK_BYTES = 4_096
_ZEROS = bytes(_BLOCK_BYTES)
_SEGMENT_NAME = re.compile(r"([0-9a-f]{16})\.log")
_SNAPSHOT_NAME = re.compile(r"([0-9a-f]{16})\.snapshot")
_CURE = "nothing was changed; restore a backup, or copy the folder and run `outbox log salvage` on the copy"
_OF_A_LOG = (CLOSED_NAME, "access.key", "control.json", "blobs")
"""The names that a folder gets only once there is a log in it."""
_DATA_OF_A_LOG = (CLOSED_NAME, "blobs")

AcceptSnapshot = Callable[[int, bytes], bool]
RestoreSnapshot = Callable[[int, Iterator[bytes]], bool]
"""Takes a snapshot (ordinal, bytes piece by piece) into memory of its own, or says that it is none."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one log; a record must fit into the buffer.

    `room_bytes` is how far the live segment's file grows ahead of its records, 0 not at all.  Measured for commits of
    0.7 to 48 kB: 1 MiB gains no more than 256 KiB, and the flush that pays for it takes two to three times as long.
    """

    segment_size_bytes: int = 64 << 20
    room_bytes: int = 256 << 10
    record_size_max_bytes: int = 32 << 20
    buffer_size_max_bytes: int = 256 << 20


@dataclass(frozen=True, slots=True)
class Header:
    """A segment's first record: whose it is and when it was begun (milliseconds since 1970)."""

    log_id: bytes
    clock_ms: int
    version: int = FORMAT_VERSION

    def encoded(self) -> bytes:
        """Return the payload of the record."""
        return _HEADER.pack(self.version, self.log_id, self.clock_ms)


@dataclass(frozen=True, slots=True)
class Segment:
    """One file, read and searched; `header` and `first` are None where the first record is not valid.

    `data` is the file without the `room_bytes` zeros at its end.
    """

    name: str
    ordinal: int
    data: bytes = field(repr=False)
    first: Record | None
    header: Header | None
    found: Scan = field(repr=False)
    room_bytes: int = 0

    @property
    def records(self) -> list[Record]:
        """Every valid record in file order, the header first."""
        return self.found.records if self.first is None else [self.first, *self.found.records]


@dataclass(slots=True)
class Recovery:
    """The result of an open: the state to start from, then the records to apply in order.

    `records` holds what callers appended behind the snapshot, without the log's own records; the caller may clear it.
    `snapshot_data` is None where the owner took the snapshot in by itself.
    `epoch`, `clock_ms` are the greatest seen, `durable` the greatest ordinal proved synced, `last_ordinal` the last
    that was kept.
    """

    snapshot: int = 0
    snapshot_data: bytes | None = field(default=None, repr=False)
    refused_snapshots: tuple[int, ...] = ()
    records: list[Record] = field(default_factory=list, repr=False)
    last_ordinal: int = 0
    epoch: int = 0
    durable: int = 0
    clock_ms: int = 0
    log_id: bytes = b""
    cut_bytes: int = 0
    sizes_bytes: dict[int, int] = field(default_factory=dict, repr=False)
    """Size of each segment in use, by first ordinal, without room behind its records."""
    tail: bytes = field(default=b"", repr=False)
    """The bytes of the last segment that are the log; the opener writes them anew and drops them."""
    closed: Closed | None = None
    """The mark of the close that these bytes end with, where there is one that counts."""

    @property
    def last_segment(self) -> int:
        """The first ordinal of the last segment, 0 if there is none."""
        return max(self.sizes_bytes, default=0)


def segment_name(ordinal: int) -> str:
    """Return the name of the segment whose first record has this ordinal."""
    return f"{ordinal:016x}.log"


def snapshot_name(ordinal: int) -> str:
    """Return the name of the snapshot that contains everything up to this ordinal."""
    return f"{ordinal:016x}.snapshot"


def segment_ordinals(names: list[str]) -> list[int]:
    """Return the first ordinals of the segments among these names, ascending."""
    return sorted(int(match[1], 16) for name in names if (match := _SEGMENT_NAME.fullmatch(name)))


def snapshot_ordinals(names: list[str]) -> list[int]:
    """Return the last ordinals of the snapshots among these names, ascending."""
    return sorted(int(match[1], 16) for name in names if (match := _SNAPSHOT_NAME.fullmatch(name)))


def read_segment(disk: Disk, ordinal: int, *, record_size_max_bytes: int, seed: int = HEADER_SEED) -> Segment:
    """Read one segment; where its header is damaged `seed` says whose records to look for.

    Raises:
        FormatTooNew: the header is valid and of a later version.
    """
    name = segment_name(ordinal)
    stored = disk.read(name)
    data = _without_room(stored)
    first = _first_record(data)
    header = None
    if first is not None:
        version, found_id, clock_ms = _HEADER.unpack_from(first.payload)
        if version > FORMAT_VERSION:
            raise FormatTooNew(f"{disk.where}/{name}: format {version}, this code reads {FORMAT_VERSION}; upgrade it")
        header = Header(found_id, clock_ms, version)
        seed = seed_of(found_id)
    start = 0 if first is None else end_of(data, first)
    found = scan(data, seed, record_size_max_bytes=record_size_max_bytes, start=start)
    return Segment(name, ordinal, data, first, header, found, len(stored) - len(data))


def _without_room(stored: bytes) -> bytes:
    """Stored bytes without the zeros behind them; by blocks first, because byte by byte takes thirty times as long."""
    end = len(stored)
    while end >= _BLOCK_BYTES and stored[end - _BLOCK_BYTES : end] == _ZEROS:
        end -= _BLOCK_BYTES
    return stored[:end].rstrip(b"\0")


def recover(
    disk: Disk,
    limits: Limits,
    *,
    accept: AcceptSnapshot | None = None,
    restore: RestoreSnapshot | None = None,
    sealed_only: bool = False,
    new: bool = False,
) -> Recovery:
    """Read the newest snapshot that `accept` or `restore` takes and everything behind it; change nothing.

    `sealed_only` leaves out the last segment, which a running host may be writing; `new` takes it that a log is to
    begin here, whatever else is left in the folder.

    Raises:
        CorruptRecord: something that was acknowledged may be missing; the text names file, offset and cure.
        FormatTooNew: a later version wrote it.
    """
    names = disk.names()
    recovery = Recovery()
    _choose_snapshot(disk, snapshot_ordinals(names), accept, restore, recovery)
    ordinals = _needed(disk, segment_ordinals(names), recovery, new=new)
    last_index = len(ordinals) - 1
    for index, ordinal in enumerate(ordinals):
        if index == last_index and sealed_only:
            break
        segment = read_segment(disk, ordinal, record_size_max_bytes=limits.record_size_max_bytes)
        first, header = _checked_header(disk, segment, recovery)
        if index < last_index:
            _check_sealed(disk, segment, ordinals[index + 1], recovery)
            kept, size_bytes = segment.records, len(segment.data)
            recovery.durable = ordinals[index + 1] - 1
        else:
            kept, size_bytes = _judge_last(disk, segment, recovery)
            recovery.closed = closed_mark(disk, names, segment)
            _check_closed(disk, segment, first.epoch, kept, size_bytes, recovery.closed)
            recovery.tail = segment.data[:size_bytes]
            recovery.cut_bytes = len(segment.data) - size_bytes
        recovery.sizes_bytes[ordinal] = size_bytes
        recovery.epoch = max(recovery.epoch, first.epoch, kept[-1].epoch)
        recovery.clock_ms = max(recovery.clock_ms, header.clock_ms)
        recovery.last_ordinal = kept[-1].ordinal
        after = recovery.snapshot
        recovery.records += [record for record in kept if record.ordinal > after and record.type not in OWN_TYPES]
    if sealed_only:
        recovery.last_ordinal = max(recovery.last_ordinal, recovery.snapshot)
    elif recovery.last_ordinal < recovery.snapshot:
        raise _corrupt(disk, segment_name(ordinals[-1]), 0, recovery.snapshot, "the snapshot is ahead of the log")
    return recovery


def closed_mark(disk: Disk, names: list[str], last: Segment) -> Closed | None:
    """Return the mark of a clean close if it is the last segment's and its writer's, or a later one's."""
    if CLOSED_NAME not in names or last.first is None or last.header is None:
        return None
    mark = read_closed(disk, last.header.log_id)
    return mark if mark is not None and (mark.epoch, mark.segment) >= (last.first.epoch, last.ordinal) else None


def read_sealed(disk: Disk, *, restore_snapshot: RestoreSnapshot | None = None, tries: int = 3) -> Recovery:
    """Read the newest snapshot and the sealed segments behind it, while a host may be writing the live one.

    Raises:
        CorruptRecord: a sealed segment is damaged.
        Refused: the host removed files under the reader at every try.
    """
    for _ in range(tries):
        try:
            return recover(disk, Limits(), restore=restore_snapshot, sealed_only=True)
        except FileNotFoundError:
            continue
    raise Refused(f"{disk.where}: files were retired while being read, {tries} times; run the compaction again")


def _first_record(data: bytes) -> Record | None:
    """Return the header record if the segment begins with one."""
    end = data.find(DELIMITER, len(DELIMITER))
    if end < 0 or not data.startswith(DELIMITER):
        return None
    found = decode_record(data[len(DELIMITER) : end], HEADER_SEED, len(DELIMITER))
    if isinstance(found, str) or found.type != TYPE_HEADER or len(found.payload) < _HEADER.size:
        return None
    return found


def _choose_snapshot(
    disk: Disk,
    ordinals: list[int],
    accept: AcceptSnapshot | None,
    restore: RestoreSnapshot | None,
    recovery: Recovery,
) -> None:
    """Take the newest snapshot that its owner can decode; an older one is only kept until the newer was verified."""
    refused: list[int] = []
    for ordinal in reversed(ordinals):
        name = snapshot_name(ordinal)
        data = disk.read(name) if restore is None else None
        if restore(ordinal, disk.pieces(name)) if restore else data is None or accept is None or accept(ordinal, data):
            recovery.snapshot, recovery.snapshot_data = ordinal, data
            recovery.durable = ordinal
            break
        refused.append(ordinal)
    recovery.refused_snapshots = tuple(refused)


def set_aside(disk: Disk, clock_ms: int) -> None:
    """Rename the mark and the blobs of a lost log, so that a new one may begin; keys stay.

    Raises:
        Refused: there is a log.
    """
    names = disk.names()
    if segment_ordinals(names) or snapshot_ordinals(names):
        raise Refused(
            f"{disk.where}: holds a log, and --new (`new=True`) begins one only where there is none; start without it, "
            "or name another folder"
        )
    for name in filter(disk.holds, _DATA_OF_A_LOG):
        disk.rename(name, f"{name}.before-{clock_ms}")
    disk.sync_dir()


def _needed(disk: Disk, ordinals: list[int], recovery: Recovery, *, new: bool) -> list[int]:
    """Return the segments behind the snapshot; the first must hold, or directly follow, its last ordinal."""
    following = recovery.snapshot + 1
    behind = [ordinal for ordinal in ordinals if ordinal > following]
    if holding := [ordinal for ordinal in ordinals if ordinal <= following]:
        return [holding[-1], *behind]
    if not ordinals and not recovery.snapshot and not recovery.refused_snapshots:
        if not new and (left := [name for name in _OF_A_LOG if disk.holds(name)]):
            raise CorruptRecord(
                f"{disk.where}: every file of its log is gone, but {', '.join(left)} shows that there was one; nothing "
                "was changed. Put the files back or restore a backup; to begin anew without what they held, start once "
                "with --new (`Engine.open(folder, new=True)`), which renames what is left and deletes nothing"
            )
        return []
    raise _corrupt(disk, segment_name(following), 0, following, "this segment, the first one needed, is missing")


def _checked_header(disk: Disk, segment: Segment, recovery: Recovery) -> tuple[Record, Header]:
    """Return a segment's header; it was synced before the file got its name, so it is never unsynced tail."""
    first, header = segment.first, segment.header
    if first is None or header is None:
        raise _corrupt(disk, segment.name, 0, segment.ordinal, "no valid header record")
    if first.ordinal != segment.ordinal:
        raise _corrupt(disk, segment.name, first.offset, first.ordinal, "the header has another ordinal than the name")
    if recovery.log_id not in (b"", header.log_id):
        raise _corrupt(disk, segment.name, first.offset, first.ordinal, "the segment belongs to another log")
    if first.epoch < recovery.epoch:
        raise _corrupt(disk, segment.name, first.offset, first.ordinal, "written by a stale writer")
    recovery.log_id = header.log_id
    return first, header


def _check_sealed(disk: Disk, segment: Segment, next_ordinal: int, recovery: Recovery) -> None:
    """Refuse any damage, gap or repetition in a segment that was synced before the next one got its name."""
    kept, stop = _intact(segment)
    if stop is not None:
        raise _corrupt(disk, segment.name, stop.offset, kept[-1].ordinal + 1, stop.reason + " in a sealed segment")
    end_ordinal = kept[-1].ordinal + 1
    if end_ordinal < next_ordinal:
        raise _corrupt(disk, segment.name, len(segment.data), end_ordinal, f"ordinals missing up to {next_ordinal}")
    if end_ordinal > next_ordinal:
        raise _corrupt(disk, segment_name(next_ordinal), 0, next_ordinal, "duplicate ordinal")


def _judge_last(disk: Disk, segment: Segment, recovery: Recovery) -> tuple[list[Record], int]:
    """Return the records of the last segment that count, and where they end; raise if a synced one is gone."""
    records = segment.records
    recovery.durable = max(recovery.durable, max(record.durable for record in records))
    kept, stop = _intact(segment)
    if stop is None:
        return kept, len(segment.data)
    seen: set[int] = set()
    for record in records[len(kept) :]:
        if record.ordinal <= kept[-1].ordinal or record.ordinal in seen:
            raise _corrupt(disk, segment.name, record.offset, record.ordinal, "duplicate ordinal")
        seen.add(record.ordinal)
    missing = kept[-1].ordinal + 1
    if missing <= recovery.durable:
        reason = f"{stop.reason} at or below the synced ordinal {recovery.durable}"
        raise _corrupt(disk, segment.name, stop.offset, missing, reason)
    return kept, end_of(segment.data, kept[-1]) + len(DELIMITER)


def _check_closed(
    disk: Disk, last: Segment, epoch: int, kept: list[Record], size_bytes: int, mark: Closed | None
) -> None:
    """Refuse a last segment that is not what its writer left at a clean close."""
    if mark is None:
        return
    if (mark.epoch, mark.segment) != (epoch, last.ordinal):
        reason = f"the log was closed in this segment at epoch {mark.epoch}, and that one is missing"
        raise _corrupt(disk, segment_name(mark.segment), 0, mark.segment, reason)
    ordinal = kept[-1].ordinal
    if (ordinal, size_bytes, len(last.data)) != (mark.last_ordinal, mark.size_bytes, mark.size_bytes):
        reason = f"the log was closed at ordinal {mark.last_ordinal} and {mark.size_bytes} bytes"
        raise _corrupt(disk, last.name, size_bytes, ordinal + 1, reason)


def _intact(segment: Segment) -> tuple[list[Record], Damage | None]:
    """Return the records up to the first damage, missing ordinal or stale epoch, and what stopped them."""
    records, damage = segment.records, segment.found.damage
    stop = damage[0] if damage else None
    if stop is None and _is_compact(records, segment.ordinal):
        return records, None
    expected, epoch = segment.ordinal, 0
    for index, record in enumerate(records):
        if stop is not None and record.offset > stop.offset:
            return records[:index], stop
        if record.ordinal != expected or record.epoch < epoch:
            reason = "stale epoch" if record.ordinal == expected else "duplicate or missing ordinal"
            return records[:index], Damage(record.offset, end_of(segment.data, record), reason)
        expected += 1
        epoch = record.epoch
    return records, stop


def _is_compact(records: list[Record], ordinal: int) -> bool:
    """Tell the usual case without a step a record: ordinals without gaps, one epoch."""
    if any(map(ne, [record.ordinal for record in records], range(ordinal, ordinal + len(records)))):
        return False
    return len({record.epoch for record in records}) == 1


def _corrupt(disk: Disk, name: str, offset: int, ordinal: int, reason: str) -> CorruptRecord:
    return CorruptRecord(f"{disk.where}/{name}: offset {offset}, ordinal {ordinal}: {reason}; {_CURE}")
