"""Where an emulator listens for HTTP: connections, upkeep each second, and an orderly end.

The library that speaks HTTP is imported with the first connection, in a thread: most hosts are never asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, cast

from outbox.emulator.connections import Connections
from outbox.emulator.control import Control
from outbox.emulator.dialect import Dialect

if TYPE_CHECKING:
    from outbox.emulator.http import Http

TIME_CHECK_S = 1.0
STOP_WITHIN_S = 1.0
ABORT_WITHIN_S = 0.1
"""The time for requests still under way to notice that their connection is gone."""


class HttpListener:
    """Listens for one service; `upkeep` is called once a second."""

    def __init__(
        self,
        service: Dialect,
        control: Control,
        *,
        is_local: bool,
        connection_count_max: int | None,
        upkeep: Callable[[], object],
    ) -> None:
        self._service = service
        self._control = control
        self._is_local = is_local
        self._connection_count_max = connection_count_max
        self._upkeep = upkeep
        self.connections: Connections | None = None
        self.http: Http | None = None
        """The HTTP side, once there was a connection."""
        self._listening: asyncio.Server | None = None
        self._timekeeper: asyncio.Task[None] | None = None

    async def start(
        self, host: str, port: int, front: Callable[[Connections], Callable[[], asyncio.BaseProtocol]] | None = None
    ) -> int:
        """Listen; the port, which the system chooses for 0.

        `front` makes what stands before HTTP on the same port, and hands on to the connections what is HTTP.

        Raises:
            OSError: the port is taken.
        """
        loop = asyncio.get_running_loop()
        connections = Connections(self._load_http, count_max=self._connection_count_max)
        first = connections if front is None else front(connections)
        self._listening = await loop.create_server(first, host, port, reuse_address=True)
        self.connections = connections
        self._timekeeper = loop.create_task(self._keep_time(connections), name=f"timekeeper of {host}:{port}")
        return int(self._listening.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Answer requests under way, for a moment, and close."""
        if self._listening is not None:
            self._listening.close()
        if self.connections is not None:
            await self._leave(self.connections)
        if self.http is not None:
            await self.http.server.shutdown(ABORT_WITHIN_S)
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._timekeeper
        self._listening = self.connections = self.http = self._timekeeper = None

    async def _load_http(self) -> Callable[[], asyncio.Protocol]:
        """Load the HTTP side, and return the factory of its protocols."""
        module = await asyncio.to_thread(import_module, "outbox.emulator.http")
        assert self.connections is not None, "a connection was made"
        self.http = http = module.Http(self._service, self._control, self.connections, is_local=self._is_local)
        return cast("Callable[[], asyncio.Protocol]", http.server)

    async def _leave(self, connections: Connections) -> None:
        connections.close()
        if connections.open:
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_WITHIN_S):
                    await connections.deserted.wait()
        connections.abort()

    async def _keep_time(self, connections: Connections) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(TIME_CHECK_S)
            connections.check_time(loop.time())
            self._upkeep()
