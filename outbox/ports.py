"""What the runtime asks of the world: a store, a bus, a place for blobs, or one journal that is all of them.

A port returns what is normal and raises what is not: a conditional write gives `Won` or `Lost`; it raises
`OutcomeUnknown` when nobody can tell, `Throttled` and `Refused` when nothing was written.  Every `await` in the
runtime is one call of one of these, so every `await` is a crash point and wrapping a port is fault injection.

    StateStore   documents with compare-and-swap, one at a time or in a batch within a partition
    MessageBus   send, receive with peek-lock, settle, renew
    BlobStore    write-once bytes, for claim checks
    Journal      engine scope: claim, load and commit over one log (the embedded engine)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from outbox.commits import Burial, Commit, Conflict, Marker, Postponement, Refusal, StateChange, StateDocument
from outbox.deliveries import SUBSCRIPTIONS, Buried, Delivery, Output, Settle
from outbox.documents import (
    UNTAGGED,
    Create,
    Delete,
    Document,
    DocumentKey,
    Lost,
    Replace,
    Session,
    StoreCapabilities,
    Tag,
    Version,
    Won,
    Write,
)
from outbox.errors import NoBlobStore

__all__ = [
    "BLOBS_CURE",
    "SUBSCRIPTIONS",
    "Backend",
    "BlobStore",
    "Burial",
    "Buried",
    "BusOperations",
    "Clock",
    "Commit",
    "Conflict",
    "Create",
    "Delete",
    "Delivery",
    "Document",
    "DocumentKey",
    "Journal",
    "Lost",
    "Marker",
    "MessageBus",
    "NoBlobs",
    "Operations",
    "Output",
    "Ports",
    "Postponement",
    "Refusal",
    "Replace",
    "Session",
    "Settle",
    "StateChange",
    "StateDocument",
    "StateStore",
    "StoreCapabilities",
    "StorePorts",
    "Tag",
    "UNTAGGED",
    "Version",
    "Won",
    "Write",
]

BLOBS_CURE = (
    "connect(..., blobs=...) names one, in a Functions app the setting OUTBOX_BLOBS__blobServiceUri or OUTBOX_BLOBS"
)
"""What to do where a blob store is missing."""

# Documents


class StateStore(Protocol):
    """Documents with compare-and-swap."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """What the store can promise; the same for as long as it is used."""
        ...

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        """The document, or None where there is none; with `session` at least as fresh as that token's answer."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        """Apply all operations or none; they share a partition.

        Raises:
            OutcomeUnknown: it may have been applied; read before acting.
            Throttled, Refused: nothing was applied.
        """

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        """The documents of a partition whose ids begin with `prefix`, by id."""

    def unfinished(self) -> AsyncIterator[Document]:
        """The documents of all partitions whose body, a JSON object, has a member `pending`; for the sweeper."""


# Messages


class MessageBus(Protocol):
    """A broker with peek-lock."""

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send all of them; an unknown outcome is repeated by the caller under the same ids."""

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count_max` messages, at least one unless `wait_s` passes without any."""

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        """End a delivery.

        Raises:
            LockLost: it is not ours any more.
        """

    async def renew(self, delivery: Delivery) -> int:
        """Extend the lock; its new end in milliseconds since 1970.

        Raises:
            LockLost: it is not ours any more.
        """


# Blobs


class BlobStore(Protocol):
    """Write-once bytes under names."""

    async def write(self, name: str, data: bytes) -> bool:
        """Write a blob that must not exist; False, and nothing changed, where it does."""

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        """The blob, or None where there is none.

        Raises:
            TooLarge: it is longer than `bytes_max`.
        """

    async def delete(self, name: str) -> None:
        """Delete a blob; one that is not there is fine."""


class NoBlobs:
    """A blob store for applications that need none: it refuses, and says what to do."""

    async def write(self, name: str, data: bytes) -> bool:
        """Write nothing.

        Raises:
            NoBlobStore: always.
        """
        raise NoBlobStore(f"blob {name} needs a blob store; {BLOBS_CURE}")

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        """Read nothing.

        Raises:
            NoBlobStore: always.
        """
        raise NoBlobStore(f"blob {name} needs a blob store; {BLOBS_CURE}")

    async def delete(self, name: str) -> None:
        """Nothing can be there."""


_nothing: type[BlobStore] = NoBlobs


# Engine scope


class Journal(Protocol):
    """Engine scope: queues, states and markers under one log, so one record commits all of them."""

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count_max` messages of these queues, locked; the claim's write has returned before this does.

        A journal may show what waits behind a dead letter that blocks its key, so that it is put on record in time:
        then all of what it gives `waits`, and is not given again in this block unless it is released.
        """

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        """Those of these states (by id) and markers (by inbox key) that there are."""

    async def commit(self, commit: Commit) -> Conflict | None:
        """Commit all of it or nothing; on return it survives the declared failures."""

    async def durable(self) -> None:
        """Wait until everything that was handed out so far survives the declared failures."""

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        """Extend the locks that are still ours; how many were."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Give back uncounted what is still ours."""


# What clients and operators ask


class BusOperations(Protocol):
    """What a client or an operator asks of whatever holds the queues; everything returned has passed the gate."""

    def now_ms(self) -> int:
        """The backend's time, milliseconds since 1970."""

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Make sure that queues (name to ordering) and topics (name to subscriptions) exist."""

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages from outside; on return they survive the declared failures."""

    async def dead_letters(self, queue: str) -> list[Buried]:
        """The dead letters of a queue, oldest first."""

    async def resubmit(self, queue: str, sequence: int) -> None:
        """Run the dead letter of a `sequence` number again, as a new attempt; LookupError where there is none."""

    async def discard(self, queue: str, sequence: int) -> None:
        """Delete the dead letter of a `sequence` number; LookupError where there is none."""

    async def is_idle(self, queues: Sequence[str]) -> bool:
        """Whether nothing in these queues waits or is being handled."""

    async def is_drained(self, queues: Sequence[str]) -> bool:
        """Whether nothing is left for these queues: waiting, put off, dead-lettered, or committed and not sent yet."""


class Operations(BusOperations, Protocol):
    """What a client or an operator asks of a backend: of its queues, its states and the framework's own notes."""

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        """Make sure that queues (name to ordering) and topics (name to subscriptions) exist.

        In the queues `stop_keys` a dead letter stops its key, also one that the backend itself makes; a declaration
        switches this on and never off, because an application that only sends does not know who handles.
        """

    async def state(self, id: str) -> StateDocument | None:
        """A state by id; None where there is none or it was deleted."""

    async def unblock(self, queue: str, session_id: str, identity: str) -> bool:
        """Let a session go on that stands still behind a dead letter which is gone; False where none does."""

    async def note(self, name: str) -> Document | None:
        """What the framework itself keeps here under a name."""

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        """Write a note that still has this version (empty: is not there); whether it was written."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a backend whose queues, states and markers share one log: engine scope."""

    journal: Journal
    operations: Operations
    blobs: BlobStore


@dataclass(frozen=True, slots=True)
class StorePorts:
    """The ports of a backend whose store and bus are apart: partition or item scope, as the store's capabilities say.

    `infrastructure` keeps the protocol's own documents where that is not where the states are; item scope only.
    """

    store: StateStore
    bus: MessageBus
    operations: BusOperations
    blobs: BlobStore
    infrastructure: StateStore | None = None


class Backend(Protocol):
    """Whatever a worker or client runs on."""

    def ports(self) -> Ports | StorePorts:
        """Its ports; their kind decides which commit protocol runs."""


class Clock(Protocol):
    """Time, passed in."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""
