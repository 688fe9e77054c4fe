"""The doors of the host's HTTP endpoints: who is let in, under which name, and for how long without asking anything.

An endpoint on loopback is reached by every page in a browser on this machine.  A page cannot choose the name under
which its browser asks, so a request for any other name than the host goes by is refused: one whose name was rebound to
127.0.0.1 gets nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from aiohttp import web

LOOPBACK = frozenset(("127.0.0.1", "localhost", "[::1]"))
TAKE_WITHIN_S = 30.0
"""How long a client may take to read an answer: who asks and does not read would keep its place for good."""


def named_host(hosts: Sequence[str]) -> str:
    """The name in a request's one Host header, without its port; empty where that is none."""
    host = hosts[0].lower() if len(hosts) == 1 else ""
    name, colon, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
    if colon and not port.isdecimal():
        return ""
    return name if colon else host


class ConnectionGuard:
    """A factory of connections to a server, at most so many at a time."""

    def __init__(self, server: web.Server, *, connection_count_max: int, idle_max_s: float) -> None:
        self.server = server
        self.connection_count_max = connection_count_max
        self.idle_max_s = idle_max_s
        self.inside: set[GuardedConnection] = set()

    def __call__(self) -> GuardedConnection:
        return GuardedConnection(self)

    def stop(self) -> None:
        """Break the connections whose clients do not read: the server, which is about to end, would wait for them."""
        for door in list(self.inside):
            door.stop()


class GuardedConnection(asyncio.Protocol):
    """A connection: let in to the server while there is room, else closed, and closed if it asks nothing for a while.

    A limit on requests comes too late: connections that never ask anything would take all the descriptors of the host,
    and the log could not open its next file.  After its first request the server judges it.
    """

    def __init__(self, doors: ConnectionGuard) -> None:
        self._doors = doors
        self._guest: asyncio.Protocol | None = None
        self._transport: asyncio.Transport | None = None
        self._unasked: asyncio.TimerHandle | None = None
        self._untaken: asyncio.TimerHandle | None = None
        self._end = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        doors = self._doors
        if len(doors.inside) >= doors.connection_count_max:
            transport.abort()
            return
        doors.inside.add(self)
        self._guest = doors.server()
        self._guest.connection_made(transport)
        self._unasked = asyncio.get_running_loop().call_later(doors.idle_max_s, transport.abort)

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
        if self._guest is not None and self._transport is not None:
            self._untaken = asyncio.get_running_loop().call_later(TAKE_WITHIN_S, self._transport.abort)
            self._guest.pause_writing()

    def resume_writing(self) -> None:
        self._taken()
        if self._guest is not None:
            self._guest.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._doors.inside.discard(self)
        self._heard()
        self._taken()
        if self._guest is not None:
            self._guest.connection_lost(error)

    def stop(self) -> None:
        """Break the connection if its client does not read."""
        if self._untaken is not None and self._transport is not None:
            self._transport.abort()

    def _taken(self) -> None:
        if self._untaken is not None:
            self._untaken.cancel()
        self._untaken = None

    def _heard(self) -> None:
        if self._unasked is not None:
            self._unasked.cancel()
        self._unasked, self._end = None, b""
