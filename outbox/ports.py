"""The ports of the runtime: a store, a bus and a blob store, or one journal with all of them.

A port returns normal results and raises errors: a conditional write returns `Won` or `Lost`; it raises `OutcomeUnknown`
when it may have been written, `Throttled` and `Refused` when nothing was written.  Every `await` in the
runtime is one call of one of these, so every `await` is a crash point and wrapping a port is fault injection.

    StateStore   documents with compare-and-swap, one at a time or in a batch within a partition
    MessageBus   send, receive with peek-lock, settle, renew
    BlobStore    write-once bytes, for claim checks
    Journal      engine scope: claim, load and commit over one log (the embedded engine)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from outbox.deliveries import SUBSCRIPTIONS, DeadLetterEntry, Delivery, HeldMessage, Output
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
from outbox.engine_commit import (
    Commit,
    Conflict,
    DeadLettering,
    Marker,
    Postponement,
    Refusal,
    StateChange,
    StateDocument,
)
from outbox.errors import NoBlobStore
from outbox.lineage import Key
from outbox.message import Message

__all__ = [
    "BLOBS_CURE",
    "SUBSCRIPTIONS",
    "Backend",
    "BlobStore",
    "BusOperations",
    "Clock",
    "Commit",
    "Conflict",
    "Create",
    "DeadLetterEntry",
    "HeldMessage",
    "DeadLettering",
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
    "QueueRef",
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
"""The cure for a missing blob store."""

# Documents


class StateStore(Protocol):
    """Documents with compare-and-swap."""

    @property
    def capabilities(self) -> StoreCapabilities:
        """The capabilities of the store; they never change."""
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


class LedgerStore(StateStore, Protocol):
    """A state store that keeps a dispatch ledger, as its capability `dispatch_ledger` says."""

    def unsent(self, first: str, before: str) -> AsyncIterator[Document]:
        """The documents of all partitions whose body has a text `entry` from `first` on, and before `before`."""


# Messages


@dataclass(frozen=True, slots=True)
class Settle:
    """How a delivery ends: `complete`, `abandon` (counted), `release` (uncounted), `defer` or `dead-letter`.

    A released message stays invisible until `due_ms`, in its place, if the bus can do that; else it is redelivered at
    once.  Its `description` says why, for whoever looks into the queue; a bus may drop that.
    """

    how: Literal["complete", "abandon", "release", "defer", "dead-letter"]
    reason: str = ""
    description: str = ""
    due_ms: int = 0


class MessageBus(Protocol):
    """A broker with peek-lock."""

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send all of them; the caller repeats an unknown outcome under the same ids."""

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count_max` messages, at least one unless `wait_s` passes without any."""

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        """Settle a delivery.

        Raises:
            LockLost: its lock is lost.
        """

    async def renew(self, delivery: Delivery) -> int:
        """Renew the lock; its new end in milliseconds since 1970.

        Raises:
            LockLost: the lock is lost.
        """


# Blobs


class BlobStore(Protocol):
    """Write-once bytes under names."""

    async def write(self, name: str, data: bytes) -> bool:
        """Write a blob that must not exist; False, and no change, where it does."""

    async def read(self, name: str, *, bytes_max: int) -> bytes | None:
        """The blob, or None where there is none.

        Raises:
            TooLarge: it is longer than `bytes_max`.
        """

    async def delete(self, name: str) -> None:
        """Delete a blob, if it exists."""


class NoBlobs:
    """The blob store of a backend without one: it refuses, with the cure."""

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
        """No blob can exist."""


_nothing: type[BlobStore] = NoBlobs


@dataclass(frozen=True, slots=True)
class QueueRef:
    """A queue or topic of a backend, to send to; an output of a processor.

    `key` gives a message's key where the queue is ordered by key; `type` is the wire type of its messages (default: the
    name of a value's type), `version` their schema version.  Large bodies go to `blobs`.
    """

    name: str
    send: Callable[[Sequence[Output]], Awaitable[None]] = field(repr=False)
    """Sends all of them; the caller repeats an unknown outcome under the same ids."""
    blobs: BlobStore = field(default_factory=NoBlobs, repr=False)
    key: Callable[[Any], Key] | None = None
    type: str = ""
    version: int = 1


# Engine scope


class Journal(Protocol):
    """Engine scope: queues, states and markers under one log, so one record commits all of them."""

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        """Up to `count_max` messages of these queues, locked; the claim's write has returned before this does.

        A journal may also return messages behind a dead letter that blocks their key, so that they get a waiting record
        in time: then all returned deliveries `waits`, and are not returned again in this block unless released.
        """

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        """The existing ones of these states (by id) and markers (by inbox key)."""

    async def commit(self, commit: Commit) -> Conflict | None:
        """Commit all of it or nothing; on return it survives the declared failures."""

    async def durable(self) -> None:
        """Wait until everything returned so far survives the declared failures."""

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        """Renew the locks that are still held; how many were."""

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        """Release, uncounted, the deliveries whose locks are still held."""


# Operations


First = Callable[[], Awaitable[None]]
"""The action on a dead letter in hand, before it leaves the dead letters."""


class BusOperations(Protocol):
    """The operations of clients and operators on queues; everything returned has passed the gate."""

    def now_ms(self) -> int:
        """The backend's time, milliseconds since 1970."""

    async def declare(self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]]) -> None:
        """Create missing queues (name to ordering) and topics (name to subscriptions)."""

    async def send(self, outputs: Sequence[Output]) -> None:
        """Send messages from outside; on return they survive the declared failures."""

    async def dead_letters(self, queue: str) -> list[DeadLetterEntry]:
        """The dead letters of a queue, oldest first."""

    async def resubmit(
        self, queue: str, sequence: int, *, attempt: int = 0, edit: Message | None = None, first: First | None = None
    ) -> None:
        """Resubmit the dead letter of a `sequence` number, as a new attempt; LookupError where there is none.

        It is this `attempt` at least, and above that of every copy of it here.  An `edit` of it is sent in its place;
        it names what it replaces.  `first` is done before, once it is certain that nobody else has the dead letter,
        and not where there is none.
        """

    async def discard(self, queue: str, sequence: int, *, first: First | None = None) -> None:
        """Delete the dead letter of a `sequence` number; LookupError where there is none.  `first` as above."""

    async def is_idle(self, queues: Sequence[str]) -> bool:
        """Whether nothing in these queues waits or is being handled."""

    async def is_drained(self, queues: Sequence[str]) -> bool:
        """Whether nothing is left for these queues: waiting, rescheduled, dead-lettered, or committed, not pushed."""


class Operations(BusOperations, Protocol):
    """The operations of clients and operators on a backend: queues, states and the framework's own notes."""

    async def declare(
        self, queues: Mapping[str, str], topics: Mapping[str, Sequence[str]], *, stop_keys: Collection[str] = ()
    ) -> None:
        """Create missing queues (name to ordering) and topics (name to subscriptions).

        In the queues `stop_keys` a dead letter blocks its key, also a dead letter made by the backend; a declaration
        enables this and never disables it, because an application that only sends does not know the handlers.
        """

    async def state(self, id: str) -> StateDocument | None:
        """A state by id; None where there is none or it was deleted."""

    async def unblock(self, queue: str, session_id: str, identity: str) -> bool:
        """Unblock a session whose dead letter is gone; False if this identity does not block it."""

    async def note(self, name: str) -> Document | None:
        """A note of the framework by name; None without one."""

    async def write_note(self, name: str, body: bytes, version: Version) -> bool:
        """Write a note that still has this version (empty: absent); whether it was written."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of a backend whose queues, states and markers share one log: engine scope."""

    journal: Journal
    operations: Operations
    blobs: BlobStore


class Used(Protocol):
    """The count and the cost of one kind of request."""

    @property
    def count(self) -> int:
        """How often it was made."""

    @property
    def charge_ru(self) -> float:
        """The cost in request units; 0 where the service names none."""


class RequestCounts(Protocol):
    """Counts of the adapters' requests to their services so far, by kind; metrics read them."""

    @property
    def by_kind(self) -> Mapping[str, Used]:
        """The count and the cost of each kind of request."""

    @property
    def reasons(self) -> Mapping[tuple[str, str], int]:
        """How often a kind of request came to nothing, by why: `throttled`, `conflict`, `timeout` ..."""


@dataclass(frozen=True, slots=True)
class StorePorts:
    """The ports of a backend with a separate store and bus: partition or item scope, by the store's capabilities.

    `infrastructure` holds the protocol's own documents where states have a store of their own; item scope only.
    `usage` is what the adapters have asked of their services, where they count it.
    """

    store: StateStore
    bus: MessageBus
    operations: BusOperations
    blobs: BlobStore
    infrastructure: StateStore | None = None
    usage: RequestCounts | None = None


class Backend(Protocol):
    """The backend of a worker or client."""

    def ports(self) -> Ports | StorePorts:
        """Its ports; their kind decides which commit protocol runs."""


class Clock(Protocol):
    """A clock."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970."""

    def monotonic_s(self) -> float:
        """Seconds that never run backwards."""
