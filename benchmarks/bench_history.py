"""Histories: what recording costs a message, and how fast a million events are judged, in how much memory.

    python -m benchmarks.bench_history [--repeats 3] [--events 1000000] [--messages 20000] [--output FOLDER]

Recorded: W1 without a disk under it (an engine in memory, 64 in flight), with and without a recorder that writes to a
file, repeats interleaved; its CPU time a message.  Judged: a history with so many events,
in lines of one message each and in lines of 64, read from the file by a process of its own whose greatest memory is
told.  An event is a message handed out, ended or sent, a state changed, or an answer.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from zlib import crc32

from outbox import App, Context, Engine, Worker
from outbox.ports import Backend
from outbox.verify.history import History, count_of
from outbox.verify.recorded import events
from outbox.verify.recorded.recording import recorded
from outbox_bench import report
from outbox_bench.measure import MESSAGE_COUNT, Add, Added, Counter, Stopwatch, inputs

EVENT_COUNT = 1_000_000
KEY_COUNT = 10_000
SHAPES = {"one message a line": 1, "64 messages a line": 64}
SCRATCH = Path(__file__).resolve().parents[1] / "build"

Row = dict[str, object]

app = App("history")
app.queue("added")


@app.handler("add", key="account")
def add(message: Add, counter: Counter, ctx: Context) -> None:
    counter.total += message.amount
    counter.changes += 1
    ctx.send("added", Added(message.id, message.account, counter.total))


# Recording


async def _w1(history: History | None, message_count: int) -> float:
    """CPU time a message, in microseconds."""
    async with Engine.in_memory() as engine:
        backend: Backend = engine if history is None else recorded(engine, history)
        idle = Worker(app, engine)
        await idle.declare()
        for message in inputs(message_count):
            await idle.send("add", message, id=message.id)
        watch = Stopwatch()
        async with Worker(app, backend, concurrency=64) as worker:
            await worker.wait_idle(timeout_s=600)
        watch.stop()
    return watch.cpu_s / message_count * 1e6


def recording(repeats: int, message_count: int) -> Row:
    """What a message costs without and with a recorder."""
    plain: list[float] = []
    told: list[float] = []
    size_bytes = 0
    with tempfile.TemporaryDirectory(prefix="history-", dir=SCRATCH) as folder:
        for number in range(repeats):
            plain.append(asyncio.run(_w1(None, message_count)))
            path = Path(folder) / f"{number}.jsonl"
            with History(path) as history:
                told.append(asyncio.run(_w1(history, message_count)))
            size_bytes = path.stat().st_size
    return {
        "what": "recording, W1 in memory",
        "plain_us": report.spread(plain),
        "recorded_us": report.spread(told),
        "bytes_a_message": size_bytes / message_count,
    }


# Judging


def write_history(path: Path, event_count: int, batch: int) -> int:
    """A sound history of about so many events; how many there are."""
    versions = [0] * KEY_COUNT
    with History(path) as history:
        count = 1
        history.life(is_empty=True)
        op = first = 0
        while count < event_count:
            op += 1
            numbers = range(first, first + batch)
            first += batch
            for event in _commit(numbers, op, versions):
                history.append(event)
                count += count_of(event)
        history.quiesce(["add"])
        count += 2
    return count


def _commit(numbers: range, op: int, versions: list[int]) -> list[events.AnyEvent]:
    """A claim, a commit and its answer, for messages of different keys."""
    claimed, ended, changes, outputs, applied = [], [], [], [], []
    for number in numbers:
        key, id, inbox = number % KEY_COUNT, f"message-{number:012d}", f"{number:064x}"
        claimed.append(events.Delivered(id, "add", number, True, 0, crc32(id.encode())))
        ended.append(events.Ended("add", number, id))
        version = versions[key] = versions[key] + 1
        changes.append(events.Change(f"Counter:account-{key:05d}", version - 1, version, number + 1))
        outputs.append(events.Emitted(f"{inbox}-0", "added", number, id))
        applied.append(inbox)
    return [
        events.Claim(at_ms=1, deliveries=claimed),
        events.Commit(at_ms=1, op=op, ended=ended, changes=changes, outputs=outputs, applied=applied),
        events.Ok(at_ms=1, op=op),
    ]


JUDGE = """
import json, sys, time
from outbox.verify.guarantees import check

def kilobytes(name):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

before, started = kilobytes("VmRSS"), time.perf_counter()
verdict = check(sys.argv[1])
seconds = time.perf_counter() - started
found = {"seconds": seconds, "megabytes": (kilobytes("VmHWM") - before) / 1024, "lines": verdict.counts.lines}
print(json.dumps({"ok": verdict.ok, **found}))
"""


def judging(repeats: int, event_count: int) -> list[Row]:
    """How long a history of each shape takes to judge."""
    found: list[Row] = []
    for shape, batch in SHAPES.items():
        with tempfile.TemporaryDirectory(prefix="history-", dir=SCRATCH) as folder:
            path = Path(folder) / "history.jsonl"
            count = write_history(path, event_count, batch)
            runs = [_judged(path) for _ in range(repeats)]
            found.append(
                {
                    "what": f"judging, {shape}",
                    "events": count,
                    "lines": runs[0]["lines"],
                    "file_megabytes": path.stat().st_size / 1e6,
                    "seconds": report.spread([run["seconds"] for run in runs]),
                    "memory_megabytes": report.spread([run["megabytes"] for run in runs]),
                }
            )
    return found


def _judged(path: Path) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", JUDGE, str(path)], capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    if not found["ok"]:
        raise RuntimeError("a sound history was judged broken; this is a bug")
    return found


def publish(repeats: int, event_count: int, message_count: int, folder: Path | None) -> str:
    """Measure, write history.json and history.txt into `folder` if there is one, and give the text."""
    SCRATCH.mkdir(exist_ok=True)
    about = [
        "Histories: what recording costs a message, and how fast a million events are judged.",
        f"Median of {repeats} repeats [least..greatest].",
        *report.circumstances(SCRATCH),
    ]
    kept = recording(repeats, message_count)
    judged = judging(repeats, event_count)
    text = table(kept, judged)
    if folder is None:
        return "\n".join([*about, "", text])
    return report.publish("history", [kept, *judged], about, folder, text)


def table(kept: Row, judged: list[Row]) -> str:
    """The figures as text."""
    cost = f"{_cell(kept['recorded_us'], 1)} µs CPU a message, {_cell(kept['plain_us'], 1)} without"
    lines = [f"{'recording, W1 in memory':<30}  {cost}, {kept['bytes_a_message']:,.0f} bytes a message"]
    for row in judged:
        lines.append(
            f"{row['what']:<30}  {row['events']:,} events, {row['lines']:,} lines, {row['file_megabytes']:,.0f} MB: "
            f"{_cell(row['seconds'], 1)} s, {_cell(row['memory_megabytes'], 0)} MB of memory"
        )
    return "\n".join(lines)


def _cell(figure: object, digits: int) -> str:
    assert isinstance(figure, dict)
    low, high = (f"{figure[name]:,.{digits}f}" for name in ("min", "max"))
    return f"{figure['median']:,.{digits}f} [{low}..{high}]"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_history", description="Measure histories.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--events", type=int, default=EVENT_COUNT)
    parser.add_argument("--messages", type=int, default=MESSAGE_COUNT)
    parser.add_argument("--output", type=Path, default=None, help="publish history.json and history.txt there")
    options = parser.parse_args(arguments)
    print(publish(options.repeats, options.events, options.messages, options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
