"""The layout of a snapshot's bytes: whole, or in slices that are written and read one at a time.  No I/O.

A snapshot is a SHA-256 over all that follows it, then one MessagePack image.  One that is larger than a slice is an
image in which only format and ordinal say something, with one member more than an older build knows: its slices, each
an image of a part::

    sha256 | [3, ordinal, 0, 0, [], [], {}, {}, {}, [], {}, {}, {}, [], [bin(crc32 | image), bin(crc32 | image), ...]]

So an older build, which reads the whole array and passes over members that it does not know, finds a digest that fits
and a format that it refuses by name.  A reader of today judges each slice by its own checksum before anybody decodes
it, and all of them by the digest at the end: what was made of the slices counts only when `bodies` came to its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import sha256
from struct import Struct as Layout
from zlib import crc32

from outbox.errors import CorruptRecord

SLICED_FORMAT = 3

_DIGEST_SIZE = 32
_FRONT = b"\x9f\x03\xcf"  # an array of 15, the format, and that a u64 follows
_EMPTY = (
    b"\x00\x00\x90\x90\x80\x80\x80\x90\x80\x80\x80\x90\xdd"  # every member but the last, and that its count follows
)
_HEAD = Layout(f">{len(_FRONT)}sQ{len(_EMPTY)}sI")
_SLICE = Layout(">BII")
_BIN = 0xC6


def whole(image: bytes) -> bytes:
    """Return a snapshot that is one image."""
    return sha256(image).digest() + image


def sliced(ordinal: int, count: int, images: Callable[[], Iterator[bytes]]) -> Iterator[bytes]:
    """Yield a snapshot of `count` slices piece by piece; `images` is asked twice, and must give the same again."""
    head = _HEAD.pack(_FRONT, ordinal, _EMPTY, count)
    digest = sha256(head)
    for image in images():
        digest.update(_framed(image))
    yield digest.digest() + head
    for image in images():
        yield _framed(image)


def bodies(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the image of each slice, or a whole snapshot's one image; the end proves that it was all.

    Raises:
        CorruptRecord: it is not, or a slice is damaged.
    """
    source = _Source(pieces)
    told, head = source.take(_DIGEST_SIZE), source.take(_HEAD.size)
    if not _is_sliced(head):
        image = head + source.rest()
        if sha256(image).digest() != told:
            raise _corrupt("the snapshot's digest does not match")
        yield image
        return
    digest = sha256(head)
    for index in range(_HEAD.unpack(head)[3]):
        front = source.take(_SLICE.size)
        kind, size, checksum = _SLICE.unpack(front) if len(front) == _SLICE.size else (0, 0, 0)
        image = source.take(size - 4) if size > 4 else b""
        if kind != _BIN or len(image) != size - 4 or crc32(image) != checksum:
            raise _corrupt(f"slice {index} of the snapshot is damaged")
        digest.update(front)
        digest.update(image)
        yield image
    if source.rest() or digest.digest() != told:
        raise _corrupt("the snapshot's digest does not match")


def _framed(image: bytes) -> bytes:
    return _SLICE.pack(_BIN, len(image) + 4, crc32(image)) + image


def _is_sliced(head: bytes) -> bool:
    if len(head) < _HEAD.size:
        return False
    front, _, empty, _ = _HEAD.unpack(head)
    return bool(front == _FRONT and empty == _EMPTY)


def _corrupt(what: str) -> CorruptRecord:
    return CorruptRecord(f"{what}; an older snapshot or the log itself is used")


class _Source:
    """Pieces of any sizes, handed out by size."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = b""
        self._at = 0

    def take(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        found = self._held[self._at : self._at + size]
        self._at += len(found)
        if len(found) == size:
            return found
        parts, missing = [found], size - len(found)
        while missing and (piece := next(self._pieces, b"")):
            self._held, self._at = piece, min(missing, len(piece))
            parts.append(piece[: self._at])
            missing -= self._at
        return b"".join(parts)

    def rest(self) -> bytes:
        """Return everything that is left."""
        held, self._held = self._held[self._at :], b""
        return b"".join((held, *self._pieces))
