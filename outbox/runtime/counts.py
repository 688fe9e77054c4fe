"""Counts of the messages of one process by outcome, since its start: plain numbers for status and metrics.

A batch of the engine is counted at once, so that a message costs a few nanoseconds; nothing else is done while messages
are handled.  Workers, HTTP entries and a Functions host that share a `Counts` are counted together.  What is counted is
what this process has seen: a message whose commit was known to another only is counted there.

What the protocols need not know is counted by the ports of a store and a bus: lost commits, unknown ones, sends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Coroutine, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any, Protocol
from weakref import WeakSet

from outbox.errors import NotRegistrable, OutboxError, OutcomeUnknown, PoisonMessage
from outbox.guards import Breaker, Guard, Rate
from outbox.ports import (
    Delivery,
    Document,
    DocumentKey,
    LedgerStore,
    Lost,
    MessageBus,
    Output,
    RequestCounts,
    Session,
    Settle,
    StateStore,
    StoreCapabilities,
    StorePorts,
    Won,
    Write,
)
from outbox.resubmission import REJECTED
from outbox.runtime.work import Attempt, Later, Outcome, Work

REQUESTS = "http"
"""The source under which HTTP requests are counted; a queue of that name shares it."""
REASONS = frozenset(
    {
        *("cycle", "failed", "from-the-future", "missing-key", "no-blob-store", "no-identity", "oversize"),
        *("edit-without-record", "payload-differs", "too-old", "undecodable", "unknown-type", "unstorable"),
    }
)
"""The reasons of a refusal that are counted by name; that of a `Reject` is `rejected`, any other `other`."""
CLIENT_ERRORS, SERVER_ERRORS = 400, 500
AGE_BUCKET_COUNT = 26
"""Buckets of ages: the one at index n counts those below 2**n milliseconds, and not below half of that."""
AGE_MS_MAX = 1 << (AGE_BUCKET_COUNT - 1)
STATES = ("state", "swap")
COMMITS = ("commit", "refuse", *STATES)


@dataclass(slots=True)
class SourceCounts:
    """The counts of one queue or subscription; each message counts once at each of its ends.

    `failed` counts attempts that raised, whatever came of them; `rescheduled` those after which the message was
    rescheduled for another reason.
    """

    applied: int = 0
    duplicates: int = 0
    """Completed without effect, because their record says that they were applied before."""
    failed: int = 0
    rescheduled: int = 0
    newer: int = 0
    """The rescheduled messages whose schema, or whose state's, a newer build wrote."""
    newer_ms: int = 0
    """When the last of these was put back; 0: never."""
    refused: Counter[str] = field(default_factory=Counter)
    """Dead-lettered, by reason."""
    ages: list[int] = field(default_factory=lambda: [0] * AGE_BUCKET_COUNT)
    """Applied messages by their age at the commit, where ages are counted."""
    age_ms: int = 0
    """The sum of those ages."""

    def age(self, age_ms: int) -> None:
        """Count the age of an applied message."""
        self.ages[min(max(0, age_ms).bit_length(), AGE_BUCKET_COUNT - 1)] += 1
        self.age_ms += max(0, age_ms)


class Filling(Protocol):
    """A source of the fill levels of partitions."""

    def fullest(self) -> tuple[str, float]:
        """The key that heads for the largest share of its partition's limit, and that share."""


@dataclass(frozen=True, slots=True)
class Depth:
    """The depth of a queue at the last look.

    `states` counts its messages by state, where the looker may count; `oldest_s` is the age of the oldest that waits.
    """

    oldest_s: float
    states: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PipelineFigures:
    """How far a pipeline is at the last look.

    `behind` counts the entries of its source behind the checkpoint that stands, the first of them appended at
    `since_ms` (0: there is none); `lag` those that have not left.  All below `released`, a position of the source as
    `index.offset`, has left.  `made_ms` is when the checkpoint was made; `bundles` counts the items of each sink's
    last bundle.
    """

    behind: int
    lag: int
    since_ms: int
    released: str
    made_ms: int
    bundles: Mapping[str, int]


@dataclass(slots=True)
class Counts:
    """The counts of one process."""

    sources: dict[str, SourceCounts] = field(default_factory=dict)
    conflicts: int = 0
    """Commits that lost to another change of their state, and were made again."""
    unknown: int = 0
    """Commits whose outcome was unknown at first, and read back."""
    sent: int = 0
    """Outputs that were handed to the bus, or committed with the engine."""
    failed_sends: int = 0
    """Sends that failed for now; their outputs stay pending."""
    finished: int = 0
    """Pending documents that sweeps finished."""
    pending: int = 0
    """Pending documents that the last sweep left."""
    oldest_pending_s: float = 0.0
    """The age of the oldest of them."""
    depths: dict[str, Depth] = field(default_factory=dict)
    """The queues, as the last look found them: a host's at each reading, over a bus a sweep's."""
    lags: dict[tuple[str, str], int] = field(default_factory=dict)
    """The cells of a row that a reader has yet to read, by row and reader, at the last look."""
    pipelines: dict[str, PipelineFigures] = field(default_factory=dict)
    """How far pipelines are, at the last look."""
    usage: RequestCounts | None = None
    """The requests that the adapters made of their services, where they count them."""
    fillings: WeakSet[Filling] = field(default_factory=WeakSet)
    """The sources of the fill levels of partitions."""
    fullest_share: float = 0.0
    """For which share of its partition's limit the fullest key was heading at the last sweep."""
    guards: dict[Any, Guard] = field(default_factory=dict)
    """The guards at work: by name, or by their declaration where that has none."""
    has_ages: bool = False
    """Whether the ages of messages are counted, which costs as much as all else here."""

    def guard(self, declared: Breaker | Rate) -> Guard:
        """The guard of a declaration, which all handlers and calls that name it share.

        Raises:
            NotRegistrable: another of this name has other limits.
        """
        name = (type(declared), declared.name) if declared.name else declared
        found = self.guards.get(name)
        if found is None:
            found = self.guards[name] = declared.started()
        elif found.declared is not declared and astuple(found.declared) != astuple(declared):
            kind = type(declared).__name__
            raise NotRegistrable(
                f"two of the name {declared.name!r} differ: {found.declared} and {declared}; declare one {kind} and "
                "share it, or give the other its own name"
            )
        return found

    def of(self, source: str) -> SourceCounts:
        """The counts of one source."""
        found = self.sources.get(source)
        if found is None:
            found = self.sources[source] = SourceCounts()
        return found

    def note(self, source: str, branches: Sequence[Attempt], outcome: Outcome, now_ms: int) -> None:
        """Count an attempt, or a message that has come to an end; `branches` are those of all its handlers."""
        counts = self.of(source)
        if outcome is not None:
            self._unapplied(counts, branches[0].work, outcome, now_ms)
        elif all(branch.is_duplicate for branch in branches):
            counts.duplicates += 1
        else:
            counts.applied += 1
            if self.has_ages:
                counts.age(now_ms - branches[0].work.created_ms)

    def request(self, attempt: Attempt, status: int) -> None:
        """Count the answer to an HTTP request by its status."""
        counts = self.of(REQUESTS)
        if status >= SERVER_ERRORS:
            counts.failed += 1
        elif status >= CLIENT_ERRORS:
            counts.refused[str(status)] += 1
        elif attempt.is_duplicate:
            counts.duplicates += 1
        else:
            counts.applied += 1

    def note_batch(
        self,
        works: Sequence[Work],
        unapplied: Sequence[tuple[Attempt, PoisonMessage | Later]],
        handled: Collection[bytes],
        now_ms: int,
    ) -> None:
        """Count the messages of one commit of an engine: `handled` are the inbox keys of those that ran."""
        sources = {work.delivery.queue for work in works}
        if len(sources) == 1 and not unapplied and len(handled) == len(works):
            applied = works
            self.of(works[0].delivery.queue).applied += len(works)
        else:
            applied = self._mixed(works, unapplied, set(handled), now_ms)
        if self.has_ages:
            self._age(applied, sources, now_ms)

    def _age(self, applied: Sequence[Work], sources: Collection[str], now_ms: int) -> None:
        """Count the ages of applied messages; those of one source without a call for each."""
        if len(sources) > 1:
            for work in applied:
                self.of(work.delivery.queue).age(now_ms - work.created_ms)
            return
        [source] = sources
        found = self.of(source)
        ages, last, total_ms = found.ages, AGE_BUCKET_COUNT - 1, 0
        for work in applied:
            delivery = work.delivery
            age_ms = now_ms - (delivery.message.created_ms or delivery.enqueued_ms)
            if 0 < age_ms < AGE_MS_MAX:
                total_ms += age_ms
                ages[age_ms.bit_length()] += 1
            elif age_ms > 0:
                total_ms += age_ms
                ages[last] += 1
            else:
                ages[0] += 1
        found.age_ms += total_ms

    def _mixed(
        self,
        works: Sequence[Work],
        unapplied: Sequence[tuple[Attempt, PoisonMessage | Later]],
        handled: set[bytes],
        now_ms: int,
    ) -> list[Work]:
        """Count messages with different ends; return the applied ones; of two copies in one commit the first was."""
        outcomes = {id(attempt.work): outcome for attempt, outcome in unapplied}
        applied = []
        for work in works:
            counts, outcome = self.of(work.delivery.queue), outcomes.get(id(work))
            ran = handled.intersection([branch.inbox for branch in (work, *work.others)])
            handled -= ran
            if outcome is not None:
                self._unapplied(counts, work, outcome, now_ms)
            elif ran:
                counts.applied += 1
                applied.append(work)
            else:
                counts.duplicates += 1
        return applied

    def swept(self, finished: int, pending: int, oldest_s: float) -> None:
        """Count what a sweep finished, and note what it left."""
        self.finished += finished
        self.pending, self.oldest_pending_s = pending, oldest_s if pending else 0.0
        self.fullest_share = max((filling.fullest()[1] for filling in self.fillings), default=0.0)

    @staticmethod
    def _unapplied(counts: SourceCounts, work: Work, outcome: PoisonMessage | Later, now_ms: int) -> None:
        if isinstance(outcome, PoisonMessage):
            counts.refused[reason_of(outcome)] += 1
            counts.failed += outcome.reason == "failed"
        elif outcome.failures > work.delivery.failures:
            counts.failed += 1
        else:
            counts.rescheduled += 1
            if outcome.is_newer:
                counts.newer, counts.newer_ms = counts.newer + 1, now_ms


def reason_of(poison: PoisonMessage) -> str:
    """The reason of a refusal as one of a few names, because each name makes a metric."""
    if poison.description == REJECTED:
        return "rejected"
    return poison.reason if poison.reason in REASONS else "other"


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
