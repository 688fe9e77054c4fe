"""The metrics of a process, by name: one table, from which Prometheus' text and OpenTelemetry's instruments are made.

    outbox.messages        messages that came to an end: applied, duplicate or refused, and why
    outbox.attempts.failed attempts whose handler raised
    ...

Nothing is counted here: `runtime/counts.py` has the numbers, which the table reads when it is asked.  Dashboards and
alerts in `infra/` use these names.
Source: OpenTelemetry's semantic conventions for messaging, for the names of attributes; Prometheus' text format 0.0.4.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from outbox.ports import Used
from outbox.runtime.counts import AGE_BUCKET_COUNT, Counts, PipelineFigures, SourceCounts

Labels = Mapping[str, str]
Kind = Literal["counter", "gauge"]

QUEUE = "messaging.destination.name"
OUTCOME = "outbox.outcome"
REASON = "error.type"
GUARD = "outbox.guard.name"
STATE = "outbox.message.state"
OPERATION = "outbox.operation"
ROW = "outbox.log.row"
READER = "outbox.log.reader"
PIPELINE = "outbox.pipeline.name"
SINK = "outbox.log.name"
STATES = ("closed", "ramping", "half-open", "open")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: its name, what it counts in which unit, and how it is read."""

    name: str
    kind: Kind
    unit: str
    text: str
    read: Callable[[Counts], Iterable[tuple[Labels, float]]]


def _ends(counts: Counts) -> Iterator[tuple[Labels, float]]:
    for source, found in _sources(counts):
        yield {QUEUE: source, OUTCOME: "applied"}, found.applied
        yield {QUEUE: source, OUTCOME: "duplicate"}, found.duplicates
        for reason, count in sorted(found.refused.items()):
            yield {QUEUE: source, OUTCOME: "refused", REASON: reason}, count


def _of_sources(read: Callable[[SourceCounts], float]) -> Callable[[Counts], Iterator[tuple[Labels, float]]]:
    def each(counts: Counts) -> Iterator[tuple[Labels, float]]:
        for source, found in _sources(counts):
            yield {QUEUE: source}, read(found)

    return each


def _of_process(read: Callable[[Counts], float]) -> Callable[[Counts], Iterator[tuple[Labels, float]]]:
    def one(counts: Counts) -> Iterator[tuple[Labels, float]]:
        yield {}, read(counts)

    return one


def _sources(counts: Counts) -> list[tuple[str, SourceCounts]]:
    return sorted(counts.sources.items())


def _depths(counts: Counts) -> Iterator[tuple[Labels, float]]:
    for queue, depth in sorted(counts.depths.items()):
        for state, count in depth.states.items():
            yield {QUEUE: queue, STATE: state}, count


def _requests(read: Callable[[Used], float]) -> Callable[[Counts], Iterator[tuple[Labels, float]]]:
    def each(counts: Counts) -> Iterator[tuple[Labels, float]]:
        for kind, used in [] if counts.usage is None else sorted(counts.usage.by_kind.items()):
            yield {OPERATION: kind}, read(used)

    return each


def _failures(counts: Counts) -> Iterator[tuple[Labels, float]]:
    for (kind, reason), count in [] if counts.usage is None else sorted(counts.usage.reasons.items()):
        yield {OPERATION: kind, REASON: reason}, count


def _of_pipelines(
    read: Callable[[PipelineFigures, float], float],
) -> Callable[[Counts], Iterator[tuple[Labels, float]]]:
    def each(counts: Counts) -> Iterator[tuple[Labels, float]]:
        for name, found in sorted(counts.pipelines.items()):
            yield {PIPELINE: name}, read(found, time.time())

    return each


METRICS = (
    Metric("outbox.messages", "counter", "{message}", "Messages that came to an end, by queue and outcome", _ends),
    Metric(
        "outbox.attempts.failed", "counter", "{attempt}", "Attempts whose handler raised, whatever came of them",
        _of_sources(lambda found: found.failed),
    ),
    Metric(
        "outbox.attempts.rescheduled", "counter", "{attempt}", "Messages that were rescheduled without a failure",
        _of_sources(lambda found: found.rescheduled),
    ),
    Metric(
        "outbox.commits.lost", "counter", "{commit}", "Commits that lost to another change of their state",
        _of_process(lambda counts: counts.conflicts),
    ),
    Metric(
        "outbox.commits.unknown", "counter", "{commit}", "Commits whose outcome was unknown at first",
        _of_process(lambda counts: counts.unknown),
    ),
    Metric(
        "outbox.sent", "counter", "{message}", "Messages sent by handlers", _of_process(lambda counts: counts.sent)
    ),
    Metric(
        "outbox.sends.failed", "counter", "{send}", "Sends that failed for now; their messages stay pending",
        _of_process(lambda counts: counts.failed_sends),
    ),
    Metric(
        "outbox.swept", "counter", "{document}", "Pending documents that sweeps finished",
        _of_process(lambda counts: counts.finished),
    ),
    Metric(
        "outbox.pending", "gauge", "{document}", "Pending documents that the last sweep left",
        _of_process(lambda counts: counts.pending),
    ),
    Metric(
        "outbox.pending.oldest", "gauge", "s", "Age of the oldest pending document at the last sweep",
        _of_process(lambda counts: counts.oldest_pending_s),
    ),
    Metric("outbox.queue.messages", "gauge", "{message}", "Messages in a queue, by state", _depths),
    Metric(
        "outbox.queue.oldest", "gauge", "s", "Age of the oldest active message of a queue",
        lambda counts: [({QUEUE: queue}, depth.oldest_s) for queue, depth in sorted(counts.depths.items())],
    ),
    Metric(
        "outbox.log.lag", "gauge", "{cell}", "Cells of a log's row, one for each append, that a reader has yet to read",
        lambda counts: [({ROW: row, READER: reader}, lag) for (row, reader), lag in sorted(counts.lags.items())],
    ),
    Metric(
        "outbox.pipeline.lag", "gauge", "{entry}", "Entries of a pipeline's source that have not left it yet",
        _of_pipelines(lambda found, now_s: found.lag),
    ),
    Metric(
        "outbox.pipeline.watermark", "gauge", "{cell}", "Cell of its source below which all has left a pipeline",
        _of_pipelines(lambda found, now_s: int(found.released.partition(".")[0])),
    ),
    Metric(
        "outbox.pipeline.checkpoint", "gauge", "s", "Age of the checkpoint of a pipeline that stands",
        _of_pipelines(lambda found, now_s: max(0.0, now_s - found.made_ms / 1_000)),
    ),
    Metric(
        "outbox.pipeline.bundle", "gauge", "{item}", "Items of the last bundle that a pipeline has put into a log",
        lambda counts: [
            ({PIPELINE: name, SINK: sink}, count)
            for name, found in sorted(counts.pipelines.items())
            for sink, count in sorted(found.bundles.items())
        ],
    ),
    Metric(
        "outbox.requests", "counter", "{request}", "Requests to the store, the bus and the blobs, by operation",
        _requests(lambda used: used.count),
    ),
    Metric(
        "outbox.requests.failed", "counter", "{request}", "Requests that came to nothing, by operation and why",
        _failures,
    ),
    Metric(
        "outbox.request_units", "counter", "{RU}", "Request units that the store has charged, by operation",
        _requests(lambda used: used.charge_ru),
    ),
    Metric(
        "outbox.partition.share", "gauge", "1", "Share of a partition's limit that the fullest key heads for",
        _of_process(lambda counts: counts.fullest_share),
    ),
    Metric(
        "outbox.guard.state", "gauge", "{state}", "0 closed, 1 ramping, 2 half-open, 3 open; a rate limit: 0 or 3",
        lambda counts: [
            ({GUARD: guard.name}, STATES.index(guard.view(time.time_ns() // 1_000_000).state))
            for guard in counts.guards.values()
        ],
    ),
    Metric(
        "outbox.guard.rescheduled", "counter", "{attempt}", "Attempts that a breaker or a rate limit rescheduled",
        lambda counts: [({GUARD: guard.name}, guard.rescheduled_count) for guard in counts.guards.values()],
    ),
)  # fmt: skip
"""The metrics of every process."""

CRITICAL_TIME = "outbox.critical_time"
"""The age of applied messages at their commit, in seconds: a histogram."""
CRITICAL_TEXT = "Age of applied messages at their commit"


def quantiles(ages: list[int], before: list[int], shares: tuple[float, ...]) -> list[float]:
    """The ages in seconds that these shares of the messages between two readings did not exceed; 0 where none came."""
    new = [now - then for now, then in zip(ages, before, strict=True)]
    total, found = sum(new), []
    for share in shares:
        seen, bound_ms = 0, 0.0
        for index, count in enumerate(new):
            seen += count
            if count and seen >= share * total:
                bound_ms = float(1 << index)
                break
        found.append(bound_ms / 1_000)
    return found


def prometheus(app: str, counts: Counts, more: Iterable[tuple[Metric, Iterable[tuple[Labels, float]]]] = ()) -> str:
    """The metrics of a process in Prometheus' text format, each with the application as a label; `more` as given."""
    lines: list[str] = []
    for metric, samples in (*((metric, metric.read(counts)) for metric in METRICS), *more):
        name = prometheus_name(metric)
        lines += [f"# HELP {name} {metric.text}", f"# TYPE {name} {metric.kind}"]
        lines += [f"{name}{_labels(app, labels)} {value!r}" for labels, value in samples]
    name = f"{_plain(CRITICAL_TIME)}_seconds"
    lines += [f"# HELP {name} {CRITICAL_TEXT}", f"# TYPE {name} histogram"]
    for source, found in _sources(counts):
        seen = 0
        for index in range(AGE_BUCKET_COUNT - 1):
            seen += found.ages[index]
            bound = f"{(1 << index) / 1_000:g}"
            lines.append(f"{name}_bucket{_labels(app, {QUEUE: source, 'le': bound})} {seen}")
        total = sum(found.ages)
        lines += [
            f"{name}_bucket{_labels(app, {QUEUE: source, 'le': '+Inf'})} {total}",
            f"{name}_sum{_labels(app, {QUEUE: source})} {found.age_ms / 1_000!r}",
            f"{name}_count{_labels(app, {QUEUE: source})} {total}",
        ]
    return "\n".join(lines) + "\n"


def prometheus_name(metric: Metric) -> str:
    """The name of a metric in Prometheus: with its unit, and `_total` where it only grows."""
    unit = "_seconds" if metric.unit == "s" else ""
    return f"{_plain(metric.name)}{unit}{'_total' if metric.kind == 'counter' else ''}"


LABELS = {
    QUEUE: "queue", OUTCOME: "outcome", REASON: "reason", GUARD: "guard", STATE: "state", OPERATION: "operation",
    ROW: "row", READER: "reader", PIPELINE: "pipeline", SINK: "log",
}  # fmt: skip
"""The names of labels in Prometheus."""


def _labels(app: str, labels: Labels) -> str:
    known = {"app": app, **{LABELS.get(name, name): value for name, value in labels.items()}}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in known.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _plain(name: str) -> str:
    return re.sub(r"\W", "_", name)
