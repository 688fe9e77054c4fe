"""Frames: the byte stream cut into performatives, and the eight-byte headers put in front of them.

Decides where a frame begins and ends and which protocol header opens the stream.  `FrameReader` takes bytes as they
arrive and never holds more than one frame's worth; `Output` collects what is to be sent.  What a frame means is for
`connection`.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from outbox.emulator.amqp.errors import FRAMING_ERROR, ConnectionFault

HEADER_AMQP = b"AMQP\x00\x01\x00\x00"
HEADER_SASL = b"AMQP\x03\x01\x00\x00"
HEADER_BYTES = 8
TYPE_AMQP = 0
TYPE_SASL = 1
EMPTY_FRAME = b"\x00\x00\x00\x08\x02\x00\x00\x00"

_HEAD = struct.Struct(">IBBH")


class Frame(NamedTuple):
    """One frame: its type and channel, and where its body lies in `data`."""

    type: int
    channel: int
    data: bytes
    start: int
    end: int


def frame(body: bytes, *, channel: int = 0, frame_type: int = TYPE_AMQP) -> bytes:
    """Put a frame header in front of a body."""
    return _HEAD.pack(len(body) + HEADER_BYTES, 2, frame_type, channel) + body


class FrameReader:
    """Cuts a byte stream into frames of at most `frame_size_max_bytes`."""

    __slots__ = ("_at", "_data", "_parts", "_parts_bytes", "_wanted", "frame_size_max_bytes")

    def __init__(self, *, frame_size_max_bytes: int) -> None:
        self.frame_size_max_bytes = frame_size_max_bytes
        self._data = b""
        self._at = 0
        self._wanted = HEADER_BYTES
        self._parts: list[bytes] = []
        self._parts_bytes = 0

    def feed(self, data: bytes) -> None:
        """Take what arrived; it is joined only when a whole header or frame is there."""
        self._parts.append(data)
        self._parts_bytes += len(data)
        if self._parts_bytes >= self._wanted:
            self._data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
            self._at = 0

    def clear(self) -> None:
        """Drop the unread bytes; the stream is over."""
        self._parts, self._parts_bytes, self._data, self._at = [], 0, b"", 0

    def next_header(self) -> bytes | None:
        """The eight bytes of a protocol header, or None until they are there."""
        if len(self._data) - self._at < HEADER_BYTES:
            self._keep(HEADER_BYTES)
            return None
        header = self._data[self._at : self._at + HEADER_BYTES]
        self._at += HEADER_BYTES
        return header

    def next_frame(self) -> Frame | None:
        """The next whole frame, or None until it is there.

        Raises: ConnectionFault.
        """
        data, at = self._data, self._at
        if len(data) - at < HEADER_BYTES:
            self._keep(HEADER_BYTES)
            return None
        size, offset, frame_type, channel = _HEAD.unpack_from(data, at)
        if size > self.frame_size_max_bytes:
            raise ConnectionFault(FRAMING_ERROR, f"a frame of {size} bytes is above {self.frame_size_max_bytes}")
        if offset < 2 or offset * 4 > size or frame_type > TYPE_SASL:
            raise ConnectionFault(FRAMING_ERROR, f"frame header with size {size}, offset {offset}, type {frame_type}")
        if len(data) - at < size:
            self._keep(size)
            return None
        self._at = at + size
        return Frame(frame_type, channel, data, at + offset * 4, at + size)

    def _keep(self, wanted: int) -> None:
        """Keep only unconsumed bytes, and join them again once `wanted` bytes are there."""
        if not self._data:
            return
        rest = self._data[self._at :]
        self._parts, self._parts_bytes = ([rest] if rest else []), len(rest)
        self._data, self._at = b"", 0
        self._wanted = wanted


class Output:
    """The bytes that wait to be sent."""

    __slots__ = ("_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self.size_bytes = 0

    def write(self, data: bytes) -> None:
        """Append bytes to the output."""
        self._parts.append(data)
        self.size_bytes += len(data)

    def take(self) -> bytes:
        """Take the output, once."""
        if not self._parts:
            return b""
        parts, self._parts, self.size_bytes = self._parts, [], 0
        return b"".join(parts)
