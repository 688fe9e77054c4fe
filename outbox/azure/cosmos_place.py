"""A container of Cosmos DB as a place for ordered logs and registers, without Service Bus.

For operators, who look at logs and send no messages; an application has its logs by `connect(...)`.  What is given as
an address is asked for with DefaultAzureCredential; what is given as a connection string brings its key along.  Nothing
is opened before it is needed.  No key is ever part of a `repr`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Self

from outbox.azure.addresses import Identity, blob_account, parts_of
from outbox.azure.blobs import AzureBlobStore
from outbox.azure.cosmos.account import CosmosAccount
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.cosmos.store import CosmosStateStore
from outbox.azure.usage import Usage
from outbox.ports import BlobStore, NoBlobs

BLOB_CONTAINER = "outbox"


@dataclass(frozen=True, slots=True)
class CosmosStates:
    """Documents in a container; an async context manager that closes what it has opened."""

    store: CosmosStateStore
    blobs: BlobStore
    usage: Usage
    _account: CosmosAccount = field(repr=False)
    _container: str = field(repr=False)
    _closing: tuple[Any, ...] = field(repr=False)

    async def check(self) -> None:
        """Look whether the container is there and can be used; nothing is made.

        Raises:
            Refused: it is not, or it may not be read.
            OutcomeUnknown: the account does not answer.
        """
        await self._account.prepare(ContainerSpec(self._container), create=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(part.close() for part in self._closing), return_exceptions=True)


def cosmos_states(
    cosmos: str,
    *,
    database: str,
    container: str,
    blobs: str | None = None,
    credential: Any = None,
    user_agent: str = "outbox",
) -> CosmosStates:
    """A container of Cosmos DB as a place for ordered logs and registers, not yet open.

    `cosmos` and `blobs`, the account with what was too large for a document, are each an address or a connection
    string.  `credential` is one of azure.identity.aio, for the addresses; whoever gives it closes it.

    Raises:
        ValueError: something given cannot be used.
    """
    identity, usage = Identity(credential), Usage()
    account = cosmos_account(cosmos, database, identity, user_agent)
    store = CosmosStateStore(partial(account.container, container), usage=usage)
    if blobs is None:
        return CosmosStates(store, NoBlobs(), usage, account, container, (account, identity))
    large = blob_account(blobs, BLOB_CONTAINER, identity, None)
    held = AzureBlobStore(large, usage=usage)
    return CosmosStates(store, held, usage, account, container, (account, large, identity))


def cosmos_account(address: str, database: str, identity: Identity, user_agent: str) -> CosmosAccount:
    """A database of a Cosmos DB account.

    Raises:
        ValueError: it is neither an address nor a connection string.
    """
    parts = parts_of(address)
    if "AccountEndpoint" in parts and "AccountKey" in parts:
        return CosmosAccount(parts["AccountEndpoint"], database, parts["AccountKey"], user_agent=user_agent)
    if parts or not address.startswith(("https://", "http://")):
        raise ValueError("cosmos= is neither an address (https://...) nor AccountEndpoint=...;AccountKey=...")
    return CosmosAccount(address, database, identity.credential(), user_agent=user_agent)
