"""A container of Blob Storage as a place for ordered logs and registers, without Cosmos DB or Service Bus.

    states = azure.blob_states("https://bank.blob.core.windows.net", container="readings")
    async with states:
        readings = OrderedLog("readings", states, type=Reading)

What is given as an address is asked for with DefaultAzureCredential; what is given as a connection string brings its
key along.  Nothing is opened before it is needed, on the loop that needs it.  No key is ever part of a `repr`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from outbox.azure.addresses import Identity, blob_account
from outbox.azure.blobs import AzureBlobStore, BlobAccount, BlobStateStore
from outbox.azure.usage import Usage

CONTAINER = "outbox-states"


@dataclass(frozen=True, slots=True)
class BlobStates:
    """Documents in a container, one a blob; an async context manager that closes what it has opened.

    `store.purge()` deletes the documents that are over, such as the tombstones of trimmed logs.  `blobs` takes what is
    too large for a document, in the same container.
    """

    store: BlobStateStore
    blobs: AzureBlobStore
    usage: Usage
    _account: BlobAccount = field(repr=False)
    _identity: Identity = field(repr=False)

    async def close(self) -> None:
        """Close the client, and the identity if it was made here."""
        await self._account.close()
        await self._identity.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def blob_states(
    blobs: str,
    *,
    container: str = CONTAINER,
    create: bool = False,
    credential: Any = None,
    api_version: str | None = None,
) -> BlobStates:
    """A container of blobs as a place for ordered logs, registers and sinks, not yet open.

    `blobs` is an address or a connection string.  The container holds nothing else; `create` makes it at the first use
    where it is not there yet.  `credential` is one of azure.identity.aio, for an address; whoever gives it closes it.

    Raises:
        ValueError: `blobs` is neither.
    """
    identity, usage = Identity(credential), Usage()
    account = blob_account(blobs, container, identity, api_version, create=create)
    store = BlobStateStore(account, now_ms=lambda: time.time_ns() // 1_000_000, usage=usage)
    return BlobStates(store, AzureBlobStore(account, usage=usage), usage, account, identity)
