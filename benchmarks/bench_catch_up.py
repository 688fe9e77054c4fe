"""A pipeline's history on Spark beside the local runner: entries a second, the fixed cost, and memory.

    python -m benchmarks.bench_catch_up [--entries 1000000] [--keys 50000] [--output FOLDER]

Orders of so many articles are summed by article, each with an output.  `local` runs the pipeline on an engine's folder
that has the orders; `spark` takes the same orders from an export, in `local[2]`, in one session: an epoch of 100 orders
first, which is the fixed cost, then the rest as one epoch.  Then twice 500 more in the warm session beside an empty job
of Spark: once on Spark as well, and once as it is by default, in the driver.  Memory is the greatest resident set of
this process and, for Spark, of its children.
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
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from outbox.engine.engine import Engine
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.streams.export import export
from outbox.streams import Emit, OrderedLog, Pipeline, Position
from outbox.streams.log_places import place_of
from outbox_bench import report

SCRATCH = Path(__file__).resolve().parents[1] / "build"
HERE = "benchmarks.bench_catch_up"
ENTRIES, KEYS = 1_000_000, 50_000
FIRST, LAST, A_CELL = 100, 500, 500
"""The orders of the first and of the last epoch, and of an append."""


@dataclass
class Order:
    article: int
    cents: int


@dataclass
class Total:
    cents: int = 0


def article_of(order: Order) -> int:
    return order.article


def total(so_far: Total, order: Order, emit: Emit[int]) -> None:
    so_far.cents += order.cents
    emit(so_far.cents)


class View:
    """The logs, and the pipeline between them."""

    def __init__(self, place: Any) -> None:
        self.orders = OrderedLog("orders", place, type=Order)
        self.totals = OrderedLog("totals", place, type=int)
        self.pipeline = Pipeline("totals", source=self.orders)
        made = self.pipeline.reduce(source=self.orders, key=article_of, state=Total, emits=int)(total)
        self.pipeline.sink(made, self.totals)


def orders(keys: int) -> Iterator[Order]:
    """Orders without end, the same each time."""
    draw = Random(1)
    while True:
        yield Order(draw.randrange(keys), draw.randrange(10_000))


async def fill(folder: Path, count: int, keys: int) -> None:
    """Write orders to an engine's folder, and export them in four files: the first, the rest, and twice the last."""
    from spark_jobs.common.places import Folder
    from spark_jobs.exporting.files import Files

    drawn, log = orders(keys), Folder(folder / "log")
    async with Engine.open(folder / "live") as engine:
        view = View(engine)
        number = 0
        for part in (FIRST, count - FIRST, LAST, LAST):
            while part > 0:
                size = min(part, A_CELL)
                await view.orders.extend([*islice(drawn, size)], id=f"{number}")
                number, part = number + 1, part - size
            await export(EngineAdmin(engine), partial(Files, log), "orders", "")


async def run_local(folder: Path) -> dict[str, float]:
    """The pipeline on the folder that has the orders."""
    async with Engine.open(folder / "live") as engine:
        view, began_s = View(engine), time.monotonic()
        async with view.pipeline.run(engine) as running:
            await running.until(await view.orders.end())
            took_s = time.monotonic() - began_s
    return {"seconds": took_s, "memory_mb": memory_mb(resource.RUSAGE_SELF)}


async def run_spark(folder: Path, until: Position) -> dict[str, float]:
    """The same by epochs on Spark, and an empty job."""
    from spark_jobs.common import java
    from spark_jobs.common.places import Folder
    from spark_jobs.pipeline import Job, catch_up
    from spark_jobs.replaying.on_spark import OnSpark
    from spark_jobs.session import session

    began_s = time.monotonic()
    java.prepare(os.environ)
    spark = session("bench")
    session_s = time.monotonic() - began_s
    found = {"session_s": session_s}
    async with Engine.open(folder / "state") as engine:
        tables = partial(OnSpark, spark)
        job = Job(tables, f"{HERE}:View", place_of(engine), Folder(folder / "log"), Folder(folder / "scratch"))
        on_spark = replace(job, driver_entries=0)
        epochs = (
            *(("first_s", on_spark, Position(1)), ("seconds", on_spark, until)),
            *(("last_on_spark_s", on_spark, Position(until.index + 1)), ("last_s", job, None)),
        )
        for name, one, end in epochs:
            began_s = time.monotonic()
            await catch_up(one, end)
            found[name] = time.monotonic() - began_s
    floor_s = []
    for _ in range(5):
        began_s = time.monotonic()
        spark.range(0, 2, 1, 2).mapInArrow(nothing, "id bigint").collect()
        floor_s.append(time.monotonic() - began_s)
    found["floor_s"] = sorted(floor_s)[2]
    found["memory_mb"] = memory_mb(resource.RUSAGE_SELF)
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    found["jvm_mb"] = jvm.java.lang.Runtime.getRuntime().totalMemory() / 1e6
    spark.stop()
    return found


def nothing(batches: Any) -> Any:
    """A task that hands on what it gets."""
    return batches


def memory_mb(of: int) -> float:
    """The greatest resident set, megabytes."""
    return resource.getrusage(of).ru_maxrss / 1024


def publish(entries: int, keys: int, output: Path) -> str:
    """Measure, and write catch-up.json and catch-up.txt."""
    SCRATCH.mkdir(exist_ok=True)
    about = [
        f"{entries:,} orders of {keys:,} articles, {A_CELL} an append, summed by article, an output each.",
        *report.circumstances(SCRATCH),
    ]
    with tempfile.TemporaryDirectory(prefix="catch-up-", dir=SCRATCH) as folder:
        asyncio.run(fill(Path(folder), entries, keys))
        rows: list[report.Row] = []
        for mode in ("local", "spark"):
            command = [sys.executable, "-m", HERE, "--mode", mode, "--folder", folder, "--entries", str(entries)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=3_600, check=True)
            rows.append({"mode": mode, **json.loads(done.stdout)})
    return report.publish("catch-up", rows, about, output, table(entries, rows))


def table(entries: int, rows: list[report.Row]) -> str:
    """What was measured."""
    local, spark = rows
    head = ("", "entries/s", "seconds", "session s", f"first {FIRST}, s", "memory MB", "JVM heap MB")
    lines = [
        (
            "local",
            f"{entries / local['seconds']:,.0f}",
            f"{local['seconds']:.1f}",
            "",
            "",
            f"{local['memory_mb']:.0f}",
            "",
        ),
        (
            *("spark", f"{entries / spark['seconds']:,.0f}", f"{spark['seconds']:.1f}", f"{spark['session_s']:.1f}"),
            *(f"{spark['first_s']:.1f}", f"{spark['memory_mb']:.0f}", f"{spark['jvm_mb']:.0f}"),
        ),
    ]
    floor_s, in_driver_s, on_spark_s = (spark[name] for name in ("floor_s", "last_s", "last_on_spark_s"))
    return (
        report.aligned([[*head], *([*line] for line in lines)])
        + f"\n\n{LAST} more in the warm session: {in_driver_s:.2f} s in the driver, {on_spark_s:.2f} s on Spark; "
        f"an empty job takes {floor_s:.2f} s: {in_driver_s / floor_s:.1f}x and {on_spark_s / floor_s:.1f}x"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m {HERE}", description="Measure a pipeline's history on Spark.")
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--keys", type=int, default=KEYS)
    parser.add_argument("--output", type=Path, default=SCRATCH)
    parser.add_argument("--mode", choices=("local", "spark"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.mode:
        until = Position(1 + -(-(options.entries - FIRST) // A_CELL))
        run = run_local(options.folder) if options.mode == "local" else run_spark(options.folder, until)
        print(json.dumps(asyncio.run(run)))
        return 0
    print(publish(options.entries, options.keys, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
