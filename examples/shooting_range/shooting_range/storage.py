"""Where the range keeps what: states in a container of its own, everything else of the protocol in another.

    container `games`    one item for each target and leader board, in the partition of its *game*: whoever wants to
                         know how a game stands asks one partition, and finds nothing in it but targets and boards
    container `outbox`   staged results, processed markers, idempotency keys, registered handlers
    blobs                full sheets

Two containers cannot be written together, so this is item scope: one item at a time is swapped by its ETag, and the
protocol's ten steps do the rest.  `RangeStates` is all that it takes to lay out states as one likes; it decides where
an item lies and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from azure.identity.aio import DefaultAzureCredential

from outbox.azure.blobs import AzureBlobStore, BlobAccount, NoBlobs
from outbox.azure.cosmos import CosmosStateStore
from outbox.azure.cosmos_account import CosmosAccount
from outbox.azure.cosmos_containers import ContainerSpec
from outbox.azure.operations import AzureOperations
from outbox.azure.servicebus import ServiceBusBus, wall_ms
from outbox.azure.servicebus_entities import ServiceBusEntities
from outbox.azure.servicebus_letters import ServiceBusLetters
from outbox.azure.servicebus_namespace import ServiceBusNamespace
from outbox.engine.blobs import FolderBlobStore
from outbox.lineage import parse_state_id
from outbox.ports import (
    Backend,
    BlobStore,
    Document,
    DocumentKey,
    Lost,
    Operations,
    Session,
    StateStore,
    StorePorts,
    Won,
    Write,
)
from shooting_range.handlers import game_of

STATES, INFRASTRUCTURE, SHEETS = "games", "outbox", "sheets"
STATE = "state"
"""The id under which the runtime asks for a state; the partition that it asks for names which."""


class RangeStates:
    """The states of the range, each in the partition of its game; what is no state goes to `others`."""

    def __init__(self, states: StateStore, others: StateStore) -> None:
        self._states = states
        self._others = others
        self.capabilities = states.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        if key.id != STATE:
            return await self._others.read(key, session=session)
        found = await self._states.read(place_of(key), session=session)
        return None if found is None else replace(found, key=key)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        if len(operations) != 1 or operations[0].key.id != STATE:
            return await self._others.write(operations)  # it refuses several: they are no batch in item scope
        return await self._states.write([replace(operations[0], key=place_of(operations[0].key))])

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._others.scan(partition, prefix=prefix)

    async def unfinished(self) -> AsyncIterator[Document]:
        async for document in self._states.unfinished():
            yield replace(document, key=DocumentKey(document.key.id, STATE))


def place_of(key: DocumentKey) -> DocumentKey:
    """Where a state lies: in the partition of its game, under its whole id.

    Of a very long key only a digest is known, and a message may name no game; such a state has a partition of its own.
    """
    parsed = parse_state_id(key.partition)
    game = game_of(str(parsed[1])) if parsed else ""
    return DocumentKey(game or key.partition, key.partition)


@dataclass(frozen=True, slots=True)
class RangeBackend:
    """Everything that the range runs on; an async context manager that closes what it has opened."""

    states: StateStore
    infrastructure: StateStore
    bus: ServiceBusBus
    operations: Operations
    blobs: BlobStore
    _closing: tuple[Any, ...] = field(default=(), repr=False)

    def ports(self) -> StorePorts:
        """The ports that the runtime uses; that there is an `infrastructure` makes it item scope."""
        return StorePorts(self.states, self.bus, self.operations, self.blobs, self.infrastructure)

    async def close(self) -> None:
        """Let what is under way end, and close every client."""
        await self.bus.close()
        await asyncio.gather(*(part.close() for part in self._closing), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    *, cosmos: str, database: str, servicebus: str, blobs: str = "", blob_folder: str = "", create: bool = False
) -> RangeBackend:
    """The backend of the range, not yet open.

    Connection strings bring their keys; addresses are asked with DefaultAzureCredential.  Sheets go to the storage
    account `blobs`, or without one into `blob_folder`, which serves hosts on one machine.  `create` makes what is
    missing.
    """
    identity = DefaultAzureCredential() if "=" not in cosmos + servicebus else None
    account, namespace = account_of(cosmos, database, identity), ServiceBusNamespace(servicebus, identity)
    storage = BlobAccount(blobs, SHEETS, None if "=" in blobs else identity) if blobs else None
    infrastructure = CosmosStateStore(partial(account.container, INFRASTRUCTURE), scope="item")
    states = RangeStates(CosmosStateStore(partial(account.container, STATES), scope="item"), infrastructure)
    bus = ServiceBusBus(namespace)

    async def prepare() -> None:
        await account.prepare(ContainerSpec(STATES), ContainerSpec(INFRASTRUCTURE), create=create)
        if storage is not None:
            await storage.prepare(create=create)

    operations = AzureOperations(
        states,
        bus,
        ServiceBusEntities(namespace),
        ServiceBusLetters(namespace, bus),
        prepare=prepare,
        create=create,
        now_ms=wall_ms,
    )
    closing = tuple(part for part in (account, namespace, storage, identity) if part is not None)
    return RangeBackend(states, infrastructure, bus, operations, sheets_in(storage, blob_folder), closing)


def account_of(cosmos: str, database: str, identity: DefaultAzureCredential | None) -> CosmosAccount:
    """The Cosmos DB account that an address or a connection string names."""
    parts = dict(part.partition("=")[::2] for part in cosmos.split(";") if "=" in part)
    return CosmosAccount(parts.get("AccountEndpoint", cosmos), database, parts.get("AccountKey", identity))


def sheets_in(storage: BlobAccount | None, folder: str) -> BlobStore:
    """Where full sheets go; nowhere: the tenth shot is given back until there is a place for its sheet."""
    if storage is not None:
        return AzureBlobStore(storage)
    return FolderBlobStore(folder) if folder else NoBlobs()


_states: type[StateStore] = RangeStates
_backend: type[Backend] = RangeBackend
