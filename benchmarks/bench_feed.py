"""What a feed costs: the job as a user types it, against the Service Bus emulator in a process of its own.

    python -m benchmarks.bench_feed [--rows 20000 200000 1000000] [--repeats 3] [--output FOLDER]

Each run is a new process and a new Spark, on a CSV file without `--schema`.  Its wall time is split by the steps that
the job itself calls; CPU is that of driver, JVM and Python workers, not that of the emulator.  Beside each run a bare
loop on the SDK sends the same bodies in batches from one process: what of the sending is the SDK's.  What grows with
the rows is the difference of the largest and the smallest run, by rows; the rest of the smallest is fixed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import feed_rows
from benchmarks.feed_place import BARE, FED, waiting
from outbox_bench import report
from outbox_bench.side_process import ROOT, program
from tools.soak.measured import Measured, measured

COUNTS = (20_000, 200_000, 1_000_000)
REPEATS_UP_TO = 20_000
"""More rows than this are fed once."""
LIMIT_S = 1_500.0
STEPS = {
    "imports": "Python starts and imports",
    "start": "Spark starts: the session is there",
    "Input": "files listed, headers read, line feeds counted",
    "snapshot_of": "all rows read: digest and types",
    "open_plan": "judged and staged as Parquet",
    "send_chunk": "sent",
    "end": "the job's end",
}
"""The parts of the wall time, in their order."""

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_feed", description="Measure a feed.")
    parser.add_argument("--rows", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args(arguments)
    print(publish(options.repeats, options.rows, options.output))
    return 0


def publish(repeats: int, counts: list[int], folder: Path) -> str:
    """Measure, and write feed.txt and feed.json."""
    circumstances = report.circumstances(Path(tempfile.gettempdir()))
    runs = [
        [asyncio.run(one(count, n + 1)) for n in range(repeats if count <= REPEATS_UP_TO else 1)]
        for count in sorted(counts)
    ]
    about = [
        "A feed from CSV to a queue: python -m spark_jobs.feed, local[2], 2 senders, our emulator on the same machine.",
        f"Up to {REPEATS_UP_TO:,} rows the median of {repeats} runs [least..greatest], else one; each a new process.",
        "Seconds of wall time, unless said otherwise. CPU: driver, JVM and Python workers, without the emulator's.",
        *circumstances,
    ]
    rows = [row(found) for found in runs]
    return report.publish("feed", rows, about, folder, table(rows))


async def one(count: int, repeat: int) -> Row:
    """A feed and the bare loop, each into a queue of its own."""
    async with program("benchmarks.feed_place") as (place, connection):
        with tempfile.TemporaryDirectory(prefix="feed-") as name:
            path = Path(name) / "transfers.csv"
            feed_rows.write(path, count)
            env = {**os.environ, "OUTBOX_SERVICEBUS": connection, "PYTHONPATH": str(ROOT)}
            bare = await asyncio.to_thread(run, env, "benchmarks.feed_bare", str(count), BARE)
            began_s = time.monotonic()
            options = ("--input", str(path), "--queue", FED, "--type", feed_rows.TYPE, "--id", "id", "--json")
            fed = await asyncio.to_thread(run, env, "benchmarks.feed_marks", *options)
        assert json.loads(fed.output)["accepted"] == count
        assert [await waiting(place, queue) for queue in (FED, BARE)] == [count, count]
    found = {"rows": count, "load": fed.load, **split(fed, began_s), **{f"bare_{k}": v for k, v in told(bare).items()}}
    print(f"{count:,} rows, {repeat}: {fed.seconds:.1f} s, {fed.cpu_s:.1f} CPU s", file=sys.stderr, flush=True)
    return found


def run(env: dict[str, str], module: str, *options: str) -> Measured:
    """A program, to its end."""
    done = measured([sys.executable, "-m", module, *options], cwd=ROOT, env=env, limit_s=LIMIT_S)
    assert done.code == 0, done.errors
    return done


def told(bare: Measured) -> dict[str, float]:
    found: dict[str, float] = json.loads(bare.output)
    return found


def split(fed: Measured, began_s: float) -> dict[str, float]:
    """Seconds of each step; what lies between two steps counts for the later one."""
    parts, before_s = dict.fromkeys(STEPS, 0.0), began_s
    for name, _, ended_s in json.loads(fed.errors.strip().splitlines()[-1]):
        parts["end" if name == "over" else name] += ended_s - before_s
        before_s = ended_s
    parts["end"] += max(0.0, began_s + fed.seconds - before_s)
    return {"seconds": fed.seconds, "cpu_s": fed.cpu_s, **parts}


def row(found: list[Row]) -> Row:
    """The repeats of one count."""
    return {"rows": found[0]["rows"]} | {
        name: report.spread([each[name] for each in found]) for name in found[0] if name != "rows"
    }


def table(rows: list[Row]) -> str:
    """A line for each step, a column for each count; then what is fixed and what a row costs."""
    names = {"seconds": "all", **STEPS, "cpu_s": "CPU s of all"}
    names |= {"bare_seconds": "bare SDK loop, same bodies", "bare_cpu_s": "bare SDK loop, CPU s", "load": "load before"}
    lines = [["", *(f"{each['rows']:,} rows" for each in rows)]]
    lines += [[title, *(report.cell(each[name], 1) for each in rows)] for name, title in names.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join([*text, *(["", *costs(rows[0], rows[-1])] if len(rows) > 1 else [])])


def costs(small: Row, large: Row) -> list[str]:
    """What is fixed, and what a row adds."""
    more, lines = large["rows"] - small["rows"], []
    for name, title in {"seconds": "wall", "cpu_s": "CPU", "bare_cpu_s": "CPU of the bare SDK loop"}.items():
        per_row = (large[name]["median"] - small[name]["median"]) / more
        fixed = small[name]["median"] - per_row * small["rows"]
        lines.append(f"{title}: {fixed:.1f} s fixed, {per_row * 1e6:.0f} µs a row")
    return lines


if __name__ == "__main__":
    sys.exit(main())
