"""Ordered logs and processors on a durable engine, beside SQLite and beside our own handlers.

    python -m tests.benchmarks.bench_streams [--repeats 5] [--entries 20000] [--output FOLDER]

Each repeat is a process of its own, on one disk, one thing after the other:

- *append one* beside one SQLite insert in a transaction of its own; *append 64* beside a SQLite transaction of 64
- a *processor* over a log with so many entries a cell, and what it emits, beside W1 with 64 messages a commit
- *large*: a million entries of 100 B, 64 a cell: the memory that they take, and the CPU of opening the folder again

A ratio is of the two in one repeat.  SQLite runs with write-ahead log and synchronous=FULL.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox.streams import Inputs, OrderedLog, Processor, Step
from tests.benchmarks import ours, report
from tests.benchmarks.apart import Apart

SCRATCH = Path(__file__).resolve().parents[2] / "build"
ENTRIES = 20_000
APPENDS_ONE, APPENDS_64 = 2_000, 400
CELL_SIZES = (1, 8, 64, 512)
LARGE_COUNT, LARGE_CELL = 1_000_000, 64
W1_MESSAGES = 20_000
REPEAT_S_MAX = 600.0

Figures = dict[str, float]
Row = dict[str, Any]


@dataclass
class Number:
    """An entry."""

    n: int
    text: str = ""


@dataclass
class Total:
    """A processor's state."""

    sum: int = 0


def add(total: Total, inputs: Inputs, step: Step) -> None:
    """One output for each input."""
    for entry in inputs:
        total.sum += entry.value.n
        step.emit("sums", Number(total.sum))


async def appended(folder: Path, count: int, size: int) -> float:
    """Cells a second that one producer appends, each durable before the next."""
    async with Engine.open(folder / f"append-{size}") as engine:
        log = OrderedLog("numbers", engine, type=Number)
        cells = [[Number(n) for n in range(size)] for _ in range(count)]
        await log.append(Number(0), id="first")
        began_s = time.perf_counter()
        for number, values in enumerate(cells):
            await log.extend(values, id=f"{number}")
        return count / (time.perf_counter() - began_s)


def inserted(folder: Path, count: int, size: int) -> float:
    """Transactions a second of so many SQLite inserts, each durable before the next."""
    database = sqlite3.connect(folder / f"insert-{size}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE numbers (id INTEGER PRIMARY KEY, name TEXT UNIQUE, body BLOB)")
    bodies = [[(f"{number}.{n}", b'{"n":%d}' % n) for n in range(size)] for number in range(count)]
    began_s = time.perf_counter()
    for rows in bodies:
        database.execute("BEGIN")
        database.executemany("INSERT INTO numbers (name, body) VALUES (?, ?)", rows)
        database.execute("COMMIT")
    rate = count / (time.perf_counter() - began_s)
    database.close()
    return rate


async def processed(folder: Path, count: int, size: int) -> float:
    """Entries a second that one replica handles, with as many outputs, both durable."""
    async with Engine.open(folder / f"process-{size}") as engine:
        numbers, sums = (OrderedLog(name, engine, type=Number) for name in ("numbers", "sums"))
        for begin in range(0, count, size):
            await numbers.extend([Number(n) for n in range(begin, min(begin + size, count))], id=f"{begin}")
        given: Any = {"state": Total, "register": engine, "inputs": {"numbers": numbers}, "outputs": {"sums": sums}}
        processor: Processor[Total] = Processor("sum", add, **given, batch_max=max(64, size))
        began_s = time.perf_counter()
        await processor.run_until_idle(seconds=REPEAT_S_MAX)
        took_s = time.perf_counter() - began_s
        last = [entry async for entry in sums.read()][-1]
        assert last.value.n == count * (count - 1) // 2, "every entry counts once"
        return count / took_s


async def large(folder: Path) -> Figures:
    """What a million entries take in memory, above an empty engine."""
    before_kb = _rss_kb()
    limits = EngineLimits(memory_bytes_max=4 << 30)
    async with Engine.open(folder / "large", sync="never", limits=limits) as engine:
        log: OrderedLog[Number] = OrderedLog("numbers", engine, type=Number)
        values = [Number(n, "x" * 80) for n in range(LARGE_CELL)]
        for number in range(LARGE_COUNT // LARGE_CELL):
            await log.extend(values, id=f"{number}")
        live_mb = (_rss_kb() - before_kb) / 1_024
    return {"live_mb": live_mb}


def opened(folder: Path) -> Figures:
    """The CPU of opening a folder, in a process that does nothing else."""
    began_s = time.process_time()
    engine = Engine.open(folder, limits=EngineLimits(memory_bytes_max=4 << 30))
    took_s = time.process_time() - began_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_024
    engine.close()
    return {"open_cpu_s": took_s, "opened_peak_mb": peak_mb}


def _rss_kb() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0])


async def repeat(folder: Path, entries: int) -> Figures:
    """Everything once."""
    found: Figures = {}
    for size, count in ((1, APPENDS_ONE), (64, APPENDS_64)):
        found[f"append_{size}"] = await appended(folder, count, size)
        found[f"insert_{size}"] = inserted(folder, count, size)
    for size in CELL_SIZES:
        found[f"process_{size}"] = await processed(folder, entries, size)
    return found | await large(folder)


def measured(repeats: int, entries: int) -> list[Figures]:
    """Each repeat in a process of its own, with W1 before it."""
    SCRATCH.mkdir(exist_ok=True)
    found = []
    for number in range(repeats):
        with tempfile.TemporaryDirectory(prefix="streams-", dir=SCRATCH) as folder:
            (Path(folder) / "w1").mkdir()
            w1 = Apart(ours).run("batch64", Path(folder) / "w1", W1_MESSAGES)
            command = [sys.executable, "-m", "tests.benchmarks.bench_streams", "--once", folder, str(entries)]
            once = _answer(command)
            opening = [sys.executable, "-m", "tests.benchmarks.bench_streams", "--open", f"{folder}/large"]
            found.append({"w1": w1.messages_per_s, **once, **_answer(opening)})
        print(f"{number + 1}/{repeats} {found[-1]['append_1']:,.0f} appends/s", file=sys.stderr, flush=True)
    return found


def _answer(command: Sequence[str]) -> Figures:
    """What another process measures."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=REPEAT_S_MAX, check=True)
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def rows(found: Sequence[Figures]) -> list[Row]:
    """What is published: a row for each thing, its rate and its ratio."""

    def each(what: str, rate: str, floor: str, unit: str) -> Row:
        return {
            "what": what,
            "unit": unit,
            "rate": report.spread([one[rate] for one in found]),
            "beside": floor,
            "ratio": report.spread([one[rate] / one[floor] for one in found]),
        }

    made = [each(f"append {size}", f"append_{size}", f"insert_{size}", "cells/s") for size in (1, 64)]
    made += [each(f"processor, {size} a cell", f"process_{size}", "w1", "entries/s") for size in CELL_SIZES]
    for name in ("live_mb", "open_cpu_s", "opened_peak_mb"):
        made.append({"what": f"a million entries: {name}", "value": report.spread([one[name] for one in found])})
    return made


def table(found: Sequence[Row]) -> str:
    """A line for each row."""
    lines = [["", "rate", "ratio", "beside"]]
    for row in found:
        if "value" in row:
            lines.append([row["what"], report.cell(row["value"], 2), "", ""])
        else:
            rate = f"{report.cell(row['rate'], 0)} {row['unit']}"
            lines.append([row["what"], rate, report.cell(row["ratio"], 2), row["beside"].replace("_", " of ")])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def publish(repeats: int, entries: int, folder: Path) -> str:
    """Measure, write streams.json and streams.txt into `folder` and give the text."""
    about = [
        "Ordered logs and processors on a durable engine; rates, and ratios to what stands beside in the same repeat:",
        "`insert of n`, n SQLite inserts in one transaction (write-ahead log, synchronous=FULL); `w1`, our own",
        "handlers with 64 messages a commit.  A processor's entries each have an output.",
        f"Median of {repeats} repeats [least..greatest].",
        *report.circumstances(SCRATCH),
    ]
    found = rows(measured(repeats, entries))
    return report.publish("streams", found, about, folder, table(found))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_streams", description="Measure streams.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--output", type=Path, default=SCRATCH.parent / "docs" / "benchmarks")
    parser.add_argument("--once", nargs=2, metavar=("FOLDER", "ENTRIES"), help="one repeat, for another process")
    parser.add_argument("--open", metavar="FOLDER", help="open a folder, for another process")
    options = parser.parse_args(arguments)
    if options.open:
        print(json.dumps(opened(Path(options.open))))
    elif options.once:
        print(json.dumps(asyncio.run(repeat(Path(options.once[0]), int(options.once[1])))))
    else:
        print(publish(options.repeats, options.entries, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
