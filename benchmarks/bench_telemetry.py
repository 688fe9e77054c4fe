"""What OpenTelemetry costs a message of W1: not there, there and not sampled, sampled for one in a hundred, for all.

The SDK takes the spans and drops them: an exporter's network is another process' CPU.  Beside it runs a handler that
makes the same two spans and the event with the SDK alone, for one message in a hundred: what nobody can be below.
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, set_span_in_context

from outbox import App, Context, Engine, Worker
from outbox.message import Message
from outbox.otel import Telemetry
from outbox.ports import Backend
from outbox.runtime.counts import Counts
from outbox_bench import report
from outbox_bench.measure import Add, Added, Counter, Stopwatch, expected_total, inputs
from outbox_bench.ours import RUN_S_MAX, w1

VARIANTS: dict[str, float | None] = {"none": None, "not sampled": 0.0, "one in a hundred": 0.01, "all": 1.0}
"""Which share of the messages is sampled; None: no telemetry."""
ALONE = "one in a hundred, the SDK alone"
IN_FLIGHT = 64


class Dropping(SpanExporter):
    """An exporter that drops what it gets."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def spanned(provider: TracerProvider) -> App:
    """W1 without telemetry, whose handler makes the spans of one message in a hundred: its own, and a commit's."""
    app, tracer = App("w1"), provider.get_tracer("w1")
    app.queue("added")
    attributes = {"messaging.system": "outbox", "messaging.destination.name": "adds", "outbox.handler": "add"}

    @app.handler("adds", key="account")
    async def add(message: Add, counter: Counter, ctx: Context) -> None:
        span = None
        if crc32(ctx.correlation_id.encode()) < (1 << 32) // 100:
            own = {**attributes, "messaging.message.id": ctx.message_id, "outbox.key": message.account}
            span = tracer.start_span("process adds", kind=SpanKind.CONSUMER, attributes=own)
        counter.total += message.amount
        counter.changes += 1
        ctx.send("added", Added(message.id, message.account, counter.total))
        if span is not None:
            span.add_event("handled")
            commit = tracer.start_span("commit", set_span_in_context(span), SpanKind.CLIENT, attributes)
            commit.end()
            span.end()

    return app


def run(share: float | None, message_count: int, *, alone: bool = False) -> dict[str, float]:
    """Run W1 with this share sampled, or with the SDK `alone`, on an engine in memory; the states are checked."""
    return asyncio.run(_run(share, message_count, alone=alone))


async def _run(share: float | None, message_count: int, *, alone: bool = False) -> dict[str, float]:
    counts, provider = Counts(), TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Dropping()))
    app = spanned(provider) if alone else w1()
    async with Engine.in_memory() as engine:
        backend: Backend = engine
        if share is not None:
            telemetry = Telemetry(app, sampled=share, tracer_provider=provider, meter_provider=MeterProvider())
            backend, counts = telemetry.traced(engine), telemetry.counts
        worker = Worker(app, backend, concurrency=IN_FLIGHT, counts=counts)
        await worker.declare()
        now_ms = engine.now_ms()
        for message in inputs(message_count):
            body, kind = app.encode(message)
            engine.broker.send("adds", [Message(body=body, outbox_id=message.id, type=kind, created_ms=now_ms)])
        gc.collect()
        gc.freeze()  # a collection of all that waits costs more than what is measured, and comes when it likes
        watch = Stopwatch()
        async with worker:
            await worker.wait_idle(timeout_s=RUN_S_MAX)
        watch.stop()
        gc.unfreeze()
        states = [await worker.state(Counter, account) for account in {m.account for m in inputs(message_count)}]
        assert sum(state.total for state in states if state is not None) == expected_total(message_count)
        assert counts.sources["adds"].applied == message_count
    provider.shutdown()
    return {"messages_per_s": message_count / watch.wall_s, "cpu_us": watch.cpu_s / message_count * 1e6}


def publish(repeats: int, message_count: int, folder: Path) -> str:
    """Measure, and write telemetry.json and telemetry.txt."""
    found: dict[str, list[dict[str, float]]] = {variant: [] for variant in (*VARIANTS, ALONE)}
    run(None, message_count)
    for _ in range(repeats):
        for variant, share in VARIANTS.items():
            found[variant].append(run(share, message_count))
        found[ALONE].append(run(None, message_count, alone=True))
    rows = []
    for variant, runs in found.items():
        beside = list(zip(runs, found["none"], strict=True))
        rows.append(
            {
                "telemetry": variant,
                "cpu_us": report.spread([each["cpu_us"] for each in runs]),
                "messages_per_s": report.spread([each["messages_per_s"] for each in runs]),
                "cpu_ratio": report.spread([with_it["cpu_us"] / without["cpu_us"] for with_it, without in beside]),
                "rate_ratio": report.spread(
                    [with_it["messages_per_s"] / without["messages_per_s"] for with_it, without in beside]
                ),
            }
        )
    about = [
        f"W1 on the engine in memory: {message_count:,} messages, 1,000 keys, {IN_FLIGHT} in flight, spans dropped.",
        f"Ratios to the run without telemetry beside it.  Median of {repeats} interleaved repeats [least..greatest].",
        *report.circumstances(Path(tempfile.gettempdir())),
    ]
    return report.publish("telemetry", rows, about, folder, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each variant."""
    lines = [["telemetry", "CPU µs", "to none", "messages/s", "to none"]]
    for row in rows:
        cpu, rate = report.cell(row["cpu_us"], 1), report.cell(row["messages_per_s"], 0)
        lines.append([row["telemetry"], cpu, report.cell(row["cpu_ratio"], 2), rate, report.cell(row["rate_ratio"], 2)])
    return report.aligned(lines)
