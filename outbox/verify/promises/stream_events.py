"""What the monitor of ordered logs learns from a write that takes effect, and what it knows of all of them."""

from __future__ import annotations

from typing import NamedTuple

from outbox.streams.cells import Position


class Lying(NamedTuple):
    """A cell that was created: its row, its index, its identity, the digest of its body, and whether it was trimmed."""

    row: str
    at: int
    id: str
    digest: bytes
    gone: bool = False


class Standing(NamedTuple):
    """An entry that a processor's handler fails on: its row, where it is, and where all rows ended at its failure."""

    processor: str
    key: str
    at: Position
    ends: tuple[tuple[str, int], ...]


class Ghost(NamedTuple):
    """What was written so far: cells, what registers committed to write, each register's digest, what was sent.

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


class Raised(NamedTuple):
    """A floor was written: what is wrong with it."""

    finding: str
    promise: str


class Swapped(NamedTuple):
    """A register was swapped, or created (`before` empty)."""

    name: str
    before: bytes
    after: bytes
