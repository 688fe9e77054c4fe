"""Traces and metrics of a process through OpenTelemetry's API, of which only `opentelemetry-api` is needed.

    telemetry = Telemetry(app, sampled=0.01)
    async with Worker(app, telemetry.traced(backend), counts=telemetry.counts) as worker: ...

*Theory of operation.*  One attempt at a message is a span `process QUEUE`, from its receipt to its settlement, below
the span that sent the message; it says when its handler had ended, and in it are `commit` and a `send DESTINATION` for
each push.  What the handler sends carries the span's trace context, which is stored with the commit, so the next hop
is below it whichever process takes it, however often.  Attempts at one message share a trace, also where its sender had
none: its id then follows from the conversation's.

Whether a message is sampled is decided before OpenTelemetry is called: by the flag of its trace context, else by the id
of its conversation, the same in every process and for every hop.  A message that is not costs a comparison.  A
middleware sees the handling, a wrapper round the ports all else: the protocols know nothing of it.

Metrics are read from `Counts` when a reader collects; nothing is recorded for each message.

Source: OpenTelemetry's semantic conventions for messaging spans; W3C Trace Context.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from types import TracebackType
from typing import Any
from zlib import crc32

from opentelemetry import metrics, trace
from opentelemetry.context import attach
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from outbox.app import App
from outbox.context import Context
from outbox.errors import OutboxError
from outbox.lineage import TRACEPARENT_LENGTH
from outbox.metrics import CRITICAL_TEXT, CRITICAL_TIME, METRICS, QUEUE, Metric, quantiles
from outbox.middleware import Call
from outbox.ports import (
    Backend,
    Commit,
    Conflict,
    Delivery,
    Journal,
    LedgerStore,
    Lost,
    MessageBus,
    Output,
    Ports,
    Settle,
    StateStore,
    StorePorts,
    Won,
    Write,
)
from outbox.runtime.counts import Counts
from outbox.runtime.failures.error_text import failure_text

NAME = "outbox"
OPEN_COUNT_MAX = 10_000
"""How many attempts may be under way with a span; beyond that the oldest span ends early."""
QUANTILES = (0.5, 0.99)
IDENTITY, SYSTEM = "messaging.message.id", "messaging.system"
HANDLER, KEY = "outbox.handler", "outbox.key"
ENDS = {"complete": "complete", "dead-letter": "dead-letter", "abandon": "rescheduled", "release": "released"}
_SAMPLED = frozenset("13579bdfBDF")
"""The last digits of flags with the lowest bit set."""
_WHOLE = 1 << 32


@dataclass(eq=False, slots=True)
class Open:
    """An attempt under way: its span, and by which names the ports may speak of it."""

    span: Span
    inbox: bytes
    delivery: tuple[str, int]


class Telemetry:
    """The traces and metrics of one process that runs an application.

    `sampled` is the share of messages, from 0 to 1, that get spans where their sender has not decided.  The providers
    are the global ones unless given.
    """

    def __init__(
        self,
        app: App,
        *,
        sampled: float = 1.0,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        """Put a middleware round the handlers of `app`, and make instruments for the counts.

        Raises:
            ValueError: `sampled` is no share.
        """
        if not 0 <= sampled <= 1:
            raise ValueError(f"sampled={sampled!r}: give a share of the messages, from 0 to 1")
        self.counts = Counts(has_ages=True)
        """Give it to what handles messages: `Worker(counts=...)`, `HttpEntry(counts=...)`."""
        self._spans = Spans(app.name, sampled, trace.get_tracer(NAME, tracer_provider=tracer_provider))
        app.middleware(Handling(self._spans))
        _observe(self.counts, app.name, metrics.get_meter(NAME, meter_provider=meter_provider))

    def traced(self, backend: Backend) -> Backend:
        """A backend whose receipts, commits, sends and settlements are spans of the attempts that they belong to."""
        return _Traced(backend, self)

    def traced_ports(self, ports: StorePorts) -> StorePorts:
        """The ports of a store and a bus, traced in the same way."""
        spans = self._spans
        spans.are_traced = True
        infrastructure = None if ports.infrastructure is None else TracedStore(ports.infrastructure, spans)
        store, bus = TracedStore(ports.store, spans), TracedBus(ports.bus, spans)
        return replace(ports, store=store, bus=bus, infrastructure=infrastructure)

    def traced_journal(self, journal: Journal) -> Journal:
        """The journal of an engine, traced in the same way."""
        self._spans.are_traced = True
        return TracedJournal(journal, self._spans)


class Spans:
    """The spans of the attempts under way in this process."""

    def __init__(self, app: str, sampled: float, tracer: trace.Tracer) -> None:
        self._app = app
        self._bound = round(sampled * _WHOLE)
        """Conversations are sampled whose checksum is below this."""
        self._tracer = tracer
        self._by_inbox: dict[bytes, Open] = {}
        self._by_delivery: dict[tuple[str, int], list[Open]] = {}
        self._received_ns: dict[tuple[str, int], int] = {}
        self.are_traced = False
        """Whether the ports say when an attempt is settled; else it ends with its handler."""

    # Handling

    def is_sampled(self, context: Context) -> bool:
        """Whether a message gets spans."""
        message = context.message
        if message.traceparent and len(message.traceparent) == TRACEPARENT_LENGTH:
            return message.traceparent[-1] in _SAMPLED
        if not self._bound:
            return False
        conversation = message.correlation_id or message.outbox_id or message.message_id
        return crc32(conversation.encode("utf-8", "replace")) < self._bound

    def begun(self, call: Call) -> Open:
        """The span of an attempt whose handler is to run now; it is current in the handler."""
        context, work = call.context, call.context.work
        delivery = work.delivery.queue, work.delivery.sequence
        attributes: dict[str, Any] = {
            SYSTEM: NAME,
            QUEUE: call.source,
            "messaging.consumer.group.name": self._app,
            IDENTITY: context.message_id,
            HANDLER: call.handler,
        }
        if context.message.correlation_id:
            attributes["messaging.message.conversation_id"] = context.message.correlation_id
        if context.delivery_count > 1:
            attributes["messaging.message.delivery_count"] = context.delivery_count
        if context.key is not None:
            attributes[KEY] = str(context.key)
        span = self._tracer.start_span(
            f"process {call.source}",
            set_span_in_context(NonRecordingSpan(_parent(context))),
            SpanKind.CONSUMER,
            attributes,
            start_time=self._received_ns.pop(delivery, None),
        )
        context.trace = traceparent_of(span.get_span_context())
        attach(set_span_in_context(span))
        return Open(span, work.inbox, delivery)

    def handled(self, attempt: Open, error: BaseException | None) -> None:
        """Note that the handler has ended, and keep the span for its commit."""
        attempt.span.add_event("handled")
        if error is not None:
            attempt.span.set_attribute("error.type", type(error).__qualname__)
            attempt.span.set_status(Status(StatusCode.ERROR, failure_text(error)))
        self.keep_open(attempt)

    def keep_open(self, attempt: Open) -> None:
        """Keep a span until its message is settled, where the ports are traced."""
        if not self.are_traced or not attempt.inbox:
            attempt.span.end()
            return
        if (earlier := self._by_inbox.pop(attempt.inbox, None)) is not None:
            self._end(earlier, "made again")
        if len(self._by_inbox) >= OPEN_COUNT_MAX:
            self._end(next(iter(self._by_inbox.values())), "")
        self._by_inbox[attempt.inbox] = attempt
        self._by_delivery.setdefault(attempt.delivery, []).append(attempt)

    def _end(self, attempt: Open, how: str, reason: str = "") -> None:
        """End a span: how its delivery was settled, and why its message was refused."""
        self._by_inbox.pop(attempt.inbox, None)
        others = self._by_delivery.get(attempt.delivery, [])
        if attempt in others:
            others.remove(attempt)
        if not others:
            self._by_delivery.pop(attempt.delivery, None)
        if how != "complete":
            attempt.span.set_attribute("outbox.settled", how or "unknown")
        if reason:
            attempt.span.set_attribute("outbox.reason", reason)
        attempt.span.end()

    # What the ports tell

    def received(self, deliveries: Sequence[Delivery]) -> None:
        """Note when messages came whose senders have sampled them."""
        for delivery in [each for each in deliveries if each.message.traceparent]:
            if delivery.message.traceparent[-1] in _SAMPLED:
                if len(self._received_ns) >= OPEN_COUNT_MAX:
                    self._received_ns.clear()
                self._received_ns[delivery.queue, delivery.sequence] = time.time_ns()

    def of_inboxes(self, inboxes: Iterable[bytes]) -> list[Open]:
        """The attempts under way with these inbox keys."""
        known = self._by_inbox
        return [*dict.fromkeys([known[inbox] for inbox in inboxes if inbox in known])] if known else []

    def of_outputs(self, outputs: Sequence[Output]) -> list[Open]:
        """The attempts under way that made these outputs."""
        if not self._by_inbox:
            return []
        return self.of_inboxes(filter(None, (_inbox_of(output) for output in outputs)))

    @contextmanager
    def step(self, name: str, attempts: Sequence[Open], kind: SpanKind = SpanKind.CLIENT) -> Iterator[Span | None]:
        """Open a span of one port call below the first of these attempts, linked to the rest; errors mark it."""
        if not attempts:
            yield None
            return
        first, *others = attempts
        links = [Link(other.span.get_span_context()) for other in others]
        span = self._tracer.start_span(name, set_span_in_context(first.span), kind, {SYSTEM: NAME}, links)
        try:
            yield span
        except OutboxError as error:
            span.set_attribute("error.type", type(error).__name__)
            span.set_status(Status(StatusCode.ERROR, failure_text(error)))
            raise
        finally:
            span.end()

    @property
    def is_busy(self) -> bool:
        """Whether an attempt with a span is under way."""
        return bool(self._by_inbox)

    def settled(self, queue: str, sequence: int, how: str, reason: str = "") -> None:
        """End the spans of a delivery that was settled."""
        for attempt in list(self._by_delivery.get((queue, sequence), ())):
            self._end(attempt, how, reason)

    def completed(self, attempts: Sequence[Open], consumed: Sequence[Delivery]) -> None:
        """End the spans of those of these attempts whose deliveries a commit has consumed."""
        if attempts:  # few of the deliveries of a batch have one
            sequences = {sequence for _, sequence in [attempt.delivery for attempt in attempts]}
            ended = {(each.queue, each.sequence) for each in consumed if each.sequence in sequences}
            for attempt in attempts:
                if attempt.delivery in ended:
                    self._end(attempt, "complete")

    def ended_requests(self, attempts: Sequence[Open]) -> None:
        """End the spans of requests, which no bus settles."""
        for attempt in attempts:
            if attempt.delivery[0] == "http":
                self._end(attempt, "answered")


class Handling:
    """The middleware: left out where a message is not sampled."""

    def __init__(self, spans: Spans) -> None:
        self.applies: Callable[[Context], bool] = spans.is_sampled
        self._spans = spans

    def __call__(self, call: Call) -> _Around:
        return _Around(self._spans, call)


class _Around(AbstractContextManager[None]):
    """One attempt of a handler."""

    def __init__(self, spans: Spans, call: Call) -> None:
        self._spans = spans
        self._open = spans.begun(call)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._spans.handled(self._open, error)


def _parent(context: Context) -> SpanContext:
    """The span that a message was sent in, else one derived from its correlation id, the same for every attempt."""
    text = context.message.traceparent
    if len(text) == TRACEPARENT_LENGTH:
        try:
            return SpanContext(int(text[3:35], 16), int(text[36:52], 16), True, TraceFlags(int(text[53:], 16)))
        except ValueError:
            pass
    digest = sha256(b"trace1" + context.correlation_id.encode(errors="replace")).digest()
    own, span = int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
    return SpanContext(own, span, True, TraceFlags(TraceFlags.SAMPLED))


def traceparent_of(span: SpanContext) -> str:
    """A span's context as a message carries it; empty where it is none."""
    if not span.is_valid:
        return ""
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags:02x}"


def current_traceparent() -> str:
    """The trace context of the span that is current here: for `Client.send(..., traceparent=...)`."""
    return traceparent_of(trace.get_current_span().get_span_context())


def _inbox_of(output: Output) -> bytes:
    """The inbox key of the handling that made an output: its id says it."""
    try:
        return bytes.fromhex(output.message.identity[:64])
    except ValueError:
        return b""


# Ports


class _Traced:
    """A backend with traced ports."""

    def __init__(self, backend: Backend, telemetry: Telemetry) -> None:
        ports = backend.ports()
        if isinstance(ports, Ports):
            journal = telemetry.traced_journal(ports.journal)
            self._ports: Ports | StorePorts = Ports(journal, ports.operations, ports.blobs)
        else:
            self._ports = telemetry.traced_ports(ports)

    def ports(self) -> Ports | StorePorts:
        return self._ports


class TracedJournal:
    """A journal whose commits are spans."""

    def __init__(self, journal: Journal, spans: Spans) -> None:
        self._journal = journal
        self._spans = spans
        self.load, self.durable, self.renew = journal.load, journal.durable, journal.renew

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._journal.claim(queues, count_max=count_max, wait_s=wait_s)
        self._spans.received(deliveries)
        return deliveries

    async def commit(self, commit: Commit) -> Conflict | None:
        spans = self._spans
        attempts = spans.of_inboxes([*commit.handled, *commit.refused])
        with spans.step("commit", attempts) as span:
            conflict = await self._journal.commit(commit)
            if span is not None and conflict is not None:
                span.set_attribute("outbox.committed", False)
        if conflict is None and spans.is_busy:
            spans.completed(attempts, commit.consumed)
            for dead in commit.dead_lettered:
                spans.settled(dead.delivery.queue, dead.delivery.sequence, "dead-letter", dead.reason)
            for later in commit.postponed:
                spans.settled(later.delivery.queue, later.delivery.sequence, "rescheduled", later.error)
            spans.ended_requests(attempts)
        return conflict

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._journal.release(deliveries)
        for delivery in deliveries:
            self._spans.settled(delivery.queue, delivery.sequence, "released")


class TracedStore:
    """A state store whose writes are spans of the attempts that they are about."""

    def __init__(self, store: StateStore, spans: Spans) -> None:
        self._store = store
        self._spans = spans
        self.capabilities, self.read = store.capabilities, store.read
        self.scan, self.unfinished = store.scan, store.unfinished
        self.unsent: Any = getattr(store, "unsent", None)
        """That of a store whose capabilities say that it keeps a dispatch ledger."""

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        attempts = self._spans.of_inboxes(inbox for operation in operations for inbox in operation.tag.inbox)
        with self._spans.step(operations[0].tag.what or "write", attempts) as span:
            answer = await self._store.write(operations)
            if span is not None and not isinstance(answer, Won):
                span.set_attribute("outbox.committed", False)
        return answer


class TracedBus:
    """A bus whose sends and settlements are spans of the attempts that they end."""

    def __init__(self, bus: MessageBus, spans: Spans) -> None:
        self._bus = bus
        self._spans = spans
        self.renew = bus.renew

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._bus.receive(queue, count_max=count_max, wait_s=wait_s)
        self._spans.received(deliveries)
        return deliveries

    async def send(self, outputs: Sequence[Output]) -> None:
        attempts = self._spans.of_outputs(outputs)
        names = ", ".join(dict.fromkeys(output.destination for output in outputs))
        with self._spans.step(f"send {names}", attempts, SpanKind.PRODUCER) as span:
            await self._bus.send(outputs)
            if span is not None:
                span.set_attribute("messaging.batch.message_count", len(outputs))
        self._spans.ended_requests(attempts)

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        await self._bus.settle(delivery, settle)
        self._spans.settled(delivery.queue, delivery.sequence, ENDS.get(settle.how, settle.how), settle.reason)


_journal: type[Journal] = TracedJournal
_store: type[LedgerStore] = TracedStore
_bus: type[MessageBus] = TracedBus


# Metrics


def _observe(counts: Counts, app: str, meter: metrics.Meter) -> None:
    """Make an instrument for each metric, which reads its numbers when it is asked."""

    def reading(metric: Metric) -> Callable[[CallbackOptions], list[Observation]]:
        def read(_: CallbackOptions) -> list[Observation]:
            return [Observation(value, {"outbox.app": app, **labels}) for labels, value in metric.read(counts)]

        return read

    for metric in METRICS:
        make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
        make(metric.name, [reading(metric)], metric.unit, metric.text)
    before: dict[str, list[int]] = {}

    def ages(_: CallbackOptions) -> list[Observation]:
        found = []
        for source, of_source in counts.sources.items():
            earlier = before.get(source) or [0] * len(of_source.ages)
            before[source] = list(of_source.ages)
            if before[source] == earlier:
                continue
            found += [
                Observation(age_s, {"outbox.app": app, QUEUE: source, "quantile": str(share)})
                for share, age_s in zip(QUANTILES, quantiles(before[source], earlier, QUANTILES), strict=True)
            ]
        return found

    meter.create_observable_gauge(CRITICAL_TIME, [ages], "s", CRITICAL_TEXT)
