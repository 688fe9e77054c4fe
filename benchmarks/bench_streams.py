"""Ordered logs and processors on a durable engine, beside SQLite, our own handlers and another library.

    python -m benchmarks.bench_streams [--repeats 5] [--entries 20000] [--only PART ...] [--output FOLDER]

Each repeat does one thing after the other, each part in a process of its own, on one disk:

- engine: *append one* beside one SQLite insert in a transaction of its own; *append 64* beside a transaction of 64;
  a *processor* over a log with so many entries a cell, and what it emits, beside W1 with 64 messages a commit; *large*:
  a million entries of 100 B, 64 a cell: the memory that they take, and the CPU of opening the folder again
- peer: a process application of the library `eventsourcing`, one notification a step, on SQLite; it lives in the
  environment of peers, and without it this part is left out
- stores: `streams_stores`, the engine beside the emulators of Cosmos DB and Blob Storage, and what those are asked for
- replicas: `streams_replicas`, shards and replicas

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
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import streams_replicas, streams_stores
from benchmarks.peers import environment
from benchmarks.streams_work import CELL_SIZES, Figures, Number, Sizes, adder, check_sums, fill, log_of
from outbox.engine.engine import Engine
from outbox.engine.limits import EngineLimits
from outbox_bench import ours, report
from outbox_bench.apart import Apart
from tools.setup import SetupFailed

SCRATCH = Path(__file__).resolve().parents[1] / "build"
PUBLISHED = SCRATCH.parent / "docs" / "benchmarks"
ENTRIES = 20_000
APPENDS_ONE, APPENDS_64 = 2_000, 400
LARGE_COUNT, LARGE_CELL = 1_000_000, 64
W1_MESSAGES = 20_000
STEP_MAX = 64
REPEAT_S_MAX = 600.0
ENGINE, PEER, STORES, REPLICAS = PARTS = ("engine", "peer", "stores", "replicas")

Row = dict[str, Any]


async def appended(folder: Path, count: int, size: int) -> float:
    """Cells a second that one producer appends, each durable before the next."""
    async with Engine.open(folder / f"append-{size}") as engine:
        log = log_of("numbers", engine)
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


async def processed(folder: Path, count: int, size: int, batch_max: int) -> float:
    """Entries a second that one replica handles, with as many outputs, both durable."""
    async with Engine.open(folder / f"process-{size}-{batch_max}") as engine:
        await fill(engine, count, size)
        processor = adder(engine, batch_max)
        began_s = time.perf_counter()
        await processor.run_until_idle(seconds=REPEAT_S_MAX)
        took_s = time.perf_counter() - began_s
        await check_sums(engine, count)
        return count / took_s


async def large(folder: Path) -> Figures:
    """What a million entries take in memory, above an empty engine."""
    before_kb = _rss_kb()
    limits = EngineLimits(memory_bytes_max=4 << 30)
    async with Engine.open(folder / "large", sync="never", limits=limits) as engine:
        log = log_of("numbers", engine)
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


async def engine_part(folder: Path, sizes: Sizes) -> Figures:
    """Appends, processors and what a million entries take."""
    found: Figures = {}
    for size, count in ((1, APPENDS_ONE), (64, APPENDS_64)):
        found[f"append_{size}"] = await appended(folder, count, size)
        found[f"insert_{size}"] = inserted(folder, count, size)
    for size in CELL_SIZES:
        found[f"process_{size}"] = await processed(folder, sizes.entries, size, max(STEP_MAX, size))
    return found | await large(folder)


async def beside_peer(folder: Path, sizes: Sizes) -> Figures:
    """Our processor as it stands beside the peer: 64 entries a step, and one."""
    return {
        "steps_64": await processed(folder, sizes.entries, STEP_MAX, STEP_MAX),
        "steps_1": await processed(folder, sizes.peer_entries, 1, 1),
    }


PART_OF = {
    ENGINE: engine_part,
    PEER: beside_peer,
    STORES: streams_stores.measured,
    REPLICAS: streams_replicas.measured,
}


class Run:
    """Repeats of some parts; `about_peer` says what the peer was, once it has run."""

    def __init__(self, parts: Sequence[str], sizes: Sizes) -> None:
        self.parts = parts
        self.sizes = sizes
        self.about_peer = ""

    def measured(self, repeats: int) -> list[Figures]:
        """Each repeat, each part in a process of its own."""
        SCRATCH.mkdir(exist_ok=True)
        python = self._python()
        found = []
        for number in range(repeats):
            with tempfile.TemporaryDirectory(prefix="streams-", dir=SCRATCH) as folder:
                found.append(self._repeat(Path(folder), python))
            print(f"{number + 1}/{repeats} {len(found[-1])} figures", file=sys.stderr, flush=True)
        return found

    def _python(self) -> Path | None:
        """The interpreter of the peer's environment; None where there is none."""
        if PEER not in self.parts:
            return None
        try:
            return environment.ready()
        except SetupFailed as failure:
            self.about_peer = f"`eventsourcing` was not measured: {failure}."
            return None

    def _repeat(self, folder: Path, python: Path | None) -> Figures:
        found: Figures = {}
        for part in self.parts:
            within = folder / part
            within.mkdir()
            if part == PEER:
                if python is None:
                    continue
                found["eventsourcing"] = self._peer(within, python)
            if part == ENGINE:
                (folder / "w1").mkdir()
                found["w1"] = Apart(ours).run("batch64", folder / "w1", W1_MESSAGES).messages_per_s
            found |= apart("--part", part, str(within), str(self.sizes.entries))
            if part == ENGINE:
                found |= apart("--open", str(within / "large"))
        return found

    def _peer(self, folder: Path, python: Path) -> float:
        """Entries a second of the peer, in a process of its own."""
        module = "benchmarks.peers.eventsourcing_peer"
        answer = _answer([str(python), "-m", module, str(folder), str(self.sizes.peer_entries)])
        self.about_peer = (
            f"`eventsourcing` {answer['version']} handles one notification a step; its SQLite runs with "
            f"journal_mode={answer['journal_mode']},\nsynchronous={answer['synchronous']}."
        )
        return float(answer["entries_per_s"])


def apart(*arguments: str) -> Figures:
    """What a process of this program measures."""
    return _answer([sys.executable, "-m", "benchmarks.bench_streams", *arguments])


def _answer(command: Sequence[str]) -> Row:
    """What another process prints last."""
    done = subprocess.run(
        command, cwd=SCRATCH.parent, capture_output=True, text=True, timeout=REPEAT_S_MAX, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command[2:])} failed:\n{done.stderr}")
    answer: Row = json.loads(done.stdout.splitlines()[-1])
    return answer


def rows(found: Sequence[Figures]) -> list[Row]:
    """What is published: a row for each thing that was measured, its rate and its ratio."""

    def each(what: str, rate: str, floor: str, unit: str) -> Row:
        return {
            "what": what,
            "unit": unit,
            "rate": report.spread([one[rate] for one in found]),
            "beside": floor,
            "ratio": report.spread([one[rate] / one[floor] for one in found]),
        }

    made: list[Row] = []
    if "w1" in found[0]:
        made += [each(f"append {size}", f"append_{size}", f"insert_{size}", "cells/s") for size in (1, 64)]
        made += [each(f"processor, {size} a cell", f"process_{size}", "w1", "entries/s") for size in CELL_SIZES]
    if "eventsourcing" in found[0]:
        steps = ((f"processor, {size} a step", f"steps_{size}") for size in (STEP_MAX, 1))
        made += [each(what, rate, "eventsourcing", "entries/s") for what, rate in steps]
        rate = report.spread([one["eventsourcing"] for one in found])
        made.append({"what": "eventsourcing, 1 a step", "unit": "entries/s", "rate": rate})
    for name in ("live_mb", "open_cpu_s", "opened_peak_mb"):
        if name in found[0]:
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
            ratio = report.cell(row["ratio"], 2) if "ratio" in row else ""
            lines.append([row["what"], rate, ratio, row.get("beside", "").replace("_", " of ")])
    return report.aligned(lines)


def publish(repeats: int, entries: int, folder: Path, parts: Sequence[str] = PARTS) -> str:
    """Measure, write streams.json and streams.txt into `folder` and give the text."""
    circumstances = report.circumstances(SCRATCH)
    run = Run(parts, replace(Sizes(), entries=entries))
    found = run.measured(repeats)
    about = [*ABOUT, run.about_peer, f"Median of {repeats} repeats [least..greatest].", *circumstances]
    made, tables = rows(found), []
    if REPLICAS in parts:
        more = streams_replicas.rows(found)
        rates, times = [row for row in more if "rate" in row], [row for row in more if "rate" not in row]
        made += rates
        tables = [table(made), streams_replicas.ABOUT + streams_replicas.table(times)]
        made += times
    elif made:
        tables = [table(made)]
    if STORES in parts:
        stores = streams_stores.rows(found)
        made += stores
        tables.append(streams_stores.ABOUT + streams_stores.table(stores))
    return report.publish("streams", made, [line for line in about if line], folder, "\n\n".join(tables))


ABOUT = (
    "Ordered logs and processors on a durable engine; rates, and ratios to what stands beside in the same repeat:",
    "`insert of n`, n SQLite inserts in one transaction (write-ahead log, synchronous=FULL); `w1`, our own",
    "handlers with 64 messages a commit.  A processor's entries each have an output.",
)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_streams", description="Measure streams.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--entries", type=int, default=ENTRIES)
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=f"some of {', '.join(PARTS)}")
    parser.add_argument("--output", type=Path, help="docs/benchmarks unless given; with --only, build")
    parser.add_argument("--part", nargs=3, metavar=("PART", "FOLDER", "ENTRIES"), help="once, for another process")
    parser.add_argument("--open", metavar="FOLDER", help="open a folder, for another process")
    options = parser.parse_args(arguments)
    if options.open:
        print(json.dumps(opened(Path(options.open))))
    elif options.part:
        part, folder, entries = options.part
        print(json.dumps(asyncio.run(PART_OF[part](Path(folder), replace(Sizes(), entries=int(entries))))))
    else:
        output = options.output or (SCRATCH if options.only else PUBLISHED)
        print(publish(options.repeats, options.entries, output, options.only or PARTS))
    return 0


if __name__ == "__main__":
    sys.exit(main())
