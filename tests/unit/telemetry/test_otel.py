"""Spans and metrics of a process, as an exporter of OpenTelemetry's SDK gets them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Literal, cast
from unittest.mock import Mock

import pytest
from azure.functions.servicebus import ServiceBusMessage
from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from outbox import App, Context, Engine, Reject, Retries, Worker
from outbox.azure.functions.processor import Processor
from outbox.azure.functions.settings import FunctionsSettings
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.errors import OutcomeUnknown, Refused
from outbox.http_entry import HttpEntry
from outbox.message import Message
from outbox.metrics import CRITICAL_TIME
from outbox.otel import Open, Telemetry, TracedBus, TracedJournal, TracedStore, current_traceparent
from outbox.ports import (
    Backend,
    Commit,
    Conflict,
    Create,
    Delivery,
    DocumentKey,
    Lost,
    Output,
    Refusal,
    Settle,
    StorePorts,
    Tag,
    Won,
)
from outbox.runtime.counts import SourceCounts
from tests.unit.messages import deliver

Scope = Literal["engine", "partition", "item"]
every_scope = pytest.mark.parametrize("scope", ["engine", "partition", "item"])
SENT_IN = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
UNSAMPLED = SENT_IN[:-1] + "0"
RANDOM = SENT_IN[:-1] + "3"
"""Sampled, and with the flag of a random trace id."""


@dataclass
class Order:
    id: str
    n: int = 0


@dataclass
class Stock:
    count: int = 0


def shop(seen: list[str], *, fails: int = 0) -> App:
    """Three hops: order, reserve, ship; `fails` attempts at the second one raise."""
    app = App("shop", retry=Retries(limit=fails + 1, delays_s=(0.0,)))
    left = [None] * fails

    @app.handler("orders", key="id")
    async def order(order: Order, stock: Stock, ctx: Context) -> None:
        seen.append(current_traceparent())
        stock.count += 1
        ctx.send("reservations", order)

    @app.handler("reservations", key="id")
    def reserve(order: Order, stock: Stock, ctx: Context) -> None:
        seen.append(current_traceparent())
        if left:
            left.pop()
            raise ValueError("out of stock")
        stock.count += 1
        ctx.send("shipments", order)

    @app.handler("shipments", key="id")
    def ship(order: Order, stock: Stock, ctx: Context) -> None:
        seen.append(ctx.traceparent)
        if order.n < 0:
            raise Reject("below zero")
        stock.count += 1

    @app.http("POST", "/orders", key="id")
    def post(order: Order, stock: Stock, ctx: Context) -> None:
        ctx.send("orders", order)

    return app


@dataclass
class Site:
    """An exporter, and what it is given."""

    exporter: InMemorySpanExporter = field(default_factory=InMemorySpanExporter)
    provider: TracerProvider = field(default_factory=TracerProvider)
    reader: InMemoryMetricReader = field(default_factory=InMemoryMetricReader)

    def __post_init__(self) -> None:
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def telemetry(self, app: App, sampled: float = 1.0) -> Telemetry:
        meters = MeterProvider([self.reader])
        return Telemetry(app, sampled=sampled, tracer_provider=self.provider, meter_provider=meters)

    def named(self, prefix: str) -> list[ReadableSpan]:
        found = [span for span in self.exporter.get_finished_spans() if span.name.startswith(prefix)]
        return sorted(found, key=lambda span: span.start_time or 0)


@pytest.fixture
def site() -> Site:
    return Site()


def backend_of(engine: Engine, scope: Scope) -> Backend:
    return engine if scope == "engine" else NarrowEngine(engine, scope)


async def handled(
    site: Site, app: App, scope: Scope, messages: Sequence[tuple[str, str]], sampled: float = 1.0
) -> None:
    """Send orders by id and trace context, and handle all that follows."""
    telemetry = site.telemetry(app, sampled)
    async with Engine.in_memory() as engine:
        backend = telemetry.traced(backend_of(engine, scope))
        async with Worker(app, backend, counts=telemetry.counts) as worker:
            for id, sent_in in messages:
                await worker.send("orders", Order(id), id=id, traceparent=sent_in)
            await worker.wait_idle()
    spans = telemetry._spans
    assert not spans._by_inbox and not spans._by_delivery and not spans._received_ns


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    found: int = span.context.span_id
    return found


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    found: int = span.parent.span_id
    return found


def traces(site: Site) -> set[int]:
    return {span.context.trace_id for span in site.exporter.get_finished_spans() if span.context is not None}


@every_scope
@pytest.mark.parametrize("sent_in", [SENT_IN, RANDOM, ""])
async def test_all_hops_are_one_trace_each_below_the_one_before(site: Site, scope: Scope, sent_in: str) -> None:
    seen: list[str] = []
    await handled(site, shop(seen), scope, [("o1", sent_in)])
    [order], [reserve], [ship] = (site.named(f"process {name}") for name in ("orders", "reservations", "shipments"))
    assert (parent_of(reserve), parent_of(ship)) == (id_of(order), id_of(reserve))
    assert len(traces(site)) == 1 and (not sent_in or traces(site) == {0xABABABABABABABABABABABABABABABAB})
    assert not sent_in or parent_of(order) == 0xCDCDCDCDCDCDCDCD
    assert seen[0].split("-")[2] == f"{id_of(order):016x}" and [event.name for event in order.events] == ["handled"]
    commits = site.named("commit" if scope != "item" else "swap")
    assert [parent_of(commit) for commit in commits] == [id_of(order), id_of(reserve), id_of(ship)]
    if scope != "engine":
        sends = site.named("send ")
        assert [span.name for span in sends] == ["send reservations", "send shipments"]
        assert [parent_of(span) for span in sends] == [id_of(order), id_of(reserve)]
        assert all(
            (span.end_time or 0) <= (process.end_time or 0)
            for span, process in zip(sends, (order, reserve), strict=True)
        )
    attributes: Any = order.attributes
    assert order.kind is trace.SpanKind.CONSUMER and "outbox.settled" not in attributes
    assert attributes["messaging.message.id"] == "o1" and attributes["outbox.key"] == "o1"


@every_scope
async def test_every_attempt_is_a_span_of_its_own_in_the_same_trace(site: Site, scope: Scope) -> None:
    await handled(site, shop([], fails=2), scope, [("o1", "")])
    [order], attempts, [ship] = (site.named(f"process {name}") for name in ("orders", "reservations", "shipments"))
    assert len(attempts) == 3 and {parent_of(span) for span in attempts} == {id_of(order)} and len(traces(site)) == 1
    assert parent_of(ship) == id_of(attempts[-1])
    states = [(span.status.is_ok, (span.attributes or {}).get("outbox.settled", "complete")) for span in attempts]
    how = "rescheduled" if scope == "engine" else "complete"  # there a delayed copy takes its place
    assert states == [(False, how), (False, how), (True, "complete")]
    assert (attempts[0].attributes or {})["error.type"] == "ValueError"
    assert scope != "engine" or "out of stock" in str((attempts[0].attributes or {})["outbox.reason"])
    assert "out of stock" in (attempts[0].status.description or "")


@every_scope
async def test_a_refusal_says_its_reason(engine: Engine, site: Site, scope: Scope) -> None:
    app = shop([])
    telemetry = site.telemetry(app)
    backend = telemetry.traced(backend_of(engine, scope))
    async with Worker(app, backend, counts=telemetry.counts) as worker:
        await deliver(worker, "shipments", Order("o1", -1), id="o1")
    [ship] = site.named("process shipments")
    attributes: Any = ship.attributes
    assert (attributes["outbox.settled"], attributes["outbox.reason"]) == ("dead-letter", "below zero")


@every_scope
async def test_what_is_not_sampled_has_no_span_on_any_hop(site: Site, scope: Scope) -> None:
    seen: list[str] = []
    await handled(site, shop(seen), scope, [("o1", ""), ("o2", UNSAMPLED)], sampled=0.0)
    assert site.exporter.get_finished_spans() == ()
    assert len(seen) == 6 and sorted(seen)[:5] == [""] * 5  # only o2's last hop has a trace context, of its sender's
    assert sorted(seen)[5].startswith(UNSAMPLED[:36]) and sorted(seen)[5].endswith("-00")


@every_scope
async def test_a_share_is_sampled_whole_and_always_the_same(site: Site, scope: Scope) -> None:
    names = [(f"o{n}", "") for n in range(60)]
    await handled(site, shop([]), scope, names, sampled=0.3)
    first = {(span.attributes or {})["outbox.key"] for span in site.named("process orders")}
    assert 8 <= len(first) <= 28
    assert {(span.attributes or {})["outbox.key"] for span in site.named("process shipments")} == first
    again = Site()
    await handled(again, shop([]), scope, names, sampled=0.3)
    assert {(span.attributes or {})["outbox.key"] for span in again.named("process orders")} == first


async def test_a_trace_context_that_is_none_is_no_trace(site: Site) -> None:
    await handled(site, shop([]), "engine", [("o1", "no trace"), ("o2", "00-" + "x" * 32 + "-" + "y" * 16 + "-01")])
    assert {(span.attributes or {})["outbox.key"] for span in site.named("process orders")} == {"o1", "o2"}


class Lossy:
    """A bus whose first sends of outputs fail for good, as if its process died before them."""

    def __init__(self, ports: StorePorts, failures: int) -> None:
        self.inner = ports.bus
        self.receive, self.renew, self.settle = ports.bus.receive, ports.bus.renew, ports.bus.settle
        self.failures = failures

    async def send(self, outputs: Sequence[Output]) -> None:
        if self.failures and outputs[0].destination != "orders":
            self.failures -= 1
            raise OutcomeUnknown("the process is gone")
        await self.inner.send(outputs)


class Behind:
    def __init__(self, ports: StorePorts, bus: Any) -> None:
        self._ports = StorePorts(ports.store, bus, ports.operations, ports.blobs, ports.infrastructure)

    def ports(self) -> StorePorts:
        return self._ports


@pytest.mark.parametrize("scope", ["partition", "item"])
async def test_what_another_process_sends_is_below_the_attempt_that_committed_it(
    engine: Engine, site: Site, scope: Scope
) -> None:
    app = shop([])
    telemetry = site.telemetry(app)
    ports: Any = backend_of(engine, scope).ports()
    backend = telemetry.traced(Behind(ports, Lossy(ports, failures=7)))
    async with Worker(app, backend, counts=telemetry.counts) as worker:
        await deliver(worker, "orders", Order("o1"), id="o1")
    [order], [reserve] = site.named("process orders"), site.named("process reservations")
    assert parent_of(reserve) == id_of(order) and len(traces(site)) == 1
    assert telemetry.counts.failed_sends == 7
    assert [(span.attributes or {}).get("error.type") for span in site.named("send ")].count("OutcomeUnknown") == 7


@every_scope
async def test_a_request_is_the_first_hop(engine: Engine, site: Site, scope: Scope) -> None:
    app = shop([])
    telemetry = site.telemetry(app)
    backend = telemetry.traced(backend_of(engine, scope))
    async with HttpEntry(app, backend, counts=telemetry.counts) as entry:
        headers = {"idempotency-key": "k1", "traceparent": SENT_IN}
        assert (await entry.handle("POST", "/orders", headers, b'{"id": "o1"}')).status < 300
    async with Worker(app, backend, counts=telemetry.counts) as worker:
        await worker.wait_idle()
    [post], [order] = site.named("process http"), site.named("process orders")
    assert parent_of(post) == 0xCDCDCDCDCDCDCDCD and parent_of(order) == id_of(post) and len(traces(site)) == 1


async def test_a_request_that_only_reads_is_a_span_that_ends_with_its_answer(engine: Engine, site: Site) -> None:
    app = App("shop")
    telemetry = site.telemetry(app)

    @app.http("GET", "/orders/{id}", key="id")
    def show(order: Order, stock: Stock) -> Stock:
        return stock

    async with HttpEntry(app, telemetry.traced(engine)) as entry:
        for number in (1, 2):
            assert (await entry.handle("GET", "/orders/o1", {})).status == 200
            assert len(site.named("process http")) == number


@pytest.mark.parametrize("delivery_count", [1, 2])
async def test_a_functions_host_traces_what_its_triggers_bring(engine: Engine, site: Site, delivery_count: int) -> None:
    app = shop([])
    telemetry = site.telemetry(app)
    backend = NarrowEngine(engine, "partition")
    settings = FunctionsSettings(lambda: backend, telemetry=telemetry)
    processor = Processor(app, backend, settings)
    await processor.open()
    message = ServiceBusMessage(
        body=b'{"id": "o1"}',
        trigger_metadata=None,
        application_properties={"outbox-id": "o1"},
        user_properties={},
        message_id="o1",
        sequence_number=1,
        delivery_count=delivery_count,
        enqueued_time_utc=datetime.now(UTC),
    )
    await processor.message("orders", message)
    await processor.finish()
    [order] = site.named("process orders")
    attributes = dict(order.attributes or {})
    assert "outbox.settled" not in attributes
    assert attributes.get("messaging.message.delivery_count", 1) == delivery_count
    assert delivery_count > 1 or "messaging.message.delivery_count" not in attributes
    [send] = site.named("send ")
    assert parent_of(send) == id_of(order) and telemetry.counts.sources["orders"].applied == 1


class Taking:
    """A bus that takes any settlement."""

    renew = None

    async def settle(self, delivery: Any, settle: Settle) -> None: ...


@pytest.mark.parametrize(
    ("how", "settled"),
    [
        *(("complete", None), ("dead-letter", "dead-letter"), ("abandon", "rescheduled"), ("release", "released")),
        ("defer", "defer"),
    ],
)
async def test_a_span_says_how_its_delivery_was_settled(site: Site, how: Any, settled: str | None) -> None:
    telemetry = site.telemetry(shop([]))
    telemetry.traced_ports(NarrowEngine(Engine.in_memory(), "partition").ports())
    bus: Any = TracedBus(Taking(), telemetry._spans)  # type: ignore[arg-type]  # it only settles
    span = site.provider.get_tracer("test").start_span("it")
    telemetry._spans.keep_open(Open(span, b"a", ("q", 1)))
    await bus.settle(SimpleNamespace(queue="q", sequence=1), Settle(how, "why"))
    [ended] = site.exporter.get_finished_spans()
    attributes = ended.attributes or {}
    assert (attributes.get("outbox.settled"), attributes["outbox.reason"]) == (settled, "why")


class Losing:
    """A journal, and a store, whose first write loses."""

    def __init__(self) -> None:
        self.answers: list[Any] = [(None, Won()), (Conflict(states=frozenset("s")), Lost(0))]
        self.load = self.durable = self.renew = self.capabilities = self.read = self.scan = self.unfinished = None

    async def commit(self, commit: Commit) -> Any:
        return self.answers.pop()[0]

    async def write(self, operations: Any) -> Any:
        return self.answers.pop()[1]


@pytest.mark.parametrize("was_refused", [False, True])
async def test_a_commit_that_lost_says_so_and_its_attempt_goes_on(site: Site, was_refused: bool) -> None:
    spans, losing = site.telemetry(shop([]))._spans, Losing()
    spans.are_traced = True
    journal = TracedJournal(losing, spans)  # type: ignore[arg-type]  # it only commits
    spans.keep_open(Open(site.provider.get_tracer("test").start_span("it"), b"a", ("q", 1)))
    commit = Commit(0, 0, [Delivery("q", 1, Message(body=b""), 0, 0, 0)], {}, {}, [], {}, {}, {}, [], [])
    if was_refused:
        commit.refused[b"a"] = Refusal(b"", "failed", "")
    else:
        commit.handled = [b"a"]
    for is_left_open in (True, False):
        assert (await journal.commit(commit) is not None) == spans.is_busy == is_left_open
    assert [dict(span.attributes or {}).get("outbox.committed") for span in site.named("commit")] == [False, None]


async def test_a_write_that_lost_says_so_wherever_it_lies(site: Site) -> None:
    telemetry, losing = site.telemetry(shop([])), Losing()
    ports: Any = NarrowEngine(Engine.in_memory(), "partition").ports()
    traced = telemetry.traced_ports(replace(ports, store=losing, infrastructure=losing))
    telemetry._spans.keep_open(Open(site.provider.get_tracer("test").start_span("it"), b"a", ("q", 1)))
    for store in (traced.store, traced.infrastructure):
        assert store is not None
        await store.write([Create(DocumentKey("p", "i"), b"", tag=Tag("stage", (b"a",)))])
    assert [dict(span.attributes or {}).get("outbox.committed") for span in site.named("stage")] == [False, None]


@every_scope
async def test_what_a_stopping_worker_gives_back_was_released(site: Site, scope: Scope) -> None:
    app, begun = App("shop"), asyncio.Event()
    telemetry = site.telemetry(app)

    @app.handler("orders")
    async def order(order: Order) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with Engine.in_memory() as engine:
        backend = telemetry.traced(backend_of(engine, scope))
        async with Worker(app, backend, counts=telemetry.counts, drain_s=0) as worker:
            await worker.send("orders", Order("o1"), id="o1")
            await begun.wait()
    [order_span] = site.named("process orders")
    assert (order_span.attributes or {})["outbox.settled"] == "released"


def test_receipts_that_no_handler_followed_are_forgotten(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outbox.otel.OPEN_COUNT_MAX", 2)
    spans = site.telemetry(shop([]))._spans
    for number in range(5):
        message = Message(body=b"", traceparent=SENT_IN)
        spans.received([Delivery("orders", number, message, 0, 0, 0)])
        assert len(spans._received_ns) <= 2 and ("orders", number) in spans._received_ns


def test_what_is_not_traced_is_the_ports_own_and_a_foreign_id_is_nobodys(site: Site) -> None:
    spans, port = site.telemetry(shop([]))._spans, cast(Any, Mock())
    journal, store = TracedJournal(port, spans), TracedStore(port, spans)
    for traced, names in ((journal, ("load", "durable", "renew")), (store, ("read", "scan", "unfinished", "unsent"))):
        assert [getattr(traced, name) for name in names] == [getattr(port, name) for name in names]
    spans.are_traced = True
    spans.keep_open(Open(site.provider.get_tracer("test").start_span("it"), b"a", ("q", 1)))
    assert spans.of_outputs([Output("q", 0, Message(body=b"", outbox_id="order 1"))]) == []


def test_a_span_tells_no_secret_of_an_error(site: Site) -> None:
    spans, secret = site.telemetry(shop([]))._spans, Refused("AccountKey=c2VjcmV0")
    attempt = Open(site.provider.get_tracer("test").start_span("it"), b"", ("q", 1))
    with pytest.raises(Refused), spans.step("send", [attempt]):
        raise secret
    spans.handled(attempt, secret)
    told = [str(span.status.description) for span in site.exporter.get_finished_spans()]
    assert len(told) == 2 and not any("c2VjcmV0" in text for text in told)


async def test_messages_that_commit_together_are_linked(site: Site) -> None:
    await handled(site, shop([]), "engine", [(f"o{n}", SENT_IN) for n in range(5)])
    orders = {id_of(span) for span in site.named("process orders")}
    linked = [commit for commit in site.named("commit") if commit.links]
    assert linked and {link.context.span_id for commit in linked for link in commit.links} & orders


def test_spans_that_nothing_settles_end_when_there_are_too_many_or_the_attempt_is_made_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outbox.otel.OPEN_COUNT_MAX", 2)
    telemetry = site.telemetry(shop([]))
    telemetry.traced_ports(NarrowEngine(Engine.in_memory(), "partition").ports())
    tracer = site.provider.get_tracer("test")
    for name, inbox in (("first", b"a"), ("again", b"a"), ("second", b"b"), ("third", b"c")):
        telemetry._spans.keep_open(Open(tracer.start_span(name), inbox, ("q", 1)))
    ended = {span.name: (span.attributes or {}).get("outbox.settled") for span in site.exporter.get_finished_spans()}
    assert ended == {"first": "made again", "again": "unknown"}
    telemetry._spans.settled("q", 1, "complete")
    assert len(site.exporter.get_finished_spans()) == 4


async def test_without_traced_ports_an_attempt_ends_with_its_handler(engine: Engine, site: Site) -> None:
    app = shop([])
    telemetry = site.telemetry(app)
    async with Worker(app, engine, counts=telemetry.counts) as worker:
        await deliver(worker, "orders", Order("o1"), id="o1")
    assert [span.name for span in site.named("process")] == [
        "process orders",
        "process reservations",
        "process shipments",
    ]


def points(found: Any) -> list[Any]:
    return list(found)


async def test_metrics_are_what_was_counted(site: Site) -> None:
    await handled(site, shop([], fails=1), "engine", [("o1", ""), ("o1", ""), ("o2", "")])
    data = site.reader.get_metrics_data()
    assert data is not None
    found = {
        metric.name: {tuple(sorted(one.attributes.items())): one.value for one in points(metric.data.data_points)}
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    orders = ("messaging.destination.name", "orders")
    ends = {dict(labels)["outbox.outcome"]: n for labels, n in found["outbox.messages"].items() if orders in labels}
    assert ends == {"applied": 2, "duplicate": 1}
    assert found["outbox.attempts.failed"][("messaging.destination.name", "reservations"), ("outbox.app", "shop")] == 1
    assert found["outbox.sent"] == {(("outbox.app", "shop"),): 4}
    assert any(dict(labels)["quantile"] == "0.99" for labels in found["outbox.critical_time"])


def test_the_age_of_messages_is_told_once_at_each_collection(site: Site) -> None:
    counts = site.telemetry(shop([])).counts
    source = counts.sources["orders"] = SourceCounts()

    def told() -> list[float]:
        found: Any = site.reader.get_metrics_data()
        every = [metric for scope in found.resource_metrics[0].scope_metrics for metric in scope.metrics]
        return [
            one.value for metric in every if metric.name == CRITICAL_TIME for one in points(metric.data.data_points)
        ]

    for age_ms, bound_s in ((100, 0.128), (9_000, 16.384)):
        source.age(age_ms)
        assert told() == [bound_s] * 2
    assert told() == []


def test_a_share_is_between_none_and_all() -> None:
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="from 0 to 1"):
            Telemetry(App("shop"), sampled=wrong)


def test_nothing_of_opentelemetry_is_imported_without_it_being_asked_for() -> None:
    code = (
        "import outbox.worker, outbox.ops.host.host, outbox.azure, sys; "
        "print([n for n in sys.modules if 'telemetry' in n])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
