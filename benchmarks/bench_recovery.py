"""What a kill -9 costs a pipeline: the gap in its outputs, beside replicas that nobody disturbs.

    python -m benchmarks.bench_recovery [--kills 10] [--state-s 60] [--output FOLDER]

Two replicas, each a process, run the inverted index over Blob Storage (the emulator, a process too); pages come 10 a
second, and a reader follows the changes.  For so many kills every three seconds, then as long without: each page's time
from its append to the last of its changes, in the second before and the two behind a kill, beside all without.  Whoever
was killed is replaced a second later.

One process on a folder, which takes 50 pages a second for `--state-s` seconds, is killed and started again: how long
its engine takes to open the folder, and how long from there to the first output that is new.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.bench_pipeline import PAGES, work
from examples.inverted_index.index import Indexing
from outbox import azure
from outbox.engine.engine import Engine
from outbox_bench import report

ROOT = Path(__file__).resolve().parents[1]
SCRATCH, PUBLISHED = ROOT / "build", ROOT / "docs" / "benchmarks"
RATE, FOLDER_RATE, KILL_EVERY_S, REPLACED_S = 10.0, 50.0, 3.0, 1.0
WITHIN_S = 120.0
BEFORE_S, BEHIND_S = 1.0, 2.0
POLL_S = 0.005
KILLS, STATE_S = 10, 60.0
HERE = "benchmarks.bench_recovery"


# Processes


async def replica(connection: str) -> None:
    """Run a replica over Blob Storage until the process ends."""
    async with azure.blob_states(connection) as states:
        index = Indexing(states, poll_s_max=POLL_S)
        async with index.pipeline.run(states) as running:
            print("runs", flush=True)
            await asyncio.wait(running.tasks)


async def alone(folder: str, begin: int, count: int) -> None:
    """Run a pipeline on a folder, and feed it; say when the folder was open, and when a page of its own had left."""
    given = work(begin + count, FOLDER_RATE, 0)
    began_s = time.monotonic()
    async with Engine.open(Path(folder)) as engine:
        open_s = time.monotonic() - began_s
        index = Indexing(engine)
        async with index.pipeline.run(engine) as running:
            for number in range(begin, begin + count):
                entry = await index.pages.append(given.pages[number], id=f"{number}")
                if number == begin:
                    await running.until(entry.after())
                    print(json.dumps({"open_s": open_s, "left_s": time.monotonic() - began_s}), flush=True)
                await asyncio.sleep(max(0.0, began_s + (number - begin) / FOLDER_RATE - time.monotonic()))
            await running.until(entry.after())
            print("fed", flush=True)
            await asyncio.wait(running.tasks)


def started(stack: AsyncExitStack, *arguments: str) -> subprocess.Popen[str]:
    """A process of a module, which ends with the stack."""
    command = [sys.executable, "-m", *arguments]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(killed, process)
    return process


def killed(process: subprocess.Popen[str]) -> None:
    """Kill a process with SIGKILL."""
    process.kill()
    process.communicate(timeout=WITHIN_S)


async def line_of(process: subprocess.Popen[str]) -> str:
    """The next line that a process says."""
    assert process.stdout is not None
    line = await asyncio.wait_for(asyncio.to_thread(process.stdout.readline), WITHIN_S)
    assert line, "the process has ended"
    return line


# Two replicas


async def two_replicas(kills: int, seed: int = 0) -> dict[str, Any]:
    """The pages' times around kills, and of as many seconds without."""
    half_s = (kills + 1) * KILL_EVERY_S
    given = work(round(2 * half_s * RATE), RATE, seed)
    async with AsyncExitStack() as stack:
        place = started(stack, "benchmarks.blobs_place")
        connection = json.loads(await line_of(place))["blobs"]
        states = await stack.enter_async_context(azure.blob_states(connection, create=True))
        index = Indexing(states, poll_s_max=POLL_S)
        replicas = [started(stack, HERE, "--replica", connection) for _ in range(2)]
        for process in replicas:
            await line_of(process)
        began_s, killed_s = time.monotonic(), list[float]()
        begun: list[float] = []

        async def feed() -> None:
            for number, (page, due_s) in enumerate(zip(given.pages, given.due_s, strict=True)):
                await asyncio.sleep(max(0.0, began_s + due_s - time.monotonic()))
                begun.append(time.monotonic() - began_s)
                await index.pages.append(page, id=f"{number}")

        async def disturb() -> None:
            draw = Random(seed)
            for number in range(kills):
                await asyncio.sleep(max(0.0, began_s + (number + 1) * KILL_EVERY_S - time.monotonic()))
                killed_s.append(time.monotonic() - began_s)
                victim = draw.randrange(2)
                await asyncio.to_thread(killed, replicas[victim])
                await asyncio.sleep(REPLACED_S)
                replicas[victim] = started(stack, HERE, "--replica", connection)
                await line_of(replicas[victim])

        tasks = [asyncio.create_task(feed()), asyncio.create_task(disturb())]
        counts = [len(given.made[f"{page.number}.{page.version}"]) for page in given.pages]
        left_s = await followed(index, counts, lambda: time.monotonic() - began_s)
        for task in tasks:
            await task
    return judged([(at, left - at) for at, left in zip(begun, left_s, strict=True)], killed_s, half_s)


async def followed(index: Indexing, counts: Sequence[int], now_s: Callable[[], float]) -> list[float]:
    """When the last change of each page was there."""
    left_s, seen, expected = list[float](), 0, counts[0]
    async with asyncio.timeout(WITHIN_S + 600):
        async for _ in index.changes.read(wait=True):
            seen += 1
            if seen == expected:
                left_s.append(now_s())
                if len(left_s) == len(counts):
                    return left_s
                expected += counts[len(left_s)]
    raise AssertionError("the log ended")


def by_second(pages: Sequence[tuple[float, float]], killed_s: Sequence[float]) -> list[report.Row]:
    """The times of each second's pages, milliseconds, and how many kills it had."""
    found = []
    for second in range(math.ceil(max(at for at, _ in pages))):
        times = sorted(took * 1_000 for at, took in pages if int(at) == second)
        if times:
            figures = {"p50_ms": times[len(times) // 2], "max_ms": times[-1]}
            found.append({"second": second, "kills": sum(int(at) == second for at in killed_s), **figures})
    return found


def judged(pages: Sequence[tuple[float, float]], killed_s: Sequence[float], half_s: float) -> dict[str, Any]:
    """Percentiles around the kills, and of the half without, in milliseconds."""
    near = [took for at, took in pages if any(-BEFORE_S <= at - kill <= BEHIND_S for kill in killed_s)]
    apart = [took for at, took in pages if at >= half_s + BEHIND_S]
    figures: dict[str, Any] = {"kills": len(killed_s)}
    for name, times in (("around kills", near), ("undisturbed", apart)):
        times = sorted(times)
        at = {f"p{share}_ms": times[len(times) * share // 100] * 1_000 for share in (50, 99)}
        figures[name] = {"pages": len(times), **at, "max_ms": times[-1] * 1_000}
    figures["seconds"] = by_second(pages, killed_s)
    figures["p99_ratio"] = figures["around kills"]["p99_ms"] / figures["undisturbed"]["p99_ms"]
    return figures


# One process


async def one_process(state_s: float) -> dict[str, float]:
    """How long the engine took to open, and from there to the first new output, seconds."""
    count = round(state_s * FOLDER_RATE)
    SCRATCH.mkdir(exist_ok=True)
    async with AsyncExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="recovery-", dir=SCRATCH))
        first = started(stack, HERE, "--alone", folder, "0", str(count))
        await line_of(first)
        async with asyncio.timeout(state_s + WITHIN_S):
            while await line_of(first) != "fed\n":
                pass
        killed(first)
        again = started(stack, HERE, "--alone", folder, str(count), "1")
        found: dict[str, float] = json.loads(await line_of(again))
    return {"state_s": state_s, "open_s": found["open_s"], "behind_open_s": found["left_s"] - found["open_s"]}


def text_of(two: dict[str, Any], one: dict[str, float]) -> str:
    """What was measured, as a table."""
    lines = [["", "pages", "p50 ms", "p99 ms", "max ms"]]
    for name in ("around kills", "undisturbed"):
        row = two[name]
        lines.append([name, str(row["pages"]), *(f"{row[key]:.1f}" for key in ("p50_ms", "p99_ms", "max_ms"))])
    alone_text = f"{one['behind_open_s']:.2f} s behind the engine's own opening ({one['open_s']:.2f} s)"
    return "\n".join(
        [
            report.aligned(lines),
            "",
            f"p99 around {two['kills']} kills over p99 undisturbed: {two['p99_ratio']:.2f}",
            f"One process with {one['state_s']:g} s of pages, killed: the first new output {alone_text}.",
        ]
    )


def publish(kills: int, state_s: float, output: Path) -> str:
    """Measure, and write recovery.json and recovery.txt."""
    SCRATCH.mkdir(exist_ok=True)
    about = [
        f"Two replicas over the Blob Storage emulator, {RATE:g} pages a second of the inverted index, {PAGES} pages",
        f"again and again; those from {BEFORE_S:g} s before to {BEHIND_S:g} s behind a kill -9, beside those without.",
        *report.circumstances(SCRATCH),
    ]
    two, one = asyncio.run(two_replicas(kills)), asyncio.run(one_process(state_s))
    rows = [two, one, *two.pop("seconds")]
    return report.publish("recovery", rows, about, output, text_of(two, one))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_recovery", description="Measure recovery.")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--state-s", type=float, default=STATE_S, help="seconds of pages on a folder (60)")
    parser.add_argument("--output", type=Path, default=PUBLISHED)
    parser.add_argument("--replica", metavar="CONNECTION", help=argparse.SUPPRESS)
    parser.add_argument("--alone", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.replica or options.alone:
        with suppress(KeyboardInterrupt):
            folder, begin, count = options.alone or ("", "0", "0")
            asyncio.run(replica(options.replica) if options.replica else alone(folder, int(begin), int(count)))
        return 0
    print(publish(options.kills, options.state_s, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
