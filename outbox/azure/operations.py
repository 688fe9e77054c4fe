"""What clients and operators ask of the adapters: states and notes of the store, queues and dead letters of the bus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from outbox.azure.servicebus import ServiceBusBus
from outbox.azure.servicebus_entities import EntityCounts, ServiceBusEntities
from outbox.azure.servicebus_letters import ServiceBusLetters
from outbox.errors import OutcomeUnknown, Throttled
from outbox.ports import (
    Buried,
    Create,
    Document,
    DocumentKey,
    Operations,
    Output,
    Replace,
    StateDocument,
    StateStore,
    Tag,
    Version,
    Won,
)
from outbox.stored import state_in, state_key

SEND_COUNT_MAX = 4
SEND_PAUSE_S = 0.2


class AzureOperations:
    """The operations of a store and a namespace."""

    def __init__(
        self,
        states: StateStore,
        bus: ServiceBusBus,
        entities: ServiceBusEntities,
        letters: ServiceBusLetters,
        *,
        prepare: Callable[[], Awaitable[None]],
        create: bool,
        now_ms: Callable[[], int],
        infrastructure: StateStore | None = None,
    ) -> None:
        """Take the parts; `prepare` makes or checks containers, `create` says whether to make queues and topics.

        Notes lie in the `infrastructure`, where there is one apart from the states.
        """
        self._states = states
        self._infrastructure = infrastructure or states
        self._bus = bus
        self._entities = entities
        self._letters = letters
        self._prepare = prepare
        self._create = create
        self.now_ms = now_ms

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        """See to it that all of this can be used; that dead letters stop keys is the runtime's affair here.

        Raises:
            Refused: a container, queue or subscription that is there is of no use as it is.
        """
        self._bus.order([name for name, ordering in queues.items() if ordering == "per_key"])
        await self._prepare()
        if self._create:
            await self._entities.declare(queues, topics)
        else:
            await self._entities.look(queues, topics)

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages, again under the same ids while nobody can tell: their receivers tell copies by those."""
        for count in range(1, SEND_COUNT_MAX + 1):
            try:
                await self._bus.send(outputs)
                return
            except (OutcomeUnknown, Throttled):
                if count == SEND_COUNT_MAX:
                    raise
            await asyncio.sleep(SEND_PAUSE_S * count)

    async def state(self, id: str) -> StateDocument | None:
        item = state_in(await self._states.read(state_key(id)))
        if item.is_tombstone:
            return None
        return StateDocument(bytes(item.value), item.version, item.schema, item.version)

    async def dead_letters(self, queue: str) -> list[Buried]:
        return await self._letters.list(queue)

    async def resubmit(self, queue: str, sequence: int) -> None:
        await self._letters.resubmit(queue, sequence)

    async def discard(self, queue: str, sequence: int) -> None:
        await self._letters.discard(queue, sequence)

    async def let_go(self, queue: str, session_id: str, identity: str) -> bool:
        return False  # a session that stands still is the runtime's affair

    async def is_idle(self, queues: Sequence[str]) -> bool:
        return await self._entities.is_idle(queues)

    async def is_drained(self, queues: Sequence[str]) -> bool:
        return await self._entities.is_drained(queues)

    async def counts(self) -> dict[str, EntityCounts]:
        """What the bus counts in all of its queues and subscriptions, whoever uses them.

        Raises:
            Refused: they cannot be asked.
            OutcomeUnknown: nobody can tell.
        """
        return await self._entities.counts()

    async def note(self, name: str) -> Document | None:
        return await self._infrastructure.read(DocumentKey("notes", name))

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        key, tag = DocumentKey("notes", name), Tag("note")
        write = Replace(key, body, version, tag=tag) if version else Create(key, body, tag=tag)
        return isinstance(await self._infrastructure.write([write]), Won)


_conforms: type[Operations] = AzureOperations
