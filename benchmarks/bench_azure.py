"""Partition scope on Azure: what a message asks of Cosmos DB, and what the adapters cost beside the bare SDKs.

Asked: a worker on both emulators, W1's keys; requests and request units as the Cosmos DB emulator counts them, by what
they are for as the store's port tells.  The first message of each key is cold, later ones are warm; what arrives
together for one key shares a commit.

CPU: calls of the adapters and the shortest code that does the same with the bare SDK, on the same clients, from the
same bytes to the same answers: a call of one, then a call of the other, the emulators in a process of their own.  A
ratio is that of the two medians of one repeat.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import azure_calls
from benchmarks.azure_calls import MANY_PART
from benchmarks.bench_scopes import CountedBus, CountedStore
from outbox import Worker
from outbox.azure import AzureBackend
from outbox.message import Message
from outbox.ports import StorePorts
from outbox_bench import report
from outbox_bench.measure import KEY_COUNT, Add, Counter
from outbox_bench.ours import RUN_S_MAX, app
from tests.wire.on_azure.ground import Place, place

IN_FLIGHT = 64
HOT_KEY_COUNT = 10
MARKED_WITHIN_S = 0.6
RESTED_WITHIN_S = 2.8
"""After so long the marks of keys that recur are written where no batch has taken them along."""
SOON_COUNT = 300
"""So many keys recur within the two seconds that their marks wait."""
LEDGER = ", ledger"
"""The end of a workload's name where workers keep a dispatch ledger."""
STEADY = ("", "warm", f"warm{LEDGER}")
"""Rounds that take along the marks of the round before, and leave theirs to the next; "" is not published."""
SERVED_WITHIN_S = 10.0
QUIET_S = 0.5
"""So long nothing is asked for where all marks are written."""
OF_ITEMS = ("item.read", "item.create", "item.replace", "item.delete", "batch", "query")
PAIR_COUNT = 80
W1_PART = 5
"""W1 is run with a fifth of its messages: through the SDKs each takes some milliseconds."""

Row = dict[str, Any]


class Counted:
    """A backend whose ports count."""

    def __init__(self, backend: AzureBackend, calls: Tally[str]) -> None:
        self._backend = backend
        self._calls = calls

    def ports(self) -> StorePorts:
        known = self._backend.ports()
        return replace(known, store=CountedStore(known.store, self._calls), bus=CountedBus(known.bus, self._calls))


class Run:
    """Workers on both emulators, one after the other, that handle what is put into their queue."""

    def __init__(self, world: Place, calls: Tally[str]) -> None:
        self._world = world
        self._calls = calls
        self._sent_count = 0
        self.totals: Tally[str] = Tally()

    async def handle(self, worker: Worker, name: str, keys: Sequence[str]) -> Row:
        """Handle a message for each key, all there at once; what a message asked for, a mark included."""
        self._calls.clear()
        self._world.cosmos.reset_usage()
        until, amount = worker.handled_count + len(keys), 3
        for key in keys:
            self._sent_count += 1
            id = f"m{self._sent_count:08d}"
            body, kind = app.encode(Add(id, key, amount))
            self._world.servicebus.engine.broker.send("adds", [Message(body=body, outbox_id=id, type=kind)])
            self.totals[key] += amount
        async with asyncio.timeout(RUN_S_MAX):
            while worker.handled_count < until:  # noqa: ASYNC110  # a worker has no such event
                await asyncio.sleep(0.01)
        await asyncio.sleep(MARKED_WITHIN_S if name in STEADY else RESTED_WITHIN_S)
        until_s, before = time.monotonic() + SERVED_WITHIN_S, -1
        while name not in STEADY and self._asked_count() > before and time.monotonic() < until_s:
            before = self._asked_count()  # a slow machine is still marking
            await asyncio.sleep(QUIET_S)
        while self._served_count() < self._asked_count() and time.monotonic() < until_s:  # noqa: ASYNC110  # nobody says
            await asyncio.sleep(0.01)  # when a mark that is on its way has been served
        return self._row(name, len(keys))

    def _served(self) -> dict[str, Any]:
        """What the emulator has served, by kind of request."""
        usage = self._world.cosmos.usage()
        return {kind: usage[kind] for kind in OF_ITEMS if kind in usage}

    def _served_count(self) -> int:
        """How many requests for items it has served, those of the sweeper left out."""
        return sum(used.count for kind, used in self._served().items() if kind != "query")

    def _asked_count(self) -> int:
        """How many the worker has asked for."""
        return sum(self._calls[kind] for kind in ("read", "commit", "mark", "note", "ledger", "sign"))

    def _row(self, name: str, count: int) -> Row:
        calls, served = Tally(self._calls), self._served()
        requests = sum(used.count for used in served.values())
        assert self._served_count() == self._asked_count(), (
            f"the SDK asks for items more often than it was told to: {calls}, {served}"
        )
        return {
            "workload": name,
            "messages": count,
            "requests_per_message": round(requests / count, 4),
            "ru_per_message": round(sum(used.charge_ru for used in served.values()) / count, 2),
            "messages_per_commit": round(count / calls["commit"], 3),
            "warm_share": round(1 - calls["read"] / calls["commit"], 4),
            "calls_per_message": {kind: round(n / count, 4) for kind, n in sorted(calls.items())},
        }

    async def verify(self, worker: Worker) -> None:
        """Check that every message has taken effect once."""
        for key, total in self.totals.items():
            state = await worker.state(Counter, key)
            assert state is not None and state.total == total, key
        assert self._world.servicebus.engine.broker.queue("added").counts()["active"] == self._sent_count


def with_ledger(workloads: dict[str, list[str]]) -> dict[str, list[str]]:
    """The same workloads where a dispatch ledger is kept."""
    return {f"{name}{LEDGER}" if name else name: keys for name, keys in workloads.items()}


async def asked(message_count: int) -> list[Row]:
    """What a message asks for: of a new key, one that is there, one that is known, W1 in one go, and on few keys."""
    keys = [f"account-{n:04d}" for n in range(KEY_COUNT)]
    w1 = [keys[n * 7919 % KEY_COUNT] for n in range(max(1, message_count // W1_PART))]
    few = [f"hot-{n % HOT_KEY_COUNT}" for n in range(max(20 * HOT_KEY_COUNT, len(w1) // 4))]
    rows = []
    first = keys[: max(1, min(KEY_COUNT, message_count // W1_PART))]
    of_keys = [{"cold": first}, {"existing": first, "": first[:SOON_COUNT], "warm": first[:SOON_COUNT]}]
    for workers in (of_keys, [{"W1": w1}], [{"ten keys": few}], [*map(with_ledger, of_keys)]):
        calls: Tally[str] = Tally()
        has_ledger = any(name.endswith(LEDGER) for name in workers[0])
        async with place() as world, world.connect(dispatch_ledger=has_ledger) as backend:
            run = Run(world, calls)
            for workloads in workers:
                async with Worker(app, Counted(backend, calls), concurrency=IN_FLIGHT) as worker:
                    await worker.state(Counter, "nobody")  # the client knows its account and container by then
                    rows += [await run.handle(worker, name, some) for name, some in workloads.items()]
                    await run.verify(worker)
    return [row for row in rows if row["workload"]]


def compared(repeats: int, pair_count: int) -> list[Row]:
    """CPU time of each call, ours and the bare SDK's."""
    found = asyncio.run(azure_calls.measured(repeats, pair_count))
    rows = []
    for name, times in found.items():
        medians = [(statistics.median(ours) * 1e6, statistics.median(bare) * 1e6) for ours, bare in times]
        ratios = [ours / bare for ours, bare in medians]
        bare_us = report.spread([bare for _, bare in medians])
        ours_us = report.spread([ours for ours, _ in medians])
        rows.append({"call": name, "ours_us": ours_us, "bare_us": bare_us, "ratio": report.spread(ratios)})
    return rows


def publish(repeats: int, message_count: int, folder: Path, *, pair_count: int = PAIR_COUNT) -> str:
    """Measure, and write azure.json and azure.txt."""
    asks, costs = asyncio.run(asked(message_count)), compared(repeats, pair_count)
    about = [
        f"Partition scope on the emulators of Cosmos DB and Service Bus, {KEY_COUNT:,} keys, {IN_FLIGHT} in flight.",
        "Requests and request units of Cosmos DB a message, marks included; units are the emulator's estimates.",
        "`warm`: a key's next message comes within two seconds, so that its batch takes the mark of the one before.",
        f"CPU of a call: median of {pair_count} pairs, ours and the bare SDK in turn; of {repeats} repeats the median",
        f"[least..greatest].  `send of 64` and `receive` (64, each completed): {pair_count // MANY_PART} pairs, and",
        "the figures are a message's.",
        *report.circumstances(Path(tempfile.gettempdir())),
    ]
    return report.publish("azure", [*asks, *costs], about, folder, table(asks) + "\n\n" + table_of_calls(costs))


def table(rows: list[Row]) -> str:
    """A line for each workload."""
    lines = []
    for row in rows:
        reported = f"{row['requests_per_message']:.2f} requests, {row['ru_per_message']:.1f} RU a message"
        warm = f"{row['messages_per_commit']:.2f} messages a commit, {row['warm_share']:.1%} of commits without a read"
        calls = ", ".join(f"{kind} {n:g}" for kind, n in row["calls_per_message"].items())
        lines += [f"{row['workload']:<16} {row['messages']:>6,} messages: {reported}; {warm}", f"{'':<17}{calls}"]
    return "\n".join(lines)


def table_of_calls(rows: list[Row]) -> str:
    """A line for each call."""
    lines = []
    for row in rows:
        ours, bare = report.cell(row["ours_us"], 0), report.cell(row["bare_us"], 0)
        lines.append(f"{row['call']:<10} {ours} CPU µs, bare SDK {bare}, ratio {report.cell(row['ratio'], 2)}")
    return "\n".join(lines)
