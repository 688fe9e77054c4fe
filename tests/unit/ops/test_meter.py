"""A host's latencies: bounded memory, quantiles by message and not by batch."""

from __future__ import annotations

from dataclasses import dataclass

from outbox import App, Engine, Worker
from outbox.ops.shared.meter import BATCH_COUNT_MAX, Meter, Metered

app = App("metered")


@dataclass
class Ping:
    n: int


@app.handler("pings")
def ping(message: Ping) -> None:
    pass


def test_quantiles_count_messages() -> None:
    meter = Meter()
    meter.note(0.001, 99)
    meter.note(0.5, 1)
    read = meter.read()
    assert (read.handled, read.p50_ms, read.p99_ms) == (100, 1.0, 1.0)


def test_only_the_newest_batches_are_kept() -> None:
    meter = Meter()
    for n in range(BATCH_COUNT_MAX * 2):
        meter.note(0.001 if n < BATCH_COUNT_MAX else 0.002, 1)
    assert meter.read().p50_ms == 2.0
    assert meter.read().handled == BATCH_COUNT_MAX * 2


async def test_a_worker_on_a_metered_engine_is_counted() -> None:
    meter = Meter()
    async with Engine.in_memory() as engine, Worker(app, Metered(engine, meter)) as worker:
        for n in range(10):
            await worker.send("pings", Ping(n))
        await worker.wait_idle(timeout_s=10)
    assert meter.read().handled == 10
    assert (meter.read().p99_ms or 0) > 0
