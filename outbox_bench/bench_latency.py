"""Azure a round trip away: the rate of a worker, and of a loop that does the least, by round trip and concurrency.

The emulators, the way to them (see `latency`) and the client are three processes; the client's CPU is its own, whatever
it awaits.  Every cell has emulators of its own.  A message has a small state and one output.  Beside each cell runs the
bare loop (see `bare`) with as many messages in flight, on the same emulators, one after the other; ratios are taken
between the two.

    kinds    new        every message has a key that nobody knows yet
             existing   the key's state is there and has to be read
             warm       the worker has handled a message of the key before
             ten        ten keys for all messages
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from outbox import App, Worker
from outbox.azure import AzureBackend, connect
from outbox_bench import report
from outbox_bench.azure_bare import bare
from outbox_bench.azure_place import AzurePlace, Place, azure_place
from outbox_bench.functions_host import FunctionsHost
from outbox_bench.latency import delayed
from outbox_bench.measure import Stopwatch
from outbox_bench.ours import w1

Kind = Literal["new", "existing", "warm", "ten"]
Scope = Literal["partition", "item"]
Host = Literal["worker", "functions"]
Row = dict[str, Any]

KINDS: tuple[Kind, ...] = ("new", "existing", "warm", "ten")
SCOPES: tuple[Scope, ...] = ("partition", "item")
RTT_MS = (0.0, 10.0, 30.0)
IN_FLIGHT = (1, 16, 64, 256)

RUN_S_MAX = 120.0
MARKED_WITHIN_S = 0.5
WARM_KEY_COUNT = 320
"""More than are in flight, so that messages of one key are not committed together, and few enough to recur soon."""
IDLE_S = 0.02
HOT_KEY_COUNT = 10
LINKS_COUNT = 64
SETTLE_MS = (20.0, 100.0)


@dataclass(frozen=True, slots=True)
class Cell:
    """What is measured together."""

    kind: Kind = "new"
    rtt_ms: float = 10.0
    concurrency: int = 64
    scope: Scope = "partition"
    settle_ms: tuple[float, ...] = ()
    path: Host = "worker"
    ledger: bool = False
    """Whether a dispatch ledger is kept in place of marks."""
    count_max: int = 1_200

    @property
    def message_count(self) -> int:
        """As many as take a few seconds."""
        return min(self.count_max, {1: 60, 16: 600}.get(self.concurrency, 1_200))


@dataclass(frozen=True, slots=True)
class Side:
    """One side of one run; all but the rate are a message's."""

    messages_per_s: float
    cpu_ms: float
    requests: float
    ru: float


def cells(*, full: bool = False) -> list[Cell]:
    """What is measured by default, or the whole cross."""
    base = Cell()
    uneven = [replace(base, settle_ms=SETTLE_MS), replace(base, concurrency=256, settle_ms=SETTLE_MS)]
    if full:
        crossed = itertools.product(SCOPES, KINDS, RTT_MS, IN_FLIGHT)
        whole = [Cell(kind, rtt_ms, n, scope) for scope, kind, rtt_ms, n in crossed]
        return whole + [replace(cell, path="functions") for cell in whole] + uneven
    found = [replace(base, rtt_ms=rtt_ms, concurrency=n) for rtt_ms, n in itertools.product(RTT_MS, IN_FLIGHT)]
    found += [replace(base, kind=kind, rtt_ms=rtt_ms) for kind in KINDS[1:] for rtt_ms in (0.0, 10.0)]
    found += [replace(base, kind=kind, scope="item") for kind in ("new", "warm")]
    found += [replace(base, kind=kind, path="functions") for kind in ("new", "warm")]
    found += [replace(base, kind=kind, ledger=True) for kind in KINDS]
    return found + uneven


@contextlib.asynccontextmanager
async def ground(cell: Cell) -> AsyncIterator[tuple[AzurePlace, AzurePlace]]:
    """Emulators for one cell, with their queues and container: near, and a round trip away."""
    async with azure_place() as near, _backend(cell, near) as backend:
        queues = dict.fromkeys(near.names.queues(), "unordered")
        await backend.ports().operations.declare(queues, {})
        if not cell.rtt_ms and not cell.settle_ms:
            yield near, near
            return
        async with (
            delayed(near.ports[0], rtt_ms=cell.rtt_ms) as (cosmos,),
            delayed(near.ports[1], rtt_ms=cell.rtt_ms, settle_ms=cell.settle_ms) as (servicebus,),
        ):
            yield near, near.by([cosmos, servicebus])


@contextlib.asynccontextmanager
async def _backend(cell: Cell, place: Place) -> AsyncIterator[AzureBackend]:
    async with connect(
        cosmos=place.cosmos,
        database=place.names.database,
        servicebus=place.servicebus,
        scope=cell.scope,
        dispatch_ledger=cell.ledger,
        create=True,
    ) as backend:
        place.watch(backend.usage)
        yield backend


def keys_of(cell: Cell, side: str) -> list[str]:
    """The key of each message; `side` is what they begin with."""
    count = {"ten": HOT_KEY_COUNT, "warm": WARM_KEY_COUNT}.get(cell.kind, cell.message_count)
    return [f"{side}-{n % count:06d}" for n in range(cell.message_count)]


async def of_ours(cell: Cell, near: Place, far: Place) -> Side:
    """A worker on the adapters, or the functions of one."""
    names = near.names
    keys, app = keys_of(cell, f"{names.prefix}ours"), w1(names.adds, names.added)
    if cell.kind == "existing":
        async with _backend(cell, near) as backend, Worker(app, backend) as worker:
            await _handled(near, worker, "before", keys)
    async with _backend(cell, far) as backend, _host(cell, app, backend, names.adds) as host:
        await _handled(near, host, "links", [f"{names.prefix}links-{n}" for n in range(LINKS_COUNT)])
        if cell.kind in ("warm", "ten"):
            await _handled(near, host, "before", keys)
        await near.served()
        watch = Stopwatch()
        wall_s = await _handled(near, host, "timed", keys)
        watch.stop()
        side = _side(keys, wall_s, watch, await near.served())
    await _check(near, names.added, cell)
    return side


def _host(cell: Cell, app: App, backend: AzureBackend, queue: str) -> Worker | FunctionsHost:
    if cell.path == "worker":
        return Worker(app, backend, concurrency=cell.concurrency)
    return FunctionsHost(app, backend, backend.ports().bus, queue, concurrency=cell.concurrency)


async def _handled(near: Place, worker: Worker | FunctionsHost, name: str, keys: list[str]) -> float:
    """Have a message for each key handled; how long that took, in seconds, without the last marks."""
    until = worker.handled_count + len(keys)
    started_s = time.perf_counter()
    await near.put(near.names.adds, near.names.prefix + name, keys)
    async with asyncio.timeout(RUN_S_MAX):
        while worker.handled_count < until:  # noqa: ASYNC110  # a worker has no such event
            await asyncio.sleep(IDLE_S)
    wall_s = time.perf_counter() - started_s
    await asyncio.sleep(MARKED_WITHIN_S)
    return wall_s


async def of_bare(cell: Cell, near: Place, far: Place) -> Side:
    """The loop on the SDKs alone."""
    names, queue, start = near.names, near.names.bare_adds, f"{near.names.prefix}bare"
    keys = keys_of(cell, start)
    options: dict[str, Any] = {"in_flight": cell.concurrency, "queue": queue, "out": names.bare_added}
    options |= {"database": names.database, "hook": near.hook}
    async with bare(far.cosmos, far.servicebus, **options) as loop:
        await near.put(queue, f"{start}-links", links := [f"{start}-links-{n}" for n in range(LINKS_COUNT)])
        await loop.handle(len(links))
        if cell.kind != "new":
            await near.put(queue, f"{start}-before", keys)
            await loop.handle(len(keys))
        if cell.kind == "existing":
            loop.forget()
        await near.served()
        watch = Stopwatch()
        await near.put(queue, f"{start}-timed", keys)
        async with asyncio.timeout(RUN_S_MAX):
            await loop.handle(len(keys))
        watch.stop()
        side = _side(keys, watch.wall_s, watch, await near.served())
    await _check(near, names.bare_added, cell)
    return side


async def _check(near: Place, queue: str, cell: Cell) -> None:
    """Check that every message has had its one output."""
    count = LINKS_COUNT + cell.message_count * (1 if cell.kind == "new" else 2)
    found = await near.count(queue)
    assert found == count, f"{found} outputs of {count} messages"


def _side(keys: list[str], wall_s: float, watch: Stopwatch, served: dict[str, tuple[int, float]]) -> Side:
    items = [used for kind, used in served.items() if kind.startswith("item.") or kind in ("batch", "query")]
    requests, ru = sum(count for count, _ in items), sum(ru for _, ru in items)
    return Side(len(keys) / wall_s, watch.cpu_s / len(keys) * 1e3, requests / len(keys), ru / len(keys))


async def measured(cell: Cell) -> tuple[Side, Side]:
    """One run of each side."""
    async with ground(cell) as (near, far):
        return await of_ours(cell, near, far), await of_bare(cell, near, far)


def publish(repeats: int, folder: Path, *, full: bool = False) -> str:
    """Measure, and write azure-latency.json and azure-latency.txt."""
    chosen = cells(full=full)
    found: dict[Cell, list[tuple[Side, Side]]] = {cell: [] for cell in chosen}
    for repeat in range(repeats):
        for n, cell in enumerate(chosen):
            ours, least = asyncio.run(measured(cell))
            found[cell].append((ours, least))
            told = f"{ours.messages_per_s:,.0f} messages/s, bare {least.messages_per_s:,.0f}"
            print(f"{repeat + 1}/{repeats} {n + 1}/{len(chosen)} {name(cell)}: {told}", file=sys.stderr, flush=True)
    rows = [row(cell, sides) for cell, sides in found.items()]
    about = [
        "A worker on the emulators of Cosmos DB and Service Bus, a round trip away, and the bare loop beside it: the",
        f"public SDKs alone, without marks, sweeper or retries.  Medians of {repeats} interleaved repeats; `rate` and",
        "`CPU` are ratios to the bare loop in the same repeat [least..greatest].  CPU, requests and request units (the",
        "emulator's estimates) are a message's, marks included.  `warm`: a key's next message comes within two",
        "seconds, so that its batch takes the mark of the one before along; `uneven`: half of the settlements take",
        "20 ms, half 100 ms, longer.",
        *report.circumstances(Path(tempfile.gettempdir())),
    ]
    return report.publish("azure-latency", rows, about, folder, table(rows))


def name(cell: Cell) -> str:
    """A cell in few words."""
    uneven, ledger = " uneven" if cell.settle_ms else "", " ledger" if cell.ledger else ""
    return f"{cell.scope} {cell.path} {cell.kind}{ledger} {cell.rtt_ms:g} ms{uneven} {cell.concurrency} in flight"


def row(cell: Cell, sides: list[tuple[Side, Side]]) -> Row:
    """The medians of a cell, and the spread of its ratios."""

    def median(of: Callable[[tuple[Side, Side]], float]) -> float:
        return float(f"{statistics.median(map(of, sides)):.5g}")

    return {
        "scope": cell.scope,
        "path": cell.path,
        "kind": cell.kind,
        "ledger": cell.ledger,
        "rtt_ms": cell.rtt_ms,
        "settle_ms": list(cell.settle_ms),
        "concurrency": cell.concurrency,
        "messages_per_s": median(lambda pair: pair[0].messages_per_s),
        "cpu_ms": median(lambda pair: pair[0].cpu_ms),
        "requests": median(lambda pair: pair[0].requests),
        "ru": median(lambda pair: pair[0].ru),
        "bare_messages_per_s": median(lambda pair: pair[1].messages_per_s),
        "bare_cpu_ms": median(lambda pair: pair[1].cpu_ms),
        "bare_requests": median(lambda pair: pair[1].requests),
        "bare_ru": median(lambda pair: pair[1].ru),
        "rate_ratio": report.spread([ours.messages_per_s / least.messages_per_s for ours, least in sides]),
        "cpu_ratio": report.spread([ours.cpu_ms / least.cpu_ms for ours, least in sides]),
    }


def table(rows: list[Row]) -> str:
    """A line for each cell."""
    of_ours, of_both = ("messages/s", "bare", "rate", "CPU ms", "bare", "CPU"), ("requests", "RU")
    lines = [["scope", "path", "kind", "round trip", "in flight", *of_ours, *of_both]]
    for each in rows:
        uneven, ledger = " uneven" if each["settle_ms"] else "", ", ledger" if each["ledger"] else ""
        lines.append([
            each["scope"], each["path"], each["kind"] + ledger, f"{each['rtt_ms']:g} ms{uneven}",
            str(each["concurrency"]),
            f"{each['messages_per_s']:,.0f}", f"{each['bare_messages_per_s']:,.0f}", report.cell(each["rate_ratio"], 2),
            f"{each['cpu_ms']:.2f}", f"{each['bare_cpu_ms']:.2f}", report.cell(each["cpu_ratio"], 2),
            f"{each['requests']:.2f}", f"{each['ru']:.1f}",
        ])  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m outbox_bench.bench_latency", description="Azure, far away.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="the whole cross, which takes hours")
    parser.add_argument("--output", type=Path, default=Path("docs/benchmarks"))
    options = parser.parse_args()
    print(publish(options.repeats, options.output, full=options.full))


if __name__ == "__main__":
    main()
