"""A host's latencies: bounded memory, quantiles by message and not by batch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outbox import App, Engine, Worker
from outbox.message import Message
from outbox.ops.shared import meter as metering
from outbox.ops.shared.meter import BATCH_COUNT_MAX, Meter, Metered, MeteredJournal, host_metrics, note_pipelines
from outbox.ops.values.status import Handling, QueueStatus, Status
from outbox.ops.values.streams import PipelineView
from outbox.ports import Delivery
from outbox.runtime.counts import Counts, PipelineFigures
from tests.unit.ops.test_metrics import samples

app = App("metered")


@dataclass
class Ping:
    n: int


@app.handler("pings")
def ping(message: Ping) -> None:
    pass


@pytest.mark.parametrize("order", [1, -1])
def test_quantiles_count_messages(order: int) -> None:
    meter = Meter()
    for latency_s, count in [(0.001, 99), (0.5, 1)][::order]:
        meter.note(latency_s, count)
    read = meter.read()
    assert (read.handled, read.p50_ms, read.p99_ms) == (100, 1.0, 1.0)
    meter.note(0.7, 198)
    assert (meter.read().p50_ms, meter.read().p99_ms) == (700.0, 700.0)
    meter.note(0.002, 198)
    assert (meter.read().p50_ms, meter.read().p99_ms) == (2.0, 700.0)


def test_only_the_newest_batches_are_kept() -> None:
    meter = Meter()
    for n in range(BATCH_COUNT_MAX * 2):
        meter.note(0.001 if n < BATCH_COUNT_MAX else 0.002, 1)
    assert meter.read().p50_ms == 2.0
    assert meter.read().handled == BATCH_COUNT_MAX * 2


async def test_a_worker_on_a_metered_engine_is_counted(engine: Engine) -> None:
    meter = Meter()
    async with Worker(app, Metered(engine, meter)) as worker:
        for n in range(10):
            await worker.send("pings", Ping(n))
        await worker.wait_idle(timeout_s=10)
    assert meter.read().handled == 10
    assert (meter.read().p99_ms or 0) > 0


class Clocked:
    """A metered journal, which hands out what a test gives it, at times that the test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.meter = 0.0, Meter()
        self.load = self.durable = self.renew = None
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)
        self.metered = MeteredJournal(cast(Any, self), self.meter)

    async def claim(self, queues: Sequence[str], **_: Any) -> list[Delivery]:
        return [
            Delivery("pings", int(each), Message(body=b"1"), 0, enqueued_ms=0, locked_until_ms=0) for each in queues
        ]

    async def commit(self, commit: Any) -> None: ...

    async def release(self, deliveries: Sequence[Delivery]) -> None: ...

    async def claimed(self, at_s: float, *sequences: int) -> Sequence[Delivery]:
        self.now_s = at_s
        return await self.metered.claim([str(each) for each in sequences], count_max=9, wait_s=0)

    async def committed(self, at_s: float, *consumed: Delivery, postponed: Sequence[Delivery] = ()) -> None:
        self.now_s, later = at_s, [SimpleNamespace(delivery=each) for each in postponed]
        commit = SimpleNamespace(consumed=consumed, dead_lettered=[], postponed=later)
        await self.metered.commit(cast(Any, commit))


async def test_a_batch_took_as_long_as_the_first_of_its_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    at = Clocked(monkeypatch)
    [first], [second], [third] = await at.claimed(1, 1), await at.claimed(2, 2), await at.claimed(4, 3)
    await at.committed(5, second, first, postponed=[third])
    assert (at.meter.read().handled, at.meter.read().p50_ms) == (3, 4_000.0)
    await at.committed(9, first)
    assert at.meter.read().handled == 3, "when it was claimed is known no more"
    [again] = await at.claimed(10, 1)
    await at.metered.release([again])
    await at.committed(11, again)
    assert at.meter.read().handled == 3


async def test_claims_that_never_commit_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "CLAIM_COUNT_MAX", 3)
    at = Clocked(monkeypatch)
    for n in range(20):
        await at.claimed(n, n)
    assert len(at.metered._claimed_s) <= 4


def test_metrics_of_a_host_are_in_seconds_and_by_queue() -> None:
    queue = QueueStatus(active=1, scheduled=2, deferred=4, dead_letters=5, oldest_s=7.0, standing=3)
    counts = Counts()
    read = samples(host_metrics("shop", counts, Status({"orders": queue}, 0, Handling(9, 10.0, 20.0))))
    assert read["outbox_queue_blocked_keys"] == {'{app="shop",queue="orders"}': 3}
    assert read["outbox_handling_seconds"] == {
        '{app="shop",quantile="0.5"}': 0.01, '{app="shop",quantile="0.99"}': 0.02,
    }  # fmt: skip
    assert sorted(read["outbox_queue_messages"].values()) == [1, 2, 4, 5]
    assert counts.depths["orders"].oldest_s == 7.0


def test_a_pipeline_that_is_gone_has_no_figures_any_more() -> None:
    counts, figures = Counts(), PipelineFigures(1, 0, 0, "1.0", 1, {})
    note_pipelines(counts, [PipelineView("one", figures=figures), PipelineView("two", error="damaged")])
    assert counts.pipelines == {"one": figures}
    note_pipelines(counts, [])
    assert counts.pipelines == {}


def test_messages_for_a_newer_build_are_counted_with_when_the_last_was_put_back() -> None:
    meter = Meter()
    found = meter.counts.of("pings")
    found.newer, found.newer_ms, found.rescheduled, found.failed = 2, 5_000, 6, 4
    handled = meter.handled("pings", 8_500)
    assert (handled.newer, handled.newer_s, handled.rescheduled, handled.failed) == (2, 3.5, 6, 4)
