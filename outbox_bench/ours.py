"""W1 on the embedded engine with the whole framework on: typed handler, context, lineage ids, dedupe, outbox.

The messages come from outside, so each is remembered by a marker.  `default` is durable: every commit is flushed.
Latency runs from the claim of a batch to the return of its commit, taken at the journal's port; for a message that was
claimed with others, from the commit of the one before it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from outbox import App, Context, Engine, Worker
from outbox.lineage import state_id
from outbox.message import Message
from outbox.ports import Commit, Conflict, Delivery, Journal, Marker, Ports, StateDocument
from outbox_bench.measure import Add, Added, Counter, Measurement, Stopwatch, expected_total, inputs, measured

SYSTEM = "outbox"
VARIANTS = ("one", "batch64")
IN_FLIGHT = {"one": 1, "batch64": 64}
RUN_S_MAX = 600.0


def w1(adds: str = "adds", added: str = "added") -> App:
    """The application, with these queues."""
    app = App("w1")
    app.queue(added)

    @app.handler(adds, key="account")
    async def add(message: Add, counter: Counter, ctx: Context) -> None:
        counter.total += message.amount
        counter.changes += 1
        ctx.send(added, Added(message.id, message.account, counter.total))

    return app


app = w1()


class TimedJournal:
    """The journal with a clock on it: one reading at a claim, one at its commit; `done` when the last is committed."""

    def __init__(self, journal: Journal, message_count: int) -> None:
        self._journal = journal
        self._message_count = message_count
        self._claimed_s: dict[int, float] = {}
        """When each lock was handed out; the messages of one claim share theirs, and a batch is one claim."""
        self.latencies_s: list[float] = []
        self.done = asyncio.Event()

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        deliveries = await self._journal.claim(queues, count_max=count_max, wait_s=wait_s)
        if deliveries:  # of one queue, so under one lock
            self._claimed_s[deliveries[0].lock] = time.perf_counter()
        return deliveries

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        return await self._journal.load(states, markers)

    async def commit(self, commit: Commit) -> Conflict | None:
        conflict = await self._journal.commit(commit)
        if conflict is None:
            first, last = commit.consumed[0], commit.consumed[-1]
            assert first.lock == last.lock, "a batch is of one claim"
            latency_s = time.perf_counter() - self._claimed_s[first.lock]
            self.latencies_s += [latency_s] * len(commit.consumed)
            self._claimed_s[first.lock] = time.perf_counter()
            if len(self.latencies_s) >= self._message_count:
                self.done.set()
        return conflict

    async def durable(self) -> None:
        await self._journal.durable()

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return await self._journal.renew(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._journal.release(deliveries)


class TimedEngine:
    """An engine whose journal is timed."""

    def __init__(self, engine: Engine, message_count: int) -> None:
        self._ports = engine.ports()
        self.journal = TimedJournal(self._ports.journal, message_count)

    def ports(self) -> Ports:
        return Ports(self.journal, self._ports.operations, self._ports.blobs)


def run(variant: str, folder: Path, message_count: int) -> Measurement:
    """Run W1 in `folder`, which must be fresh, and check the states afterwards."""
    return asyncio.run(_run(variant, folder, message_count))


async def _run(variant: str, folder: Path, message_count: int) -> Measurement:
    async with Engine.open(folder / "engine.data") as engine:
        worker = Worker(app, timed := TimedEngine(engine, message_count), concurrency=IN_FLIGHT[variant])
        await worker.declare()
        now_ms = engine.now_ms()
        for message in inputs(message_count):
            body, kind = app.encode(message)
            engine.broker.send("adds", [Message(body=body, outbox_id=message.id, type=kind, created_ms=now_ms)])
        engine.core.flush()
        flushes_before = engine.core.flush_count
        watch = Stopwatch()
        async with worker:
            async with asyncio.timeout(RUN_S_MAX):
                await timed.journal.done.wait()
            watch.stop()
        await _verify(worker, engine, message_count)
        return measured(
            system=SYSTEM,
            variant=variant,
            in_flight=IN_FLIGHT[variant],
            durable=True,
            watch=watch,
            latencies_s=timed.journal.latencies_s,
            flush_count=engine.core.flush_count - flushes_before,
        )


async def _verify(worker: Worker, engine: Engine, message_count: int) -> None:
    accounts = {message.account for message in inputs(message_count)}
    states = [await worker.state(Counter, account) for account in accounts]
    assert sum(state.total for state in states if state is not None) == expected_total(message_count)
    assert engine.broker.queue("added").counts()["active"] == message_count
    assert len(engine.state.markers.known) == message_count
    assert engine.documents.read("state", state_id("Counter", next(iter(accounts)))) is not None
