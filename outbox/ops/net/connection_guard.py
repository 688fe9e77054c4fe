"""Guard the host's HTTP endpoints: limit connections, idle ones and slow readers, and serve behind that.

Every page in a browser on this machine can reach an endpoint on loopback.  A page cannot choose the Host header of its
requests, so requests for other names than the host's are refused: a name rebound to 127.0.0.1 (DNS rebinding) gets
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

_quiet = logging.getLogger("outbox.http.connections")
_quiet.setLevel(logging.CRITICAL)  # any process can send nonsense; a response is enough, without a traceback

LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))
TAKE_WITHIN_S = 30.0
"""How long a client may take to read a response; without a limit it would hold its connection for ever."""


def named_host(hosts: Sequence[str]) -> str:
    """The name in a request's one Host header, without its port; empty where that is invalid."""
    host = hosts[0].lower() if len(hosts) == 1 else ""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    return host if not colon else name if port.isdecimal() else ""


@asynccontextmanager
async def serve_guarded(
    application: web.Application,
    port: int,
    *,
    connection_count_max: int,
    idle_max_s: float,
    stop: Callable[[], None] = lambda: None,
    **settings: Any,
) -> AsyncIterator[int]:
    """Serve an application on a port of loopback (0: any free one); its port.

    On exit it closes the port, calls `stop`, and lets requests in progress end.  `settings` are those of aiohttp's
    runner.

    Raises:
        OSError: the port cannot be used.
    """
    runner = web.AppRunner(
        application,
        access_log=None,
        logger=_quiet,
        auto_decompress=False,
        keepalive_timeout=idle_max_s,
        **settings,
    )
    await runner.setup()
    try:
        assert runner.server is not None, "a runner that is set up has a server"
        guard = ConnectionGuard(runner.server, connection_count_max=connection_count_max, idle_max_s=idle_max_s)
        listening = await asyncio.get_running_loop().create_server(guard, "127.0.0.1", port)
        try:
            yield int(listening.sockets[0].getsockname()[1])
        finally:
            listening.close()
            stop()
            guard.stop()
    finally:
        await runner.cleanup()


class ConnectionGuard:
    """A factory of connections to a server, with a limit."""

    def __init__(self, server: web.Server, *, connection_count_max: int, idle_max_s: float) -> None:
        self.server = server
        self.connection_count_max = connection_count_max
        self.idle_max_s = idle_max_s
        self.connections: set[GuardedConnection] = set()

    def __call__(self) -> GuardedConnection:
        return GuardedConnection(self)

    def stop(self) -> None:
        """Abort the connections whose clients do not read: a stopping server would wait for them."""
        for connection in list(self.connections):
            connection.stop()


class GuardedConnection(asyncio.Protocol):
    """A connection: aborted above the limit, and if no request arrives in time.

    A limit on requests would come too late: connections without a request could take all file descriptors of the host,
    and the log could not open its next file.  After the first request the server's own timeouts apply.
    """

    def __init__(self, guard: ConnectionGuard) -> None:
        self._guard = guard
        self._protocol: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._tail = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        guard = self._guard
        if len(guard.connections) >= guard.connection_count_max:
            transport.abort()
            return
        guard.connections.add(self)
        self._protocol = guard.server()
        self._protocol.connection_made(transport)
        self._idle_timer = asyncio.get_running_loop().call_later(guard.idle_max_s, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._idle_timer is not None:
            self._tail = self._tail[-3:] + data
            if b"\r\n\r\n" in self._tail:
                self._end_idle()
        if self._protocol is not None:
            self._protocol.data_received(data)

    def eof_received(self) -> bool | None:
        return self._protocol.eof_received() if self._protocol is not None else None

    def pause_writing(self) -> None:
        if self._protocol is not None and self._transport is not None:
            self._stall_timer = asyncio.get_running_loop().call_later(TAKE_WITHIN_S, self._transport.abort)
            self._protocol.pause_writing()

    def resume_writing(self) -> None:
        self._end_stall()
        if self._protocol is not None:
            self._protocol.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._guard.connections.discard(self)
        self._end_idle()
        self._end_stall()
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def stop(self) -> None:
        """Abort the connection if its client does not read."""
        if self._stall_timer is not None and self._transport is not None:
            self._transport.abort()

    def _end_stall(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = None

    def _end_idle(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        self._idle_timer, self._tail = None, b""
