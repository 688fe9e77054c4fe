"""What each commit protocol costs: W1 on the engine in memory, in its own scope and in the two narrower ones.

A request is one call of a port: a claim, a read or write of the store, a send, a settlement, a mark.  In memory a call
costs next to nothing, so the CPU is the protocol's own; on a network each call is a round trip.  The inputs come in
batches of up to 64, so messages of one key that arrive together share a commit where the protocol allows it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter as Tally
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Literal

from outbox import Engine, Worker
from outbox.engine.backend.store_scopes import NarrowEngine
from outbox.message import Message
from outbox.ports import (
    Backend,
    Commit,
    Conflict,
    Delivery,
    Document,
    DocumentKey,
    Journal,
    Lost,
    Marker,
    MessageBus,
    Output,
    Ports,
    Session,
    Settle,
    StateDocument,
    StateStore,
    StorePorts,
    Won,
    Write,
)
from outbox_bench import report
from outbox_bench.measure import Counter, Stopwatch, expected_total, inputs
from outbox_bench.ours import RUN_S_MAX, app

Scope = Literal["engine", "partition", "item"]
SCOPES: tuple[Scope, ...] = ("engine", "partition", "item")
FIGURES = ("messages_per_s", "cpu_us", "requests_per_message")
IN_FLIGHT = 64


class CountedJournal:
    """A journal that counts its calls."""

    def __init__(self, journal: Journal, calls: Tally[str]) -> None:
        self._journal = journal
        self._calls = calls

    async def claim(self, queues: Sequence[str], *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        found = await self._journal.claim(queues, count_max=count_max, wait_s=wait_s)
        self._calls["claim"] += bool(found)
        return found

    async def load(
        self, states: Sequence[str], markers: Sequence[bytes]
    ) -> tuple[dict[str, StateDocument], dict[bytes, Marker]]:
        self._calls["load"] += 1
        return await self._journal.load(states, markers)

    async def commit(self, commit: Commit) -> Conflict | None:
        self._calls["commit"] += 1
        return await self._journal.commit(commit)

    async def durable(self) -> None:
        await self._journal.durable()

    async def renew(self, deliveries: Sequence[Delivery]) -> int:
        return await self._journal.renew(deliveries)

    async def release(self, deliveries: Sequence[Delivery]) -> None:
        await self._journal.release(deliveries)


class CountedStore:
    """A store that counts its calls, writes by what they mean."""

    def __init__(self, store: StateStore, calls: Tally[str]) -> None:
        self._store = store
        self._calls = calls
        self.capabilities = store.capabilities

    async def read(self, key: DocumentKey, *, session: Session = "") -> Document | None:
        self._calls["read"] += 1
        return await self._store.read(key, session=session)

    async def write(self, operations: Sequence[Write]) -> Won | Lost:
        self._calls[operations[0].tag.what] += 1
        return await self._store.write(operations)

    def scan(self, partition: str, *, prefix: str = "") -> AsyncIterator[Document]:
        return self._store.scan(partition, prefix=prefix)

    def unfinished(self) -> AsyncIterator[Document]:
        return self._store.unfinished()


class CountedBus:
    """A bus that counts its calls."""

    def __init__(self, bus: MessageBus, calls: Tally[str]) -> None:
        self._bus = bus
        self._calls = calls

    async def send(self, outputs: Sequence[Output]) -> None:
        self._calls["send"] += 1
        await self._bus.send(outputs)

    async def receive(self, queue: str, *, count_max: int, wait_s: float) -> Sequence[Delivery]:
        found = await self._bus.receive(queue, count_max=count_max, wait_s=wait_s)
        self._calls["receive"] += bool(found)
        return found

    async def settle(self, delivery: Delivery, settle: Settle) -> None:
        self._calls[settle.how] += 1
        await self._bus.settle(delivery, settle)

    async def renew(self, delivery: Delivery) -> int:
        return await self._bus.renew(delivery)


class Counted:
    """A backend whose ports count."""

    def __init__(self, engine: Engine, scope: Scope, calls: Tally[str]) -> None:
        backend: Backend = engine if scope == "engine" else NarrowEngine(engine, scope)
        ports = backend.ports()
        self._ports: Ports | StorePorts
        if isinstance(ports, Ports):
            self._ports = Ports(CountedJournal(ports.journal, calls), ports.operations, ports.blobs)
        else:
            store, bus = CountedStore(ports.store, calls), CountedBus(ports.bus, calls)
            self._ports = StorePorts(store, bus, ports.operations, ports.blobs)

    def ports(self) -> Ports | StorePorts:
        return self._ports


def run(scope: Scope, message_count: int) -> dict[str, Any]:
    """Run W1 in one scope, and check the states afterwards."""
    return asyncio.run(_run(scope, message_count))


async def _run(scope: Scope, message_count: int) -> dict[str, Any]:
    calls: Tally[str] = Tally()
    async with Engine.in_memory() as engine:
        worker = Worker(app, Counted(engine, scope, calls), concurrency=IN_FLIGHT)
        await worker.declare()
        now_ms = engine.now_ms()
        for message in inputs(message_count):
            body, kind = app.encode(message)
            engine.broker.send("adds", [Message(body=body, outbox_id=message.id, type=kind, created_ms=now_ms)])
        watch = Stopwatch()
        async with worker:
            await worker.wait_idle(timeout_s=RUN_S_MAX)
        watch.stop()
        calls = Tally(calls)  # the checks below call too
        states = [await worker.state(Counter, account) for account in {m.account for m in inputs(message_count)}]
        assert sum(state.total for state in states if state is not None) == expected_total(message_count)
        assert engine.broker.queue("added").counts()["active"] == message_count
    return {
        "messages_per_s": message_count / watch.wall_s,
        "cpu_us": watch.cpu_s / message_count * 1e6,
        "requests_per_message": calls.total() / message_count,
        "calls": {name: count / message_count for name, count in sorted(calls.items())},
    }


def publish(repeats: int, message_count: int, folder: Path) -> str:
    """Measure, and write scopes.json and scopes.txt."""
    found: dict[Scope, list[dict[str, Any]]] = {scope: [] for scope in SCOPES}
    for _ in range(repeats):
        for scope in SCOPES:
            found[scope].append(run(scope, message_count))
    rows = [
        {
            "scope": scope,
            "in_flight": IN_FLIGHT,
            **{name: report.spread([each[name] for each in runs]) for name in FIGURES},
            "calls_per_message": {name: round(count, 4) for name, count in runs[0]["calls"].items()},
        }
        for scope, runs in found.items()
    ]
    about = [
        f"W1 on the engine in memory in each scope: {message_count:,} messages, 1,000 keys, {IN_FLIGHT} in flight.",
        f"A request is one call of a port.  Median of {repeats} interleaved repeats [least..greatest].",
        *report.circumstances(Path(tempfile.gettempdir())),
    ]
    return report.publish("scopes", rows, about, folder, table(rows))


def table(rows: list[dict[str, Any]]) -> str:
    """A line for each scope, and under it its calls a message."""
    lines = []
    for row in rows:
        rate, cpu = report.cell(row["messages_per_s"], 0), report.cell(row["cpu_us"], 1)
        requests = report.cell(row["requests_per_message"], 3)
        lines.append(f"{row['scope']:<10} {rate} messages/s   {cpu} CPU µs   {requests} requests a message")
        lines.append("           " + ", ".join(f"{name} {n:g}" for name, n in row["calls_per_message"].items()))
    return "\n".join(lines)
