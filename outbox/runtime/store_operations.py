"""What clients and operators ask of a store and a bus that are apart: states from the one, queues from the other."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from outbox.app import App
from outbox.ports import Buried, Delivery, Lost, Operations, Output, Ports, Replace, StateDocument, StorePorts, Tag
from outbox.runtime import items
from outbox.runtime.cache import held
from outbox.runtime.items import state_key
from outbox.runtime.plan import compile_plan
from outbox.runtime.step import admit

CLEAR_COUNT_MAX = 5


def operations_over(app: App, ports: Ports | StorePorts) -> Operations:
    """What a client of these ports asks."""
    return ports.operations if isinstance(ports, Ports) else StoreOperations(app, ports)


class StoreOperations:
    """The operations of a backend of partition or item scope."""

    def __init__(self, app: App, ports: StorePorts) -> None:
        self._app = app
        self._store = ports.store
        self._bus = ports.operations
        self.now_ms = ports.operations.now_ms

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        await self._bus.declare(queues, topics)  # a stopped key is the state's own affair here

    async def send(self, outputs: Sequence[Output]) -> None:
        await self._bus.send(outputs)

    async def state(self, id: str) -> StateDocument | None:
        item = held(await self._store.read(state_key(id))).item
        if item.is_tombstone:
            return None
        return StateDocument(bytes(item.value), item.version, item.schema, item.version)

    async def dead_letters(self, queue: str) -> list[Buried]:
        return await self._bus.dead_letters(queue)

    async def resubmit(self, queue: str, sequence: int) -> None:
        await self._bus.resubmit(queue, sequence)

    async def discard(self, queue: str, sequence: int) -> None:
        letters = await self._bus.dead_letters(queue)
        await self._bus.discard(queue, sequence)
        for letter in letters:
            if letter.sequence == sequence:
                await self._let_keys_go(letter)

    async def is_idle(self, queues: Sequence[str]) -> bool:
        return await self._bus.is_idle(queues)

    async def _let_keys_go(self, letter: Buried) -> None:
        """A dead letter is gone behind which keys stood still: they go on."""
        plan = compile_plan(self._app)
        if letter.queue not in plan.sources:
            return
        delivery = Delivery(letter.queue, letter.sequence, letter.message, 0, letter.enqueued_ms, 0)
        work = admit(plan, [delivery], self.now_ms())[0]
        for part in (work, *work.others):
            if part.stops_key and part.state_id is not None:
                await self._let_go(part.state_id, part.inbox)

    async def _let_go(self, state_id: str, inbox: bytes) -> None:
        for _ in range(CLEAR_COUNT_MAX):
            found = held(await self._store.read(state_key(state_id)))
            if found.item.stopped != inbox:
                return
            item = msgspec.structs.replace(found.item, version=found.item.version + 1, stopped=b"")
            write = Replace(state_key(state_id), items.encode(item), found.version, tag=Tag("let-go", (inbox,)))
            if not isinstance(await self._store.write([write]), Lost):
                return


_operations: type[Operations] = StoreOperations
