"""`make soak`: drawn faults, kills, explorations, fuzz and Spark at scale for hours, into a table that grows.

    python -m tools.soak [--minutes 480] [--only KIND ...] [--processes 1] [--output docs/benchmarks]
    python -m tools.soak --again KIND SEED

Pieces of all kinds take turns by their share of the time, each in a process of its own and with a seed that no soak
had before (`tools/soak/pieces.py`, `tools/soak/table.py`).  What is the same for every seed runs once, in a soak of
at least eight hours or where `--only` names it.  `--only drawn` is all kinds whose names begin so.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from tools.soak.measured import place_text
from tools.soak.pieces import KINDS, ROOT, Kind, Piece, measured_piece
from tools.soak.table import Table, again

PUBLISHED = ROOT / "docs" / "benchmarks"
WHOLE_MINUTES = 480.0
"""From here on a soak also does what takes an hour at a time."""
FINDING_COUNT_MAX = 5
"""So many findings of one kind, and the soak leaves it."""

RunPiece = Callable[[Kind, int], Piece]


def run_apart(kind: Kind, seed: int) -> Piece:
    """Run a piece in a process of its own; one that fails or does not end has found something."""
    command = [sys.executable, "-m", "tools.soak.pieces", kind.name, str(seed)]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        RUNNING.add(process.pid)
        try:
            output, errors = process.communicate(timeout=kind.limit_s)
        except subprocess.TimeoutExpired:
            end(process.pid)
            return Piece(findings=[f"no end in {kind.limit_s:g} s"], cpu_s=kind.limit_s)
        finally:
            RUNNING.discard(process.pid)
    try:
        return Piece(**json.loads(output.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        return Piece(findings=[f"ended with {process.returncode}: {errors[-2_000:]}"])


RUNNING: set[int] = set()
"""The processes of pieces, each with a group of its own."""


def end(process: int) -> None:
    """End a piece with all that it has begun."""
    with suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


class Soak:
    """Hands out pieces until the time is over; the kind that is furthest behind its share comes next."""

    def __init__(self, kinds: Sequence[Kind], table: Table, *, minutes: float, run_piece: RunPiece = run_apart) -> None:
        self._kinds = kinds
        self._table = table
        self._run_piece = run_piece
        self._began_s = time.monotonic()
        self._until_s = self._began_s + minutes * 60
        self._spent_s = dict.fromkeys([kind.name for kind in kinds], 0.0)
        self._seeds = {kind.name: table.next_seed(kind.name) for kind in kinds}
        self._took_s = {kind.name: kind.takes_s for kind in kinds}
        self._done: set[str] = set()
        self.finding_counts = dict.fromkeys([kind.name for kind in kinds], 0)

    def next_piece(self) -> tuple[Kind, int] | None:
        """The next kind and its seed, or nothing where no piece fits into the time that is left."""
        left_s = self._until_s - time.monotonic()
        fitting = [
            kind
            for kind in self._kinds
            if self._took_s[kind.name] <= left_s
            and kind.name not in self._done
            and self.finding_counts[kind.name] < FINDING_COUNT_MAX
        ]
        if not fitting:
            return None
        kind = min(fitting, key=lambda kind: self._spent_s[kind.name] / max(kind.share, 1))
        self._spent_s[kind.name] += self._took_s[kind.name]  # until it is known what it takes
        if kind.once:
            self._done.add(kind.name)
        seed = self._seeds[kind.name]
        self._seeds[kind.name] += 1
        return kind, seed

    def run(self, process_count: int) -> None:
        """Run pieces, so many at a time, and count each as it ends."""
        running: dict[Future[Piece], tuple[Kind, int, float]] = {}
        with ThreadPoolExecutor(process_count) as threads:
            while True:
                while len(running) < process_count and (chosen := self.next_piece()) is not None:
                    future = threads.submit(self._run_piece, *chosen)
                    running[future] = (*chosen, time.monotonic())
                if not running:
                    return
                try:
                    ended = wait(running, return_when=FIRST_COMPLETED).done
                except KeyboardInterrupt:
                    for process in list(RUNNING):
                        end(process)
                    raise
                for future in ended:
                    self._ended(future.result(), *running.pop(future))

    def _ended(self, piece: Piece, kind: Kind, seed: int, started_s: float) -> None:
        took_s = time.monotonic() - started_s
        self._spent_s[kind.name] += took_s - self._took_s[kind.name]
        self._took_s[kind.name] = took_s
        self.finding_counts[kind.name] += len(piece.findings)
        self._table.count(kind.name, seed, piece, minutes=(time.monotonic() - self._began_s) / 60)
        counts = f"{piece.runs:,} runs" + (f", {piece.faults:,} faults" if piece.faults else "")
        print(f"{kind.name} {seed}: {counts}, {took_s:.0f} s", flush=True)
        for text in piece.findings:
            print(f"BROKEN: {again(kind.name, seed)}\n{text}", flush=True)


def chosen_kinds(prefixes: Sequence[str], minutes: float) -> list[Kind]:
    """The kinds that are named, or those that a soak of so many minutes has."""
    if prefixes:
        return [kind for kind in KINDS.values() if kind.name.startswith(tuple(prefixes))]
    return [kind for kind in KINDS.values() if minutes >= WHOLE_MINUTES or not kind.once]


@contextmanager
def alone(folder: Path) -> Iterator[bool]:
    """Whether no other soak counts into the table of this folder; two would hand out the same seeds."""
    folder.mkdir(parents=True, exist_ok=True)
    opened = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_alone = True
        except BlockingIOError:
            is_alone = False
        yield is_alone
    finally:
        os.close(opened)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; 0 if nothing was found broken, 2 if it cannot begin."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=WHOLE_MINUTES)
    parser.add_argument("--only", action="append", default=[], metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--output", type=Path, default=PUBLISHED, help="the folder of the table")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "SEED"), help="run one piece, and count nothing")
    options = parser.parse_args(argv)
    if options.again:
        piece = measured_piece(options.again[0], int(options.again[1]))
        print("\n\n".join(piece.findings) or f"nothing broken in {piece.runs:,} runs")
        return 1 if piece.findings else 0
    kinds = chosen_kinds(options.only, options.minutes)
    if not kinds:
        print(f"--only {' '.join(options.only)}: there is no such kind; there are {', '.join(KINDS)}", file=sys.stderr)
        return 2
    with alone(options.output) as is_alone:
        if not is_alone:
            print(f"another soak counts into {options.output}; wait for its end, or give --output", file=sys.stderr)
            return 2
        table = Table(options.output)
        table.begin(place_text())
        soak = Soak(kinds, table, minutes=options.minutes)
        soak.run(options.processes)
    print(f"\n{table.text}")
    return 1 if any(soak.finding_counts.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
