"""The rest of a log that an open refuses: `inspect` reports it, `salvage` copies it into a fresh folder.

The damaged folder is only read.  The copy keeps every valid record under its own ordinal and epoch, because payloads
name others by them; where an ordinal is gone, a record without content takes its place, so that the copy opens.  What
was lost is the caller's to judge: the report names each missing ordinal range and each damaged span.  The copy has the
mark of a clean close: what is in it is whole, and nothing of it may go unseen.

A segment whose header is damaged is read with the checksum seed of its neighbours; if there is none, with the seed
that its own records agree on (a checksum can be run backwards to the seed it started from).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from struct import Struct as Layout

from outbox.engine.log.closed import Closed, store_closed
from outbox.engine.log.disk import Disk, replace_file
from outbox.engine.log.framing import DELIMITER, HEADER_SEED, Damage, Record, encode_record, seed_of, unstuff
from outbox.engine.log.segments import (
    OWN_TYPES,
    TYPE_HEADER,
    TYPE_WITNESS,
    AcceptSnapshot,
    Header,
    Limits,
    Segment,
    closed_mark,
    read_segment,
    segment_name,
    segment_ordinals,
    snapshot_name,
    snapshot_ordinals,
)
from outbox.errors import Refused, TooLarge

Readable = Callable[[int, bytes], bool]

LOST_COUNT_MAX = 10_000_000
_VOTE_COUNT_MAX = 200
_VOTE_SIZE_MAX_BYTES = 4096
_FRONT_SIZE = 20
_CRC = Layout("<I")


@dataclass(frozen=True, slots=True)
class SegmentReport:
    """One file of the log as it was found; ordinals are 0 where it holds no valid record.

    `size_bytes` leaves out the `room_bytes` zeros behind it, which the live segment takes ahead of its records.
    """

    name: str
    size_bytes: int
    record_count: int
    first_ordinal: int
    last_ordinal: int
    epoch: int
    header_valid: bool
    damage: tuple[Damage, ...]
    room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Inspection:
    """A folder as it was found; `missing` are the ordinal ranges (first, last) that no valid record holds."""

    where: str
    segments: tuple[SegmentReport, ...]
    snapshots: tuple[int, ...]
    durable: int
    missing: tuple[tuple[int, int], ...]
    closed: int = 0
    """The last ordinal at its clean close, where a mark tells it of the last segment."""

    @property
    def text(self) -> str:
        """The report for a terminal."""
        lines = [
            f"{self.where}: synced up to ordinal {self.durable}, snapshots at {list(self.snapshots) or 'none'}"
            + (f", closed at ordinal {self.closed}" if self.closed else "")
        ]
        for segment in self.segments:
            lines.append(
                f"  {segment.name}  {segment.size_bytes} bytes"
                + (f" and {segment.room_bytes} zeros behind them" if segment.room_bytes else "")
                + f", {segment.record_count} records, ordinals "
                f"{segment.first_ordinal}..{segment.last_ordinal}, epoch {segment.epoch}"
                + ("" if segment.header_valid else ", header damaged")
            )
            lines += [f"    damage at {span.offset}..{span.end}: {span.reason}" for span in segment.damage]
        if not self.segments and not self.snapshots:
            lines.append("  no file of a log is there")
        for first, last in self.missing:
            if self.snapshots and last <= self.snapshots[-1]:
                note = f"contained in the snapshot at {self.snapshots[-1]}"
            else:
                note = "was synced" if first <= self.durable else "above the synced ordinal"
            lines.append(f"  missing: ordinals {first}..{last} ({note})")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """The result of a salvage; `skipped_count` counts duplicate ordinals and records of a stale writer.

    `unreadable` are the ordinals of whole records that their owner cannot decode; they are among the `missing`.
    """

    inspection: Inspection
    snapshot: int
    copied_count: int
    skipped_count: int
    missing: tuple[tuple[int, int], ...]
    unreadable: tuple[int, ...] = ()


def inspect(disk: Disk, *, limits: Limits | None = None) -> Inspection:
    """Read every segment of a folder and report the records found and missing; change nothing."""
    names = disk.names()
    snapshots = snapshot_ordinals(names)
    reports: list[SegmentReport] = []
    missing: list[tuple[int, int]] = []
    durable, following = max(snapshots, default=0), 1
    mark: Closed | None = None
    for segment in _read(disk, limits or Limits()):
        records = segment.records
        if not reports:
            following = min(max(snapshots, default=0) + 1, max(segment.ordinal, 1))
        for ordinal in sorted({record.ordinal for record in records}):
            if ordinal > following:
                missing.append((following, ordinal - 1))
            following = max(following, ordinal + 1)
        durable = max([durable, *(record.durable for record in records)])
        reports.append(_report(segment))
        mark = closed_mark(disk, names, segment)  # of the last one, in the end
    closed = 0 if mark is None else mark.last_ordinal
    durable = max(durable, closed)
    if following <= durable and reports:
        missing.append((following, durable))
    return Inspection(disk.where, tuple(reports), tuple(snapshots), durable, tuple(missing), closed)


def salvage(
    disk: Disk,
    target: Disk,
    *,
    log_id: bytes,
    clock_ms: Callable[[], int],
    accept_snapshot: AcceptSnapshot | None = None,
    readable: Readable | None = None,
    limits: Limits | None = None,
    epoch_step: int = 0,
) -> Salvaged:
    """Copy the newest snapshot that decodes and every valid record behind it into an empty folder.

    `readable` tells whether the owner can decode a record (type, payload); one that it cannot counts as lost.  With an
    `epoch_step` the copy ends with an empty segment, by so many epochs ahead of the log.

    Raises:
        Refused: the target holds a log already, or nothing is left of the log.
        TooLarge: more ordinals are missing than a copy can stand in for.
        AlreadyOpen: somebody else writes to the target.
    """
    limits = limits or Limits()
    if segment_ordinals(target.names()) or snapshot_ordinals(target.names()):
        raise Refused(f"{target.where}: holds a log already; salvage into an empty folder")
    inspection = inspect(disk, limits=limits)
    if not inspection.segments and not inspection.snapshots:
        raise Refused(f"{disk.where}: no file of a log is left to salvage; restore a backup, or begin anew with --new")
    target.lock()
    try:
        snapshot = 0
        for ordinal in reversed(inspection.snapshots):
            data = disk.read(snapshot_name(ordinal))
            if accept_snapshot is None or accept_snapshot(ordinal, data):
                replace_file(target, snapshot_name(ordinal), data).close()
                snapshot = ordinal
                break
        copy = _Copy(target, Header(log_id, clock_ms()), snapshot, readable)
        for segment in _read(disk, limits):
            for record in sorted(segment.records, key=lambda record: (record.ordinal, -record.epoch)):
                copy.put(record)
        copy.finish(inspection.durable, epoch_step)
    finally:
        target.unlock()
    missing, unreadable = tuple(copy.missing), tuple(copy.unreadable)
    return Salvaged(inspection, snapshot, copy.copied_count, copy.skipped_count, missing, unreadable)


class _Copy:
    """The fresh log while it is written, one segment in memory at a time."""

    def __init__(self, target: Disk, header: Header, snapshot: int, readable: Readable | None) -> None:
        self.unreadable: list[int] = []
        self.copied_count = 0
        self.skipped_count = 0
        self.missing: list[tuple[int, int]] = []
        self._target = target
        self._readable = readable
        self._header = header
        self._seed = seed_of(header.log_id)
        self._next = max(snapshot, 1)
        self._first = self._first_epoch = 0
        self._chunks: list[bytes] = []
        self._epoch = 1
        self._lost_count = 0
        self._snapshot = snapshot
        if snapshot:
            self._start_segment()  # its header takes the place of a record that the snapshot contains

    def put(self, record: Record) -> None:
        """Copy a record, after stand-ins for the ordinals that are missing before it."""
        if record.ordinal <= self._snapshot:
            return
        if record.ordinal < self._next or record.epoch < self._epoch:
            self.skipped_count += 1
            return
        if self._readable and record.type not in OWN_TYPES and not self._readable(record.type, record.payload):
            self.unreadable.append(record.ordinal)
            self._stand_in(record.ordinal)
            return
        self._stand_in(record.ordinal - 1)
        self._epoch = record.epoch
        if record.type == TYPE_HEADER:
            self._start_segment()
        else:
            self._add(record.type, record.payload)
        self.copied_count += 1

    def finish(self, durable: int, epoch_step: int = 0) -> None:
        """Stand in for records known as synced behind the last one, store the last segment, and mark it closed."""
        self._stand_in(durable)
        if epoch_step and self._first:
            self._epoch += epoch_step
            self._start_segment()
        size_bytes = self._store()
        if self._first:
            mark = Closed(self._first, self._first_epoch, size_bytes, self._next - 1)
            store_closed(self._target, mark, self._header.log_id)

    def _stand_in(self, last: int) -> None:
        if last < self._next:
            return
        self._lost_count += last + 1 - self._next
        if self._lost_count > LOST_COUNT_MAX:
            raise TooLarge(
                f"ordinals {self._next}..{last} are missing, more than {LOST_COUNT_MAX} in all; "
                "restore the missing segments from a backup into the folder, then salvage again"
            )
        self.missing.append((self._next, last))
        if not self._first:
            self._start_segment()
        while self._next <= last:
            self._add(TYPE_WITNESS, b"")

    def _start_segment(self) -> None:
        self._store()
        self._first, self._first_epoch = self._next, self._epoch
        payload = self._header.encoded()
        record = encode_record(self._next, self._next - 1, self._epoch, TYPE_HEADER, payload, HEADER_SEED)
        self._chunks = [DELIMITER, record]
        self._next += 1

    def _add(self, kind: int, payload: bytes) -> None:
        self._chunks.append(encode_record(self._next, self._next - 1, self._epoch, kind, payload, self._seed))
        self._next += 1

    def _store(self) -> int:
        """Store the segment at hand, if there is one; its size in bytes."""
        data = b"".join(self._chunks)
        if self._first:
            replace_file(self._target, segment_name(self._first), data).close()
        return len(data)


def _read(disk: Disk, limits: Limits) -> Iterator[Segment]:
    """Yield every segment, oldest first, each searched with the seed that is most likely its own."""
    record_max = limits.record_size_max_bytes
    ordinals = segment_ordinals(disk.names())
    seed: int | None = None
    for ordinal in ordinals:
        segment = read_segment(disk, ordinal, record_size_max_bytes=record_max)
        if segment.header is not None:
            seed = seed_of(segment.header.log_id)
        elif (likely := seed if seed is not None else _seed_by_vote(segment.data)) is not None:
            segment = read_segment(disk, ordinal, record_size_max_bytes=record_max, seed=likely)
        yield segment


def _report(segment: Segment) -> SegmentReport:
    records = segment.records
    ordinals = [record.ordinal for record in records] or [0]
    return SegmentReport(
        name=segment.name,
        size_bytes=len(segment.data),
        record_count=len(records),
        first_ordinal=min(ordinals),
        last_ordinal=max(ordinals),
        epoch=max([record.epoch for record in records] or [0]),
        header_valid=segment.header is not None,
        damage=tuple(segment.found.damage),
        room_bytes=segment.room_bytes,
    )


def _seed_by_vote(data: bytes) -> int | None:
    """Return the seed that at least two records of a segment without a header were written with."""
    votes: Counter[int] = Counter()
    for frame in data.split(DELIMITER):
        body = unstuff(frame) if len(frame) <= _VOTE_SIZE_MAX_BYTES else None
        if body is not None and len(body) > _FRONT_SIZE + _CRC.size:
            (checksum,) = _CRC.unpack_from(body, _FRONT_SIZE)
            votes[_seed_behind(checksum, body[:_FRONT_SIZE] + body[_FRONT_SIZE + _CRC.size :])] += 1
            if votes.total() >= _VOTE_COUNT_MAX:
                break
    seed, count = votes.most_common(1)[0] if votes else (0, 0)
    return seed if count > 1 else None


def _seed_behind(checksum: int, data: bytes) -> int:
    """Return the start value from which the CRC-32 of `data` is `checksum`."""
    register = checksum ^ 0xFFFF_FFFF
    for byte in reversed(data):
        index = _INDEX_BY_TOP[register >> 24]
        register = ((register ^ _TABLE[index]) << 8 | (index ^ byte)) & 0xFFFF_FFFF
    return register ^ 0xFFFF_FFFF


def _crc_table() -> list[int]:
    table = []
    for index in range(256):
        for _ in range(8):
            index = index >> 1 ^ (0xEDB8_8320 if index & 1 else 0)
        table.append(index)
    return table


_TABLE = _crc_table()
_INDEX_BY_TOP = {entry >> 24: index for index, entry in enumerate(_TABLE)}
