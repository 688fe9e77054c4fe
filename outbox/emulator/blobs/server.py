"""The server of the Blob Storage emulator: its address, its parts, its start and stop.

It listens on loopback under the port, the account and the public key of Azurite, so that existing settings work; on any
other address it insists on a key of one's own.  Many may run in one process.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Self

from outbox.emulator.blobs import (
    blob_operations,
    container_operations,
    list_operations,
)
from outbox.emulator.blobs.auth import ACCOUNT, WELL_KNOWN_KEY, Signatures
from outbox.emulator.blobs.batch_operations import BatchOperations
from outbox.emulator.blobs.gateway import Gateway, Operation, Usage
from outbox.emulator.blobs.requests import Answer, Call
from outbox.emulator.blobs.store import PAGE_COUNT_MAX, Store
from outbox.emulator.connections import Connections, is_loopback
from outbox.emulator.faults import Control, Faults, Meter
from outbox.engine.engine import Engine
from outbox.errors import EngineStopped, Refused

PORT = 10_000


_OF_STORE: dict[str, Callable[[Store, Call], Awaitable[Answer]]] = {
    "account.read": container_operations.account,
    "service.read": container_operations.service,
    "container.create": container_operations.create,
    "container.read": container_operations.read,
    "container.metadata": container_operations.metadata,
    "container.delete": container_operations.delete,
    "container.lease": container_operations.lease,
    "container.policy": container_operations.policy,
    "container.list": list_operations.list_containers,
    "blob.list": list_operations.list_blobs,
    "blob.find": list_operations.find_blobs,
    "blob.put": blob_operations.put,
    "blob.read": blob_operations.read,
    "blob.head": blob_operations.head,
    "blob.delete": blob_operations.delete,
    "blob.metadata": blob_operations.metadata,
    "blob.properties": blob_operations.properties,
    "blob.lease": container_operations.lease_blob,
    "tags.read": blob_operations.tags_read,
    "tags.write": blob_operations.tags_write,
    "block.put": blob_operations.put_block,
    "block.commit": blob_operations.commit_blocks,
    "block.list": blob_operations.list_blocks,
}
"""The operations that need the store and nothing else."""


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection of the SDK: `BlobServiceClient.from_connection_string(connection.connection_string)`."""

    url: str
    account: str = field(repr=False)
    key: str = field(repr=False)

    @property
    def connection_string(self) -> str:
        """Protocol, account, key and address.  It holds the key."""
        return (
            f"DefaultEndpointsProtocol=http;AccountName={self.account};AccountKey={self.key};BlobEndpoint={self.url};"
        )


class BlobEmulator:
    """Serve an engine as a storage account with blobs.  Use it as an async context manager, or start and stop it."""

    def __init__(
        self,
        engine: Engine,
        *,
        host: str = "127.0.0.1",
        port: int = PORT,
        account: str = ACCOUNT,
        key: str = WELL_KNOWN_KEY,
        faults: Faults | None = None,
        control_token: str | None = None,
        connection_count_max: int | None = None,
        page_count_max: int = PAGE_COUNT_MAX,
    ) -> None:
        """Take the engine to serve; port 0 lets the system choose one.

        `page_count_max` is how many entries a page of a list has at most: the service, too, may give fewer than it is
        asked for.  One engine is served by one emulator at a time.  Without a `connection_count_max` it is 512, or a
        quarter of the descriptors that the process may have open if that is less.

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
        self._account = account
        self._key = key
        self._meter = Meter(Usage)
        self.store = store = Store(engine, self.faults, account, page_count_max)
        signatures = Signatures(account, key)
        operations: dict[str, Operation] = {name: partial(do, store) for name, do in _OF_STORE.items()}
        batches = BatchOperations(operations["blob.delete"], signatures, engine.now_ms, self.faults, self._meter)
        operations["blob.batch"] = batches.submit
        gateway = Gateway(engine, operations, signatures, self.faults, self._meter)
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
        return Connection(f"http://{host}:{self.port}/{self._account}", self._account, self._key)

    def usage(self) -> dict[str, Usage]:
        """Requests and bytes by operation, since the start or `reset_usage`."""
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
        if self.engine.stopped is None:
            with suppress(EngineStopped):  # raised to callers, not here
                self.store.sweep()
