"""Streams on a durable engine in one process: what writer shards are good for, and what a replica costs.

- *shards*: four producers append single entries, each as a process of its own sees the log, to 1, 2 or 4 writer shards
- *backlog*: 1, 2 and 3 replicas over entries that are there, 64 a cell
- *paced*: entries come one by one; how long after the beginning of its append a reader has an entry's output, and the
  CPU of the whole process (producer, replicas, reader) an entry; without a replica the reader reads the input
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from benchmarks.streams_work import IDLE_MAX_S, Figures, Number, Sizes, adder, check_sums, fill, log_of, some
from outbox.engine.engine import Engine
from outbox_bench import report

SHARDS = (1, 2, 4)
PRODUCER_COUNT = 4
REPLICAS = (1, 2, 3)
PACED_REPLICAS = (0, 1, 2, 3)
BACKLOG_CELL = 64
WARM_UP_COUNT = 20
SAMPLE_S = 0.001
PACED_FIGURES = ("p50_ms", "p99_ms", "cpu_us")

Row = dict[str, Any]

ABOUT = """Paced: an entry every 5 ms; from the beginning of its append to where a reader has its output, and the CPU of
producer, replicas and reader together.  Without a replica the reader reads what is appended.

"""


async def sharded(folder: Path, shards: int, count: int) -> float:
    """Entries a second that four producers append, each entry durable before its producer's next."""
    async with Engine.open(folder / f"shards-{shards}") as engine:
        each_count = count // PRODUCER_COUNT

        async def produce(producer: int) -> None:
            writer = log_of("numbers", engine, writers=shards).writer(producer % shards)
            for n in range(each_count):
                await writer.append(Number(n), id=f"{producer}.{n}")

        began_s = time.perf_counter()
        await asyncio.gather(*(produce(producer) for producer in range(PRODUCER_COUNT)))
        took_s = time.perf_counter() - began_s
        ids = [entry.id async for entry in log_of("numbers", engine, writers=shards).read()]
        assert len(ids) == len(set(ids)) == each_count * PRODUCER_COUNT, "every append is there once"
        return len(ids) / took_s


async def backlog(folder: Path, replicas: int, count: int) -> float:
    """Entries a second that some replicas handle together, with as many outputs, both durable."""
    async with Engine.open(folder / f"backlog-{replicas}") as engine:
        await fill(engine, count, BACKLOG_CELL)
        won_count = -(-count // BACKLOG_CELL) + 1  # the last of them says that all is written
        async with AsyncExitStack() as stack, asyncio.timeout(IDLE_MAX_S):
            began_s = time.perf_counter()
            made = [await stack.enter_async_context(adder(engine, BACKLOG_CELL).run()) for _ in range(replicas)]
            while sum(loop.replica.won_count for running in made for loop in running.loops) < won_count:
                for running in made:
                    running.check()
                await asyncio.sleep(SAMPLE_S)
            took_s = time.perf_counter() - began_s
        await check_sums(engine, count)
        return count / took_s


async def paced(folder: Path, replicas: int, sizes: Sizes) -> Figures:
    """Times from an append to its output, and CPU an entry."""
    async with Engine.open(folder / f"paced-{replicas}") as engine:
        begun_s: list[float] = []
        ended_s: list[float] = []
        async with AsyncExitStack() as stack, asyncio.timeout(IDLE_MAX_S):
            for _ in range(replicas):
                await stack.enter_async_context(adder(engine, BACKLOG_CELL).run())
            reader = asyncio.create_task(read(engine, "sums" if replicas else "numbers", sizes.paced, ended_s))
            cpu_from_s = time.process_time()
            await produce(engine, sizes, begun_s)
            await reader
            cpu_s = time.process_time() - cpu_from_s
        if replicas:
            await check_sums(engine, sizes.paced)
        times_ms = [(end - begin) * 1e3 for begin, end in zip(begun_s, ended_s, strict=True)]
        cuts = statistics.quantiles(times_ms[min(WARM_UP_COUNT, sizes.paced // 2) :], n=100, method="inclusive")
        return {"p50_ms": cuts[49], "p99_ms": cuts[98], "cpu_us": cpu_s / sizes.paced * 1e6}


async def produce(engine: Engine, sizes: Sizes, begun_s: list[float]) -> None:
    """Append entries at a steady pace, whatever each append takes."""
    numbers = log_of("numbers", engine)
    start_s = time.perf_counter()
    for n in range(sizes.paced):
        await asyncio.sleep(max(0.0, start_s + n * sizes.pace_s - time.perf_counter()))
        begun_s.append(time.perf_counter())
        await numbers.append(Number(n), id=f"{n}")


async def read(engine: Engine, name: str, count: int, ended_s: list[float]) -> None:
    """Note when each entry of a log is there."""
    async for _ in log_of(name, engine).read(wait=True):
        ended_s.append(time.perf_counter())
        if len(ended_s) == count:
            return


async def measured(folder: Path, sizes: Sizes) -> Figures:
    """All of it, one after the other."""
    found: Figures = {}
    for shards in SHARDS:
        found[f"shards_{shards}"] = await sharded(folder, shards, sizes.sharded)
    for replicas in REPLICAS:
        found[f"backlog_{replicas}"] = await backlog(folder, replicas, sizes.entries)
    for replicas in PACED_REPLICAS:
        took = await paced(folder, replicas, sizes)
        found |= {f"paced_{replicas}.{name}": value for name, value in took.items()}
    return found


def rows(found: list[Figures]) -> list[Row]:
    """A row for each thing: rates beside those of one shard or replica, times and CPU as they are."""
    producers = f"{PRODUCER_COUNT} producers"
    made = [rate_row(found, f"{producers}, {some(n, 'shard')}", f"shards_{n}", "shards_1", "1 shard") for n in SHARDS]
    for n in REPLICAS:
        made.append(rate_row(found, f"backlog, {some(n, 'replica')}", f"backlog_{n}", "backlog_1", "1 replica"))
    for n in PACED_REPLICAS:
        names = {name: f"paced_{n}.{name}" for name in PACED_FIGURES}
        spreads = {name: report.spread([one[key] for one in found]) for name, key in names.items()}
        made.append({"what": f"paced, {some(n, 'replica')}", **spreads})
    return made


def rate_row(found: list[Figures], what: str, rate: str, floor: str, beside: str) -> Row:
    """A rate, and its ratio to that of `beside` in the same repeat."""
    row = {"what": what, "unit": "entries/s", "rate": report.spread([one[rate] for one in found])}
    ratio = report.spread([one[rate] / one[floor] for one in found])
    return row if rate == floor else row | {"beside": beside, "ratio": ratio}


def table(found: list[Row]) -> str:
    """A line for each row with times."""
    lines = [["", "p50 ms", "p99 ms", "CPU µs an entry"]]
    for row in found:
        p50, p99 = (report.cell(row[name], 2) for name in PACED_FIGURES[:2])
        lines.append([row["what"], p50, p99, report.cell(row["cpu_us"], 0)])
    return report.aligned(lines)
