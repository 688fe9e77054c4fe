"""Streams on three stores: what an append and a processor's step ask for, and what idle ones ask for in an hour.

The stores are a durable engine in this process, and the emulators of Cosmos DB and Blob Storage, each in a process of
its own on loopback.  Requests and request units are those that the adapters count; the emulator's units are estimates.

A replica that stays back looks at the register as often as a step takes, so what two replicas ask for depends on how
far away the store is: those are measured through a proxy that makes a round trip `RTT_MS` long.  Each replica has a
client of its own.  What is idle is counted from one look to another, after its pauses have grown to their longest; an
idle replica's clock is then moved on to find what it asks for less often.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.streams_work import (
    CELL_SIZES,
    IDLE_MAX_S,
    TEXT,
    Figures,
    Laps,
    Number,
    Sizes,
    adder,
    check_sums,
    log_of,
    some,
)
from outbox.azure import blob_states, connect
from outbox.azure.usage import Usage
from outbox.engine.engine import Engine
from outbox.streams.log_places import Place, place_of, wall_ms
from outbox.streams.replica import Progress
from outbox_bench import report
from outbox_bench.azure_place import azure_place
from outbox_bench.latency import delayed
from outbox_bench.side_process import program

STORES = ("engine", "cosmos", "blobs")
RTT_MS = 10.0
BATCH_MAX = 64
FAR_SIZES = (1, 64)
REPLICAS = (1, 2)
FIRST_STEP, SPARE_CELLS = 4, 8
"""Which step is the first that counts, and how many cells there are beyond the steps that do."""
GROWN_S = 2.5
"""After so long a pause between two looks is as long as it ever is."""
SAMPLE_S = 0.01
BETWEEN_LOOKS_S = 0.3
LEAP_MS, LEAP_COUNT = 10_000, 60
"""How an idle replica's clock is moved on: ten minutes in all."""
HOUR_S = 3_600.0

ASKED = ("requests", "ru", "requests_per_entry", "ru_per_entry")
ABOUT = f"""Stores, entries of 100 B: requests and request units (RU, the emulator's estimates) of an append's cell, or
of a step, which handles one cell; at the least 1 request an append and 3 a step (read, swap, create).  Ratios are to
the engine, or of two replicas to one.  far: {RTT_MS:g} ms a round trip, each replica with a client of its own.
Catching up: up to 64 entries a step, counted an entry.  An entry alone: each replica steps until it is idle.  An hour
of what is idle: extrapolated from {Sizes().idle_s:g} s of it, what it does less often from ten minutes of its clock.

"""

Row = dict[str, Any]
Opened = Callable[[], AbstractAsyncContextManager[Any]]
"""A client of its own."""


class Store(NamedTuple):
    """A store: how to open it, and how from a round trip away."""

    near: Opened
    far: Opened | None = None


class Asked(NamedTuple):
    """Requests and request units."""

    requests: float
    ru: float

    def plus(self, other: Asked, factor: float = 1.0) -> Asked:
        """Together with so many times another."""
        return Asked(self.requests + factor * other.requests, self.ru + factor * other.ru)

    def since(self, before: Asked) -> Asked:
        """What came after `before`."""
        return self.plus(before, -1.0)

    def times(self, factor: float) -> Asked:
        """So many times as much."""
        return Asked(factor * self.requests, factor * self.ru)


def asked(usages: list[Usage]) -> Asked:
    """What some clients have asked for."""
    return Asked(sum(usage.request_count for usage in usages), sum(usage.charge_ru for usage in usages))


def usage_of(backend: Any) -> Usage:
    """What a client has asked for; an engine is asked for nothing."""
    return getattr(backend, "usage", None) or Usage()


# The stores


@asynccontextmanager
async def engine_store(folder: Path) -> AsyncIterator[Store]:
    """A durable engine, which all have in common."""
    async with Engine.open(folder / "stores") as engine:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            yield engine

        yield Store(opened)


@asynccontextmanager
async def cosmos_store(folder: Path) -> AsyncIterator[Store]:
    """The emulator of Cosmos DB."""

    @asynccontextmanager
    async def opened(cosmos: str, servicebus: str) -> AsyncIterator[Any]:
        async with connect(cosmos=cosmos, database="streams", servicebus=servicebus, create=True) as backend:
            await backend.operations.declare({}, {})
            yield backend

    async with azure_place() as place, delayed(place.ports[0], rtt_ms=RTT_MS) as (port,):
        far = place.by([port, place.ports[1]])
        yield Store(partial(opened, place.cosmos, place.servicebus), partial(opened, far.cosmos, place.servicebus))


@asynccontextmanager
async def blobs_store(folder: Path) -> AsyncIterator[Store]:
    """The emulator of Blob Storage."""
    async with (
        program("benchmarks.blobs_place") as (_, place),
        delayed(place["port"], rtt_ms=RTT_MS) as (port,),
    ):
        address = place["blobs"]
        far = address.replace(f":{place['port']}/", f":{port}/")
        yield Store(partial(blob_states, address, create=True), partial(blob_states, far, create=True))


MADE = {"engine": engine_store, "cosmos": cosmos_store, "blobs": blobs_store}


# What is under way


async def appended(opened: Opened, prefix: str, count: int, size: int) -> Figures:
    """Append cells one after the other, each when the one before is there; the first few do not count."""
    async with opened() as backend:
        log = log_of(f"{prefix}numbers", backend)
        cells = [[Number(n, TEXT) for n in range(first, first + size)] for first in range(0, count * size, size)]
        before, began_s = asked([]), 0.0
        for number, values in enumerate(cells):
            if number == SPARE_CELLS:
                before, began_s = asked([usage_of(backend)]), time.perf_counter()
            await log.extend(values, id=f"{number}")
        took_s = time.perf_counter() - began_s
        return figures(asked([usage_of(backend)]).since(before), took_s, count - SPARE_CELLS, size)


async def stepped(opened: Opened, prefix: str, steps: int, size: int, replicas: int = 1) -> Figures:
    """Handle a cell a step with some replicas."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(opened()) for _ in range(replicas)]
        usages = [usage_of(backend) for backend in backends]
        laps = Laps(FIRST_STEP, FIRST_STEP + steps, lambda: asked(usages))
        processors = [adder(backend, size, prefix=prefix, handler=laps.handle) for backend in backends]
        async with AsyncExitStack() as running, asyncio.timeout(IDLE_MAX_S):
            runs = [await running.enter_async_context(processor.run()) for processor in processors]
            while laps.last not in laps.seen:
                for run in runs:
                    run.check()
                await asyncio.sleep(SAMPLE_S)
        await processors[0].run_until_idle(seconds=IDLE_MAX_S)
        await check_sums(backends[0], (steps + SPARE_CELLS) * size, prefix=prefix)
        (_, before), (_, after) = laps.seen[laps.first], laps.seen[laps.last]
        return figures(after.since(before), laps.took_s, steps, size)


async def caught_up(opened: Opened, prefix: str, count: int) -> Figures:
    """Handle entries that are there, each in a cell of its own, as many a step as the processor takes."""
    await appended(opened, prefix, count, 1)
    async with opened() as backend:
        processor = adder(backend, BATCH_MAX, prefix=prefix)
        before, began_s = asked([usage_of(backend)]), time.perf_counter()
        await processor.run_until_idle(seconds=IDLE_MAX_S)
        took_s = time.perf_counter() - began_s
        found = figures(asked([usage_of(backend)]).since(before), took_s, count, 1)
        await check_sums(backend, count, prefix=prefix)
        return found


async def one_by_one(opened: Opened, prefix: str, count: int, replicas: int) -> Asked:
    """Handle entries that come alone: after each, the replicas in turn step until there is nothing to do."""
    async with AsyncExitStack() as stack:
        backends = [await stack.enter_async_context(opened()) for _ in range(replicas)]
        producer = await stack.enter_async_context(opened())
        numbers = log_of(f"{prefix}numbers", producer)
        made = [adder(backend, 1, prefix=prefix).replica() for backend in backends]
        usages = [usage_of(backend) for backend in backends]
        before = asked(usages)
        for n in range(-1, count):
            await numbers.append(Number(max(n, 0), TEXT), id=f"{n}")
            for replica in made if n % 2 else reversed(made):
                while await replica.step() is not Progress.IDLE:
                    pass
            if n < 0:  # by then all replicas have read the register
                before = asked(usages)
        return asked(usages).since(before).times(1 / count)


def figures(asked: Asked, took_s: float, count: int, size: int) -> Figures:
    """Of so many cells of a size: the rate in entries, and what a cell and an entry asked for."""
    cell = asked.times(1 / count)
    return {"rate": count * size / took_s, **cell._asdict(), **per_entry(cell, size)}


def per_entry(cell: Asked, size: int) -> Figures:
    """What each of so many entries asked for."""
    entry = cell.times(1 / size)
    return {"requests_per_entry": entry.requests, "ru_per_entry": entry.ru}


# What is idle


@dataclass(slots=True)
class Clock:
    """The time, moved on."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return wall_ms() + self.ahead_ms


async def idle_reader(opened: Opened, idle_s: float) -> Asked:
    """An hour of a reader that waits at the end."""
    async with opened() as backend:
        log = log_of("idle-reader", backend)
        await log.append(Number(0), id="0")
        task = asyncio.create_task(_read_on(log))
        try:
            look, looks_per_s = await looks(usage_of(backend), idle_s)
        finally:
            task.cancel()
        return look.times(looks_per_s * HOUR_S)


async def _read_on(log: Any) -> None:
    async for _ in log.read(wait=True):
        pass


async def idle_replica(opened: Opened, idle_s: float) -> Asked:
    """An hour of a replica that has nothing to do."""
    async with opened() as backend:
        clock, known = Clock(), place_of(backend)
        place = Place(known.store, known.blobs, clock.now_ms)
        await log_of("idle-numbers", place).append(Number(0), id="0")
        async with adder(place, 1, prefix="idle-").run() as running:
            look, looks_per_s = await looks(usage_of(backend), idle_s)
        replica = running.loops[0].replica
        before = asked([usage_of(backend)])
        for _ in range(LEAP_COUNT):
            clock.ahead_ms += LEAP_MS
            await replica.step()
        seldom = asked([usage_of(backend)]).since(before).plus(look, -LEAP_COUNT)
        return look.times(looks_per_s * HOUR_S).plus(seldom, HOUR_S * 1_000 / (LEAP_MS * LEAP_COUNT))


async def looks(usage: Usage, idle_s: float) -> tuple[Asked, float]:
    """What a look of something idle asks for, and how many looks a second there are."""
    await asyncio.sleep(GROWN_S)
    begun: list[tuple[float, Asked]] = []
    known, changed_s = asked([usage]), time.perf_counter()
    until_s = changed_s + idle_s
    while (now_s := time.perf_counter()) < until_s:
        found = asked([usage])
        if found != known:
            if now_s - changed_s > BETWEEN_LOOKS_S:
                begun.append((now_s, known))
            known, changed_s = found, now_s
        await asyncio.sleep(SAMPLE_S)
    assert len(begun) > 1, f"{len(begun)} looks in {idle_s} s; what was measured is not idle"
    (first_s, first), (last_s, last) = begun[0], begun[-1]
    count = len(begun) - 1
    return last.since(first).times(1 / count), count / (last_s - first_s)


# All of it


async def measured(folder: Path, sizes: Sizes) -> Figures:
    """Each store, one after the other."""
    found: Figures = {}
    for name in STORES:
        async with MADE[name](folder) as store:
            parts = await near(store.near, sizes.engine_steps if name == "engine" else sizes.steps)
            if store.far is not None:
                parts |= await alone(store.near, sizes) | await idle(store.near, sizes)
            found |= {f"{name}: {what}": value for what, value in parts.items()}
            parts = {} if store.far is None else await far(store.near, store.far, sizes)
            found |= {f"{name} far: {what}": value for what, value in parts.items()}
    return found


async def near(opened: Opened, steps: int) -> Figures:
    """Appends and steps of each size, on loopback."""
    found: Figures = {}
    for size in CELL_SIZES:
        found |= named(f"append {size}", await appended(opened, f"{size}-", steps + SPARE_CELLS, size))
        found |= named(f"step of {size}", await stepped(opened, f"{size}-", steps, size))
    return found | named("catching up on cells of 1", await caught_up(opened, "behind-", steps + SPARE_CELLS))


async def far(opened: Opened, opened_far: Opened, sizes: Sizes) -> Figures:
    """Steps of one and of two replicas, a round trip away."""
    found: Figures = {}
    for size in FAR_SIZES:
        for replicas in REPLICAS:
            prefix = f"far-{size}-{replicas}-"
            await appended(opened, prefix, sizes.far_steps + SPARE_CELLS, size)
            steps = await stepped(opened_far, prefix, sizes.far_steps, size, replicas)
            found |= named(f"step of {size}, {some(replicas, 'replica')}", steps)
    return found


async def alone(opened: Opened, sizes: Sizes) -> Figures:
    """Entries that come alone, with one replica and with two beside each other."""
    found: Figures = {}
    for replicas in REPLICAS:
        entry = await one_by_one(opened, f"alone-{replicas}-", sizes.far_steps, replicas)
        found |= named(f"an entry alone, {some(replicas, 'replica')}", entry._asdict() | per_entry(entry, 1))
    return found


async def idle(opened: Opened, sizes: Sizes) -> Figures:
    """An idle reader and an idle replica."""
    calls = idle_reader(opened, sizes.idle_s), idle_replica(opened, sizes.idle_s)
    reader, replica = await asyncio.gather(*calls)
    return named("idle reader, an hour", reader._asdict()) | named("idle replica, an hour", replica._asdict())


def named(what: str, values: Figures) -> Figures:
    """The figures of one thing."""
    return {f"{what}.{name}": value for name, value in values.items()}


def rows(found: list[Figures]) -> list[Row]:
    """A row for each thing; the rate is of entries, `requests` and `ru` are of a cell, a step or an hour."""
    names = [key.removesuffix(".requests") for key in found[0] if key.endswith(".requests")]
    made: list[Row] = []
    for what in names:
        row: Row = {"what": what}
        if f"{what}.rate" in found[0]:
            beside = beside_of(what)
            row |= {"unit": "entries/s", "rate": report.spread([one[f"{what}.rate"] for one in found])}
            if beside:
                ratio = [one[f"{what}.rate"] / one[f"{beside}.rate"] for one in found]
                row |= {"beside": beside, "ratio": report.spread(ratio)}
        if not what.startswith("engine"):
            values = [name for name in ASKED if f"{what}.{name}" in found[0]]
            row |= {name: report.spread([one[f"{what}.{name}"] for one in found]) for name in values}
        made.append(row)
    return made


def beside_of(what: str) -> str:
    """What a rate is compared with: the engine's, or that of one replica as far away; empty for those themselves."""
    store, _, rest = what.partition(": ")
    if "replicas" in rest:
        return f"{store}: {rest.rpartition(', ')[0]}, 1 replica"
    return "" if store == "engine" or "far" in store else f"engine: {rest}"


def table(found: list[Row]) -> str:
    """A line for each row."""
    lines = [["", "entries/s", "ratio", "requests", "RU", "RU an entry"]]
    for row in found:
        rate = report.cell(row["rate"], 0) if "rate" in row else ""
        ratio = report.cell(row["ratio"], 3) if "ratio" in row else ""
        is_hour, has_units = "hour" in row["what"], row.get("ru", {}).get("max", 0) > 0
        requests = counted(row["requests"], 0 if is_hour else 2) if "requests" in row else ""
        ru = counted(row["ru"], 0 if is_hour else 1) if has_units else ""
        entry = counted(row["ru_per_entry"], 2) if has_units and "ru_per_entry" in row else ""
        lines.append([row["what"], rate, ratio, requests, ru, entry])
    return report.aligned(lines)


def counted(figure: dict[str, float], digits: int) -> str:
    """A count, without its extremes where all repeats agree."""
    text = report.cell(figure, digits)
    median, _, rest = text.partition(" ")
    return median if rest == f"[{median}..{median}]" else text
