"""The mark of a clean close: how long the log was when its writer let it go.

A log that is only appended to cannot know how long it was: cut off behind a whole record, it looks like one that was
killed there.  So a close leaves a file that names the live segment, the epoch of its writer, its size and its last
ordinal, synced behind everything that it tells of.  A log that has less, or more, than its mark says is refused.

Theory of operation.  The mark counts for the last segment under the epoch of that segment's header, and every open
starts a segment behind it.  So one that was true stays true until the next segment has its name, and is of an earlier
writer from then on; the opener removes it there, before anything is served.  A mark of a later segment or writer than
the last one here says that files are gone, and is refused.  One that is damaged, of an earlier writer or of another log
does not count, and cannot come to.  A crash at any of these steps leaves a mark that is true, one that does not count,
or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct as Layout
from zlib import crc32

from outbox.engine.log.disk import Disk, replace_file
from outbox.engine.log.framing import seed_of

CLOSED_NAME = "closed"
FORMAT_VERSION = 1

_FIELDS = Layout("<HQIQQ")
_CHECKSUM = Layout("<I")


@dataclass(frozen=True, slots=True)
class Closed:
    """The last segment at a clean close; `size_bytes` without room behind its records."""

    segment: int
    epoch: int
    size_bytes: int
    last_ordinal: int


def store_closed(disk: Disk, mark: Closed, log_id: bytes) -> None:
    """Leave the mark, so that a crash leaves it whole or absent."""
    fields = _FIELDS.pack(FORMAT_VERSION, mark.segment, mark.epoch, mark.size_bytes, mark.last_ordinal)
    replace_file(disk, CLOSED_NAME, fields + _CHECKSUM.pack(crc32(fields, seed_of(log_id)))).close()


def read_closed(disk: Disk, log_id: bytes) -> Closed | None:
    """Return the mark that this log's writer left; None for a damaged one, another log's, a later format's."""
    data = disk.read(CLOSED_NAME)
    fields, checksum = data[: _FIELDS.size], data[_FIELDS.size :]
    if checksum != _CHECKSUM.pack(crc32(fields, seed_of(log_id))):
        return None
    version, *found = _FIELDS.unpack(fields)
    return Closed(*found) if version == FORMAT_VERSION else None


def remove_closed(disk: Disk) -> None:
    """Remove the mark for good."""
    disk.remove(CLOSED_NAME)
    disk.sync_dir()
