"""The engine's documents as a state store, and its queues as a message bus, each apart from the other.

A partition of the store is a namespace.  Whatever either hands out has passed the gate.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec
from msgspec import structs

from outbox.documents import is_pending
from outbox.engine.broker import Broker, as_deliveries
from outbox.engine.core import Core, check_room
from outbox.engine.documents import Documents
from outbox.engine.entities import Settlement
from outbox.engine.log import records
from outbox.engine.state.queues import Queue
from outbox.errors import TooLarge
from outbox.ports import (
    Create,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    MessageBus,
    Output,
    Session,
    Settle,
    StateStore,
    StoreCapabilities,
    Version,
    Won,
    Write,
)

ITEM_BYTES_MAX = 2 << 20
BATCH_COUNT_MAX = 100
LOGS = "log/"
"""The partitions of ordered logs, whose cells stay until they are trimmed."""


class EngineStore:
    """The engine's documents as a state store; a partition is a namespace."""

    capabilities = StoreCapabilities(
        atomic_scope="partition",
        batch_count_max=BATCH_COUNT_MAX,
        item_bytes_max=ITEM_BYTES_MAX,
        tells_current=True,
        ambiguous_replies=False,
        ordered_versions=True,
    )

    def __init__(self, core: Core, documents: Documents, *, dispatch_ledger: bool = False) -> None:
        self._core = core
        self._documents = documents
        if dispatch_ledger:
            self.capabilities = replace(self.capabilities, dispatch_ledger=True)

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = self._read(key)
        await self._core.gate(reads=True)
        return found

    def _read(self, key: DocumentKey) -> Document | None:
        found = self._documents.read(_namespace(key.partition), key.id)
        return None if found is None else Document(key, found.value, str(found.version))

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        _check_limits(operations)
        takes_room = False
        puts: list[records.DocWrite] = []
        deletes: list[records.DocRef] = []
        for index, operation in enumerate(operations):
            namespace, id = _namespace(operation.key.partition), operation.key.id
            current = self._documents.read(namespace, id)
            version = 0 if current is None else current.version
            wanted = "0" if isinstance(operation, Create) else operation.if_match
            if wanted != str(version) or (current is None and not isinstance(operation, Create)):
                await self._core.gate()
                return Lost(index, None if current is None else Document(operation.key, current.value, str(version)))
            if isinstance(operation, Delete):
                deletes.append(records.DocRef(namespace, id, version))
            else:
                expires_ms = 0 if operation.ttl_s is None else self._core.now_ms() + round(operation.ttl_s * 1_000)
                puts.append(records.DocWrite(namespace, id, operation.body, version, expires_ms))
                takes_room = takes_room or (current is None and operation.key.partition.startswith(LOGS))
        if takes_room:
            check_room(self._core.state, self._core.limits, cure="trim ordered logs")
        made = str(self._documents.apply(records.Modify(documents=puts, document_deletes=deletes)))
        await self._core.gate()
        return Won(tuple(["" if isinstance(operation, Delete) else made for operation in operations]))

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        space = self._core.state.documents.spaces.get(_namespace(partition), {})
        await self._core.gate()
        for id in sorted(id for id in space if id.startswith(prefix)):
            document = self._read(DocumentKey(partition, id))
            if document is not None:
                await self._core.gate()  # again: it may have been written since
                yield document

    async def changed(self, seen: Sequence[tuple[DocumentKey, Version]], *, wait_s: float) -> None:
        """Wait until one of these documents has another version (empty: it was absent), or `wait_s` have passed."""
        known = [(_namespace(key.partition), key.id, int(version or 0)) for key, version in seen]
        await self._documents.wait_changed(known, wait_s)

    def unfinished(self) -> AsyncIterator[Document]:
        return self._documents_with(is_pending)

    def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        return self._documents_with(lambda body: first <= _entry(body) < before)

    async def _documents_with(self, is_wanted: Callable[[bytes], bool]) -> AsyncIterator[Document]:
        """The documents of all partitions whose body is wanted."""
        spaces = {name: space for name, space in self._core.state.documents.spaces.items() if name.startswith("p/")}
        await self._core.gate()
        for name in sorted(spaces):
            for id in sorted(spaces[name]):
                document = self._read(DocumentKey(name.removeprefix("p/"), id))
                if document is not None and is_wanted(document.body):
                    await self._core.gate()
                    yield document


class _Entered(msgspec.Struct):
    entry: str = ""


def _entry(body: bytes) -> str:
    """The text `entry` of a body; one before all others where it has none."""
    try:
        return msgspec.json.decode(body, type=_Entered).entry
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def _namespace(partition: str) -> str:
    return f"p/{partition}"


def _check_limits(operations: Sequence[Write]) -> None:
    if len(operations) > BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch of {len(operations)} operations is over {BATCH_COUNT_MAX}; split what need not be atomic"
        )
    if sum([0 if isinstance(op, Delete) else len(op.body) for op in operations]) > ITEM_BYTES_MAX:
        raise TooLarge(f"a batch is over {ITEM_BYTES_MAX} bytes; move large values to a blob")
    if len(operations) > 1 and (
        len({op.key.partition for op in operations}) > 1 or len({op.key for op in operations}) < len(operations)
    ):
        raise TooLarge("a batch stays in one partition and names each document once")


_store: type[StateStore] = EngineStore


class EngineBus:
    """The engine's queues as a message bus."""

    def __init__(self, core: Core, broker: Broker) -> None:
        self._core = core
        self._broker = broker

    async def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._broker.send(output.destination, [output.message], due_ms=output.due_ms)
        await self._core.gate()

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        broker = self._broker
        found = broker.queue(queue)
        tasks = broker.take(found, count_max)
        if not tasks and wait_s > 0 and await broker.wait_any([queue], wait_s):
            tasks = broker.take(found, count_max)
        await self._core.gate()
        return [
            structs.replace(d, failures=0, delivery_count=d.delivery_count + d.failures, from_outside=True)
            for d in as_deliveries(tasks)
        ]

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        how = _SETTLEMENTS[settle.how]
        if settle.due_ms and settle.how in ("abandon", "release"):
            await self._reschedule(delivery, settle)
            return
        if settle.how == "dead-letter":
            await self._dead_letter(delivery, settle)
            return
        self._broker.settle(self._broker.token(delivery), how, reason=settle.reason, description=settle.description)
        await self._core.gate()

    async def _reschedule(self, delivery: Delivery, settle: Settle) -> None:
        """Release or abandon a message that is not to be delivered before a time; it keeps its place."""
        queue, failures = self._held(delivery)
        count = failures + (settle.how == "abandon")
        why = settle.description
        self._commit(postponed=[records.Postponed(queue.number, delivery.sequence, settle.due_ms, count, why)])
        await self._core.gate()

    async def _dead_letter(self, delivery: Delivery, settle: Settle) -> None:
        """Dead-letter a message; this delivery of it counts too."""
        queue, failures = self._held(delivery)
        reason, text = settle.reason, settle.description
        self._commit(
            dead_lettered=[records.DeadLettered(queue.number, delivery.sequence, reason, text, failures + 1, False)]
        )
        await self._core.gate()

    def _held(self, delivery: Delivery) -> tuple[Queue, int]:
        """The queue of a delivery that is ours, and its count of failures.

        Raises:
            LockLost: it is not ours any more.
        """
        self._broker.renew(self._broker.token(delivery))
        queue = self._broker.queue(delivery.queue)
        return queue, queue.tasks[delivery.sequence].failures

    def _commit(
        self, *, dead_lettered: Sequence[records.DeadLettered] = (), postponed: Sequence[records.Postponed] = ()
    ) -> None:
        now_ms = self._core.now_ms()
        self._core.do(records.Committed(now_ms, now_ms, {}, {}, [], {}, {}, list(dead_lettered), list(postponed)))
        self._broker.wake()

    async def renew(self, delivery: Delivery) -> int:
        return self._broker.renew(self._broker.token(delivery))


_SETTLEMENTS = {
    "complete": Settlement.COMPLETE,
    "abandon": Settlement.ABANDON,
    "release": Settlement.RELEASE,
    "defer": Settlement.DEFER,
    "dead-letter": Settlement.DEAD_LETTER,
}


_bus: type[MessageBus] = EngineBus
