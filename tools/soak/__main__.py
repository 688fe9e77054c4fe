"""`make soak`: the long tests, a host killed 100 times under load, drawn faults, large explorations, Spark at scale.

python -m tools.soak [--kills 100] [--minutes 5] [--runs 100000] [--cell-s 600] [--rows 10000000] [--seed 1]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.soak import bank, reconcile, sweep

ROOT = Path(__file__).resolve().parent.parent.parent


def main(argv: Sequence[str] | None = None) -> int:
    """Run from a command line; 0 if nothing was found broken."""
    parser = argparse.ArgumentParser(prog="make soak", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="how often the host is killed")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long drawn faults are tried")
    parser.add_argument("--runs", type=int, default=100_000, help="drawn runs of a large world, of all three scopes")
    parser.add_argument("--cell-s", type=float, default=600.0, help="CPU seconds for each large exploration")
    parser.add_argument("--rows", type=int, default=10_000_000, help="inputs that Spark reconciles; 0: no Spark")
    parser.add_argument("--documents", type=int, default=200_000, help="that Spark sweeps")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args(argv)
    started_s = time.monotonic()
    print("the tests that are too long for every run", flush=True)
    tests = subprocess.run([sys.executable, "-m", "pytest", "-q", "-m", "soak"], cwd=ROOT, check=False)
    broken = [] if tests.returncode == 0 else ["a long test failed"]
    print(f"a host under load, {arguments.kills} x kill -9", flush=True)
    broken += asyncio.run(bank.run_kills(ROOT / "build" / "soak", kill_count=arguments.kills, seed=arguments.seed))
    print(f"the bank under drawn faults for {arguments.minutes:g} minutes", flush=True)
    broken += asyncio.run(bank.run_lives(minutes=arguments.minutes, seed=arguments.seed))
    print("explorations that are too large for every day", flush=True)
    large = [sys.executable, "-m", "tests.simulation.explore", "--large", "--cpu-s", str(arguments.cell_s)]
    large += ["--runs", str(arguments.runs // 3), "--seed", str(arguments.seed)]
    if subprocess.run(large, cwd=ROOT, check=False).returncode:
        broken.append("an exploration broke a promise")
    if arguments.rows:
        print(
            f"the Spark jobs: {arguments.rows:,} inputs reconciled, {arguments.documents:,} documents swept", flush=True
        )
        if reconcile.main(["--rows", str(arguments.rows), "--beside", "0", "--seed", str(arguments.seed)]):
            broken.append("reconcile did not find what was planted")
        if sweep.main(["--documents", str(arguments.documents)]):
            broken.append("sweep did not finish what was stuck")
    for line in broken:
        print(f"BROKEN: {line}", flush=True)
    print(f"{'BROKEN' if broken else 'nothing broken'} in {time.monotonic() - started_s:.0f} s", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
