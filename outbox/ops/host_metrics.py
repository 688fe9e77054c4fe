"""The metrics of a host: what its workers count, and what lies in its queues."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.metrics import QUEUE, Labels, Metric, prometheus
from outbox.ops.values import Status
from outbox.runtime.counts import Counts

STATE = "state"


def _none(counts: Counts) -> Iterator[tuple[Labels, float]]:
    yield from ()


QUEUED = Metric("outbox.queue.messages", "gauge", "{message}", "Messages in a queue, by state", _none)
OLDEST = Metric("outbox.queue.oldest", "gauge", "s", "Age of the oldest active message of a queue", _none)
BLOCKED = Metric("outbox.queue.blocked_keys", "gauge", "{key}", "Keys blocked behind a dead letter", _none)
LATENCY = Metric("outbox.handling", "gauge", "s", "Time from claim to durable commit, of the newest messages", _none)


def host_metrics(app: str, counts: Counts, status: Status) -> str:
    """All of them, in Prometheus' text format."""
    queued: list[tuple[Labels, float]] = []
    oldest: list[tuple[Labels, float]] = []
    blocked: list[tuple[Labels, float]] = []
    for path, queue in status.queues.items():
        for state in ("active", "scheduled", "deferred", "dead_letters"):
            queued.append(({QUEUE: path, STATE: state}, getattr(queue, state)))
        oldest.append(({QUEUE: path}, queue.oldest_s or 0.0))
        blocked.append(({QUEUE: path}, queue.standing))
    latency: list[tuple[Labels, float]] = []
    if (handling := status.handling) is not None and handling.p50_ms is not None and handling.p99_ms is not None:
        latency = [({"quantile": "0.5"}, handling.p50_ms / 1_000), ({"quantile": "0.99"}, handling.p99_ms / 1_000)]
    return prometheus(app, counts, ((QUEUED, queued), (OLDEST, oldest), (BLOCKED, blocked), (LATENCY, latency)))
