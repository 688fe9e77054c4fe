"""Ports of a store and a bus that count what the protocols need not know: lost commits, unknown ones, sends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from outbox.errors import OutboxError, OutcomeUnknown
from outbox.ports import (
    Delivery,
    Document,
    DocumentKey,
    LedgerStore,
    Lost,
    MessageBus,
    Output,
    Session,
    Settle,
    StateStore,
    StoreCapabilities,
    StorePorts,
    Won,
    Write,
)
from outbox.runtime.counts import Counts

STATES = ("state", "swap")
COMMITS = ("commit", "refuse", *STATES)


class CountedStore:
    """A state store whose lost and unknown commits are counted."""

    def __init__(self, store: StateStore, counts: Counts) -> None:
        self._store = store
        self._counts = counts
        self._ledger_store: Any = store
        """The same, where its capabilities say that it keeps a dispatch ledger."""

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._store.capabilities

    def read(self, key: DocumentKey, *, session: Session = "") -> Coroutine[Any, Any, Document | None]:
        return self._store.read(key, session=session)

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._store.scan(partition, prefix=prefix)

    def unfinished(self) -> AsyncIterator[Document]:
        return self._store.unfinished()

    def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        found: AsyncIterator[Document] = self._ledger_store.unsent(first, before)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        try:
            answer = await self._store.write(operations)
        except OutcomeUnknown:
            self._counts.unknown += any(operation.tag.what in COMMITS for operation in operations)
            raise
        if isinstance(answer, Lost):
            self._counts.conflicts += operations[answer.operation].tag.what in STATES
        return answer


class CountedBus:
    """A bus whose sends are counted."""

    def __init__(self, bus: MessageBus, counts: Counts) -> None:
        self._bus = bus
        self._counts = counts

    def receive(self, queue: str, *, count_max: int, wait_s: float) -> Coroutine[Any, Any, Sequence[Delivery]]:
        return self._bus.receive(queue, count_max=count_max, wait_s=wait_s)

    def settle(self, delivery: Delivery, settle: Settle) -> Coroutine[Any, Any, None]:
        return self._bus.settle(delivery, settle)

    def renew(self, delivery: Delivery) -> Coroutine[Any, Any, int]:
        return self._bus.renew(delivery)

    async def send(self, outputs: Sequence[Output]) -> None:
        try:
            await self._bus.send(outputs)
        except OutboxError:
            self._counts.failed_sends += 1
            raise
        self._counts.sent += len(outputs)


def counted(ports: StorePorts, counts: Counts) -> StorePorts:
    """The same ports, counted; what their adapters count themselves is read with it."""
    if ports.usage is not None:
        counts.usage = ports.usage
    infrastructure = None if ports.infrastructure is None else CountedStore(ports.infrastructure, counts)
    store, bus = CountedStore(ports.store, counts), CountedBus(ports.bus, counts)
    return replace(ports, store=store, bus=bus, infrastructure=infrastructure)


_store: type[LedgerStore] = CountedStore
_bus: type[MessageBus] = CountedBus
