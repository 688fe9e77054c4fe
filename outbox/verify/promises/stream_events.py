"""The events of ordered logs for their monitor, from writes that take effect, and its knowledge of them."""

from __future__ import annotations

from typing import NamedTuple

from outbox.streams.cells import Position


class Lying(NamedTuple):
    """A created cell: its row, its index, its identity, its body's digest, and whether it was trimmed."""

    row: str
    at: int
    id: str
    digest: bytes
    gone: bool = False


class Standing(NamedTuple):
    """An entry that a processor's handler fails on: its row, its position, and all rows' ends at the failure."""

    processor: str
    key: str
    at: Position
    ends: tuple[tuple[str, int], ...]


class Ghost(NamedTuple):
    """The writes so far: cells, outputs that registers committed, each register's digest, sent messages.

    And the entries that handlers fail on.
    """

    cells: tuple[Lying, ...] = ()
    emitted: tuple[tuple[str, bytes], ...] = ()
    registers: tuple[tuple[str, bytes], ...] = ()
    sent: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    standing: tuple[Standing, ...] = ()


class Appended(NamedTuple):
    """A cell was created."""

    row: str
    at: int
    digest: bytes


class Sent(NamedTuple):
    """Messages were sent: the identity and the digest of each."""

    messages: tuple[tuple[str, bytes], ...]


class BlobStored(NamedTuple):
    """A blob is there, or there no more, by its name."""

    blob: str
    is_there: bool = True


class Buried(NamedTuple):
    """A cell was turned into a tombstone."""

    row: str
    at: int


class Swapped(NamedTuple):
    """A register was swapped, or created (`before` empty)."""

    name: str
    before: bytes
    after: bytes
