"""The metrics of a host: what its workers count, and what lies in its queues."""

from __future__ import annotations

from collections.abc import Iterator

from outbox.metrics import QUEUE, Labels, Metric, prometheus
from outbox.ops.values.status import Status
from outbox.runtime.counts import Counts, Depth

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


def host_metrics(app: str, counts: Counts, status: Status) -> str:
    """All of them, in Prometheus' text format."""
    note_status(counts, status)
    blocked = [({QUEUE: path}, queue.standing) for path, queue in status.queues.items()]
    latency: list[tuple[Labels, float]] = []
    if (handling := status.handling) is not None and handling.p50_ms is not None and handling.p99_ms is not None:
        latency = [({"quantile": "0.5"}, handling.p50_ms / 1_000), ({"quantile": "0.99"}, handling.p99_ms / 1_000)]
    return prometheus(app, counts, ((BLOCKED, blocked), (LATENCY, latency)))
