"""A store and a bus that record: what their writes mean is said by the tags that the protocols put on them.

In partition scope one batch creates the records of messages (`commit`, `refuse`) and writes their state (`state`); in
item scope the swap of the state (`swap`) is the commit of what was staged before (`stage`).  Everything else that is
written serves the protocol and changes nothing that a judge looks at.  The outputs are read from the record itself, so
what is compared with later pushes is what was stored.  A state that is read and points to a transaction, or a record
that is read, shows that its commit took effect.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import msgspec

from outbox.ports import (
    Create,
    Delivery,
    Document,
    DocumentKey,
    Lost,
    MessageBus,
    Output,
    Replace,
    Session,
    Settle,
    StateStore,
    StoreCapabilities,
    Won,
    Write,
)
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.describe import claimed, emitted, recorded_call, recorded_send, state_digest

STAGED_COUNT_MAX = 100_000
"""How many staged results are remembered until their swap; of one that was dropped the outputs are not known."""

_NULL = b"null"
_COMMITTING = frozenset({"commit", "refuse", "state", "swap", "stage"})
"""The tags of writes that a judge looks at."""


class _State(msgspec.Struct):
    """What a judge needs of a stored state."""

    value: msgspec.Raw = msgspec.Raw(_NULL)
    version: int = 0
    pending: str = ""


class _Record(msgspec.Struct):
    """What a judge needs of a stored record."""

    tx: str = ""
    outputs: tuple[Output, ...] = ()
    spilled: str = ""
    reason: str = ""


class _Staged(msgspec.Struct):
    record: _Record


class _Transaction(msgspec.Struct):
    """Of any document: the transaction that made it."""

    tx: str = ""
    pending: str | bool = ""


@dataclass(slots=True)
class Staging:
    """What is staged and not swapped in yet, by transaction; shared by the stores of one backend."""

    records: dict[str, _Record] = field(default_factory=dict)

    def keep(self, tx: str, record: _Record) -> None:
        """Remember a staged result."""
        while len(self.records) >= STAGED_COUNT_MAX:
            del self.records[next(iter(self.records))]
        self.records[tx] = record


class RecordedStore:
    """A state store whose commits are recorded."""

    def __init__(self, store: StateStore, history: History, staging: Staging | None = None) -> None:
        self._store = store
        self._history = history
        self._staging = staging if staging is not None else Staging()

    @property
    def capabilities(self) -> StoreCapabilities:
        return self._store.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        found = await self._store.read(key, session=session)
        if found is not None:
            self._look(found)
        return found

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        commit = self._commit_event(operations)
        if commit is None:
            return await self._store.write(operations)
        call = self._store.write(operations)
        answer = await recorded_call(self._history, commit, call, lambda won: "lost" if isinstance(won, Lost) else "")
        if isinstance(answer, Lost) and answer.current is not None:
            self._look(answer.current)
        return answer

    async def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        async for document in self._store.scan(partition, prefix=prefix):
            self._look(document)
            yield document

    async def unfinished(self) -> AsyncIterator[Document]:
        async for document in self._store.unfinished():
            self._look(document)
            yield document

    def _look(self, document: Document) -> None:
        """Note whose transaction a document shows that was read."""
        if document.key.id != "state" and not document.key.id.startswith(("inbox:", "done:")):
            return  # a staged record is written before its commit
        try:
            made = msgspec.json.decode(document.body, type=_Transaction)
        except msgspec.MsgspecError:
            return  # not one of ours: its reader will raise
        tx = made.tx or (made.pending if isinstance(made.pending, str) else "")
        if tx:
            self._history.append(events.Found(at_ms=self._history.now_ms(), txs=[tx]))

    def _commit_event(self, operations: Sequence[Write]) -> events.Commit | None:
        """The commit that a write is, if it is one."""
        changes: list[events.Change] = []
        records: list[tuple[Sequence[bytes], _Record]] = []
        tx = ""
        for operation in operations:
            what = operation.tag.what
            if not isinstance(operation, Create | Replace) or what not in _COMMITTING:
                continue
            if what == "stage":
                self._staging.keep(operation.tag.tx, msgspec.json.decode(operation.body, type=_Staged).record)
                continue
            tx = operation.tag.tx
            if what in ("state", "swap"):
                changes.append(_change(operation))
            if what == "swap":
                records.append((operation.tag.inbox, self._staging.records.pop(tx, _Record(spilled="?"))))
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
        if deliveries:
            self._history.append(claimed(deliveries, self._history))
        return deliveries

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


_store: type[StateStore] = RecordedStore
_bus: type[MessageBus] = RecordedBus
