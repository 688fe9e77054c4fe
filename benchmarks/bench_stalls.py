"""What holds the event loop while a pipeline runs: steps of its checkpoints, and collections of garbage.

    python -m benchmarks.bench_stalls [--minutes 10] [--output FOLDER]

W2 (`benchmarks.bench_pipeline`), 50 pages a second, with a checkpoint every second.  Each step of the event loop is
timed; one that is a checkpoint's, and each collection, is counted from 3 ms on, by the clock and by the CPU that the
thread has had meanwhile: on a shared machine the clock has pauses of others in it.  The first tenth does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.bench_pipeline import SCRATCH, id_of, paced, work
from examples.inverted_index.index import Indexing, Page
from outbox.engine.engine import Engine
from outbox_bench import report

LONG_MS = 3.0
MINUTES = 10.0
CHECKPOINTS, COLLECTIONS = "a checkpoint's step", "a collection"


@dataclass
class Stalls:
    """The clock and the CPU of each, milliseconds, by what it was."""

    found: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def rows(self) -> list[report.Row]:
        """Of each kind how many there were, the longest, and how many were long."""
        made: list[report.Row] = []
        for name in (CHECKPOINTS, COLLECTIONS):
            clock, cpu = zip(*(self.found[name] or [(0.0, 0.0)]), strict=True)
            figures = {f"max_{by}_ms": max(times) for by, times in (("clock", clock), ("cpu", cpu))}
            long = {f"long_{by}": sum(ms > LONG_MS for ms in times) for by, times in (("clock", clock), ("cpu", cpu))}
            made.append({"what": name, "count": len(self.found[name]), **figures, **long})
        return made


@contextmanager
def watched() -> Iterator[Stalls]:
    """Time the steps of the event loop and the collections meanwhile."""
    handles: Any = asyncio.Handle
    stalls, run, begun = Stalls(), handles._run, [(0.0, 0.0)]

    def now_ms() -> tuple[float, float]:
        return time.perf_counter() * 1e3, time.thread_time() * 1e3

    def note(name: str, begin: tuple[float, float]) -> None:
        clock, cpu = now_ms()
        stalls.found[name].append((clock - begin[0], cpu - begin[1]))

    def timed(handle: Any) -> None:
        task: Any = getattr(handle._callback, "__self__", None)
        name = getattr(getattr(task, "get_coro", lambda: None)(), "__qualname__", "")
        begin = now_ms()
        run(handle)
        if name.endswith("._checkpoints"):
            note(CHECKPOINTS, begin)

    def collected(phase: str, about: Any) -> None:
        if phase == "start":
            begun[0] = now_ms()
        else:
            note(COLLECTIONS, begun[0])

    handles._run = timed  # the one place where a loop runs a step
    gc.callbacks.append(collected)
    try:
        yield stalls
    finally:
        handles._run = run
        gc.callbacks.remove(collected)


async def measured(minutes: float, folder: Path) -> Stalls:
    """Run the pipeline for `minutes`, and return what held the event loop."""
    given = work(max(8, round(minutes * 60 * 50)), 50.0, 0, has_changes=False)
    async with Engine.open(folder) as engine:
        index = Indexing(engine)
        async with index.pipeline.run(engine, checkpoint_s=1.0) as running:
            order = asyncio.Lock()

            async def piped(page: Page) -> None:
                async with order:
                    entry = await index.pages.append(page, id=id_of(page))
                await running.until(entry.after())

            warm = len(given.pages) // 10
            await paced(replace(given, pages=given.pages[:warm], due_s=given.due_s[:warm]), piped)
            rest = replace(
                given, pages=given.pages[warm:], due_s=[due - given.due_s[warm] for due in given.due_s[warm:]]
            )
            with watched() as stalls:
                await paced(rest, piped)
    return stalls


def publish(minutes: float, output: Path) -> str:
    """Measure, and write stalls.json and stalls.txt."""
    SCRATCH.mkdir(exist_ok=True)
    about = [
        f"W2, 50 pages a second for {minutes:g} minutes, a checkpoint every second: what held the event loop.",
        *report.circumstances(SCRATCH),
    ]
    with tempfile.TemporaryDirectory(prefix="stalls-", dir=SCRATCH) as folder:
        rows = asyncio.run(measured(minutes, Path(folder))).rows()
    head = ["", "count", "longest ms", "CPU ms", f"over {LONG_MS:g} ms", "of CPU"]
    lines = [
        [
            *(row["what"], f"{row['count']:,}", f"{row['max_clock_ms']:.1f}", f"{row['max_cpu_ms']:.1f}"),
            *(f"{row['long_clock']}", f"{row['long_cpu']}"),
        ]
        for row in rows
    ]
    return report.publish("stalls", rows, about, output, report.aligned([head, *lines]))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_stalls", description="Measure what holds a loop.")
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--output", type=Path, default=SCRATCH)
    options = parser.parse_args(arguments)
    print(publish(options.minutes, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
