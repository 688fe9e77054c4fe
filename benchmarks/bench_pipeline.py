"""A pipeline on a durable engine: from the beginning of a page's append until all its changes are durable.

    python -m benchmarks.bench_pipeline [--repeats 5] [--seconds 20] [--rate 50] [--only MODE ...] [--output FOLDER]

W2: pages come at random, so many a second on average, each with 200 distinct words that are drawn by Zipf's law, as the
next version of one of 500 pages; the inverted index of `examples` makes the changes.  A repeat runs each of these for
so many seconds, one after the other, on the same pages at the same times:

- floor: the page is appended, and then its changes, which were made before; no work between
- none: the page is appended, its changes are made and appended; without barrier and checkpoint
- in_order: the pipeline, with a checkpoint every 50, 100, 500, 1,000 and 2,000 ms
- by_epoch: the pipeline, whose outputs wait for a checkpoint, every 500, 1,000 and 2,000 ms
- sqlite: tables of places and changes, written by hand, a page a transaction
- handlers: two handlers, to which each word is a message

The first quarter of the pages does not count.  Ratios are of the two in one repeat.  `full` is the rate without pauses:
pages a second, and the CPU of one.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.arrivals import arrivals
from benchmarks.pipeline_peers import by_handlers, by_sqlite
from examples.inverted_index.index import Content, Indexing, Page, Postings, update, words
from outbox.engine.engine import Engine
from outbox.streams import release
from outbox.streams.pipeline.operators import Emitted
from outbox_bench import report

SCRATCH = Path(__file__).resolve().parents[1] / "build"
WORDS, WORDS_A_PAGE, PAGES = 20_000, 200, 500
INTERVALS_MS, EPOCHS_MS = (50, 100, 500, 1_000, 2_000), (500, 1_000, 2_000)
FLOOR, NONE, SQLITE, HANDLERS, FULL = "floor", "none", "sqlite", "handlers", ", full"
PACED = (
    *(FLOOR, NONE, *(f"in_order {interval}" for interval in INTERVALS_MS)),
    *(f"by_epoch {interval}" for interval in EPOCHS_MS),
    *(SQLITE, HANDLERS),
)
MODES = (*PACED, *(f"{mode}{FULL}" for mode in (FLOOR, NONE, "in_order 1000", SQLITE)))
SHARES = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1 - 1e-9}
SECONDS = 20.0
WAIT_S_MAX = 120.0

Handle = Callable[[Page], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Work:
    """Pages, when each comes, in seconds from the beginning, and the changes that each makes."""

    pages: Sequence[Page]
    due_s: Sequence[float]
    made: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Figures:
    """The latencies of the pages that count, the CPU of one, and how many there were a second."""

    latency_ms: Sequence[float]
    cpu_us: float
    rate: float

    def at_ms(self, share: float) -> float:
        """The latency at a share of the pages: 0.5 is the median."""
        return sorted(self.latency_ms)[int(len(self.latency_ms) * share)]


def work(count: int, rate: float, seed: int, *, has_changes: bool = True) -> Work:
    """The pages of one repeat."""
    random = Random(seed)
    vocabulary = [f"word{number}" for number in range(WORDS)]
    weights = list(accumulate(1 / (rank + 1) for rank in range(WORDS)))
    versions, pages, due_s, now_s = [0] * PAGES, [], [], 0.0
    for _ in range(count):
        found: dict[str, None] = {}
        while len(found) < WORDS_A_PAGE:
            found.update(dict.fromkeys(random.choices(vocabulary, cum_weights=weights, k=WORDS_A_PAGE - len(found))))
        number = random.randrange(PAGES)
        versions[number] += 1
        pages.append(Page(number, versions[number], f"{number}", " ".join(found)))
        now_s += random.expovariate(rate)
        due_s.append(now_s)
    operators = Operators()
    return Work(pages, due_s, {id_of(page): operators.changes(page) for page in pages if has_changes})


class Operators:
    """What the pipeline's operators make of pages, called one after the other."""

    def __init__(self) -> None:
        self._contents: dict[int, Content] = {}
        self._postings: dict[str, Postings] = {}

    def changes(self, page: Page) -> list[Any]:
        made: Emitted[Any] = Emitted()
        changes: Emitted[Any] = Emitted()
        words(self._contents.setdefault(page.number, Content()), page, made)
        for word in made:
            update(self._postings.setdefault(word.text, Postings()), word, changes)
        return [*changes]


async def paced(given: Work, handle: Handle) -> Figures:
    """Handle each page from when it comes, one after the other, and take the times until it is done."""
    latency_ms = [0.0] * len(given.pages)
    skipped = len(given.pages) // 4
    gc.collect()
    gc.freeze()  # the pages and the changes of all modes, which no user's process has
    first_s, cpu_s, number = 0.0, 0.0, 0

    async def one(number: int, came_s: float) -> None:
        await handle(given.pages[number])
        latency_ms[number] = (time.perf_counter() - came_s) * 1_000

    until_s = given.due_s[-1] + WAIT_S_MAX
    async with asyncio.timeout(until_s), arrivals(given.due_s) as times, asyncio.TaskGroup() as group:
        async for came_s in times:
            if number == 0:
                first_s = came_s
            if number == skipped:
                cpu_s = time.process_time()
            group.create_task(one(number, came_s))
            number += 1
    count, took_s = len(given.pages) - skipped, time.perf_counter() - first_s
    return Figures(latency_ms[skipped:], (time.process_time() - cpu_s) / count * 1e6, len(given.pages) / took_s)


async def measured(mode: str, given: Work, folder: Path) -> Figures:
    """One mode on a folder of its own."""
    if mode.endswith(FULL):
        return await measured(mode.removesuffix(FULL), replace(given, due_s=[0.0] * len(given.pages)), folder)
    order = asyncio.Lock()
    """As a pipeline does it: the changes of one page behind those of the one before."""
    async with AsyncExitStack() as stack:
        if mode in (SQLITE, HANDLERS):
            make = by_sqlite if mode == SQLITE else by_handlers
            peer = await stack.enter_async_context(make(folder, [*chain(*given.made.values())]))

            async def by_peer(page: Page) -> None:
                async with order:
                    await peer(page)

            return await paced(given, by_peer)
        engine = await stack.enter_async_context(Engine.open(folder))
        index = Indexing(engine)
        if mode in (FLOOR, NONE):
            operators = Operators()

            async def by_hand(page: Page) -> None:
                async with order:
                    await index.pages.append(page, id=id_of(page))
                    changes = given.made[id_of(page)] if mode == FLOOR else operators.changes(page)
                    await index.changes.extend(changes, id=id_of(page))

            found = await paced(given, by_hand)
        else:
            name, interval_ms = mode.split()
            chosen, checkpoint_s = getattr(release, name)(), int(interval_ms) / 1_000
            run = index.pipeline.run(engine, release=chosen, checkpoint_s=checkpoint_s)
            running = await stack.enter_async_context(run)

            async def piped(page: Page) -> None:
                async with order:
                    entry = await index.pages.append(page, id=id_of(page))
                await running.until(entry.after())

            found = await paced(given, piped)
        await check(index, given)
        return found


async def check(index: Indexing, given: Work) -> None:
    """Check that each change is there once, in its order."""
    changes = [entry.value async for entry in index.changes.read()]
    expected = [change for page in given.pages for change in given.made[id_of(page)]]
    assert changes == expected, f"{len(changes)} changes, not the {len(expected)} of these pages"


def id_of(page: Page) -> str:
    return f"{page.number}.{page.version}"


def rows(found: Sequence[dict[str, Figures]]) -> list[report.Row]:
    """A row for each mode: medians over the repeats with their spread, and ratios within a repeat."""
    made: list[report.Row] = []
    for mode in found[0]:
        each = [one[mode] for one in found]
        figures: dict[str, list[float]] = {"cpu_us": [one.cpu_us for one in each], "rate": [one.rate for one in each]}
        if not mode.endswith(FULL):
            for name, share in SHARES.items():
                figures[name] = [one.at_ms(share) for one in each]
            for than in (FLOOR, NONE):
                of = [(one[mode], one[than]) for one in found]
                figures[f"p50_than_{than}_ms"] = [one.at_ms(0.5) - other.at_ms(0.5) for one, other in of]
                figures[f"p99_than_{than}_ms"] = [one.at_ms(0.99) - other.at_ms(0.99) for one, other in of]
        made.append({"mode": mode, **{name: report.spread(values) for name, values in figures.items()}})
    return made


def table(found: Sequence[report.Row]) -> str:
    """A line for each mode."""
    columns = {"p50_ms": 2, "p95_ms": 2, "p99_ms": 2, "max_ms": 1, "p50_than_floor_ms": 2, "p50_than_none_ms": 2}
    columns |= {"p99_than_none_ms": 2, "cpu_us": 0, "rate": 0}
    heads = ("", "p50 ms", "p95 ms", "p99 ms", "max ms", "p50 - floor", "p50 - none", "p99 - none", "CPU us", "pages/s")
    lines = [
        [row["mode"], *(report.cell(row[name], digits) if name in row else "" for name, digits in columns.items())]
        for row in found
    ]
    return report.aligned([[*heads], *lines])


async def repeated(repeats: int, seconds: float, rate: float, modes: Sequence[str] = MODES) -> list[dict[str, Figures]]:
    """Each mode in each repeat."""
    SCRATCH.mkdir(exist_ok=True)
    found = []
    for repeat in range(repeats):
        given = work(max(8, round(seconds * rate)), rate, repeat)
        with tempfile.TemporaryDirectory(prefix="pipeline-", dir=SCRATCH) as folder:
            found.append({mode: await measured(mode, given, Path(folder) / mode.replace(" ", "-")) for mode in modes})
        print(f"{repeat + 1}/{repeats}", file=sys.stderr, flush=True)
    return found


def publish(repeats: int, seconds: float, output: Path, *, rate: float = 50.0, modes: Sequence[str] = MODES) -> str:
    """Measure, and write pipeline.json and pipeline.txt."""
    SCRATCH.mkdir(exist_ok=True)
    about = [
        f"W2: {rate:g} pages a second of {WORDS_A_PAGE} distinct words, {seconds:g} s a mode; from the beginning of a",
        "page's append until all its changes are durable.  Behind a release is its checkpoints' interval, ms.",
        "Differences, ms, are of the two in one repeat; full: without pauses; CPU of a page.",
        f"Median of {repeats} repeats [least..greatest], all modes in turn in each.",
        *report.circumstances(SCRATCH),
    ]
    found = rows(asyncio.run(repeated(repeats, seconds, rate, modes)))
    return report.publish("pipeline", found, about, output, table(found))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_pipeline", description="Measure a pipeline.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long each mode runs ({SECONDS:g})")
    parser.add_argument("--rate", type=float, default=50.0, help="pages a second (50)")
    parser.add_argument("--only", nargs="*", default=MODES, metavar="MODE", help="floor and none are among them")
    parser.add_argument("--output", type=Path, default=SCRATCH)
    options = parser.parse_args(arguments)
    modes = [*dict.fromkeys((FLOOR, NONE, *options.only))]
    print(publish(options.repeats, options.seconds, options.output, rate=options.rate, modes=modes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
