"""Room ahead of the log's records: how far the live segment's file grows before there is anything to put there.

A sync that must store a file's new size and new blocks writes the file system's journal too, and takes twice as long as
one that only has data to flush.  So the live segment's file is filled with zeros ahead of its records, a step at a
time, and records overwrite them.

Theory of operation.  Zeros behind the last record and no zeros there read the same (`segments`), so a crash before,
within or after any of these calls leaves a log that means the same, whether it keeps the file's old size, its new one
or any page of either.  Room is taken before the records that need it, none of which is written when that fails; where
there is none to be had, records are appended without for the rest of the segment.  It is given back by the same sync
that seals the segment, which comes before the next segment has a name: only the last one can have room.
"""

from __future__ import annotations

from outbox.engine.log.disk import DiskFile


class Preallocation:
    """The live segment's room; `step_bytes` 0 takes none, and a segment is not given more than its own size."""

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
