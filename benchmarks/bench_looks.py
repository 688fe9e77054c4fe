"""An operator's answers on a full engine: how long each takes, and for how long it holds the event loop of its host.

    python -m benchmarks.bench_looks [--repeats 3] [--count 100000] [--output FOLDER]

An engine in memory holds as many waiting messages as dead letters and states; some of its keys are blocked.  While an
operator is asked, a task sleeps a millisecond at a time: the longest that it woke up late is for how long the loop was
held.  The first row has the same with nothing asked: that much comes of the machine.  The process' own CPU time between
two wakes says how much of it the answer took; up to a millisecond of that are slices with turns between them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from outbox import App, Engine
from outbox.engine.entities import QueueSettings, Settlement
from outbox.engine.log import records
from outbox.engine.state.documents import STATES
from outbox.lineage import state_id
from outbox.message import Message
from outbox.ops.admins.engine import EngineAdmin
from outbox.ops.dead_letters.blocked import every_blocked
from outbox.ops.values.dead_letters import DeadLetterFilter, ListDeadLetters
from outbox.ops.values.messages import Find, Peek
from outbox.ops.values.states import ReadStates
from outbox.ops.values.trail import FindTrail
from outbox_bench import report

COUNTS = (10_000, 100_000)
BATCH = 1_000
KEY_COUNT, BLOCKED_COUNT = 5_000, 1_000
TICK_S = 0.001
QUIET_S = 1.0

Row = dict[str, Any]


def fill(engine: Engine, count: int) -> None:
    """Let `count` messages wait, as many be dead letters, and as many states be there."""
    engine.declare(QueueSettings("plain"), QueueSettings("keyed", ordering="per_key", stop_key=True))
    for start in range(0, count, BATCH):
        numbers = range(start, min(start + BATCH, count))
        engine.broker.send("plain", [message("dead", number) for number in numbers])
        for claim in engine.broker.claim("plain", BATCH):
            why = f"ValueError: wrong {claim.sequence % 7}"
            engine.broker.settle(claim.token, Settlement.DEAD_LETTER, reason="failed", description=why)
        states = [records.DocWrite(STATES, state_id("Total", f"k{number}"), b'{"n":1}', 0) for number in numbers]
        assert engine.documents.modify(records.Modify(documents=states)) is not None
    for start in range(0, count, BATCH):
        engine.broker.send("plain", [message("held", number) for number in range(start, min(start + BATCH, count))])
    engine.broker.send("plain", [message("later", 1)], due_ms=engine.now_ms() + 86_400_000)
    keyed = engine.broker.queue("keyed")
    engine.broker.send("keyed", [message("first", number) for number in range(BLOCKED_COUNT)])
    for task in list(keyed.tasks.values()):
        engine.state._dead_letter(keyed, task, "failed", "ValueError: wrong", stops_session=True)
    engine.broker.send("keyed", [message("behind", number) for number in range(BLOCKED_COUNT)])


def message(what: str, number: int) -> Message:
    return Message(
        body=b'{"key":"k","n":1}', outbox_id=f"{what}-{number}", type="T", session_id=f"k{number % KEY_COUNT}"
    )


async def pages(admin: EngineAdmin) -> None:
    """All dead letters, each page let go before the next as a host lets it go with its response."""
    page = await admin.ask(ListDeadLetters("plain"))
    while page:
        page = await admin.ask(ListDeadLetters("plain", after=page[-1].sequence))


async def states(admin: EngineAdmin) -> None:
    async for _ in admin.stream(ReadStates()):
        await asyncio.sleep(0)


def questions(count: int) -> dict[str, Callable[[EngineAdmin], Awaitable[Any]]]:
    middle = count + count // 2
    return {
        "nothing": lambda op: asyncio.sleep(QUIET_S),
        "status": lambda op: op.status(),
        "queue peek, 50 from the middle": lambda op: op.peek(Peek("plain", after=middle, count=50)),
        "queue peek, 50 of a key": lambda op: op.peek(Peek("plain", count=50, key=f"k{KEY_COUNT - 1}")),
        "message show, the last": lambda op: op.find(Find(f"held-{count - 1}")),
        "message show, a dead letter": lambda op: op.find(Find(f"dead-{count // 2}")),
        "message trace": lambda op: op.trail(FindTrail(f"held-{count // 2}")),
        "schedule now": lambda op: op.make_due("plain", "later-1"),
        "dead-letters list, 50 from the middle": lambda op: op.dead_letters("plain", after=count // 2, count_max=50),
        "dead-letters list, by a rare text": lambda op: op.dead_letters("plain", where=DeadLetterFilter(text="none")),
        "dead-letters list, all pages": pages,
        "dead-letters resubmit, one": lambda op: op.resubmit("plain", "dead-7"),
        "blocked list": lambda op: every_blocked(op),
        "state export": states,
        "dead-letters resubmit --all": lambda op: op.resubmit("plain", None),
    }


async def measured(admin: EngineAdmin, ask: Callable[[EngineAdmin], Awaitable[Any]]) -> tuple[float, float, float]:
    """How long an answer took, the longest that the loop was held meanwhile, and the most CPU time, in milliseconds."""
    worst_s = worst_cpu_s = 0.0

    async def tick() -> None:
        nonlocal worst_s, worst_cpu_s
        while True:
            began_s, cpu_s = time.perf_counter(), time.process_time()
            await asyncio.sleep(TICK_S)
            worst_s = max(worst_s, time.perf_counter() - began_s - TICK_S)
            worst_cpu_s = max(worst_cpu_s, time.process_time() - cpu_s)

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(5 * TICK_S)
    began_s = time.perf_counter()
    await ask(admin)
    took_s = time.perf_counter() - began_s
    await asyncio.sleep(5 * TICK_S)
    ticking.cancel()
    return took_s * 1_000, worst_s * 1_000, worst_cpu_s * 1_000


async def run(count: int) -> dict[str, tuple[float, float, float]]:
    async with Engine.in_memory() as engine:
        fill(engine, count)
        admin = EngineAdmin(engine, None, App("looks"))
        return {what: await measured(admin, ask) for what, ask in questions(count).items()}


def rows(repeats: int, counts: tuple[int, ...]) -> list[Row]:
    found: list[Row] = []
    for count in counts:
        runs = [asyncio.run(run(count)) for _ in range(repeats)]
        for what in runs[0]:
            took, held, cpu = (report.spread([each[what][at] for each in runs]) for at in (0, 1, 2))
            found.append({"count": count, "what": what, "took_ms": took, "held_ms": held, "held_cpu_ms": cpu})
    return found


def table(found: list[Row]) -> str:
    lines = [["held", "asked", "answered in ms", "loop held, ms", "CPU of it, ms"]]
    for row in found:
        figures = [report.cell(row[name], 1) for name in ("took_ms", "held_ms", "held_cpu_ms")]
        lines.append([f"{row['count']:,}", row["what"], *figures])
    return report.aligned(lines)


def publish(repeats: int, counts: tuple[int, ...], output: Path) -> str:
    """Measure, and write looks.json and looks.txt."""
    found = rows(repeats, counts)
    about = [
        "An operator's answers on an engine in memory that holds so many waiting messages, as many dead letters and as",
        f"many states, and {BLOCKED_COUNT:,} blocked keys.  Held: for how long nothing else had its turn on the loop",
        "at worst, which on a busy machine is so with nothing asked; the CPU time of it is the answer's.",
        f"Median of {repeats} repeats [least..greatest], each on an engine of its own.",
        *report.circumstances(Path(__file__).resolve().parents[1] / "build"),
    ]
    return report.publish("looks", found, about, output, table(found))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_looks", description="Measure looks.")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).resolve().parents[1] / "docs" / "benchmarks")
    options = parser.parse_args()
    print(publish(options.repeats, tuple(options.count), options.output))
    return 0


if __name__ == "__main__":
    sys.exit(main())
