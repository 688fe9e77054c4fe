"""HTTP/1.1 of one connection: requests read with limits, answered one after the other.

Decides nothing about what is asked.  *Theory of operation.*  What arrives is buffered until a request is whole; then it
is handled, and nothing more is read out of the buffer until its answer is with the transport and the transport takes
more.  So a client that sends ahead, or does not read, holds one request, one answer and a bounded buffer.  The server
looks at the time now and then: a connection that is slow to ask, or to read, is closed.

Only what clients of this service use is understood: no trailers, no upgrades, no folded headers, no compression.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

HEAD_MAX_BYTES = 32 << 10
HEADER_COUNT_MAX = 100
BODY_MAX_BYTES = 4 << 20
AHEAD_MAX_BYTES = 64 << 10
"""How much a client may send while an earlier request is being answered."""
CHUNK_LINE_MAX_BYTES = 256
WITHIN_S = 30.0
"""How long a request may take to arrive whole, from its first byte, and an answer to be taken."""
ASK_WITHIN_S = 30.0
"""How long a new connection may take for its first byte."""
IDLE_MAX_S = 120.0
"""How long a connection that has asked before may be silent."""

_REQUEST_LINE = re.compile(rb"([A-Z]{1,20}) (/[!-~]*) HTTP/1\.([01])")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*?)[ \t]*")
_REASONS = {status.value: status.phrase for status in HTTPStatus}
_RESET = struct.pack("ii", 1, 0)
"""Closing discards what is unsent and resets the connection."""
_WITHOUT_BODY = frozenset((204, 304))


@dataclass(slots=True)
class Request:
    """A whole request; the names of headers are in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    is_last: bool
    """Whether the connection closes behind the answer."""


class Server(Protocol):
    """What a connection needs to know of its server."""

    async def respond(self, request: Request) -> bytes | None:
        """The bytes of the answer; None breaks the connection."""

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for another connection."""

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""

    def reserve(self, size_bytes: int) -> bool:
        """Whether there is room for a body that is to be read; a negative size gives the room back."""


class Malformed(Exception):
    """Bytes that are no request; the connection is answered and closed."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Connection(asyncio.Protocol):
    """One connection, as a protocol of asyncio."""

    def __init__(self, server: Server, refused: Callable[[int, str], bytes]) -> None:
        """`refused` makes the answer to what is malformed."""
        self._server = server
        self._refused = refused
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._pending: Request | None = None
        """A request whose head was read and whose body is on its way."""
        self._body_bytes: int | None = None
        self._body = bytearray()
        """What has come of a body in chunks."""
        self._reserved_bytes = 0
        self._is_writing_paused = self._is_ended = self._is_closing = self._has_asked = False
        self._since_s = asyncio.get_running_loop().time()
        """When the present wait began: for a request, or for the client to read."""

    @property
    def is_busy(self) -> bool:
        """Whether a request is being answered."""
        return self._task is not None

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._server.admit(self):
            self._transport = None
            transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._give_room_back()
        self._buffer.clear()
        self._server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        if not self._buffer and self._pending is None:
            self._since_s = asyncio.get_running_loop().time()
        self._buffer += data
        if self._task is None:
            self._advance()
        elif len(self._buffer) > AHEAD_MAX_BYTES and self._transport is not None:
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._is_ended = True
        return self._task is not None  # a client that only listens any more gets its answer

    def pause_writing(self) -> None:
        self._is_writing_paused = True

    def resume_writing(self) -> None:
        self._is_writing_paused = False
        if self._task is None:
            self._advance()

    # The server's side

    def check_time(self, now_s: float) -> None:
        """Close the connection if it has been slow for too long."""
        if self._task is not None or self._transport is None:
            return
        is_idle = not self._buffer and self._pending is None and not self._is_writing_paused
        limit_s = (IDLE_MAX_S if self._has_asked else ASK_WITHIN_S) if is_idle else WITHIN_S
        if now_s - self._since_s > limit_s:
            self._transport.abort()

    def close(self) -> None:
        """Close once the request that is being answered, if there is one, is."""
        self._is_closing = True
        if self._task is None and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()
        if self._task is not None:
            self._task.cancel()

    # From bytes to requests

    def _advance(self) -> None:
        """Begin to answer the next request, if all of it is there."""
        if self._is_writing_paused or self._transport is None:
            return
        try:
            request = self._next()
        except Malformed as malformed:
            self._is_closing = True
            self._transport.write(self._refused(malformed.status, malformed.text))
            self._transport.close()
            return
        if request is not None:
            self._has_asked = True
            self._task = asyncio.get_running_loop().create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        answer = await self._server.respond(request)
        self._task = None
        self._give_room_back()
        transport = self._transport
        if transport is None:
            return
        self._since_s = asyncio.get_running_loop().time()
        if answer is None:
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            transport.abort()
            return
        transport.write(answer)
        if request.is_last or self._is_closing or (self._is_ended and not self._buffer):
            self._is_closing = True
            transport.close()
            return
        transport.resume_reading()
        self._advance()

    def _next(self) -> Request | None:
        """The next request in the buffer, None while it is not whole.

        Raises:
            Malformed: what is there can never be one.
        """
        if self._pending is None:
            end = self._buffer.find(b"\r\n\r\n", 0, HEAD_MAX_BYTES)
            if end < 0:
                if len(self._buffer) >= HEAD_MAX_BYTES:
                    raise Malformed(431, f"the head of a request is over {HEAD_MAX_BYTES} bytes")
                return None
            self._pending, self._body_bytes = read_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            self._make_room(self._pending)
        request = self._pending
        if self._body_bytes is None:
            body = self._chunked()
            if body is None:
                return None
            request.body = body
        elif len(self._buffer) < self._body_bytes:
            return None
        elif self._body_bytes:
            request.body = bytes(self._buffer[: self._body_bytes])
            del self._buffer[: self._body_bytes]
        self._pending = None
        return request

    def _make_room(self, request: Request) -> None:
        size_bytes = BODY_MAX_BYTES if self._body_bytes is None else self._body_bytes
        if size_bytes > BODY_MAX_BYTES:
            raise Malformed(413, f"a body of {size_bytes} bytes is over {BODY_MAX_BYTES}")
        if size_bytes:
            if not self._server.reserve(size_bytes):
                raise Malformed(429, "too many bodies are being read")
            self._reserved_bytes = size_bytes
            if request.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _give_room_back(self) -> None:
        if self._reserved_bytes:
            self._server.reserve(-self._reserved_bytes)
            self._reserved_bytes = 0

    def _chunked(self) -> bytes | None:
        """The body out of its chunks, None while the last is not there; those that are there leave the buffer."""
        buffer, at, found = self._buffer, 0, None
        while found is None:
            end = buffer.find(b"\r\n", at, at + CHUNK_LINE_MAX_BYTES)
            if end < 0:
                if len(buffer) - at >= CHUNK_LINE_MAX_BYTES:
                    raise Malformed(400, "a chunk of the body has no length")
                break
            length = _chunk_length(bytes(buffer[at:end]))
            if len(self._body) + length > BODY_MAX_BYTES:
                raise Malformed(413, f"a body is over {BODY_MAX_BYTES} bytes")
            begin, behind = end + 2, end + 2 + length
            if len(buffer) < behind + 2:
                break
            if buffer[behind : behind + 2] != b"\r\n":
                raise Malformed(400, "a chunk of the body is not as long as it says")
            self._body += buffer[begin:behind]
            at = behind + 2
            if not length:
                found = bytes(self._body)
                self._body = bytearray()
        del buffer[:at]
        return found


def _chunk_length(line: bytes) -> int:
    digits = line.partition(b";")[0].strip()
    if not re.fullmatch(rb"[0-9a-fA-F]{1,8}", digits):
        raise Malformed(400, "a chunk of the body has no length")
    return int(digits, 16)


def read_head(head: bytes) -> tuple[Request, int | None]:
    """A request's head, without its empty line, and the length of its body; None is in chunks.

    Raises:
        Malformed: it is no head.
    """
    lines = head.lstrip(b"\r\n").split(b"\r\n")
    first = _REQUEST_LINE.fullmatch(lines[0])
    if first is None:
        raise Malformed(400, "the first line is no request of HTTP/1.1")
    if len(lines) > HEADER_COUNT_MAX + 1:
        raise Malformed(431, f"a request has more than {HEADER_COUNT_MAX} headers")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise Malformed(400, f"a header is malformed: {line[:40]!r}")
        name, value = found[1].decode("ascii").lower(), found[2].decode("latin-1")
        if name in headers and name in ("host", "content-length", "transfer-encoding", "authorization"):
            raise Malformed(400, f"the header {name} is there twice")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    wishes = headers.get("connection", "").lower()
    is_last = "close" in wishes or (first[3] == b"0" and "keep-alive" not in wishes)
    return Request(first[1].decode(), first[2].decode(), headers, b"", is_last), _body_bytes(headers)


def _body_bytes(headers: dict[str, str]) -> int | None:
    length, coding = headers.get("content-length"), headers.get("transfer-encoding")
    if coding is not None:
        if length is not None or coding.lower() != "chunked":
            raise Malformed(400, "the body is framed in a way that is not understood")
        return None
    if length is None:
        return 0
    if not length.isascii() or not length.isdecimal() or len(length) > 15:
        raise Malformed(400, "Content-Length is no number")
    return int(length)


def response_of(status: int, headers: dict[str, str], body: bytes, *, is_last: bool, has_body: bool = True) -> bytes:
    """The bytes of an answer; without `has_body` (to HEAD) it is only described."""
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Answer')}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if status not in _WITHOUT_BODY:
        lines.append(f"Content-Length: {len(body)}")
        if body:
            lines.append("Content-Type: application/json")
    if is_last:
        lines.append("Connection: close")
    head = "\r\n".join(lines).encode("latin-1", "replace") + b"\r\n\r\n"
    return head + body if has_body and status not in _WITHOUT_BODY else head
