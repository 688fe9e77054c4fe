"""The server of the Cosmos DB emulator: its address, its parts, its start and stop.

It listens on loopback under the port and the public key of Microsoft's emulator, so that existing settings work; on
any other address it insists on a key of one's own.  Many may run in one process.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from outbox.emulator.connections import Connections, is_loopback
from outbox.emulator.cosmos import catalog_operations, feed_operations, item_operations
from outbox.emulator.cosmos.auth import WELL_KNOWN_KEY
from outbox.emulator.cosmos.catalog import Catalog
from outbox.emulator.cosmos.charges import Usage
from outbox.emulator.cosmos.gateway import Gateway
from outbox.emulator.cosmos.store import Store
from outbox.emulator.faults import Control, Faults, Meter, key_bytes
from outbox.engine.engine import Engine
from outbox.errors import Refused

PORT = 8081


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of the SDK: `CosmosClient(connection.url, credential=connection.key)`."""

    url: str
    key: str = field(repr=False)

    @property
    def connection_string(self) -> str:
        """The connection string for the SDK's `from_connection_string`.  It holds the key."""
        return f"AccountEndpoint={self.url};AccountKey={self.key};"


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
        is_local = is_loopback(host)
        if key == WELL_KNOWN_KEY and not is_local:
            raise Refused(f"{host} can be reached by others and the key is public; give key=..., or use 127.0.0.1")
        self.engine = engine
        self.host = host
        self.port = port
        self.faults = Faults() if faults is None else faults
        self.control_token = control_token or secrets.token_urlsafe(32)
        self._key = key
        self._meter = Meter(Usage)
        catalog = Catalog(engine, draw)
        store = Store(engine, catalog, self.faults, history_s)
        operations = catalog_operations.OPERATIONS | item_operations.OPERATIONS | feed_operations.OPERATIONS
        self.store = store
        gateway = Gateway(store, operations, key_bytes(key), self.faults, self._meter)
        self._listener = Connections(
            gateway,
            Control(gateway.refusal, self.faults, self._meter, self.control_token),
            is_local=is_local,
            count_max=connection_count_max,
            upkeep=self._keep_up,
        )

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
        self.port = await self._listener.start(self.host, self.port)
        return self

    async def stop(self) -> None:
        """Answer requests under way, for a moment, and close."""
        await self._listener.stop()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def _keep_up(self) -> None:
        self.store.sweep_quietly()
        self.store.snapshots.sweep()
