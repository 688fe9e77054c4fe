"""The server of the Cosmos DB emulator: where it listens, what it is made of, and how it starts and stops.

It listens on loopback under the port and the public key of Microsoft's emulator, so that existing settings work; on
any other address it insists on a key of one's own.  Many may run in one process.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from outbox.emulator.connections import Connections
from outbox.emulator.control import Control
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY, Signatures
from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.cosmos.catalog_operations import CatalogOperations
from outbox.emulator.cosmos.charges import Meter, Usage
from outbox.emulator.cosmos.feed_operations import FeedOperations
from outbox.emulator.cosmos.gateway import Gateway
from outbox.emulator.cosmos.item_operations import ItemOperations
from outbox.emulator.cosmos.snapshots import Snapshots
from outbox.emulator.cosmos.store import Store
from outbox.emulator.faults import Faults
from outbox.emulator.listening import is_loopback
from outbox.engine.engine import Engine
from outbox.errors import Refused

if TYPE_CHECKING:
    from outbox.emulator.http import Http

log = logging.getLogger(__name__)

PORT = 8081
TIME_CHECK_S = 1.0
STOP_WITHIN_S = 1.0
ABORT_WITHIN_S = 0.1
"""How long what is still under way then may take to notice that its connection is gone."""


@dataclass(frozen=True, slots=True)
class Connection:
    """What the SDK takes: `CosmosClient(connection.url, credential=connection.key)`."""

    url: str
    key: str

    @property
    def connection_string(self) -> str:
        """What the SDK's `from_connection_string` takes.  It holds the key."""
        return f"AccountEndpoint={self.url};AccountKey={self.key};"

    def __repr__(self) -> str:
        return f"Connection(url={self.url!r})"


class CosmosEmulator:
    """Serve an engine's documents as a Cosmos DB account.  Use it as an async context manager, or start and stop it."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        key: str = WELL_KNOWN_KEY,
        faults: Faults | None = None,
        history_s: float = 0.0,
        control_token: str | None = None,
        connection_count_max: int | None = None,
        draw: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """Take the engine to serve; port 0 lets the system choose one.

        `history_s` is how long writes are remembered for stale reads, besides while a rule for them is installed.
        One engine is served by one emulator at a time.  Without a `connection_count_max` it is 512, or a quarter of the
        descriptors that the process may have open if that is less.

        Raises:
            Refused: a host that others can reach with the public key; a key that is none.
        """
        self._is_local = is_loopback(host)
        if key == WELL_KNOWN_KEY and not self._is_local:
            raise Refused(f"{host} can be reached by others and the key is public; give key=..., or use 127.0.0.1")
        self.engine = engine
        self.host = host
        self.port = port
        self.faults = Faults() if faults is None else faults
        self.control_token = control_token or secrets.token_urlsafe(32)
        self._key = key
        self._meter = Meter()
        catalog = Catalog(engine, draw)
        store = Store(engine, catalog, self.faults, history_s)
        operations = {**CatalogOperations(store).by_name(), **ItemOperations(store).by_name()}
        self._snapshots = Snapshots()
        operations |= FeedOperations(store, self._snapshots).by_name()
        self.store = store
        self._gateway = Gateway(engine, catalog, operations, Signatures(key), self.faults, self._meter)
        self._control = Control(self.faults, self._meter, self.control_token)
        self._connection_count_max = connection_count_max
        self._connections: Connections | None = None
        self._http: Http | None = None
        self._listening: asyncio.Server | None = None
        self._timekeeper: asyncio.Task[None] | None = None

    @property
    def connection(self) -> Connection:
        """Where it listens, and its key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return Connection(f"http://{host}:{self.port}/", self._key)

    def usage(self) -> dict[str, Usage]:
        """Requests and request units by operation, since the start or `reset_usage`."""
        return self._meter.usage()

    def reset_usage(self) -> None:
        """Count requests from zero."""
        self._meter.reset()

    async def start(self) -> Self:
        """Listen.

        Raises:
            OSError: the port is taken.
        """
        loop = asyncio.get_running_loop()
        connections = Connections(self._load_http, count_max=self._connection_count_max)
        self._listening = await loop.create_server(connections, self.host, self.port, reuse_address=True)
        self.port = self._listening.sockets[0].getsockname()[1]
        self._connections = connections
        self._timekeeper = loop.create_task(self._keep_time(connections), name="cosmos timekeeper")
        return self

    async def stop(self) -> None:
        """Answer what is under way, for a moment, and close."""
        if self._listening is not None:
            self._listening.close()
        if self._connections is not None:
            await self._leave(self._connections)
        if self._http is not None:
            await self._http.server.shutdown(ABORT_WITHIN_S)
        if self._timekeeper is not None:
            self._timekeeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._timekeeper
        self._listening = self._connections = self._http = self._timekeeper = None

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _load_http(self) -> Callable[[], asyncio.Protocol]:
        """What makes a speaker of HTTP for each connection; its library is imported with the first, in a thread."""
        module = await asyncio.to_thread(import_module, "outbox.emulator.http")
        assert self._connections is not None, "a connection was made"
        self._http = http = module.Http(self._gateway, self._control, self._connections, is_local=self._is_local)
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
            self.store.sweep_quietly()
            self._snapshots.sweep()
            connections.check_time(loop.time())
