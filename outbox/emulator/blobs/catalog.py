"""The stored form of containers and blobs, as the engine's documents have it."""

from __future__ import annotations

from email.utils import formatdate

import msgspec


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """A lease that was acquired and not released; its state follows from the time (`leases`)."""

    id: str
    duration_s: int
    """-1 is without an end."""
    ends_ms: int = 0
    """When it expires; 0 is never."""
    breaks_ms: int | None = None
    """Since when, or from when on, it is broken; None: nobody broke it."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Some bytes of a blob: the id of the document that holds them, and how many they are."""

    id: str
    size_bytes: int


class Block(msgspec.Struct, frozen=True, array_like=True):
    """A block by its id, as the client encodes it."""

    id: str
    pieces: tuple[Piece, ...]
    put_ms: int = 0

    @property
    def size_bytes(self) -> int:
        """How much it holds."""
        return sum(piece.size_bytes for piece in self.pieces)


class Properties(msgspec.Struct, frozen=True):
    """The HTTP properties of a blob."""

    content_type: str = "application/octet-stream"
    content_encoding: str = ""
    content_language: str = ""
    content_disposition: str = ""
    cache_control: str = ""
    content_md5: str = ""


class Container(msgspec.Struct, frozen=True, kw_only=True):
    """A container's definition.  `etag` 0 stands for the version of the document that holds it."""

    name: str
    rid: str
    modified_ms: int
    etag: int = 0
    metadata: dict[str, str] = {}
    lease: Lease | None = None


class Blob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob without its bytes.  `etag` 0 stands for the version of the document that holds it."""

    created_ms: int
    modified_ms: int
    etag: int = 0
    properties: Properties = Properties()
    metadata: dict[str, str] = {}
    tags: dict[str, str] = {}
    lease: Lease | None = None
    pieces: tuple[Piece, ...] = ()
    """Its bytes, where it was put at once."""
    blocks: tuple[Block, ...] = ()
    """Its bytes, where it was put in blocks."""

    @property
    def all_pieces(self) -> tuple[Piece, ...]:
        """Its bytes in order."""
        return self.pieces or tuple(piece for block in self.blocks for piece in block.pieces)

    @property
    def size_bytes(self) -> int:
        """How much it holds."""
        return sum(piece.size_bytes for piece in self.all_pieces)


def etag_of(version: int) -> str:
    """An ETag, in quotes."""
    return f'"0x{version:X}"'


def http_date(time_ms: int) -> str:
    """A time as headers have it, in whole seconds."""
    return formatdate(time_ms // 1_000, usegmt=True)
