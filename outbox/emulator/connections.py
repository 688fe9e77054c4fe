"""Where an emulator listens for HTTP: its connections, with limits on their number, time and memory, and upkeep.

*Theory of operation.*  What speaks HTTP stands behind each connection and sees every byte; this file only counts and
looks at the clock.  A connection is idle, sends a head, sends a body, or waits for its answer.  Heads, and what is sent
ahead of an answer, have a size; every state but the last has an end, and so has an answer that the client does not
read.  The server looks at the time now and then, so an end comes up to a look late.  Where there is no room for another
connection, the one that has been silent for longest is dropped, unless all are in the middle of a request.  HTTP is
loaded with the first connection, in a thread, because its library takes longer to import than all else; meanwhile
nothing is read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from importlib import import_module
from typing import TYPE_CHECKING, Any

from outbox.emulator.dialect import Dialect
from outbox.emulator.faults import Control

if TYPE_CHECKING:
    from aiohttp import StreamReader

CONNECTION_COUNT_MAX = 512
TIME_CHECK_S = 1.0
STOP_WITHIN_S = 1.0
ABORT_WITHIN_S = 0.1
"""The time for requests still under way to notice that their connection is gone."""
HEAD_MAX_BYTES = 32 << 10
AHEAD_MAX_BYTES = 64 << 10
"""How much a client may send behind a request before that is answered."""
HEAD_WITHIN_S = 10.0
"""The time that a new connection has for its first byte, and a head for all of its bytes."""
REQUEST_WITHIN_S = 30.0
"""How long a request may take to arrive whole, from its first byte."""
TAKE_WITHIN_S = 30.0
"""How long a client may take to read an answer, and a connection to close."""
IDLE_MAX_S = 120.0
"""How long a connection that was answered may be silent; the SDKs' pools keep theirs for less."""
SEND_BUFFER_BYTES = 128 << 10
"""The bytes of an answer that the system may hold; left to itself, it takes megabytes of each."""

_HEAD_END = b"\r\n\r\n"
_HEAD_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_RESET = struct.pack("ii", 1, 0)
"""The option by which a close discards unsent bytes and resets the connection."""


class Phase(Enum):
    """The phase of a connection."""

    NEW = "nothing has come"
    HEAD = "a head is on its way"
    BODY = "the head is there, the body may be on its way"
    ANSWERING = "the request is there, the answer is not"
    IDLE = "the last request is answered"
    CLOSING = "nothing more is answered"


_WITHIN_S = {
    Phase.NEW: HEAD_WITHIN_S,
    Phase.HEAD: HEAD_WITHIN_S,
    Phase.BODY: REQUEST_WITHIN_S,
    Phase.IDLE: IDLE_MAX_S,
    Phase.CLOSING: TAKE_WITHIN_S,
}
"""How long each may last; BODY counts from the first byte of the head.  An answer takes what its operation takes."""


class Connections:
    """The connections of one service, and a factory of them; `upkeep` is called once a second."""

    def __init__(
        self,
        service: Dialect,
        control: Control,
        *,
        is_local: bool,
        count_max: int | None,
        upkeep: Callable[[], object],
    ) -> None:
        """Without a `count_max` it is 512, or a quarter of the process's descriptors if that is less."""
        self.open: set[Connection] = set()
        self.deserted = asyncio.Event()
        """Set when the last connection goes."""
        self.is_stopping = False
        self.http: Any = None
        """The HTTP side (`outbox.emulator.http`), once there was a connection."""
        self._service = service
        self._control = control
        self._is_local = is_local
        self._upkeep = upkeep
        self._listening: asyncio.Server | None = None
        self._loading: asyncio.Task[None] | None = None
        self._timekeeper: asyncio.Task[None] | None = None
        self.by_speaker: dict[asyncio.BaseProtocol, Connection] = {}
        """The connections that speak HTTP by now."""
        self._count_max = count_max or usual_count_max()

    async def start(self, host: str, port: int, front: Callable[[], asyncio.BaseProtocol] | None = None) -> int:
        """Listen; the port, which the system chooses for 0.

        `front` makes what stands before HTTP on the same port, and hands on to a connection what is HTTP.

        Raises:
            OSError: the port is taken.
        """
        loop = asyncio.get_running_loop()
        self.is_stopping = False
        self._listening = await loop.create_server(front or self, host, port, reuse_address=True)
        self._timekeeper = loop.create_task(self._keep_time(), name=f"timekeeper of {host}:{port}")
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Answer requests under way, for a moment, and close."""
        if self._listening is None or self._timekeeper is None:
            return
        self._listening.close()
        self.is_stopping = True  # connections that are being answered close behind their answers
        for connection in list(self.open):
            if connection.phase is not Phase.BODY and connection.phase is not Phase.ANSWERING:
                connection.close()
        if self.open:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await self.deserted.wait()
        self.abort()
        if self.http is not None:
            await self.http.server.shutdown(ABORT_WITHIN_S)
        self._timekeeper.cancel()
        with suppress(asyncio.CancelledError):
            await self._timekeeper
        self._listening = self._loading = self._timekeeper = self.http = None

    async def _keep_time(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TIME_CHECK_S)
            for connection in list(self.open):
                connection.check_time(loop.time())
            self._upkeep()

    def __call__(self) -> Connection:
        return Connection(self)

    @property
    def unread_bytes(self) -> int:
        """How much of all answers their clients have not read."""
        return sum(connection.unread_bytes for connection in self.open if connection.is_unread)

    def abort(self) -> None:
        """Break all connections."""
        for connection in list(self.open):
            connection.abort()
        if self._loading is not None:
            self._loading.cancel()

    def admit(self, connection: Connection) -> bool:
        """Whether there is room for another connection, or was made; what speaks HTTP comes at once or is loaded."""
        if self.is_stopping or (len(self.open) >= self._count_max and not self._displace()):
            return False
        self.open.add(connection)
        self.deserted.clear()
        if self.http is not None:
            self._serve(connection, self.http)
        elif self._loading is None:
            self._loading = asyncio.get_running_loop().create_task(self._load(), name="HTTP loading")
        return True

    def forget(self, connection: Connection, speaker: asyncio.Protocol | None) -> None:
        """A connection is gone."""
        self.open.discard(connection)
        if speaker is not None:
            self.by_speaker.pop(speaker, None)
        if not self.open:
            self.deserted.set()

    def _displace(self) -> bool:
        """Drop the connection that has been silent for longest, for another; whether there was any.

        Otherwise clients that say nothing keep all others out until their time is over.
        """
        oldest = min((one for one in self.open if one.is_silent), key=lambda one: one.since_s, default=None)
        if oldest is None:
            return False
        oldest.abort()
        self.open.discard(oldest)
        return True

    async def _load(self) -> None:
        """Load the HTTP side, and serve who waits for it."""
        module = await asyncio.to_thread(import_module, "outbox.emulator.http")
        self.http = http = module.Http(self._service, self._control, self, is_local=self._is_local)
        for connection in list(self.open):
            self._serve(connection, http)

    def _serve(self, connection: Connection, http: Any) -> None:
        speaker = http.server()
        self.by_speaker[speaker] = connection
        connection.serve(speaker)


class Connection(asyncio.Protocol):
    """One connection: its bytes go to what speaks HTTP, within limits."""

    def __init__(self, connections: Connections) -> None:
        self.phase = Phase.NEW
        self.is_ended = False
        """The client sends nothing more; it may still listen."""
        self._connections = connections
        self._speaker: asyncio.Protocol | None = None
        self.since_s = 0.0
        """When the phase began; that of a body, when its head began."""
        self._unread_since_s: float | None = None
        self._count_bytes = 0
        """Of the head that is on its way, or ahead of the answer."""
        self._tail = b""
        self._early = b""
        """The bytes that came before HTTP was loaded."""
        self._body: StreamReader | None = None

    # The transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.since_s = asyncio.get_running_loop().time()
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        transport.pause_reading()
        if not self._connections.admit(self):
            transport.abort()

    def serve(self, speaker: asyncio.Protocol) -> None:
        """Begin to read, for what speaks HTTP here."""
        if self._transport.is_closing():
            return
        self._speaker = speaker
        self._transport.resume_reading()
        speaker.connection_made(self._transport)
        early, self._early = self._early, b""
        if early:
            self.data_received(early)

    def data_received(self, data: bytes) -> None:
        if self._speaker is None:
            self._keep(data)
            return
        if self.phase is Phase.NEW or self.phase is Phase.IDLE:
            self.phase, self._count_bytes, self._tail = Phase.HEAD, 0, b""
            self.since_s = asyncio.get_running_loop().time()
        if self.phase is Phase.HEAD:
            if _HEAD_END in self._tail + data:
                self.phase, self._tail = Phase.BODY, b""
            else:
                self._tail = data[-3:] if len(data) > 2 else (self._tail + data)[-3:]
                self._count_bytes += len(data)
                if self._count_bytes > HEAD_MAX_BYTES:
                    self._transport.write(_HEAD_TOO_LONG)
                    self.close()
                    return
        elif self.phase is Phase.ANSWERING:
            self._count_bytes += len(data)
            if self._count_bytes > AHEAD_MAX_BYTES:
                self.abort()
                return
        self._speaker.data_received(data)

    def _keep(self, data: bytes) -> None:
        """Keep bytes read although reading is paused: Python 3.11.2 forgets a pause before its first read."""
        self._early += data
        self._transport.resume_reading()
        self._transport.pause_reading()

    def eof_received(self) -> bool:
        self.is_ended = True
        if self._body is not None and not self._body.is_eof():
            self._body.set_exception(ConnectionResetError("the client went within a body"))
        return self.phase is Phase.BODY or self.phase is Phase.ANSWERING  # who only listens any more gets its answer

    def pause_writing(self) -> None:
        self._unread_since_s = asyncio.get_running_loop().time()
        if self._speaker is not None:
            self._speaker.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since_s = None
        if self._speaker is not None:
            self._speaker.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.forget(self, self._speaker)
        if self._speaker is not None:
            self._speaker.connection_lost(error)
        self._speaker = self._body = None

    # The server's side

    @property
    def is_unread(self) -> bool:
        """Whether the client lets an answer wait."""
        return self._unread_since_s is not None

    @property
    def is_silent(self) -> bool:
        """Whether no request is on its way, and none has an answer that is; before HTTP is loaded nobody knows."""
        return self._speaker is not None and self.phase in (Phase.NEW, Phase.IDLE) and not self.unread_bytes

    @property
    def unread_bytes(self) -> int:
        """How much was written and not read."""
        return self._transport.get_write_buffer_size()

    def check_time(self, now_s: float) -> None:
        """Close the connection if it has been slow for too long."""
        within_s = _WITHIN_S.get(self.phase)
        is_late = within_s is not None and now_s - self.since_s > within_s
        if is_late or (self._unread_since_s is not None and now_s - self._unread_since_s > TAKE_WITHIN_S):
            self.abort()

    def begin(self) -> None:
        """A head was understood, and its request is to be answered."""
        if self.phase is not Phase.CLOSING:
            self.phase = Phase.BODY

    def read(self, body: StreamReader) -> None:
        """A body is being read.

        Raises:
            ConnectionResetError: it cannot come any more.
        """
        if self.is_ended and not body.is_eof():
            raise ConnectionResetError("the client went within a body")
        self._body = body

    def begin_answer(self) -> None:
        """The request is there."""
        self._body = None
        if self.phase is not Phase.CLOSING:
            self.phase, self._count_bytes = Phase.ANSWERING, 0

    def finish(self, *, is_last: bool) -> bool:
        """The answer is made; whether the connection is to close behind it."""
        self._body = None
        is_last = is_last or self._connections.is_stopping or (self.is_ended and not self._count_bytes)
        self.since_s = asyncio.get_running_loop().time()
        if is_last:
            self.phase = Phase.CLOSING
        elif self.phase is Phase.ANSWERING and self._count_bytes:
            self.phase = Phase.HEAD
        elif self.phase is not Phase.CLOSING:
            self.phase = Phase.IDLE
        return is_last

    def close(self) -> None:
        """Close; written bytes are still sent, for a while."""
        self.phase = Phase.CLOSING
        self.since_s = asyncio.get_running_loop().time()
        self._transport.close()

    def reset(self) -> None:
        """Break the connection in such a way that the client sees a reset."""
        if not self._transport.is_closing():
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.abort()

    def abort(self) -> None:
        """Break the connection."""
        self.phase = Phase.CLOSING
        self._transport.abort()


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def usual_count_max() -> int:
    """How many connections leave this process descriptors for all else: the log must find one for its next file."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTION_COUNT_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTION_COUNT_MAX, soft // 4))
