"""The upkeep of a log."""

from __future__ import annotations

import msgspec

from outbox.ops.values.requests import Change


class Compacted(msgspec.Struct, frozen=True):
    """A compaction: the last ordinal in the snapshot, and the log's size before and after."""

    ordinal: int
    before_bytes: int
    after_bytes: int


class Compact(Change[Compacted], frozen=True):
    """Snapshot the engine in the background and drop the log before it."""


class Seal(Change[int], frozen=True):
    """Make all that is acknowledged part of segments that are never written again; the last ordinal in them."""
