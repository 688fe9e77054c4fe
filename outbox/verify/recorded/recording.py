"""Ports that record their calls and the answers, into a `History`.

A wrapper round each port, as fault injection is: the runtime knows nothing of it.  A commit is in the operating
system's hands before the port is asked for it, so that no effect is missing from the history of a process that was
killed; its answer may be.  A history with a fault plan in it goes inside: `FaultyJournal(RecordedJournal(...))` records
what happened, `RecordedJournal(FaultyJournal(...))` what the worker saw.

The version of a state is its serial here, a count of its versions that the state carries.  The store's own opaque one
names the serial that was loaded under it.

What the writes of a store mean is said by the tags that the protocols put on them.  In partition scope one batch
creates the records of messages (`commit`, `refuse`) and writes their state (`state`); in item scope the swap of the
state (`swap`) is the commit of what lies in it, or was staged before (`stage`).  Everything else that is written serves
the protocol and changes nothing that a judge looks at.  The outputs are read from the record itself, so what is
compared with later pushes is what was stored.  A state that is read and points to a transaction, or a record that is
read, shows that its commit took effect.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast
from zlib import crc32

import msgspec

from outbox.errors import Refused, UnknownDestination
from outbox.ports import (
    Backend,
    BlobStore,
    BusOperations,
    Commit,
    Conflict,
    Create,
    Delivery,
    Document,
    DocumentKey,
    Journal,
    LedgerStore,
    Lost,
    Marker,
    MessageBus,
    Operations,
    Output,
    Ports,
    Replace,
    Session,
    Settle,
    StateDocument,
    StateStore,
    StorePorts,
    Won,
    Write,
)
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.events import Operation, digest_of

Result = TypeVar("Result")
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


async def recorded_call(
    history: History, operation: Operation, call: Awaitable[Result], failure: Callable[[Result], str] = lambda _: ""
) -> Result:
    """Record an operation and its outcome: `failure` says why a result had no effect; some errors leave it unknown."""
    history.begin(operation)
    try:
        result = await call
    except (Refused, UnknownDestination) as error:
        history.fail(operation.op, type(error).__name__)
        raise
    except BaseException as error:
        history.unknown(operation.op, type(error).__name__)
        raise
    why = failure(result)
    if why:
        history.fail(operation.op, why)
    else:
        history.ok(operation.op)
    return result


async def recorded_write(
    history: History, operation: Operation, call: Awaitable[Won | Lost], look: Callable[[Document], None]
) -> Won | Lost:
    """Record a conditional write, and look at the document that it lost to."""
    answer = await recorded_call(history, operation, call, lambda won: "lost" if isinstance(won, Lost) else "")
    if isinstance(answer, Lost) and answer.current is not None:
        look(answer.current)
    return answer


async def recorded_send(
    history: History, outputs: Sequence[Output], send: Callable[[Sequence[Output]], Awaitable[None]]
) -> None:
    """Record messages that are asked to leave."""
    push = events.Push(at_ms=history.now_ms(), op=history.next_op(), outputs=[emitted(output) for output in outputs])
    await recorded_call(history, push, send(outputs))


def remember(known: OrderedDict[Key, Value], key: Key, value: Value, count_max: int) -> None:
    """Remember a value as the newest of up to `count_max`."""
    known[key] = value
    known.move_to_end(key)
    while len(known) > count_max:
        known.popitem(last=False)


def state_digest(value: bytes) -> int:
    """A check number of a state; 0 for none, as a deleted one leaves."""
    return crc32(value) or 1 if value else 0


def emitted(output: Output) -> events.Emitted:
    """An output as a history tells it."""
    message = output.message
    return events.Emitted(
        message.outbox_id or message.message_id,
        output.destination,
        digest_of(message),
        message.causation_id,
        output.due_ms,
    )


def recorded_claim(history: History, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
    """Record deliveries if there are any, with their messages if the history keeps bodies; the same deliveries."""
    if deliveries:
        claim = events.Claim(
            at_ms=history.now_ms(),
            deliveries=[
                events.Delivered(
                    d.message.outbox_id or d.message.message_id,
                    d.queue,
                    d.sequence,
                    d.from_outside,
                    d.message.attempt,
                    digest_of(d.message),
                )
                for d in deliveries
            ],
            wholes=[
                events.Whole(d.message, d.enqueued_ms, d.failures, d.delivery_count, d.from_outside)
                for d in deliveries
                if history.bodies
            ],
        )
        history.append(claim)
    return deliveries


LOADED_COUNT_MAX = 100_000
"""How many states' loaded versions are remembered; of one that was dropped a change starts at an unknown version."""

STAGED_COUNT_MAX = 100_000
"""How many staged results are remembered until their swap; of one that was dropped the outputs are not known."""

_NULL = b"null"
_COMMITTING = frozenset({"commit", "refuse", "state", "swap", "stage"})
"""The tags of writes that a judge looks at."""


class RecordedJournal:
    """A journal whose claims and commits are recorded."""

    def __init__(self, journal: Journal, history: History) -> None:
        self._journal = journal
        self._history = history
        self.durable, self.release = journal.durable, journal.release
        self._loaded: OrderedDict[str, tuple[int, int]] = OrderedDict()
        """States by id: version and serial, as last loaded."""

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._journal.claim(queues, count_max=count_max, wait_s=wait_s)
        return recorded_claim(self._history, deliveries)

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        found = await self._journal.load(states, markers)
        for id, document in found[0].items():
            remember(self._loaded, id, (document.version, document.serial), LOADED_COUNT_MAX)
        return found

    async def commit(self, commit: Commit) -> Conflict | None:
        event = self._commit_event(commit, self._history.next_op())
        call = self._journal.commit(commit)
        return await recorded_call(self._history, event, call, lambda conflict: "conflict" if conflict else "")

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        count = await self._journal.renew(deliveries)
        if count == len(deliveries):  # else it does not tell which
            held = [(delivery.queue, delivery.sequence) for delivery in deliveries]
            self._history.append(events.Held(at_ms=self._history.now_ms(), deliveries=held))
        return count

    # What a commit says

    def _commit_event(self, commit: Commit, op: int) -> events.Commit:
        ended = events.Ended
        states = commit.states
        return events.Commit(
            at_ms=commit.now_ms,
            op=op,
            ended=[ended(d.queue, d.sequence, d.message.identity) for d in commit.consumed],
            buried=[
                events.Buried(d.queue, d.sequence, d.message.identity, reason, d.message.attempt)
                for d, reason in [(b.delivery, b.reason) for b in commit.dead_lettered]
            ],
            postponed=[
                events.Postponed(p.delivery.queue, p.delivery.sequence, p.delivery.message.identity, p.due_ms)
                for p in commit.postponed
            ],
            changes=[
                events.Change(id, self._serial(id, commit.if_versions[id]), change.serial, state_digest(change.value))
                for id, change in states.items()
            ],
            seen=[events.Seen(id, self._serial(id, v)) for id, v in commit.if_versions.items() if id not in states],
            outputs=[emitted(output) for output in commit.outputs],
            applied=[key.hex() for key in commit.handled],
            refused=[key.hex() for key, refusal in commit.refused.items() if not refusal.waits],
            replacing=[key.hex() for key in commit.replacing],
        )

    def _serial(self, id: str, version: int) -> int:
        """The serial of a state that was loaded with this version; -1 if another was loaded since."""
        if not version:
            return 0
        loaded = self._loaded.get(id)
        return loaded[1] if loaded is not None and loaded[0] == version else -1


class _State(msgspec.Struct):
    """The part of a stored state that a judge needs."""

    value: msgspec.Raw = msgspec.Raw(_NULL)
    version: int = 0
    pending: str | _Inline = ""


class _Record(msgspec.Struct):
    """The part of a stored record that a judge needs."""

    tx: str = ""
    outputs: tuple[Output, ...] = ()
    spilled: str = ""
    reason: str = ""


class _Inline(msgspec.Struct):
    """A result that is staged, or inline in a state."""

    record: _Record


class _Transaction(msgspec.Struct):
    """Of any document: the transaction that made it."""

    tx: str = ""
    pending: str | bool | _Inline = ""


Staging = OrderedDict[str, _Record]
"""The results staged and not swapped in yet, by transaction; shared by the stores of one backend."""


class RecordedStore:
    """A state store whose commits are recorded."""

    def __init__(self, store: StateStore, history: History, staging: Staging | None = None) -> None:
        self._store = store
        self._history = history
        self._staging = staging if staging is not None else Staging()
        self.capabilities = store.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._store.read(key, session=session)
        if found is not None:
            self._look(found)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        commit = self._commit_event(operations)
        if commit is None:
            return await self._store.write(operations)
        return await recorded_write(self._history, commit, self._store.write(operations), self._look)

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._looked_at(self._store.scan(partition, prefix=prefix))

    def unfinished(self) -> AsyncIterator[Document]:
        return self._looked_at(self._store.unfinished())

    def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        return self._looked_at(cast(LedgerStore, self._store).unsent(first, before))

    async def _looked_at(self, documents: AsyncIterator[Document]) -> AsyncIterator[Document]:
        async for document in documents:
            self._look(document)
            yield document

    def _swapped_in(self, tx: str, operation: Create | Replace) -> _Record:
        """The record of the transaction that a state is pointed to."""
        inline = msgspec.json.decode(operation.body, type=_State).pending
        return inline.record if isinstance(inline, _Inline) else self._staging.pop(tx, _Record(spilled="?"))

    def _look(self, document: Document) -> None:
        """Note whose transaction a document shows that was read."""
        if document.key.id != "state" and not document.key.id.startswith(("inbox:", "done:")):
            return  # a staged record is written before its commit
        try:
            made = msgspec.json.decode(document.body, type=_Transaction)
        except msgspec.MsgspecError:
            return  # not one of ours: its reader will raise
        tx = made.tx or _pointer(made.pending)
        if tx:
            self._history.append(events.Found(at_ms=self._history.now_ms(), txs=[tx]))

    def _commit_event(self, operations: Sequence[Write]) -> events.Commit | None:
        changes: list[events.Change] = []
        records: list[tuple[Sequence[bytes], _Record]] = []
        tx = ""
        for operation in operations:
            what = operation.tag.what
            if not isinstance(operation, Create | Replace) or what not in _COMMITTING:
                continue
            if what == "stage":
                record = msgspec.json.decode(operation.body, type=_Inline).record
                remember(self._staging, operation.tag.tx, record, STAGED_COUNT_MAX)
                continue
            tx = operation.tag.tx
            if what in ("state", "swap"):
                changes.append(_change(operation))
            if what == "swap":
                records.append((operation.tag.inbox, self._swapped_in(tx, operation)))
            elif what != "state":
                records.append((operation.tag.inbox, msgspec.json.decode(operation.body, type=_Record)))
        if not changes and not records:
            return None
        history = self._history
        return events.Commit(
            at_ms=history.now_ms(),
            op=history.next_op(),
            changes=changes,
            outputs=[emitted(output) for _, record in records for output in record.outputs],
            applied=[key.hex() for inboxes, record in records if not record.reason for key in inboxes],
            refused=[key.hex() for inboxes, record in records if record.reason for key in inboxes],
            staged=True,
            tx=tx,
            is_spilled=any(record.spilled for _, record in records),
        )


def _pointer(pending: str | bool | _Inline) -> str:
    """The transaction that a pending state points to."""
    if isinstance(pending, _Inline):
        return pending.record.tx
    return pending if isinstance(pending, str) else ""


def _change(operation: Create | Replace) -> events.Change:
    state = msgspec.json.decode(operation.body, type=_State)
    value = b"" if bytes(state.value) == _NULL else bytes(state.value)
    return events.Change(operation.key.partition, state.version - 1, state.version, state_digest(value))


class RecordedBus:
    """A message bus that records what comes, what leaves and how deliveries end."""

    def __init__(self, bus: MessageBus, history: History) -> None:
        self._bus = bus
        self._history = history
        self.renew = bus.renew

    async def send(self, outputs: Sequence[Output]) -> None:
        await recorded_send(self._history, outputs, self._bus.send)

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._bus.receive(queue, count_max=count_max, wait_s=wait_s)
        return recorded_claim(self._history, deliveries)

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        settled = events.Settled(
            at_ms=self._history.now_ms(),
            op=self._history.next_op(),
            queue=delivery.queue,
            sequence=delivery.sequence,
            id=delivery.message.identity,
            how=settle.how,
            reason=settle.reason,
        )
        await recorded_call(self._history, settled, self._bus.settle(delivery, settle))


class RecordedBlobs:
    """A blob store whose writes are recorded."""

    def __init__(self, blobs: BlobStore, history: History) -> None:
        self._blobs = blobs
        self._history = history
        self.read, self.delete = blobs.read, blobs.delete

    async def write(self, name: str, data: bytes) -> bool:
        history = self._history
        op = history.next_op()
        history.append(events.Blob(at_ms=history.now_ms(), op=op, name=name, digest=crc32(data), size_bytes=len(data)))
        written = await self._blobs.write(name, data)
        if written:
            history.ok(op)
        else:
            history.fail(op, "exists")
        return written


class RecordedOperations:
    """The operations of clients: their sends are recorded as accepted, everything else is handed on."""

    def __init__(self, operations: BusOperations, history: History) -> None:
        self._operations = operations
        self._history = history

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    async def send(self, outputs: Sequence[Output]) -> None:
        await recorded_send(self._history, outputs, self._operations.send)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A backend whose ports record."""

    backend: Backend
    history: History

    def ports(self) -> Ports | StorePorts:
        """The backend's ports, recorded."""
        history, ports = self.history, self.backend.ports()
        blobs = RecordedBlobs(ports.blobs, history)
        operations = cast(Operations, RecordedOperations(ports.operations, history))  # the rest is handed on
        if isinstance(ports, Ports):
            return Ports(RecordedJournal(ports.journal, history), operations, blobs)
        staging = Staging()
        apart = ports.infrastructure
        return StorePorts(
            RecordedStore(ports.store, history, staging),
            RecordedBus(ports.bus, history),
            operations,
            blobs,
            None if apart is None else RecordedStore(apart, history, staging),
        )


def recorded(backend: Backend, history: History) -> Backend:
    """A backend that records everything that is asked of it."""
    return Recorded(backend, history)


_journal: type[Journal] = RecordedJournal
_store: type[StateStore] = RecordedStore
_bus: type[MessageBus] = RecordedBus
_blobs: type[BlobStore] = RecordedBlobs
