"""The outputs that commits of an application under test emit, once each, in commit order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from outbox.ports import (
    BlobStore,
    Commit,
    Conflict,
    Delete,
    Journal,
    Lost,
    MessageBus,
    Output,
    StateStore,
    Won,
    Write,
)
from outbox.runtime.commit import overflow
from outbox.stored import Inline, Record, Staged, StateItem


class JournalRecorder:
    """A journal that keeps what its commits emit.

    A caller may be killed while its commit waits for a flush that it shares with others.  Such a commit is `undecided`:
    whether it took effect is known when the log is opened again, because its markers are there or not.
    """

    def __init__(self, journal: Journal, outputs: list[Output], undecided: list[Commit]) -> None:
        self._journal = journal
        self._outputs = outputs
        self._undecided = undecided
        self.claim, self.load, self.durable = journal.claim, journal.load, journal.durable
        self.renew, self.release = journal.renew, journal.release

    async def commit(self, commit: Commit) -> Conflict | None:
        try:
            conflict = await self._journal.commit(commit)
        except asyncio.CancelledError:
            self._undecided.append(commit)
            raise
        if conflict is None:
            self._outputs += commit.outputs
        return conflict


class Sent:
    """The outputs that a store's commits hold, once each."""

    def __init__(self, blobs: BlobStore, outputs: list[Output]) -> None:
        self._blobs = blobs
        self._outputs = outputs
        self._ids = {output.message.identity for output in outputs}
        self._staged: dict[str, Record] = {}

    async def written(self, operation: Write) -> None:
        """Note a write that took effect: a record, or a state that points to a staged one."""
        if isinstance(operation, Delete):
            return
        what, tx = operation.tag.what, operation.tag.tx
        if what == "stage":
            self._staged[tx] = msgspec.json.decode(operation.body, type=Staged).record
        elif what == "swap":
            inline = msgspec.json.decode(operation.body, type=StateItem).pending
            record = inline.record if isinstance(inline, Inline) else self._staged[tx]
            self.keep(await overflow.outputs_of(record, self._blobs) or ())
        elif what == "commit":
            self.keep(await overflow.outputs_of(msgspec.json.decode(operation.body, type=Record), self._blobs) or ())

    def keep(self, outputs: Sequence[Output]) -> None:
        """Keep the new outputs; a delayed copy of a message, which has a broker's own id, is none."""
        for output in outputs:
            if output.message.identity not in self._ids and not output.message.message_id:
                self._ids.add(output.message.identity)
                self._outputs.append(output)


class StoreRecorder:
    """A store that tells what its writes commit."""

    def __init__(self, store: StateStore, sent: Sent) -> None:
        self._store = store
        self._sent = sent
        self.capabilities, self.read = store.capabilities, store.read
        self.scan, self.unfinished = store.scan, store.unfinished

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        answer = await self._store.write(operations)
        for operation in operations if isinstance(answer, Won) else ():
            await self._sent.written(operation)
        return answer


class BusRecorder:
    """A bus that records every push: a commit hidden from the recorder by a crash is seen here."""

    def __init__(self, bus: MessageBus, sent: Sent) -> None:
        self._bus = bus
        self._sent = sent
        self.receive, self.settle, self.renew = bus.receive, bus.settle, bus.renew

    async def send(self, outputs: Sequence[Output]) -> None:
        self._sent.keep(outputs)
        await self._bus.send(outputs)
