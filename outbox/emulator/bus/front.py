"""The first bytes of a connection: AMQP goes to its peer, HTTP to the administration, and TLS is not spoken.

One port serves both, so that one connection string does for every client.  A silent client is closed by the peer's
own time limit; what speaks HTTP is one of the HTTP listener's connections from its first byte on.
"""

from __future__ import annotations

import asyncio
import logging

from outbox.emulator.bus.peer import Peer
from outbox.emulator.connections import Connections
from outbox.log_throttle import LogThrottle

log = logging.getLogger(__name__)

HTTP_COUNT_MAX = 64
_HTTP_FIRST = frozenset(b"GPDHOC")  # GET, POST, PUT, PATCH, DELETE, HEAD, OPTIONS, CONNECT
_TLS_FIRST = 0x16


class Front(asyncio.Protocol):
    """Stands before a connection until its first byte."""

    def __init__(self, peer: Peer, http: Connections, log_lines: LogThrottle) -> None:
        self._peer = peer
        self._http = http
        self._log_lines = log_lines
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._peer.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        transport, peer = self._transport, self._peer
        assert transport is not None
        if data[0] in _HTTP_FIRST:
            peer.leave()
            connection = self._http()
            transport.set_protocol(connection)
            connection.connection_made(transport)
            if not transport.is_closing():
                connection.data_received(data)
            return
        if data[0] == _TLS_FIRST and self._log_lines.is_due("tls"):
            log.warning("a client speaks TLS to the Service Bus endpoint, which is plain; see its documentation")
        transport.set_protocol(peer)
        peer.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._peer.connection_lost(error)
