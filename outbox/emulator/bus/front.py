"""The first bytes of a connection: AMQP goes to its peer, HTTP to the administration, and TLS is not spoken.

One port serves both, so that one connection string does for every client.  A silent client is closed by the peer's
own time limit.  The HTTP side is loaded when the first request comes, in a thread, because its library takes longer to
import than all else; what the client sends meanwhile waits here, up to a limit.
"""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import TYPE_CHECKING

from outbox.emulator.bus.peer import Peer
from outbox.emulator.bus.transport import Endpoint, Room
from outbox.emulator.connections import TAKE_WITHIN_S

if TYPE_CHECKING:
    from aiohttp import web

log = logging.getLogger(__name__)

HTTP_COUNT_MAX = 64
ASK_WITHIN_S = 30.0
"""The time for the head of a connection's first request; the HTTP server watches the later ones."""
_HTTP_FIRST = frozenset(b"GPDHOC")  # GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS, CONNECT
_TLS_FIRST = 0x16


class HttpSide:
    """The HTTP server behind an endpoint, made with the first request, and its connections."""

    def __init__(self, endpoint: Endpoint, connection_count_max: int) -> None:
        self.room: Room[Front] = Room(min(HTTP_COUNT_MAX, connection_count_max))
        self._endpoint = endpoint
        self._server: web.Server | None = None

    async def load(self) -> None:
        """Load the module in a thread and make the server, if it was not."""
        module = await asyncio.to_thread(import_module, "outbox.emulator.bus.http")
        if self._server is None:
            self._server = module.http_server(self._endpoint)

    def protocol(self) -> asyncio.Protocol:
        """Make the HTTP protocol of one connection."""
        assert self._server is not None
        return self._server()

    async def close(self, within_s: float) -> None:
        """Break every connection, and end the server if there is one."""
        for front in self.room:
            front.abort()
        if self._server is not None:
            await self._server.shutdown(within_s)


class Front(asyncio.Protocol):
    """Stands before a connection until its first byte, and before an HTTP connection to its end."""

    def __init__(self, endpoint: Endpoint, peer: Peer, http: HttpSide) -> None:
        self._log_lines = endpoint.log_lines
        self._peer = peer
        self._http = http
        self._guest: asyncio.Protocol = peer
        self._transport: asyncio.Transport | None = None
        self._early: bytearray | None = None
        """The bytes that came before the HTTP side was loaded."""
        self._unasked: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._early is not None:
            self._early += data
        elif self._guest is not self._peer:
            self._hear(data)
        elif data[0] in _HTTP_FIRST:
            self._turn_to_http(data)
        else:
            if data[0] == _TLS_FIRST and self._log_lines.is_due("tls"):
                log.warning("a client speaks TLS to the Service Bus endpoint, which is plain; see its documentation")
            assert self._transport is not None
            self._transport.set_protocol(self._peer)
            self._peer.data_received(data)

    def _turn_to_http(self, data: bytes) -> None:
        assert self._transport is not None
        self._peer.leave()
        if not self._http.room.admit(self):
            self._transport.abort()
            return
        self._early = bytearray(data)
        self._transport.pause_reading()
        self._unasked = asyncio.get_running_loop().call_later(ASK_WITHIN_S, self._transport.abort)
        self._loading = asyncio.get_running_loop().create_task(self._load())

    async def _load(self) -> None:
        await self._http.load()
        transport, early = self._transport, self._early
        if transport is None or transport.is_closing() or early is None:
            return
        self._guest = self._http.protocol()
        self._early = None
        transport.resume_reading()  # before the server has its first word: it may want to read no further
        self._guest.connection_made(transport)
        self._hear(bytes(early))

    def _hear(self, data: bytes) -> None:
        if self._unasked is not None:
            self._end = self._end[-3:] + data
            if b"\r\n\r\n" in self._end:
                self._unasked.cancel()
                self._unasked, self._end = None, b""
        self._guest.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._early is not None else self._guest.eof_received()

    def pause_writing(self) -> None:
        assert self._transport is not None
        self._untaken = asyncio.get_running_loop().call_later(TAKE_WITHIN_S, self._transport.abort)
        self._guest.pause_writing()

    def resume_writing(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
        self._guest.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.room.leave(self)
        for timer in (self._unasked, self._untaken):
            if timer is not None:
                timer.cancel()
        self._guest.connection_lost(error)

    def abort(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()
