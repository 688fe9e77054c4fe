"""A store, a bus and blobs on Azure, as one value that workers and clients take.

    backend = azure.connect(cosmos="https://bank.documents.azure.com", database="bank",
                            servicebus="bank.servicebus.windows.net")
    async with backend, Worker(app, backend) as worker: ...

What is given as an address is asked for with DefaultAzureCredential; what is given as a connection string brings its
key along.  `states` puts states into a container of their own, apart from everything else.  Nothing is opened before it
is needed, on the loop that needs it.  No key is ever part of a `repr`.

Its operations are those of clients and operators: to declare, to send, and the dead letters of the bus.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from types import TracebackType
from typing import Any, Literal, Self

from azure.cosmos.aio import ContainerProxy

from outbox.azure.addresses import Identity, blob_account, parts_of
from outbox.azure.blobs import AzureBlobStore
from outbox.azure.cosmos.account import CosmosAccount
from outbox.azure.cosmos.containers import ContainerSpec
from outbox.azure.cosmos.placed_states import Place, PlacedStates
from outbox.azure.cosmos.store import CosmosStateStore
from outbox.azure.cosmos_place import BLOB_CONTAINER, cosmos_account
from outbox.azure.servicebus.bus import ServiceBusBus, wall_ms
from outbox.azure.servicebus.dead_letters import ServiceBusDeadLetters, peek
from outbox.azure.servicebus.entities import ServiceBusEntities
from outbox.azure.servicebus.namespace import ServiceBusNamespace
from outbox.azure.servicebus.outcomes import FAILURES, as_error
from outbox.azure.usage import Usage
from outbox.errors import OutcomeUnknown, Refused, Throttled, UnknownDestination
from outbox.lineage import Key
from outbox.ports import (
    SUBSCRIPTIONS,
    Backend,
    BlobStore,
    BusOperations,
    NoBlobs,
    Output,
    QueueRef,
    StateStore,
    StorePorts,
)

CONTAINER = "outbox"
WAIT_S_MAX = 3_600
SEND_COUNT_MAX = 4
SEND_PAUSE_S = 0.2
WAIT_PAUSE_S = 0.5
CANCEL_S = 30.0
WAITING_PAGE_COUNT, WAITING_COUNT_MAX = 10, 100
log = logging.getLogger("outbox.azure")


@dataclass(frozen=True, slots=True)
class AzureBackend:
    """Where an application runs on Azure; an async context manager that closes what it has opened.

    `infrastructure` has the protocol's own documents where they are not beside the states, which are in `store`.
    """

    store: StateStore
    bus: ServiceBusBus
    operations: AzureOperations
    blobs: BlobStore
    usage: Usage
    infrastructure: StateStore | None = None
    _closing: tuple[Any, ...] = field(default=(), repr=False)

    def ports(self) -> StorePorts:
        """The ports that the runtime uses."""
        return StorePorts(self.store, self.bus, self.operations, self.blobs, self.infrastructure, self.usage)

    def queue(
        self, name: str, *, key: Callable[[Any], Key] | None = None, type: str = "", version: int = 1
    ) -> QueueRef:
        """A queue or topic to send to, as an output of a processor; see `QueueRef`."""
        return QueueRef(name, self.operations.send, self.blobs, key, type, version)

    async def close(self) -> None:
        """Await the work under way, and close every client."""
        await self.bus.close()
        await asyncio.gather(*(part.close() for part in self._closing), return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def connect(
    *,
    cosmos: str,
    database: str,
    servicebus: str,
    blobs: str | BlobStore | None = None,
    container: str = CONTAINER,
    states: str | None = None,
    place: Place | None = None,
    blob_container: str = BLOB_CONTAINER,
    blob_api_version: str | None = None,
    scope: Literal["partition", "item"] | None = None,
    dispatch_ledger: bool = False,
    create: bool = False,
    wait_s: float = 0.0,
    credential: Any = None,
    user_agent: str = "outbox",
) -> AzureBackend:
    """A backend of partition scope (or item scope), not yet open.

    `cosmos`, `servicebus` and `blobs` are each an address or a connection string; a store that is given as `blobs` is
    used as it is.  `create` makes the database, the containers and what the application declares, where they are not
    there yet.  `credential` is one of azure.identity.aio, for the addresses; whoever gives it closes it.  A start waits
    up to `wait_s` seconds for services that do not answer, 3,600 at most.

    `states` names a container in which only states lie, at the partition and id that `place` gives for a state's id
    (default: a partition of its own); everything else stays in `container`.  That is item scope.

    With a `dispatch_ledger` (partition scope) workers note in one document each which outputs have left, which is
    cheaper than a mark in every record; see docs/how-to/cost.md for what it gives up.

    Raises:
        ValueError: something given cannot be used.
    """
    _check_scope(scope, states, place, container, ledger=dispatch_ledger)
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise ValueError(f"wait_s={wait_s!r}: a start may wait 0 to {WAIT_S_MAX} s for its services")
    identity = Identity(credential)
    usage = Usage()
    account = cosmos_account(cosmos, database, identity, user_agent)
    namespace = _namespace(servicebus, identity)
    named = (blob_container, identity, blob_api_version)
    large = blob_account(blobs, *named, create=create) if isinstance(blobs, str) else None
    options: dict[str, Any] = {"ledger": dispatch_ledger, "create": create, "usage": usage}
    kept, apart, prepare_stores = _stores(account, container, states, place, scope, **options)
    bus = ServiceBusBus(namespace, usage=usage)

    async def prepare() -> None:
        await prepare_stores()
        if large is not None:
            await large.prepare(create=create)

    entities, dead_letters = ServiceBusEntities(namespace), ServiceBusDeadLetters(namespace, bus)
    operations = AzureOperations(
        *(namespace, bus, entities, dead_letters), prepare=prepare, create=create, now_ms=wall_ms, wait_s=wait_s
    )
    places = (account, namespace, *([] if large is None else [large]), identity)
    given = NoBlobs() if blobs is None or isinstance(blobs, str) else blobs
    held = given if large is None else AzureBlobStore(large, usage=usage)
    return AzureBackend(kept, bus, operations, held, usage, apart, places)


def _check_scope(scope: str | None, states: str | None, place: Place | None, container: str, *, ledger: bool) -> None:
    """Refuse what does not go together."""
    if ledger and (scope == "item" or states is not None):
        raise ValueError("dispatch_ledger=True is for partition scope; item scope has no marks that it could save")
    if states is None:
        if place is not None:
            raise ValueError("place= says where states lie in a container of their own; name that by states= as well")
        return
    if scope == "partition":
        raise ValueError(
            'scope="partition" writes a state together with its records, so they share a container; states= puts '
            "them apart, which is item scope: leave one of the two out"
        )
    if not states or states == container:
        raise ValueError(f"states={states!r} must name another container than container={container!r}")


def _stores(
    account: CosmosAccount,
    container: str,
    states: str | None,
    place: Place | None,
    scope: Literal["partition", "item"] | None,
    *,
    ledger: bool,
    create: bool,
    usage: Usage,
) -> tuple[StateStore, StateStore | None, Callable[[], Awaitable[None]]]:
    """The store of states, that of everything else where it is another, and what makes or checks their containers."""
    if states is None:
        spec = ContainerSpec(container, keeps_ledgers=ledger)
        opening = _opening(account, spec, create=create)
        whole = CosmosStateStore(opening, scope=scope or "partition", dispatch_ledger=ledger, usage=usage)
        return whole, None, partial(account.prepare, spec, create=create)
    opening, apart = (_opening(account, ContainerSpec(name), create=create) for name in (container, states))
    infrastructure = CosmosStateStore(opening, scope=scope or "item", usage=usage)
    placed = PlacedStates(CosmosStateStore(apart, scope="item", usage=usage), place)

    async def prepare() -> None:
        await account.prepare(ContainerSpec(container), ContainerSpec(states), create=create)
        await placed.check(await account.container(states))

    return placed, infrastructure, prepare


def _opening(account: CosmosAccount, spec: ContainerSpec, *, create: bool) -> Callable[[], Awaitable[ContainerProxy]]:
    """The function that opens a container when it is first needed; with `create` it makes it as well."""
    return partial(account.made, spec) if create else partial(account.container, spec.name)


def _namespace(address: str, identity: Identity) -> ServiceBusNamespace:
    parts = parts_of(address)
    if "Endpoint" in parts:
        return ServiceBusNamespace(address)
    if parts or "/" in address or not address:
        raise ValueError("servicebus= is neither a host name (...servicebus.windows.net) nor Endpoint=sb://...")
    return ServiceBusNamespace(address, identity.credential())


_backend: type[Backend] = AzureBackend


class AzureOperations:
    """The operations of a namespace, and of the containers beside it."""

    def __init__(
        self,
        namespace: ServiceBusNamespace,
        bus: ServiceBusBus,
        entities: ServiceBusEntities,
        dead_letters: ServiceBusDeadLetters,
        *,
        prepare: Callable[[], Awaitable[None]],
        create: bool,
        now_ms: Callable[[], int],
        wait_s: float = 0.0,
    ) -> None:
        """Take the parts; `prepare` makes or checks containers, `create` says whether to make queues and topics.

        `wait_s` is how long `declare` waits for services that do not answer.
        """
        self._namespace = namespace
        self._bus = bus
        self._entities = entities
        self._prepare = prepare
        self._create = create
        self._wait_s = wait_s
        self.now_ms = now_ms
        self.dead_letters, self.resubmit = dead_letters.list, dead_letters.resubmit
        self.discard, self.discard_some = dead_letters.discard, dead_letters.discard_some
        self.names, self.counts, self.pause = entities.names, entities.counts, entities.pause
        self.is_paused, self.is_ordered = entities.is_paused, entities.is_ordered
        self.is_idle, self.is_drained = entities.is_idle, entities.is_drained
        self.peek = partial(peek, namespace)

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Make sure that all of this is there and can be used.

        Raises:
            Refused: a container, queue or subscription that is there is of no use as it is.
            OutcomeUnknown, Throttled: a service does not answer.
        """
        self._bus.order([name for name, ordering in queues.items() if ordering == "per_key"])
        until_s = monotonic() + self._wait_s
        await _answered(self._prepare, until_s)
        if self._create:
            await _answered(partial(self._entities.declare, queues, topics), until_s)
            return
        if self._wait_s:
            with suppress(OutcomeUnknown):  # the queues themselves may answer: management has another port
                await _answered(self._entities.answers, until_s)
        await self._entities.look(queues, topics)

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages, again under the same ids while the outcome is unknown: receivers drop duplicates by those.

        Raises:
            OutcomeUnknown: at least one try may have sent them.
            Refused, UnknownDestination: none has.
        """
        unknown: OutcomeUnknown | None = None
        for count in range(1, SEND_COUNT_MAX + 1):
            try:
                await self._bus.send(outputs)
                return
            except (OutcomeUnknown, Refused, UnknownDestination) as error:
                unknown = error if isinstance(error, OutcomeUnknown) else unknown
                if count == SEND_COUNT_MAX or not isinstance(error, OutcomeUnknown | Throttled):
                    raise unknown or error from error.__cause__
            await asyncio.sleep(SEND_PAUSE_S * count)

    async def waiting_since_ms(self, queue: str) -> int | None:
        """Since when the oldest message of a queue or subscription waits, of the first hundred; None: none does.

        Raises:
            OutboxError: it cannot be looked at.
        """
        found, _ = await self.peek(
            queue,
            after=0,
            count=1,
            session="",
            is_wanted=lambda held: held.status == "active",
            page_count=WAITING_PAGE_COUNT,
            look_count_max=WAITING_COUNT_MAX,
        )
        return found[0].enqueued_ms if found else None

    async def cancel(self, destination: str, sequences: Sequence[int]) -> None:
        """Cancel scheduled messages of a queue or topic.

        Raises:
            Refused: one of them is not scheduled any more.
        """
        sender = self._namespace.sender(destination.partition(SUBSCRIPTIONS)[0])
        try:
            async with asyncio.timeout(CANCEL_S), sender:
                await sender.cancel_scheduled_messages(list(sequences))
        except FAILURES as error:
            raise as_error(error, f"cancel in {destination}") from error


async def _answered(step: Callable[[], Awaitable[None]], until_s: float) -> None:
    """Take a step of the start, again while a service does not answer and there is time."""
    has_logged = False
    while True:
        try:
            await step()
            return
        except (OutcomeUnknown, Throttled) as error:
            if monotonic() + WAIT_PAUSE_S >= until_s:
                raise
            if not has_logged:
                log.info("waiting for a service to answer", extra={"error": str(error)})
                has_logged = True
        await asyncio.sleep(WAIT_PAUSE_S)


_conforms: type[BusOperations] = AzureOperations
