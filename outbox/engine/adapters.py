"""The engine behind the runtime's ports.

`EngineOperations` is what clients ask; `EngineStore` and `EngineBus` offer the narrower ports, documents apart from
queues.  Whatever they hand out has passed the gate.  Engine scope is in `journal`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from outbox.deliveries import identified
from outbox.engine import records
from outbox.engine.broker import Broker
from outbox.engine.core import Core
from outbox.engine.dead_letters import DeadLetters
from outbox.engine.documents import Documents
from outbox.engine.entities import QueueSettings, Settlement, TopicSettings, dead_letter_path
from outbox.engine.items import Task
from outbox.engine.journal import as_deliveries, token_of
from outbox.engine.queues import Queue
from outbox.engine.state import STATES
from outbox.engine.topology import Topology
from outbox.errors import LockLost, TooLarge
from outbox.ports import (
    Buried,
    Create,
    Delete,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    MessageBus,
    Operations,
    Output,
    Replace,
    Session,
    Settle,
    StateDocument,
    StateStore,
    StoreCapabilities,
    Tag,
    Version,
    Won,
    Write,
)

ITEM_BYTES_MAX = 2 << 20
BATCH_COUNT_MAX = 100
PEEK_COUNT_MAX = 100_000


class EngineOperations:
    """What clients and operators ask of an embedded engine."""

    def __init__(
        self, core: Core, broker: Broker, topology: Topology, documents: Documents, dead_letters: DeadLetters
    ) -> None:
        self._core = core
        self._broker = broker
        self._topology = topology
        self._documents = documents
        self._dead_letters = dead_letters
        self._store = EngineStore(core, documents)

    def now_ms(self) -> int:
        return self._core.now_ms()

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        known = self._topology.queues
        wanted = [
            QueueSettings(name, "per_key" if o == "per_key" else "unordered", stop_key=name in stop_keys)
            for name, o in queues.items()
        ]
        fresh = [q for q in wanted if q.name not in known or known[q.name].ordering != q.ordering]
        fresh += [  # what else was set for it stays
            msgspec.structs.replace(known[name], stop_key=True)
            for name in stop_keys
            if name in known and not known[name].stop_key and known[name].ordering == queues.get(name)
        ]
        self._topology.declare(*fresh, *(TopicSettings(name, tuple(subs)) for name, subs in topics.items()))
        await self._core.gate()

    async def send(self, outputs: Sequence[Output]) -> None:
        for output in outputs:
            self._broker.send(output.destination, [output.message], due_ms=output.due_ms)
        await self._core.gate()

    async def state(self, id: str) -> StateDocument | None:
        found = self._documents.read(STATES, id)
        await self._core.gate()
        return found if found is not None and found.value else None

    async def dead_letters(self, queue: str) -> list[Buried]:
        found = dead_letters(self._broker, queue)
        await self._core.gate()
        return found

    async def resubmit(self, queue: str, sequence: int) -> None:
        self._dead_letters.resubmit(queue, sequence)
        await self._core.gate()

    async def discard(self, queue: str, sequence: int) -> None:
        self._dead_letters.discard(queue, sequence)
        await self._core.gate()

    async def let_go(self, queue: str, session_id: str, identity: str) -> bool:
        return False  # a session stands still behind what is among the dead letters, and goes on when it is not

    async def is_idle(self, queues: Sequence[str]) -> bool:
        return self._broker.is_idle(queues)

    async def is_drained(self, queues: Sequence[str]) -> bool:
        return self._broker.is_drained(queues)

    async def note(self, name: str) -> Document | None:
        return await self._store.read(DocumentKey("notes", name))

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        key = DocumentKey("notes", name)
        tag = Tag("note")
        write = Replace(key, body, version, tag=tag) if version else Create(key, body, tag=tag)
        return isinstance(await self._store.write([write]), Won)


def dead_letters(broker: Broker, queue: str) -> list[Buried]:
    """The dead letters of a queue, oldest first; the caller passes the gate."""
    return [
        identified(Buried(queue, t.sequence, t.message, t.reason, t.description, _deliveries(t), t.enqueued_ms))
        for t in broker.peek(dead_letter_path(queue), 0, PEEK_COUNT_MAX)
    ]


def _deliveries(task: Task) -> int:
    return task.failures + task.delivery_count + task.message.failures


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
        if not tasks and wait_s > 0 and await broker.wait_available(queue, wait_s):
            tasks = broker.take(found, count_max)
        await self._core.gate()
        return [
            replace(d, failures=0, delivery_count=d.delivery_count + d.failures, from_outside=True)
            for d in as_deliveries(tasks)
        ]

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        how = _SETTLEMENTS[settle.how]
        if settle.due_ms and settle.how in ("abandon", "release"):
            await self._put_off(delivery, settle)
            return
        if settle.how == "dead-letter":
            await self._bury(delivery, settle)
            return
        self._broker.settle(self._token(delivery), how, reason=settle.reason, description=settle.description)
        await self._core.gate()

    async def _put_off(self, delivery: Delivery, settle: Settle) -> None:
        """Give back a message that rests until a time, in its place."""
        queue, failures = self._held(delivery)
        count = failures + (settle.how == "abandon")
        self._commit(postponed=[records.Postponed(queue.number, delivery.sequence, settle.due_ms, count)])
        await self._core.gate()

    async def _bury(self, delivery: Delivery, settle: Settle) -> None:
        """Dead-letter a message; this delivery of it counts too."""
        queue, failures = self._held(delivery)
        reason, text = settle.reason, settle.description
        self._commit(buried=[records.Buried(queue.number, delivery.sequence, reason, text, failures + 1, False)])
        await self._core.gate()

    def _held(self, delivery: Delivery) -> tuple[Queue, int]:
        """The queue of a delivery that is ours, and its count of failures.

        Raises:
            LockLost: it is not ours any more.
        """
        self._broker.renew(self._token(delivery))
        queue = self._broker.queue(delivery.queue)
        return queue, queue.tasks[delivery.sequence].failures

    def _commit(self, *, buried: Sequence[records.Buried] = (), postponed: Sequence[records.Postponed] = ()) -> None:
        now_ms = self._core.now_ms()
        self._core.do(records.Committed(now_ms, now_ms, {}, {}, [], {}, {}, list(buried), list(postponed)))
        self._broker.wake()

    async def renew(self, delivery: Delivery) -> int:
        return self._broker.renew(self._token(delivery))

    def _token(self, delivery: Delivery) -> bytes:
        return token_of(delivery, self._core, self._broker)


_SETTLEMENTS = {
    "complete": Settlement.COMPLETE,
    "abandon": Settlement.ABANDON,
    "release": Settlement.RELEASE,
    "defer": Settlement.DEFER,
    "dead-letter": Settlement.DEAD_LETTER,
}


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

    def __init__(self, core: Core, documents: Documents) -> None:
        self._core = core
        self._documents = documents

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = self._read(key)
        await self._core.gate()
        return found

    def _read(self, key: DocumentKey) -> Document | None:
        found = self._documents.read(_namespace(key.partition), key.id)
        return None if found is None else Document(key, found.value, str(found.version))

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        _check_limits(operations)
        for index, operation in enumerate(operations):
            current = self._read(operation.key)
            wanted = None if isinstance(operation, Create) else operation.if_match
            if wanted != (None if current is None else current.version):
                await self._core.gate()
                return Lost(index, current)
        change = records.Modify(
            documents=[self._put(op) for op in operations if not isinstance(op, Delete)],
            document_deletes=[self._gone(op) for op in operations if isinstance(op, Delete)],
        )
        if self._documents.modify(change) is None:
            raise LockLost("a document changed between its check and its write; this is a bug, please report it")
        versions = tuple(
            "" if isinstance(op, Delete) else str(self._documents.version(_namespace(op.key.partition), op.key.id))
            for op in operations
        )
        await self._core.gate()
        return Won(versions)

    def _put(self, operation: Create | Replace) -> records.DocWrite:
        namespace, id = _namespace(operation.key.partition), operation.key.id
        expires_ms = 0 if operation.ttl_s is None else self._core.now_ms() + round(operation.ttl_s * 1_000)
        version = self._documents.version(namespace, id)
        return records.DocWrite(namespace, id, operation.body, version, expires_ms)

    def _gone(self, operation: Delete) -> records.DocRef:
        return records.DocRef(_namespace(operation.key.partition), operation.key.id, int(operation.if_match))

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        space = self._core.state.documents.get(_namespace(partition), {})
        await self._core.gate()
        for id in sorted(id for id in space if id.startswith(prefix)):
            document = self._read(DocumentKey(partition, id))
            if document is not None:
                yield document

    async def unfinished(self) -> AsyncIterator[Document]:
        spaces = {name: space for name, space in self._core.state.documents.items() if name.startswith("p/")}
        await self._core.gate()
        for name in sorted(spaces):
            for id in sorted(spaces[name]):
                document = self._read(DocumentKey(name.removeprefix("p/"), id))
                if document is not None and _is_pending(document.body):
                    yield document


class _Unfinished(msgspec.Struct):
    pending: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


def _is_pending(body: bytes) -> bool:
    """Whether a body is a JSON object with a member `pending`."""
    try:
        return msgspec.json.decode(body, type=_Unfinished).pending is not msgspec.UNSET
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def _namespace(partition: str) -> str:
    return f"p/{partition}"


def _check_limits(operations: Sequence[Write]) -> None:
    if len(operations) > BATCH_COUNT_MAX:
        raise TooLarge(
            f"a batch of {len(operations)} operations is over {BATCH_COUNT_MAX}; split what need not be atomic"
        )
    if sum(len(op.body) for op in operations if not isinstance(op, Delete)) > ITEM_BYTES_MAX:
        raise TooLarge(f"a batch is over {ITEM_BYTES_MAX} bytes; move large values to a blob")
    if len({op.key.partition for op in operations}) > 1 or len({op.key for op in operations}) < len(operations):
        raise TooLarge("a batch stays in one partition and names each document once")


_operations: type[Operations] = EngineOperations
_bus: type[MessageBus] = EngineBus
_store: type[StateStore] = EngineStore
