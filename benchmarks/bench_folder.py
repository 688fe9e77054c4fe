"""A large folder: what opening it takes, and how long a compaction beside its host holds the event loop.

    python -m benchmarks.bench_folder [--repeats 3] [--counts 300000 1000000] [--output FOLDER]

The folder holds that many waiting messages in a snapshot, and little behind it.  Each repeat is a process of its own
for each of

- *decode*, the floor: the snapshot's bytes are read and decoded once, and what they hold is kept
- *open*: CPU until `Engine.open` is back, its greatest memory, and the memory once all is open
- *compact*: the longest that a task which sleeps for a millisecond waited on the loop of a host that takes messages,
  while the host compacts, and then for as long at rest

A ratio is of the two in one repeat.  What a hold took of the loop's own CPU tells it from a disk or a processor that
others use.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from outbox.engine.engine import Engine
from outbox.engine.entities import QueueSettings
from outbox.engine.limits import EngineLimits
from outbox.engine.log import snapshot
from outbox.engine.log.disk import FolderDisk
from outbox.engine.log.segments import snapshot_name, snapshot_ordinals
from outbox.engine.log.slices import bodies
from outbox.message import Message
from outbox_bench import report

COUNTS = (300_000, 1_000_000)
LIMITS = EngineLimits(memory_bytes_max=16 << 30)
SCRATCH = Path(__file__).resolve().parents[1] / "build"
REST_S_MAX = 30.0
BATCH = 64

Row = dict[str, Any]
Figures = dict[str, float]


def fill(folder: Path, count: int) -> None:
    """Put messages into a folder, and all of them into a snapshot."""
    engine = Engine.open(folder, sync="never", limits=LIMITS)
    engine.declare(QueueSettings("q"))
    for begin in range(0, count, BATCH):
        engine.broker.send("q", [_message(number) for number in range(begin, min(begin + BATCH, count))])
        engine.core.write()
    engine.compact()
    engine.close()


def _message(number: int) -> Message:
    body = b'{"amount": 100, "account": "%08d"}' % number
    return Message(body=body, outbox_id=f"m{number:09d}", session_id=f"k{number % 1_000}")


def decode(folder: Path) -> Figures:
    """Read and decode the snapshot once, and keep what it holds."""
    began_s = time.process_time()
    disk = FolderDisk(folder, create=False)
    name = snapshot_name(snapshot_ordinals(disk.names())[-1])
    images = [snapshot._decoder.decode(body) for body in bodies(disk.pieces(name))]
    cpu_s = time.process_time() - began_s
    return {"cpu_s": cpu_s, "images": len(images)}


def open_once(folder: Path) -> Figures:
    """Open the folder and let it go."""
    began_s = time.process_time()
    engine = Engine.open(folder, limits=LIMITS)
    cpu_s = time.process_time() - began_s
    peak_mb, live_mb = _memory_mb("VmHWM"), _memory_mb("VmRSS")
    engine.close()
    return {"cpu_s": cpu_s, "peak_mb": peak_mb, "live_mb": live_mb}


def _memory_mb(name: str) -> float:
    """One of the system's figures of this process; what `resource` has of its peak is also that of whoever began it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 1_024


def compact(folder: Path) -> Figures:
    """Watch the loop of a host that compacts, and that does not."""
    return asyncio.run(_watched(folder))


async def _watched(folder: Path) -> Figures:
    holds: list[tuple[float, float]] = []

    async def watch() -> None:
        while True:
            began_s, began_cpu_s = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0.001)
            holds.append((time.perf_counter() - began_s - 0.001, time.thread_time() - began_cpu_s))

    async def take(engine: Engine) -> None:
        number = 0
        while True:
            engine.broker.send("q", [Message(body=b"x" * 40, outbox_id=f"n{number}")])
            await engine.core.gate()
            await asyncio.sleep(0.002)
            number += 1

    async with Engine.open(folder, limits=LIMITS) as engine:
        tasks = [asyncio.create_task(watch()), asyncio.create_task(take(engine))]
        await asyncio.sleep(1)
        holds.clear()
        began_s = time.perf_counter()
        await engine.compact_in_background()
        wall_s, found = time.perf_counter() - began_s, list(holds)
        holds.clear()
        await asyncio.sleep(min(wall_s, REST_S_MAX))
        at_rest = list(holds)
        for task in tasks:
            task.cancel()
    longest, cpu = max(hold for hold, _ in found), max(cpu for _, cpu in found)
    child_s = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {
        "hold_at_rest_ms": max(hold for hold, _ in at_rest) * 1e3,
        "hold_ms": longest * 1e3,
        "hold_cpu_ms": cpu * 1e3,
        "wall_s": wall_s,
        "job_cpu_s": child_s.ru_utime + child_s.ru_stime,
    }


ROLES: dict[str, Callable[[Path], Figures]] = {"decode": decode, "open": open_once, "compact": compact}


def rows(repeats: int, counts: Sequence[int]) -> list[Row]:
    """One row for each size of folder."""
    SCRATCH.mkdir(exist_ok=True)
    found = []
    for count in counts:
        with tempfile.TemporaryDirectory(prefix="folder-", dir=SCRATCH) as scratch:
            filled = Path(scratch) / "filled"
            fill(filled, count)
            measured: dict[str, list[Figures]] = {role: [] for role in ROLES}
            for _ in range(repeats):
                for role in ROLES:
                    shutil.copytree(filled, Path(scratch) / role)
                    os.sync()  # or the system would write the copy out while the loop is watched
                    measured[role].append(_apart(role, Path(scratch) / role))
                    shutil.rmtree(Path(scratch) / role)
        found.append(_row(count, measured))
    return found


def _apart(role: str, folder: Path) -> Figures:
    """Measure in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.bench_folder", "--role", role, str(folder)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    figures: Figures = json.loads(told)
    return figures


def _row(count: int, found: dict[str, list[Figures]]) -> Row:
    pairs = list(zip(found["open"], found["decode"], strict=True))
    return {
        "messages": count,
        "open_cpu_s": report.spread([each["cpu_s"] for each in found["open"]]),
        "open_to_decode": report.spread([opened["cpu_s"] / floor["cpu_s"] for opened, floor in pairs]),
        "peak_to_live": report.spread([each["peak_mb"] / each["live_mb"] for each in found["open"]]),
        "live_mb": report.spread([each["live_mb"] for each in found["open"]]),
        "hold_at_rest_ms": report.spread([each["hold_at_rest_ms"] for each in found["compact"]]),
        "hold_ms": report.spread([each["hold_ms"] for each in found["compact"]]),
        "hold_cpu_ms": report.spread([each["hold_cpu_ms"] for each in found["compact"]]),
        "compaction_s": report.spread([each["wall_s"] for each in found["compact"]]),
        "job_cpu_s": report.spread([each["job_cpu_s"] for each in found["compact"]]),
    }


_TITLES = {
    "open_cpu_s": ("open, CPU s", 2), "open_to_decode": ("of a decode", 2), "peak_to_live": ("peak of live", 2),
    "live_mb": ("live MB", 0), "hold_at_rest_ms": ("hold at rest ms", 1), "hold_ms": ("hold, compacting ms", 1),
    "hold_cpu_ms": ("of it CPU ms", 1), "compaction_s": ("compaction s", 1), "job_cpu_s": ("its CPU s", 1),
}  # fmt: skip


def table(found: list[Row]) -> str:
    """A text table, a line for each figure."""
    lines = [["", *(f"{row['messages']:,} messages" for row in found)]]
    lines += [[title, *(report.cell(row[name], digits) for row in found)] for name, (title, digits) in _TITLES.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def publish(repeats: int, counts: Sequence[int], folder: Path) -> str:
    """Measure, write folder.json and folder.txt into `folder` and give the text."""
    about = _about(repeats)
    found = rows(repeats, counts)
    return report.publish("folder", found, about, folder, table(found))


def _about(repeats: int) -> list[str]:
    SCRATCH.mkdir(exist_ok=True)
    return [
        "A large folder: opening it, and compacting it beside its host, which takes messages meanwhile.",
        f"Median of {repeats} repeats [least..greatest], each in a fresh process; a hold is the longest of its repeat.",
        *report.circumstances(SCRATCH),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_folder", description="Measure a folder.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--output", type=Path, default=None, help="publish folder.json and folder.txt into this folder")
    parser.add_argument("--role", nargs=2, metavar=("ROLE", "FOLDER"), help="measure one role, for the other processes")
    options = parser.parse_args(arguments)
    if options.role is not None:
        role, folder = options.role
        print(json.dumps(ROLES[role](Path(folder))))
    elif options.output is not None:
        print(publish(options.repeats, options.counts, options.output))
    else:
        found = rows(options.repeats, options.counts)
        print("\n".join([*_about(options.repeats), "", table(found)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
