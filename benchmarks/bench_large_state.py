"""A pipeline on Spark whose states are ten times the memory of the executor.

    python -m benchmarks.bench_large_state [--state-mb 5500] [--heap-mb 512] [--output FOLDER]

Each order is of an article of its own, whose state is 10 KB of text that does not compress.  One job takes all orders
on Spark in `local[2]`, whose one JVM is driver and executor; a second one takes 500 orders more, of articles that have
states.  Memory is the greatest resident set of this process, of a Python worker, and the heap that the JVM may have.
Every state and output is looked at afterwards.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import shake_128
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.bench_catch_up import SCRATCH, memory_mb
from outbox.engine.engine import Engine
from outbox.streams import Emit, OrderedLog, Pipeline, Position
from outbox.streams.log_places import Place, place_of
from outbox.streams.pipeline.checkpoint import PIPELINE, PipelineRegister, sections_of
from outbox.streams.pipeline.replica import read_part
from outbox.streams.register import RegisterCell
from outbox_bench import report

HERE = "benchmarks.bench_large_state"
STATE_MB, HEAP_MB = 5_500, 512
TEXT_BYTES, FILE_ENTRIES, LAST = 10_000, 20_000, 500
EVERY_S = 0.2


@dataclass
class Order:
    article: int


@dataclass
class Seen:
    count: int = 0
    text: str = ""


def article_of(order: Order) -> int:
    return order.article


def text_of(article: int) -> str:
    """Text of an article that does not compress."""
    return shake_128(str(article).encode()).hexdigest(TEXT_BYTES // 2)


def seen(so_far: Seen, order: Order, emit: Emit[int]) -> None:
    so_far.count += 1
    so_far.text = text_of(order.article)
    emit(so_far.count)


class View:
    """The logs, and the pipeline between them."""

    def __init__(self, place: Any) -> None:
        self.orders = OrderedLog("orders", place, type=Order)
        self.counts = OrderedLog("counts", place, type=int)
        self.pipeline = Pipeline("counts", source=self.orders)
        made = self.pipeline.reduce(source=self.orders, key=article_of, state=Seen, emits=int)(seen)
        self.pipeline.sink(made, self.counts)


def fill(folder: Path, count: int) -> None:
    """Write the export of a log: `count` orders, then `LAST` more of the first articles."""
    from spark_jobs.common.places import Folder
    from spark_jobs.exporting.files import name_of
    from spark_jobs.exporting.rows import Entry, Span, encoded

    at = 0
    while at < count + LAST:
        end = min(at + FILE_ENTRIES, count if at < count else count + LAST)
        entries = [Entry(Position(n), f"{n}", n, "", 1, msgspec.json.encode(Order(n % count))) for n in range(at, end)]
        span = Span("orders", "0.0", Position(at), Position(end))
        Folder(folder / "log").create(name_of(span.begin), encoded(entries, span))
        at = end


async def run(folder: Path, count: int, heap_mb: int) -> dict[str, float]:
    """Take the orders in two jobs of one session, and look at the states."""
    from pyspark.sql import SparkSession

    from spark_jobs.common import java
    from spark_jobs.common.places import Folder
    from spark_jobs.pipeline import Job, catch_up
    from spark_jobs.replaying.on_spark import OnSpark
    from spark_jobs.session import EVERYWHERE, LOCAL_MASTER, local_settings

    java.prepare(os.environ)
    builder = SparkSession.builder.appName("bench")
    given = {**local_settings(LOCAL_MASTER), **EVERYWHERE, "spark.driver.memory": f"{heap_mb}m"}
    for name, value in {**given, "spark.local.dir": str(folder / "spark")}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    found: dict[str, float] = {}
    with worker_memory() as worker_mb:
        async with Engine.open(folder / "state") as engine:
            tables, place, log = partial(OnSpark, spark), place_of(engine), Folder(folder / "log")
            job = Job(tables, f"{HERE}:View", place, log, Folder(folder / "scratch"))
            for name, end in (("seconds", Position(count)), ("last_s", None)):
                began_s = time.monotonic()
                await catch_up(job, end)
                found[name] = time.monotonic() - began_s
            state_bytes = await size_of(place, count)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    found["heap_mb"] = jvm.java.lang.Runtime.getRuntime().maxMemory() / 1e6
    spark.stop()
    return found | {
        "state_mb": state_bytes / 1e6,
        "memory_mb": memory_mb(resource.RUSAGE_SELF),
        "worker_mb": worker_mb[0],
    }


async def size_of(place: Place, count: int) -> int:
    """Look at every state and every output; the bytes of the states."""
    found = await RegisterCell(place.store, f"{PIPELINE}counts", PipelineRegister, new_id=place.new_id).read()
    assert found is not None
    counts, parts = [0] * count, found.register.stands.parts
    for part in parts:
        for section in sections_of(await read_part(place, part), part):
            for key, raw in section.states.items():
                article, state = int(key.removeprefix("i")), msgspec.json.decode(bytes(raw), type=Seen)
                assert state.text == text_of(article), article
                counts[article] = state.count
    assert counts == [1 + (article < LAST) for article in range(count)]
    outputs = [each.value async for each in View(place).counts.read()]
    assert outputs == [1] * count + [2] * LAST
    return sum(part.size_bytes for part in parts)


@contextmanager
def worker_memory() -> Iterator[list[float]]:
    """The greatest resident set of a Python worker of Spark meanwhile, megabytes."""
    found, is_over = [0.0], threading.Event()

    def watch() -> None:
        while not is_over.wait(EVERY_S):
            for folder in Path("/proc").glob("[0-9]*"):
                with suppress(OSError):
                    if b"pyspark.daemon" in (folder / "cmdline").read_bytes():
                        pages = int((folder / "statm").read_text().split()[1])
                        found[0] = max(found[0], pages * resource.getpagesize() / 1e6)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def publish(state_mb: int, heap_mb: int, output: Path) -> str:
    """Measure, and write large-state.json and large-state.txt."""
    SCRATCH.mkdir(exist_ok=True)
    count = state_mb * 1_000_000 // TEXT_BYTES
    about = [
        f"{count:,} orders, each of an article of its own, whose state is {TEXT_BYTES:,} bytes of text; `local[2]`.",
        *report.circumstances(SCRATCH),
    ]
    with tempfile.TemporaryDirectory(prefix="large-state-", dir=SCRATCH) as folder:
        fill(Path(folder), count)
        command = [sys.executable, "-m", HERE, "--folder", folder, "--count", f"{count}", "--heap-mb", f"{heap_mb}"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=7_200, check=True)
    found = json.loads(done.stdout)
    head = ["states MB", "heap MB", "times", "all, s", f"{LAST} more, s", "driver's Python MB", "a worker MB"]
    line = [
        *(f"{found[name]:,.0f}" for name in ("state_mb", "heap_mb")),
        f"{found['state_mb'] / found['heap_mb']:.1f}",
        *(f"{found[name]:,.0f}" for name in ("seconds", "last_s", "memory_mb", "worker_mb")),
    ]
    return report.publish("large-state", [found], about, output, report.aligned([head, line]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {HERE}", description="Measure large states on Spark.")
    parser.add_argument("--state-mb", type=int, default=STATE_MB)
    parser.add_argument("--heap-mb", type=int, default=HEAP_MB)
    parser.add_argument("--output", type=Path, default=SCRATCH)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--count", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.folder:
        print(json.dumps(asyncio.run(run(options.folder, options.count, options.heap_mb))))
        return 0
    print(publish(options.state_mb, options.heap_mb, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
