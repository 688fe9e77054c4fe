"""Ports that record what is asked of them and what they answer, into a `History`.

A wrapper round each port, as fault injection is: the runtime knows nothing of it.  A commit is in the operating
system's hands before the port is asked for it, so that no effect is missing from the history of a process that was
killed; its answer may be.  A history with a fault plan in it goes inside: `FaultyJournal(RecordedJournal(...))` records
what happened, `RecordedJournal(FaultyJournal(...))` what the worker saw.

The version of a state is its serial here, a count of its versions that the state carries.  The store's own opaque one
names the serial that was loaded under it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast
from zlib import crc32

from outbox.ports import (
    Backend,
    BlobStore,
    BusOperations,
    Commit,
    Conflict,
    Delivery,
    Journal,
    Marker,
    Operations,
    Output,
    Ports,
    StateDocument,
    StorePorts,
)
from outbox.verify.history import History
from outbox.verify.recorded import events
from outbox.verify.recorded.describe import claimed, emitted, recorded_call, recorded_send, state_digest
from outbox.verify.recorded.recording_stores import RecordedBus, RecordedStore, Staging

LOADED_COUNT_MAX = 100_000
"""How many states' loaded versions are remembered; of one that was dropped a change starts at an unknown version."""


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
        if deliveries:
            self._history.append(claimed(deliveries, self._history))
        return deliveries

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        found = await self._journal.load(states, markers)
        loaded = self._loaded
        loaded.update([(id, (document.version, document.serial)) for id, document in found[0].items()])
        for id in found[0]:
            loaded.move_to_end(id)
        while len(loaded) > LOADED_COUNT_MAX:
            loaded.popitem(last=False)
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
                for d, reason in [(b.delivery, b.reason) for b in commit.buried]
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
    """What clients ask: what they send is recorded as accepted, everything else is handed on."""

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
_blobs: type[BlobStore] = RecordedBlobs
