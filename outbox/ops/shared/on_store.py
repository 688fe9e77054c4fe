"""The site of answers over a store and a bus, and the names that both know."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Protocol, runtime_checkable

from outbox.deliveries import SUBSCRIPTIONS, EntityCounts
from outbox.errors import OutboxError
from outbox.ops.shared.names import declared, spelled
from outbox.ops.values.dead_letters import DeadLetterView
from outbox.ports import Document, First, HeldMessage, StateStore, StorePorts
from outbox.runtime.start.notes import HANDLER_PREFIX, NOTES, handlers_in
from outbox.runtime.store_operations import StoreOperations

SCAN_COUNT_MAX = 20_000
"""How many messages one command looks through for an id, all queues together: two hundred of them are a request."""
SCAN_COUNT_MIN = 2_000
"""How many of each queue at least, however many queues there are."""


Counts = Callable[[], Awaitable[Mapping[str, EntityCounts]]]
"""Count what the bus holds in each of its queues and subscriptions."""
WaitingSince = Callable[[str], Awaitable[int | None]]
"""Since when the oldest message of a queue waits, in milliseconds since 1970; None: none does."""


class PeekBus(Protocol):
    """Read messages of a queue or subscription, and return the number to continue after (0: none follow)."""

    async def __call__(
        self,
        queue: str,
        *,
        after: int,
        count: int,
        session: str,
        is_wanted: Callable[[HeldMessage], bool],
        look_count_max: int = SCAN_COUNT_MIN,
    ) -> tuple[list[HeldMessage], int]: ...


CancelOnBus = Callable[[str, Sequence[int]], Awaitable[None]]
"""Cancel scheduled messages of a queue or topic, by their numbers."""

Ask = Callable[[str], Awaitable[bool]]
"""Ask the bus about a queue: whether nothing can be received from it, or whether it is ordered by key."""

OnTheBus = Callable[[str], Awaitable[Collection[str]]]
"""The queues, topics and subscriptions that a name may mean; none where the bus has too many to list."""


class PauseOnBus(Protocol):
    """Let nothing be received from a queue or subscription, or let it go on; whether that was a change."""

    async def __call__(self, queue: str, *, paused: bool) -> bool: ...


class DiscardSomeOnBus(Protocol):
    """Delete dead letters by number in one pass, each after its `first` under lock; return the deleted numbers."""

    async def __call__(self, queue: str, firsts: Mapping[int, First]) -> set[int]: ...


class StoreIndex(Protocol):
    """A store's query by id over all of its partitions, as Cosmos DB has it."""

    def holders(self, prefix: str) -> AsyncIterator[str]:
        """The partition of each document whose id begins so."""

    def among(self, partitions: Sequence[str], id: str) -> AsyncIterator[Document]:
        """The documents of this id in some partitions."""


@dataclass(slots=True)
class StoreSite:
    """The ports of a store and a bus, and the bus's operations.

    Without `pause` and `is_paused` its queues cannot be paused; without `is_ordered` the bus refuses a message without
    a key; without `discard_some` dead letters of the bus are discarded one by one; without `names` of the bus a queue
    without a handler is named as it is given; without `waiting_since_ms` it is not known how long messages have waited;
    without an `index` of the infrastructure's store each queue is counted, and each key looked up, by itself.

    Service Bus ignores the case of a name, and the store does not: there a dead letter lies under the name that its
    application gives.  So a name is looked up once, before anything else is asked.
    """

    ports: StorePorts
    counts: Counts
    peek: PeekBus
    cancel: CancelOnBus
    _: KW_ONLY
    pause: PauseOnBus | None = None
    asked_paused: Ask | None = None
    asked_ordered: Ask | None = None
    index: StoreIndex | None = None
    names: OnTheBus | None = None
    discard_some: DiscardSomeOnBus | None = None
    waiting_since_ms: WaitingSince | None = None
    infrastructure: StateStore = field(init=False)
    operations: StoreOperations = field(init=False)
    listed: list[DeadLetterView] = field(default_factory=list, init=False)
    """The last list of dead letters, for its further pages."""
    _registered: set[str] | None = field(default=None, init=False)
    _found: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.infrastructure = self.ports.infrastructure or self.ports.store
        self.operations = StoreOperations(self.ports)

    def notes(self, prefix: str) -> AsyncIterator[Document]:
        """The framework's own notes of a kind."""
        return self.infrastructure.scan(NOTES, prefix=prefix)

    async def named(self, queue: str) -> str:
        """The declared name that is given, in any case.

        Where the bus may not be asked for its names, it is as given: the bus refuses one that it does not have.

        Raises:
            UnknownDestination: there is none; the text lists those that are near.
            Refused: several differ in their case alone.
        """
        if queue not in self._found:
            self._found[queue] = await self._looked_up(queue)
        return self._found[queue]

    async def as_registered(self, queue: str) -> str:
        """The name that handlers have for what the bus calls so; its own without a handler."""
        return spelled(queue, await self._handled()) or queue

    async def queues(self, queue: str = "") -> list[str]:
        """The declared queue of a name, or (empty) all queues and subscriptions of the bus, as handlers name them."""
        if queue:
            return [await self.named(queue)]
        return sorted([await self.as_registered(path) for path in await self.counts()])

    async def _looked_up(self, name: str) -> str:
        known = await self._handled()
        if (found := spelled(name, known)) or self.names is None:
            return found or name
        try:
            there = await self.names(name)
        except OutboxError:
            return name
        return declared(name, {*known, *there}) if there else name

    async def _handled(self) -> set[str]:
        """The sources of all registered handlers, and the topics of subscriptions."""
        if self._registered is None:
            self._registered = set()
            async for _, handler in handlers_in(self.notes(HANDLER_PREFIX)):
                self._registered |= {handler.source, handler.source.partition(SUBSCRIPTIONS)[0]}
        return self._registered

    async def is_paused(self, queue: str) -> bool:
        """Whether a queue is paused; without the right to manage, or an answer, that is not known."""
        try:
            return self.asked_paused is not None and await self.asked_paused(queue)
        except OutboxError:
            return False

    async def is_ordered(self, queue: str) -> bool:
        """Return whether a queue is known to be ordered by key. Else the bus itself refuses a message without one."""
        try:
            return self.asked_ordered is not None and await self.asked_ordered(queue)
        except OutboxError:
            return False


@runtime_checkable
class ListedStore(Protocol):
    """A store whose partitions can be found without reading all of its documents."""

    def partitions(self, prefix: str, *, holding: str) -> AsyncIterator[str]:
        """The partitions that begin with `prefix` and hold a document of the id `holding`; others may be among them."""
