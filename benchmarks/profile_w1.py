"""Where the time of W1 goes: each stage of a batch of 64, from its claim to its flush, in microseconds a message.

    python -m benchmarks.profile_w1 [--repeats 5] [--messages 20000] [--output FOLDER]

Takes the steps that a worker and the engine take for one batch, one after the other with a clock between them; what a
loop of asyncio and the worker's own accounts cost is in none of them.  The lower figure is the twentieth part of all
batches that was fastest, which is what a stage costs when nothing disturbs it; the other is the median.

Beside them stands a bare loop of the same work (`peers/bare.py`), run in turn with ours: Python's own price.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from benchmarks.peers import bare
from outbox import Engine, Worker
from outbox.engine.backend.journal import EngineJournal
from outbox.engine.log import records
from outbox.engine.log.wal import Log
from outbox.message import Message
from outbox.runtime.commit.engine_transaction import EngineTransaction, wanted
from outbox.runtime.commit.fast_path import start_all
from outbox.runtime.delivery.admission import admit
from outbox.runtime.start.plan import CompiledApp, compile_app
from outbox_bench import ours, report, sqlite
from outbox_bench.apart import Apart
from outbox_bench.measure import MESSAGE_COUNT, Measurement, inputs
from outbox_bench.ours import app

SCRATCH = Path(__file__).resolve().parents[1] / "build"
BATCH_COUNT = 64
WHOLE = ((Apart(bare), "flush64"), (Apart(ours), "batch64"), (Apart(sqlite), "batch100-full"))
STAGES = {
    "claim": "take messages off the queue under a lock, log the claim, write it",
    "admit": "decode the body, find key and state id, hash the inbox key",
    "load": "look up states and markers",
    "run": "decode the state, call the handler, encode state and outputs",
    "check": "locks, state versions and markers still as loaded",
    "record": "make the log's record",
    "encode": "encode it",
    "append": "checksum, word stuffing",
    "apply": "let it take effect in memory",
    "write": "write(2)",
    "sync": "fdatasync, waiting included",
}


class Stages:
    """How long each stage of each batch took, a message."""

    def __init__(self) -> None:
        self.us: dict[str, list[float]] = defaultdict(list)
        self._last_s = 0.0

    def begin(self) -> None:
        """Start the clock of a batch."""
        self._last_s = time.perf_counter()

    def end(self, stage: str) -> None:
        """End a stage; the next one begins."""
        now_s = time.perf_counter()
        self.us[stage].append((now_s - self._last_s) / BATCH_COUNT * 1e6)
        self._last_s = time.perf_counter()


def measure(repeats: int, message_count: int) -> tuple[Stages, list[Measurement]]:
    """Run W1 `repeats` times in fresh folders: by stage, and whole, as a bare loop, ours and SQLite in turn."""
    stages = Stages()
    whole: list[Measurement] = []
    SCRATCH.mkdir(exist_ok=True)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(prefix="profile-", dir=SCRATCH) as folder:
            asyncio.run(_run(Path(folder), message_count, stages))
        for system, variant in WHOLE:
            with tempfile.TemporaryDirectory(prefix="profile-", dir=SCRATCH) as folder:
                whole.append(system.run(variant, Path(folder), message_count))
    return stages, whole


async def _run(folder: Path, message_count: int, stages: Stages) -> None:
    plan = compile_app(app)
    async with Engine.open(folder / "engine.data") as engine:
        await Worker(app, engine).declare()
        now_ms = engine.now_ms()
        for message in inputs(message_count):
            body, kind = app.encode(message)
            engine.broker.send("adds", [Message(body=body, outbox_id=message.id, type=kind, created_ms=now_ms)])
        engine.core.flush()
        gc.collect()
        for _ in range(message_count // BATCH_COUNT):
            await _batch(engine, plan, stages)
        if engine.broker.queue("added").counts()["active"] != message_count // BATCH_COUNT * BATCH_COUNT:
            raise AssertionError("not every message had its effect; do not publish this profile")


async def _batch(engine: Engine, plan: CompiledApp, stages: Stages) -> None:
    """Handle 64 messages as `EngineScope` and `EngineJournal.commit` do, with a clock between the steps."""
    journal, log, end = EngineJournal(engine.core, engine.broker), engine.log, stages.end
    assert isinstance(log, Log)
    stages.begin()
    deliveries = await journal.claim(["adds"], count_max=BATCH_COUNT, wait_s=0)
    end("claim")
    works = admit(plan, deliveries, engine.now_ms())
    end("admit")
    documents, markers = await journal.load(*wanted(works))
    group = EngineTransaction(plan, engine.now_ms(), documents, markers, journal.durable)
    end("load")
    assert start_all(plan, group, works, 0, len(works)) == (len(works), None, None)
    end("run")
    consumed, lost = journal.held(group.commit.consumed)
    assert not (lost or journal.moved(group.commit) or journal.taken(group.commit))
    end("check")
    record = journal.record(group.commit, consumed)
    end("record")
    payload = records.encode(record)
    end("encode")
    ordinal = log.append(records.NUMBERS[records.Committed], payload)
    end("append")
    engine.state.apply(record, ordinal)
    end("apply")
    log.write()
    end("write")
    log.sync()
    end("sync")


def table(stages: Stages) -> str:
    """A line for each stage, and their sum."""
    lines = [["stage", "µs fast", "µs median", "what it does"]]
    totals = [0.0, 0.0]
    for name, what in STAGES.items():
        figures = figures_of(stages.us[name])
        totals = [total + figure for total, figure in zip(totals, figures, strict=True)]
        lines.append([name, *(f"{figure:.2f}" for figure in figures), what])
    lines.append(["sum", *(f"{total:.2f}" for total in totals), ""])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def beside(whole: list[Measurement]) -> list[str]:
    """A line for each system: what a message takes of the clock and of the CPU, the runs' median and extremes."""
    lines = []
    for name in ("bare", "outbox", "sqlite"):
        runs = [each for each in whole if each.system == name]
        wall_us = spread([1e6 / each.messages_per_s for each in runs])
        cpu_us = spread([each.cpu_us for each in runs])
        lines.append(f"{name:6} whole: {wall_us} µs of wall clock a message, {cpu_us} of CPU.")
    return lines


def spread(values: list[float]) -> str:
    """The median, with the least and the greatest."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}..{max(values):.2f}]"


def figures_of(times_us: list[float]) -> tuple[float, float]:
    """The fast figure and the median."""
    ordered = sorted(times_us)
    return ordered[len(ordered) // 20], statistics.median(ordered)


def publish(repeats: int, message_count: int, folder: Path) -> str:
    """Measure, write profile.json and profile.txt into `folder` and give the text."""
    stages, whole = measure(repeats, message_count)
    about = [
        f"W1 by stage, {BATCH_COUNT} messages a commit: microseconds of wall clock a message.",
        f"All batches of {repeats} runs of {message_count:,} messages.",
        "Beside it, in turn: a bare loop without claims, locks and conditions, ours, and SQLite in batches of 100.",
        *beside(whole),
        *report.circumstances(SCRATCH),
    ]
    rows = [
        {"stage": name, "fast_us": round(fast_us, 3), "median_us": round(median_us, 3)}
        for name in STAGES
        for fast_us, median_us in [figures_of(stages.us[name])]
    ]
    return report.publish("profile", rows, about, folder, table(stages))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile_w1", description="Profile W1 by stage.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--messages", type=int, default=MESSAGE_COUNT)
    parser.add_argument("--output", type=Path, default=None, help="publish profile.json and profile.txt there")
    options = parser.parse_args(arguments)
    if options.output is not None:
        print(publish(options.repeats, options.messages, options.output))
    else:
        stages, whole = measure(options.repeats, options.messages)
        print("\n".join([*beside(whole), table(stages)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
