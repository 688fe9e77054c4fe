"""A pipeline on a durable engine: from the beginning of a page's append until all its changes are durable.

    python -m benchmarks.bench_pipeline [--repeats 3] [--seconds 20] [--rate 50] [--by-epoch 1000]

W2: pages come at random, so many a second on average, each with 200 distinct words that are drawn by Zipf's law, as the
next version of one of 500 pages; the inverted index of `examples` makes the changes.  A repeat runs each of these for
so many seconds, one after the other, on the same pages at the same times:

- floor: the page is appended, and then its changes, which were made before; no work between
- none: the page is appended, its changes are made and appended; without barrier and checkpoint
- in_order: the pipeline, with a checkpoint every 50, 500 and 2,000 ms
- by_epoch: the pipeline, whose outputs wait for a checkpoint, every 1,000 ms or as `--by-epoch` says

The first quarter of the pages does not count.  Ratios are of the two in one repeat.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Any

from examples.inverted_index.index import Content, Indexing, Page, Postings, update, words
from outbox.engine.engine import Engine
from outbox.streams import release
from outbox.streams.pipeline.operators import Emitted
from outbox_bench import report

SCRATCH = Path(__file__).resolve().parents[1] / "build"
WORDS, WORDS_A_PAGE, PAGES = 20_000, 200, 500
INTERVALS_MS = (50, 500, 2_000)
FLOOR, NONE = "floor", "none"
MODES = (FLOOR, NONE, *(f"in_order {interval}" for interval in INTERVALS_MS), "by_epoch 1000")
WAIT_S_MAX = 60.0

Handle = Callable[[Page], Coroutine[Any, Any, None]]


@dataclass(frozen=True)
class Work:
    """Pages, when each comes, in seconds from the beginning, and the changes that each makes."""

    pages: Sequence[Page]
    due_s: Sequence[float]
    made: Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Figures:
    """The latencies of the pages that count, and the CPU of one."""

    latency_ms: Sequence[float]
    cpu_us: float

    @property
    def p50_ms(self) -> float:
        return statistics.median(self.latency_ms)

    @property
    def p99_ms(self) -> float:
        return sorted(self.latency_ms)[int(len(self.latency_ms) * 0.99)]


def work(count: int, rate: float, seed: int) -> Work:
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
    return Work(pages, due_s, {id_of(page): operators.changes(page) for page in pages})


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
    """Handle each page from when it is due, one after the other, and take the times until it is done."""
    latency_ms = [0.0] * len(given.pages)
    skipped = len(given.pages) // 4
    began_s, cpu_s = time.perf_counter(), 0.0

    async def one(number: int, page: Page, due_s: float) -> None:
        await handle(page)
        latency_ms[number] = (time.perf_counter() - began_s - due_s) * 1_000

    async with asyncio.timeout(given.due_s[-1] + WAIT_S_MAX), asyncio.TaskGroup() as group:
        for number, (page, due_s) in enumerate(zip(given.pages, given.due_s, strict=True)):
            await asyncio.sleep(max(0.0, due_s - (time.perf_counter() - began_s)))
            if number == skipped:
                cpu_s = time.process_time()
            group.create_task(one(number, page, due_s))
    count = len(given.pages) - skipped
    return Figures(latency_ms[skipped:], (time.process_time() - cpu_s) / count * 1e6)


async def measured(mode: str, given: Work, folder: Path) -> Figures:
    """One mode on a folder of its own."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(Engine.open(folder))
        index, order = Indexing(engine), asyncio.Lock()
        if mode in (FLOOR, NONE):
            operators = Operators()

            async def by_hand(page: Page) -> None:
                async with order:  # as a pipeline does it: the changes of one page behind those of the one before
                    await index.pages.append(page, id=id_of(page))
                    changes = given.made[id_of(page)] if mode == FLOOR else operators.changes(page)
                    await index.changes.extend(changes, id=id_of(page))

            found = await paced(given, by_hand)
            await check(index, given)
            return found
        name, interval_ms = mode.split()
        chosen = getattr(release, name)()
        running = await stack.enter_async_context(
            index.pipeline.run(engine, release=chosen, checkpoint_s=int(interval_ms) / 1_000)
        )

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


def table(found: Sequence[dict[str, Figures]]) -> str:
    """A line for each mode: medians over the repeats, and ratios to the floor and to none."""
    lines = [["", "p50 ms", "p99 ms", "CPU a page, µs", "p50 / floor", "p50 / none", "p99 / none"]]
    for mode in found[0]:
        spreads = [
            ([one[mode].p50_ms for one in found], 2),
            ([one[mode].p99_ms for one in found], 2),
            ([one[mode].cpu_us for one in found], 0),
            ([one[mode].p50_ms / one[FLOOR].p50_ms for one in found], 2),
            ([one[mode].p50_ms / one[NONE].p50_ms for one in found], 2),
            ([one[mode].p99_ms / one[NONE].p99_ms for one in found], 2),
        ]
        lines.append([mode, *(report.cell(report.spread(values), digits) for values, digits in spreads)])
    return report.aligned(lines)


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


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_pipeline", description="Measure a pipeline.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each mode runs (20)")
    parser.add_argument("--rate", type=float, default=50.0, help="pages a second (50)")
    parser.add_argument("--by-epoch", type=int, nargs="+", default=[1_000], help="intervals of by_epoch, ms (1000)")
    options = parser.parse_args(arguments)
    modes = [*MODES[:-1], *(f"by_epoch {interval}" for interval in options.by_epoch)]
    SCRATCH.mkdir(exist_ok=True)
    circumstances = report.circumstances(SCRATCH)
    found = asyncio.run(repeated(options.repeats, options.seconds, options.rate, modes))
    about = (
        f"W2: {options.rate:g} pages/s of {WORDS_A_PAGE} words; median of {options.repeats} repeats [least..greatest]."
    )
    print("\n".join([about, *circumstances, "", table(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
