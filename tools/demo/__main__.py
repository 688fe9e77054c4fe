"""`make demo`: the whole system at work on this machine, killed again and again, and the verdict.

    python -m tools.demo [--fresh] [--input transfers.csv] [--transfers 20000] [--folder demo.data]

Run again it resumes: what was fed, handled or drained stays so.
"""

from __future__ import annotations

import argparse
import asyncio
import filecmp
import random
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from outbox.ops.host.audit import judge
from outbox.ops.values.status import Status
from tools.demo.data import read_facts, write_transfers
from tools.demo.host import Host
from tools.demo.jobs import USUAL_STEP_COUNT, StepLines
from tools.demo.phases import Demo, arrived, handled
from tools.demo.query import asked
from tools.demo.report import Outcome, text_of

ROOT = Path(__file__).resolve().parent.parent.parent
USUAL_FOLDER = ROOT / "demo.data"
USUAL = {"transfers": 20_000, "accounts": 1_000, "seed": 1}
"""By what transfers are drawn."""
SMALL_COUNT = 10_000
"""Below so many rows a run is a quick look."""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    found = argparse.ArgumentParser(
        prog="python -m tools.demo",
        description="Feed, handle, drain and reconcile under kill -9.",
        epilog='By make: make demo ARGS="--fresh --transfers 2000".',
    )
    found.add_argument("--folder", type=Path, default=USUAL_FOLDER, help="where state survives (demo.data)")
    found.add_argument("--fresh", action="store_true", help="start clean: remove the folder first")
    found.add_argument("--input", type=Path, help="your own CSV: id,source,target,amount")
    for name, usual in USUAL.items():
        found.add_argument(f"--{name}", type=int, help=f"of transfers that are drawn ({usual:,})")
    found.add_argument(
        "--kills",
        type=_kills,
        default=None,
        metavar="FEEDING,DRAINING",
        help="how often the host is killed while Spark feeds, and while it drains; one number is for both "
        f"(2,3, and 1,1 below {SMALL_COUNT:,} rows)",
    )
    return found


class Bars:
    """Progress on a terminal, and now and then a line elsewhere."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description:<22}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        )
        self._fed: TaskID = self.progress.add_task("transfers fed", total=None)
        self._handled: TaskID = self.progress.add_task("messages handled", total=None)
        self._ledger: TaskID = self.progress.add_task("ledger drained", total=None)
        self._steps: TaskID = self.progress.add_task("steps of reconciling", total=None, start=False, visible=False)
        self._lines: StepLines | None = None

    def look(self, status: Status) -> None:
        """Show what a status says."""
        ledger = status.queues["ledger"]
        self.progress.update(self._fed, completed=status.queues["transfers"].received)
        self.progress.update(self._handled, total=arrived(status) or None, completed=handled(status))
        self.progress.update(self._ledger, total=ledger.received or None, completed=ledger.received - ledger.active)

    def expect(self, fed_count: int) -> None:
        """Say how many transfers arrive in the end, as soon as somebody knows it; copies count as well."""
        self.progress.update(self._fed, total=fed_count)

    def look_at_step(self, step: str, done_count: int) -> None:
        """Show what Spark's comparison is at; the clock of its bar goes on while a step takes long."""
        if self._lines is None:
            self._lines = StepLines(self.say)
            self.progress.start_task(self._steps)
        self._lines.look(step, done_count)
        total = max(USUAL_STEP_COUNT, done_count)
        self.progress.update(self._steps, visible=True, total=total, completed=done_count)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.progress.console.print(text, highlight=False)


def prepare(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """The folder of this run and its file of transfers, drawn if it is not there.

    Raises:
        ValueError: the transfers that lie there are others than these arguments ask for.
    """
    folder: Path = arguments.folder.resolve()
    if arguments.fresh and folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    transfers = folder / "transfers.csv"
    given = [f"--{name} {value}" for name in USUAL if (value := getattr(arguments, name)) is not None]
    if arguments.input:
        given = [f"--input {arguments.input}"]
    if transfers.exists() and given and (arguments.input or not _draws(arguments, transfers)):
        raise ValueError(f"{folder} holds the state of other transfers than {' '.join(given)}; give --fresh as well")
    if arguments.input:
        return folder, arguments.input.resolve()
    if not transfers.exists():
        _draw(arguments, transfers)
    return folder, transfers


def _draw(arguments: argparse.Namespace, path: Path) -> None:
    drawn = {name: usual if (value := getattr(arguments, name)) is None else value for name, usual in USUAL.items()}
    write_transfers(path, transfer_count=drawn["transfers"], account_count=drawn["accounts"], seed=drawn["seed"])


def _draws(arguments: argparse.Namespace, path: Path) -> bool:
    """Whether these arguments draw the transfers of a file."""
    asked = path.with_suffix(".asked")
    _draw(arguments, asked)
    try:
        return filecmp.cmp(asked, path, shallow=False)
    finally:
        asked.unlink()


def usual_kills(row_count: int) -> tuple[int, int]:
    """How often the host is killed in each half: each costs clients some seconds, and a small run is to be quick."""
    return (1, 1) if row_count < SMALL_COUNT else (2, 3)


def _kills(text: str) -> tuple[int, int]:
    """How often the host is killed in each half."""
    counts = [int(count) for count in text.split(",")]
    if len(counts) > 2 or min(counts) < 0:
        raise ValueError
    return counts[0], counts[-1]


async def run(arguments: argparse.Namespace, console: Console) -> int:
    """Run the demo; 0 if every transfer took effect exactly once."""
    folder, transfers = prepare(arguments)
    facts = read_facts(transfers)
    feeding, draining = arguments.kills or usual_kills(facts.id_count)
    fresh = 'make demo ARGS="--fresh"' if folder == USUAL_FOLDER else "the same with --fresh"
    console.print(f"state survives in {folder}; run again to resume, {fresh} to start clean", highlight=False)
    host = Host(folder / "host", 0, folder / "host.log", folder / "history.jsonl")
    bars = Bars(console)
    bars.expect(facts.id_count)  # a few of them are no transfers; only Spark can tell which
    seed = USUAL["seed"] if arguments.seed is None else arguments.seed
    demo = Demo(folder, transfers, facts, host, random.Random(seed), bars.say)
    started_s = time.monotonic()
    await host.start()
    try:
        with bars.progress:
            outcome = await steps(demo, bars, feeding, draining, started_s)
    finally:
        await host.stop()
    judged = await asyncio.to_thread(judge, host.history, alone=True)
    console.print(text_of(outcome, judged), highlight=False)
    console.print(await asyncio.to_thread(asked, folder / "ledger"), highlight=False, markup=False)
    return 0 if outcome.ok and judged.ok else 1


async def steps(demo: Demo, bars: Bars, feeding: int, draining: int, started_s: float) -> Outcome:
    """Everything in order."""
    bars.say(f"{demo.facts.row_count:,} rows, {len(demo.facts.accounts):,} accounts: opening them")
    await demo.open_accounts()
    handled_before, fed_from_s = handled(await demo.host.asked()), time.monotonic()
    fed = await demo.feed(feeding, bars.look)
    resent_count = await demo.send_again()
    status = await demo.finish(bars.look)
    handled_s = time.monotonic() - fed_from_s
    bars.expect(status.queues["transfers"].received)
    drained = await demo.drain(draining, bars.look)
    bars.look(await demo.host.asked())
    ok, verdict = await demo.reconcile(bars.look_at_step)
    return Outcome(
        ok=ok,
        facts=demo.facts,
        fed=fed,
        drained=drained,
        verdict=verdict,
        status=status,
        refused_count=len(demo.refused_ids),
        resent_count=resent_count,
        kills=tuple(demo.kills),
        recoveries_s=tuple(demo.host.recoveries_s),
        handling=demo.host.handling,
        handled_before=handled_before,
        handled_s=handled_s,
        seconds=time.monotonic() - started_s,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line."""
    arguments = parser().parse_args(argv)
    console = Console(soft_wrap=True)
    try:
        return asyncio.run(run(arguments, console))
    except (RuntimeError, ValueError, OSError) as error:
        console.print(f"demo: {error}", highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
