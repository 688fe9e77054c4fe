"""The Spark job `reconcile` over a million inputs, and over as many as are asked for: time, CPU, memory, what it finds.

    python -m tools.soak.reconcile [--rows 10000000] [--beside 1000000] [--publish docs/benchmarks]

Inputs, a ledger of two rows for each, and an account for ten inputs are made by a seed, with ten faults of each of
nine kinds; what the job reports must be these and nothing else.  It runs under spark-submit with the memory that is
told, is killed in the middle of a second run, and then goes on behind its last step.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_jobs.common import java
from spark_jobs.session import LOGGING
from tools.soak.measured import Measured, concluded, measured

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "build" / "soak" / "reconcile"
DRIVER_MEMORY, SHUFFLE_PARTITIONS, CORES = "2g", 16, 2
JOB_S, MAKE_S = 3_600.0, 3_600.0
FAULTS = 10


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of the job, and what it reported."""

    measured: Measured
    report: dict[str, Any]


def environment() -> dict[str, str]:
    """An environment in which spark-submit finds Java and this Python."""
    found = dict(os.environ)
    java.prepare(found)
    found["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{found.get('PATH', '')}"
    found["PYTHONPATH"] = str(ROOT)
    return found


def command(books: Path, progress: Path) -> list[str]:
    """The job as a user submits it."""
    settings = {
        "spark.sql.shuffle.partitions": SHUFFLE_PARTITIONS,
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
    }
    return [
        str(Path(sys.executable).parent / "spark-submit"),
        *("--master", f"local[{CORES}]", "--driver-memory", DRIVER_MEMORY),
        *("--driver-java-options", f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        str(ROOT / "spark_jobs" / "reconcile.py"),
        *("--input", str(books / "transfers.parquet"), "--ledger", str(books / "ledger"), "--rule", "bank"),
        *("--state", str(books / "states.jsonl"), "--opening", str(books / "opening.jsonl")),
        *("--everything", "--progress", str(progress), "--json"),
    ]


def made(rows: int, seed: int) -> tuple[Path, dict[str, list[str]]]:
    """Books of so many inputs, and what must be found in them."""
    books = FOLDER / f"{rows}-{seed}"
    make = [sys.executable, "-m", "tools.soak.reconcile_books", str(books), str(rows), str(seed), str(FAULTS)]
    done = measured(make, cwd=ROOT, env=environment(), limit_s=MAKE_S)
    assert done.code == 0, done.errors[-1_000:]
    planted: dict[str, list[str]] = json.loads(done.output)
    print(f"  {rows:,} inputs made in {done.seconds:.0f} s", flush=True)
    return books, planted


def ran(books: Path, progress: Path) -> Ran:
    """Run the job to its end."""
    done = measured(command(books, progress), cwd=ROOT, env=environment(), limit_s=JOB_S)
    reports = [line for line in done.output.splitlines() if line.startswith("{")]
    assert done.code in (0, 1) and reports, done.errors[-2_000:]
    return Ran(done, json.loads(reports[-1]))


def killed(books: Path, progress: Path, step: str) -> float:
    """Start the job and kill it when a step is done, with everything that it started; after how many seconds."""
    started_s = time.monotonic()
    process = subprocess.Popen(
        command(books, progress),
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while process.poll() is None and not list(progress.glob(f"*/{step}")):
        assert time.monotonic() - started_s < JOB_S, "the job does not come to its steps"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return time.monotonic() - started_s


def judge(report: Mapping[str, Any], planted: Mapping[str, Sequence[str]], rows: int) -> list[str]:
    """What is wrong with a report."""
    broken = [] if report["inputs"] == rows else [f"{report['inputs']} inputs of {rows}"]
    found = {category: count for category, count in report["found"].items() if count}
    if found != {category: len(ids) for category, ids in planted.items()}:
        broken.append(f"found {found}, planted { {category: len(ids) for category, ids in planted.items()} }")
    for category, examples in report["examples"].items():
        wanted = sorted(planted.get(category, []))[: len(examples)]
        if [id for id, _ in examples] != wanted:
            broken.append(f"{category}: {examples[:3]}... are not {wanted[:3]}...")
    return broken


def run(rows: int, seed: int) -> tuple[dict[str, Any], list[str]]:
    """Make the books, reconcile them, kill a second run and go on with it; figures, and what was found broken."""
    books, planted = made(rows, seed)
    try:
        whole = ran(books, books / "steps")
        broken = judge(whole.report, planted, rows)
        again = ran(books, books / "steps")
        killed_s = killed(books, books / "killed", "inputs")
        resumed = ran(books, books / "killed")
        for name, one in (("again", again), ("resumed", resumed)):
            if {**one.report, "seconds": 0} != {**whole.report, "seconds": 0}:
                broken.append(f"run {name}, it reports something else")
        size_bytes = sum(path.stat().st_size for path in books.rglob("*.parquet"))
    finally:
        shutil.rmtree(books, ignore_errors=True)
    figures = {
        "inputs": rows,
        "ledger": whole.report["effects"],
        "accounts": rows // 10,
        "parquet_mb": size_bytes >> 20,
        "found": whole.report["found"],
        "whole": {**whole.measured.figures, "work_s": round(whole.report["seconds"], 1)},
        "again": {**again.measured.figures, "work_s": round(again.report["seconds"], 1)},
        "killed_after_s": round(killed_s, 1),
        "resumed": {**resumed.measured.figures, "work_s": round(resumed.report["seconds"], 1)},
    }
    return figures, broken


def text_of(figures: Mapping[str, Any]) -> str:
    """One measurement, for people."""
    head = f"{figures['inputs']:,} inputs, {figures['ledger']:,} ledger rows, {figures['accounts']:,} accounts"
    lines = [f"{head}, {figures['parquet_mb']:,} MB of Parquet"]
    for name in ("whole", "again", "resumed"):
        one = figures[name]
        lines.append(
            f"  {name:<8} {one['seconds']:8.1f} s, {one['work_s']:8.1f} s of it after Spark had started; CPU "
            f"{one['cpu_s']:8.1f} s; peak RSS {one['rss_mb']:,} MB; load before {one['load_before']}"
        )
    counted = ", ".join(f"{count} {category}" for category, count in figures["found"].items())
    return "\n".join([*lines, f"  killed in the middle after {figures['killed_after_s']} s; found: {counted}"])


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; 0 if nothing was found broken."""
    parser = argparse.ArgumentParser(prog="tools.soak.reconcile", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--beside", type=int, default=1_000_000, help="fewer, so that the growth shows; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--publish", type=Path, metavar="DIR", help="write reconcile.txt and reconcile.json there")
    arguments = parser.parse_args(argv)
    runs = (run(rows, arguments.seed) for rows in (arguments.beside, arguments.rows) if rows)
    head = f"spark-submit --master local[{CORES}] --driver-memory {DRIVER_MEMORY}, {SHUFFLE_PARTITIONS} partitions"
    return concluded(arguments.publish, "reconcile", runs, text_of, head=[head])


if __name__ == "__main__":
    sys.exit(main())
