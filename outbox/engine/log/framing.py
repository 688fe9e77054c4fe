"""How one record becomes bytes, and how bytes are searched for records; no I/O.

A record on disk is ``FE FD | stuffed(body) | FE FD`` and the delimiter behind a record is the leading one of the
next.  The body is little-endian::

    ordinal u64 | durable u64 | epoch u32 | crc32 u32 | type u8 | payload

The checksum covers every other field and starts from a seed drawn from the log's random id, so that stale blocks of
another log never pass.  A segment's first record carries that id and is therefore checked with `HEADER_SEED`.

Theory of operation (consistent-overhead word stuffing, radix 253).  The body is cut into blocks, each led by its
length: one byte (0..252) for the first, two bytes, low digit first in base 253 (0..64,008), for later ones.  A block
shorter than its maximum stands for itself *and a delimiter behind it*; a full block stands for itself alone; the last
block is always short and its delimiter is virtual.  Length bytes never exceed FC, so they can neither be nor complete
a delimiter: ``FE FD`` inside a segment is a record boundary and nothing else, and a reader finds its place again
behind any damage.  Because the last block must be short, a record cut at a block boundary does not decode.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Layout
from zlib import crc32

import msgspec

DELIMITER = b"\xfe\xfd"
_FIRST_BYTE, _SECOND_BYTE = DELIMITER
HEADER_SEED = 0
RADIX = 253
FIRST_BLOCK_MAX = RADIX - 1
LATER_BLOCK_MAX = RADIX * RADIX - 1

_TRY_COUNT_MAX = 64
_SECOND_BLOCK = 1 + FIRST_BLOCK_MAX + 2  # where its bytes begin behind a full first block
_FRONT = Layout("<QQI")
_COVERED = Layout("<QQIB")  # what the checksum covers of a body, besides the payload
_BODY = Layout("<QQIIB")
_BODY_SIZE = _BODY.size
_TYPE_OFFSET = _BODY_SIZE - 1
_BYTE = tuple(bytes((value,)) for value in range(256))


class Record(msgspec.Struct, frozen=True, gc=False):
    """One valid record; `offset` is where its stuffed bytes begin in the segment, behind a delimiter."""

    ordinal: int
    durable: int
    epoch: int
    type: int
    payload: bytes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """A span of a segment, in bytes from its start, that is no valid record."""

    offset: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Scan:
    """The records and the damage in a segment's bytes, both in file order."""

    records: list[Record]
    damage: list[Damage]


def seed_of(log_id: bytes) -> int:
    """Return the checksum seed of the log with this random id."""
    return crc32(log_id)


def stuff(data: bytes) -> bytes:
    """Return `data` as length-prefixed blocks that contain no delimiter."""
    size = len(data)
    if size < FIRST_BLOCK_MAX + LATER_BLOCK_MAX and _find_delimiter(data, 0, size) < 0:  # one block, or two
        if size < FIRST_BLOCK_MAX:
            return _BYTE[size] + data
        high, low = divmod(size - FIRST_BLOCK_MAX, RADIX)
        front = _BYTE[FIRST_BLOCK_MAX], data[:FIRST_BLOCK_MAX], _BYTE[low], _BYTE[high]
        return b"".join((*front, data[FIRST_BLOCK_MAX:]))
    blocks: list[bytes] = []
    position, block_max = 0, FIRST_BLOCK_MAX
    while True:
        end = _find_delimiter(data, position, min(position + block_max + 1, size))
        if end >= 0:
            length, following = end - position, end + 2
        elif size - position >= block_max:
            length = block_max
            following = position + length
        else:
            length, following = size - position, -1
        if block_max == FIRST_BLOCK_MAX:
            blocks.append(_BYTE[length])
            block_max = LATER_BLOCK_MAX
        else:
            high, low = divmod(length, RADIX)
            blocks.append(_BYTE[low] + _BYTE[high])
        blocks.append(data[position : position + length])
        if following < 0:
            return b"".join(blocks)
        position = following


def _find_delimiter(data: bytes, start: int, end: int) -> int:
    """Find the first delimiter in `data[start:end]`, as `bytes.find` would.

    A search for one byte is the processor's own, that for two costs many times as much; most payloads hold few such
    bytes.  For one that is full of them, the plain search takes over after some tries.
    """
    find, last = data.find, max(end - 1, 0)
    start = find(_FIRST_BYTE, start, last)
    tries = 0
    while start >= 0 and data[start + 1] != _SECOND_BYTE:
        if (tries := tries + 1) == _TRY_COUNT_MAX:
            return find(DELIMITER, start, end)
        start = find(_FIRST_BYTE, start + 1, last)
    return start


def unstuff(frame: bytes) -> bytes | None:
    """Return the bytes that were stuffed into `frame`, or None if nothing was."""
    size = len(frame)
    if not size or frame[0] >= RADIX:
        return None
    length = frame[0]
    if length == size - 1 and length < FIRST_BLOCK_MAX:
        return frame[1:]
    if length == FIRST_BLOCK_MAX and _SECOND_BLOCK < size < _SECOND_BLOCK + LATER_BLOCK_MAX:
        low, high = frame[_SECOND_BLOCK - 2], frame[_SECOND_BLOCK - 1]
        if low < RADIX and high < RADIX and low + RADIX * high == size - _SECOND_BLOCK:
            return frame[1 : _SECOND_BLOCK - 2] + frame[_SECOND_BLOCK:]
    pieces: list[bytes] = []
    position, block_max = 1, FIRST_BLOCK_MAX
    while True:
        end = position + length
        if end > size:
            return None
        pieces.append(frame[position:end])
        if end == size:
            return b"".join(pieces) if length < block_max else None
        if length < block_max:
            pieces.append(DELIMITER)
        if end + 2 > size or frame[end] >= RADIX or frame[end + 1] >= RADIX:
            return None
        length = frame[end] + RADIX * frame[end + 1]
        position, block_max = end + 2, LATER_BLOCK_MAX


def encode_record(ordinal: int, durable: int, epoch: int, kind: int, payload: bytes, seed: int) -> bytes:
    """Return the stuffed record and the delimiter behind it."""
    checksum = crc32(payload, crc32(_COVERED.pack(ordinal, durable, epoch, kind), seed))
    return stuff(_BODY.pack(ordinal, durable, epoch, checksum, kind) + payload) + DELIMITER


def decode_record(frame: bytes, seed: int, offset: int = 0) -> Record | str:
    """Return the record in one frame (the bytes between two delimiters), or why there is none."""
    body = unstuff(frame)
    if body is None:
        return "broken stuffing" if frame else "empty frame"
    if len(body) < _BODY_SIZE:
        return "shorter than a record"
    ordinal, durable, epoch, checksum, kind = _BODY.unpack_from(body)
    payload = body[_BODY_SIZE:]
    if crc32(payload, crc32(body[_TYPE_OFFSET:_BODY_SIZE], crc32(body[: _FRONT.size], seed))) != checksum:
        return "checksum differs"
    if durable >= ordinal:
        return "claims to be synced before it was written"
    return Record(ordinal, durable, epoch, kind, payload, offset)


def scan(data: bytes, seed: int, *, record_size_max_bytes: int, start: int = 0) -> Scan:
    """Find every valid record in a segment's bytes from `start`, which must be the place of a delimiter.

    One pass, linear in the size of `data`; a frame that could only hold a record above the limit is not decoded.
    """
    records: list[Record] = []
    damage: list[Damage] = []
    frame_size_max = stuffed_size_max(record_size_max_bytes)
    durable = 0
    find, unpack, keep = data.find, _BODY.unpack_from, records.append
    offset = find(DELIMITER, start)
    if offset != start:
        _extend(damage, start, len(data) if offset < 0 else offset, "no delimiter at the start")
    offset = offset + 2 if offset >= 0 else len(data)
    while (end := find(DELIMITER, offset)) >= 0:
        size = end - offset
        if _BODY_SIZE < size <= FIRST_BLOCK_MAX and data[offset] == size - 1:  # one block: decoded where it lies
            ordinal, told, epoch, checksum, kind = unpack(data, offset + 1)
            durable = told if told != durable else durable  # one object for a batch: a log is read into memory
            front = crc32(data[offset + 1 : offset + 21], seed)
            if crc32(data[offset + 25 : end], front) == checksum and durable < ordinal:
                keep(Record(ordinal, durable, epoch, kind, data[offset + 26 : end], offset))
                offset = end + 2
                continue
        found = decode_record(data[offset:end], seed, offset) if size <= frame_size_max else "larger than the limit"
        if isinstance(found, Record):
            keep(found)
        else:
            _extend(damage, offset, end, found)
        offset = end + 2
    if offset < len(data):
        _extend(damage, offset, len(data), "no delimiter at the end")
    return Scan(records, damage)


def end_of(data: bytes, record: Record) -> int:
    """Return the place of the delimiter behind a record that was found in `data`."""
    return data.index(DELIMITER, record.offset)


def _extend(damage: list[Damage], offset: int, end: int, reason: str) -> None:
    """Add a span, as one with the span before it where only a delimiter lies between."""
    if damage and damage[-1].end + len(DELIMITER) == offset:
        offset, reason = damage[-1].offset, damage.pop().reason
    damage.append(Damage(offset, end, reason))


def stuffed_size_max(payload_size_bytes: int) -> int:
    """Return the most bytes that a record with a payload of this size takes, without delimiters."""
    body = payload_size_bytes + _BODY_SIZE
    return body + 1 + 2 * (body // LATER_BLOCK_MAX + 2)
