"""Measure a host's latency, from the claim of a message to its durable commit, and tell its metrics.

A wrapper round the journal, one clock reading a call: cheap enough to be always on.  Only the newest batches are kept,
so that quantiles are recent and memory is bounded.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec import UNSET

from outbox.guards import GuardView
from outbox.metrics import QUEUE, Labels, Metric, prometheus
from outbox.ops.values.status import Handled, Handling, Status
from outbox.ops.values.streams import PipelineView
from outbox.ports import Backend, Commit, Conflict, Delivery, Journal, Ports
from outbox.runtime.counts import Counts, Depth, SourceCounts

STATES = ("active", "scheduled", "deferred", "dead_letters")


def _none(counts: Counts) -> Iterator[tuple[Labels, float]]:
    yield from ()


BLOCKED = Metric("outbox.queue.blocked_keys", "gauge", "{key}", "Keys blocked behind a dead letter", _none)
LATENCY = Metric("outbox.handling", "gauge", "s", "Time from claim to durable commit, of the newest messages", _none)


def note_status(counts: Counts, status: Status) -> None:
    """Note what lies in the queues of a host, and how far the readers of its logs are behind."""
    counts.depths = {
        path: Depth(queue.oldest_s or 0.0, {state: getattr(queue, state) for state in STATES})
        for path, queue in status.queues.items()
    }
    rows = [] if status.streams is None else [(log.name, row) for log in status.streams.logs for row in log.rows]
    counts.lags = {(f"{name}/{row.row}", who): lag for name, row in rows for who, lag in row.readers.items()}


def note_pipelines(counts: Counts, found: Iterable[PipelineView]) -> None:
    """Note how far pipelines are."""
    counts.pipelines = {view.name: view.figures for view in found if view.figures is not None}


def host_metrics(app: str, counts: Counts, status: Status) -> str:
    """All of them, in Prometheus' text format."""
    note_status(counts, status)
    blocked = [({QUEUE: path}, queue.standing) for path, queue in status.queues.items()]
    latency: list[tuple[Labels, float]] = []
    if (handling := status.handling) is not None and handling.p50_ms is not None and handling.p99_ms is not None:
        latency = [({"quantile": "0.5"}, handling.p50_ms / 1_000), ({"quantile": "0.99"}, handling.p99_ms / 1_000)]
    return prometheus(app, counts, ((BLOCKED, blocked), (LATENCY, latency)))


BATCH_COUNT_MAX = 4_096
CLAIM_COUNT_MAX = 100_000
RATE_S = 60.0
"""The time that a rate is of."""
RATE_EVERY_S = 5.0
RATE_READING_COUNT = round(RATE_S / RATE_EVERY_S) + 2


@dataclass(slots=True)
class Meter:
    """Latencies of the newest commits, shared by the workers of one host."""

    handled_count: int = 0
    counts: Counts = field(default_factory=Counts)
    """The counts of messages by outcome."""
    _batches: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=BATCH_COUNT_MAX))

    _seconds: deque[tuple[float, dict[str, int]]] = field(default_factory=lambda: deque(maxlen=RATE_READING_COUNT))
    """Readings of how many messages of each queue have ended, for the rates of the last minute."""

    def __post_init__(self) -> None:
        self._seconds.append((time.monotonic(), {}))  # what is handled before the first tick counts as well

    def tick(self) -> None:
        """Take a reading; a host does so every few seconds."""
        self._seconds.append((time.monotonic(), {path: _ended(found) for path, found in self.counts.sources.items()}))

    def handled(self, path: str, now_ms: int) -> Handled:
        """Count a queue's messages by outcome since the host's start, and those ended in the last minute."""
        found = self.counts.sources.get(path) or SourceCounts()
        since_s = time.monotonic() - RATE_S - RATE_EVERY_S
        before = next((ended.get(path, 0) for at_s, ended in self._seconds if at_s >= since_s), 0)
        return Handled(
            applied=found.applied,
            duplicates=found.duplicates,
            failed=found.failed,
            rescheduled=found.rescheduled,
            refused=dict(found.refused),
            minute=_ended(found) - before,
            newer=found.newer,
            newer_s=max(0, now_ms - found.newer_ms) / 1_000 if found.newer_ms else UNSET,
        )

    def guards(self, now_ms: int) -> list[GuardView]:
        """The breakers and rate limits of the handlers."""
        views = [guard.view(now_ms) for guard in self.counts.guards.values()]
        return [replace(view, rest_s=round(view.rest_s, 3)) for view in views]

    def note(self, latency_s: float, count: int) -> None:
        self.handled_count += count
        self._batches.append((latency_s, count))

    def read(self) -> Handling:
        """How many messages were handled, and the median and 99th percentile of the newest, in milliseconds."""
        ordered = sorted(self._batches)
        total = sum(count for _, count in ordered)
        return Handling(self.handled_count, _quantile(ordered, total * 0.5), _quantile(ordered, total * 0.99))


def _ended(counts: SourceCounts) -> int:
    return counts.applied + counts.duplicates + counts.refused.total()


def _quantile(ordered: list[tuple[float, int]], rank: float) -> float | None:
    seen = 0
    for latency_s, count in ordered:
        seen += count
        if seen >= rank:
            return round(latency_s * 1_000, 3)
    return None


class Metered:
    """A backend whose journal is metered."""

    def __init__(self, backend: Backend, meter: Meter) -> None:
        ports = backend.ports()
        if not isinstance(ports, Ports):
            raise TypeError("only a backend with a journal can be metered so; meter a store's and a bus's own calls")
        self._ports = Ports(MeteredJournal(ports.journal, meter), ports.operations, ports.blobs)

    def ports(self) -> Ports:
        return self._ports


class MeteredJournal:
    """A journal with a clock: one reading at a claim, one at the commit of the claimed messages."""

    def __init__(self, journal: Journal, meter: Meter) -> None:
        self._journal = journal
        self._meter = meter
        self._claimed_s: dict[int, float] = {}
        self.load, self.durable, self.renew = journal.load, journal.durable, journal.renew

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._journal.claim(queues, count_max=count_max, wait_s=wait_s)
        now_s = time.monotonic()
        if len(self._claimed_s) > CLAIM_COUNT_MAX:  # claims with a lost lock never commit
            self._claimed_s.clear()
        self._claimed_s.update([(delivery.sequence, now_s) for delivery in deliveries])
        return deliveries

    async def commit(self, commit: Commit) -> Conflict | None:
        conflict = await self._journal.commit(commit)
        if conflict is None:
            held = [*commit.consumed, *(dead.delivery for dead in commit.dead_lettered)]
            held += [later.delivery for later in commit.postponed]
            claimed_s = [self._claimed_s.pop(delivery.sequence, None) for delivery in held]
            first_s = min((at_s for at_s in claimed_s if at_s is not None), default=None)
            if first_s is not None:
                self._meter.note(time.monotonic() - first_s, len(held))
        return conflict

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self._claimed_s.pop(delivery.sequence, None)
        await self._journal.release(deliveries)


_journal: type[Journal] = MeteredJournal
_backend: type[Backend] = Metered
