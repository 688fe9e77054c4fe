"""A connection at the door: let in while there is room, and closed if it asks nothing for a while."""

from __future__ import annotations

import asyncio

from aiohttp import web

ASK_WITHIN_S = 30.0
"""How long a connection may take for the head of its first request; the server itself watches the later ones."""


class Door(asyncio.Protocol):
    """Stands before the server's own protocol.

    Limits on requests come too late: connections that never ask anything would take all the descriptors of the
    process, and the log could not open its next file.
    """

    def __init__(self, server: web.Server, inside: set[Door], count_max: int) -> None:
        self._server = server
        self._inside = inside
        self._count_max = count_max
        self._guest: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._unasked: asyncio.TimerHandle | None = None
        self._end = b""

    def abort(self) -> None:
        """Break the connection."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._inside) >= self._count_max:
            transport.abort()
            return
        self._transport = transport
        self._inside.add(self)
        self._guest = self._server()
        self._guest.connection_made(transport)
        self._unasked = asyncio.get_running_loop().call_later(ASK_WITHIN_S, transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._unasked is not None:
            self._end = self._end[-3:] + data
            if b"\r\n\r\n" in self._end:
                self._heard()
        if self._guest is not None:
            self._guest.data_received(data)

    def eof_received(self) -> bool | None:
        return self._guest.eof_received() if self._guest is not None else None

    def pause_writing(self) -> None:
        if self._guest is not None:
            self._guest.pause_writing()

    def resume_writing(self) -> None:
        if self._guest is not None:
            self._guest.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._inside.discard(self)
        self._heard()
        if self._guest is not None:
            self._guest.connection_lost(error)

    def _heard(self) -> None:
        if self._unasked is not None:
            self._unasked.cancel()
        self._unasked, self._end = None, b""
