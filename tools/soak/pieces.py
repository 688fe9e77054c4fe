"""What a soak is made of: pieces of work, each of a kind and a seed, the same whenever it runs again.

    python -m tools.soak.pieces KIND SEED       one piece; its last line of output is what it came to, as JSON

A piece takes about half a minute at most, so that a soak which is killed has little to count anew.  `KINDS` has a row
of the table each.  What a piece finds broken is text; a piece that fails or does not end is a finding as well.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
WHOLE_CPU_S = 40.0
"""How long one scope is explored; most are exhausted by then."""


@dataclass(slots=True)
class Piece:
    """What a piece came to."""

    runs: int = 0
    worlds: int = 0
    steps: int = 0
    faults: int = 0
    findings: list[str] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table: what one run is, what a piece does with a seed, its share of the time, its limit."""

    name: str
    about: str
    piece: Callable[[int], Piece]
    share: int
    limit_s: float = 600.0
    takes_s: float = 30.0
    """How long a piece takes on a machine that is not busy."""
    once: bool = False
    """Whether the same is done for every seed: once in a soak is enough, and a short soak leaves it out."""


def drawn(scope: str, size: str, run_count: int, seed: int) -> Piece:
    """Runs of the runtime over models of its ports, drawn by the seed."""
    from outbox.verify.explorer.search import drawn_runs, shortened
    from tests.simulation.drawn import conserved, large, small

    scenario = large(scope)
    if size == "small":
        scenario = small(scope, seed)
        scenario = replace(scenario, invariant=conserved(scenario))
    piece = Piece()
    for run in drawn_runs(scenario, seed=seed, runs=run_count):
        piece.runs += 1
        piece.steps += len(run.steps)
        piece.faults += sum(move.fault is not None for _, _, move in run.steps)
        if run.finding is not None:
            found = shortened(scenario, run)
            piece.findings.append(f"run {run.number}: {found.promise}: {found.text}\n{found.trace.text}")
            break
    return piece


def whole(seed: int) -> Piece:
    """Everything that may happen in one scope that is drawn by the seed."""
    from outbox.verify.explorer.search import Limits, search
    from tests.simulation.drawn import whole as drawn_scope

    found = search(drawn_scope(seed), limits=Limits(cpu_s=WHOLE_CPU_S, memory_bytes=4 << 30), hashing="64")
    texts = [f"{anomaly.promise}: {anomaly.text}\n{anomaly.trace.text}" for anomaly in found.anomalies]
    return Piece(runs=1, worlds=found.states, steps=found.transitions, findings=texts)


def lives(seed: int) -> Piece:
    """Lives of the bank, each under the faults that a seed of its own draws."""
    from tools.soak.bank import lives as several

    run_count, faults, findings = asyncio.run(several(range(seed * 3_000, (seed + 1) * 3_000)))
    return Piece(runs=run_count, faults=faults, findings=findings)


def kills(seed: int) -> Piece:
    """A host that is killed ten times under load; what was acknowledged is there once."""
    from tools.soak.bank import run_kills

    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="soak-", dir=ROOT / "build") as folder:
        return Piece(runs=10, faults=10, findings=asyncio.run(run_kills(Path(folder), kill_count=10, seed=seed)))


def mutated(seed: int) -> Piece:
    """Faults that a machine draws in one part of the product, each under the tests that reach it; all parts in turn."""
    from tests.simulation.mutate import piece

    run_count, findings = piece(seed)
    return Piece(runs=run_count, faults=run_count, findings=findings)


def parsers(seed: int) -> Piece:
    """Drawn nonsense for every parser of bytes from outside."""
    from tests.fuzz.parsers import PARSERS
    from tests.fuzz.test_parsers import fuzz

    piece = Piece()
    for parser in PARSERS:
        piece.runs += 20_000
        try:
            fuzz(parser, seed, 20_000)
        except AssertionError as error:
            piece.findings.append(str(error))
    piece.faults = piece.runs
    return piece


def doors(seed: int) -> Piece:
    """One attack on one server, forty times as long as in the tests; all pairs are met in turn.

    What fails is tried once more, because others may have kept the machine busy while an answer was waited for.
    """
    from tests.fuzz.attacks import ATTACKS
    from tests.fuzz.doors import DOORS
    from tests.fuzz.test_doors import attacked

    pairs = [(door, attack) for door in DOORS for attack in ATTACKS]
    door, attack = pairs[seed % len(pairs)]
    piece = Piece()
    for _ in range(2):
        piece.runs += ATTACKS[attack][1] * 40
        with tempfile.TemporaryDirectory() as folder:
            try:
                asyncio.run(attacked(door, attack, Path(folder), seed=seed, times=40))
            except Exception as error:
                piece.findings = [f"{door} under {attack}: {error!r}"]
            else:
                piece.findings = []
                break
    piece.faults = piece.runs
    return piece


def thousand(seed: int) -> Piece:
    """A worker on both emulators under every kind of fault at once, through the Azure SDKs."""
    from tests.wire.on_azure.thousand import run, shorten_waits

    shorten_waits()
    ordered = seed % 2 == 1
    report = asyncio.run(run(300 if ordered else 1_000, seed * 2, "per_key" if ordered else "unordered"))
    broken = [*report.differences()]
    if report.lost_count or report.doubled_count:
        broken.append(f"{report.lost_count} lost, {report.doubled_count} doubled")
    return Piece(runs=report.message_count, faults=sum(report.fired.values()), findings=broken)


def reconciled(rows: int, seed: int) -> Piece:
    """Spark compares what was written with what should have been; differences are planted by the seed."""
    from tools.soak import reconcile

    broken = reconcile.main(["--rows", str(rows), "--beside", "0", "--seed", str(seed)])
    return Piece(runs=rows, findings=["reconcile did not find what was planted"] if broken else [])


def swept(documents: int, seed: int) -> Piece:
    """Spark finishes what workers have left behind; of every hundredth or so transaction the bus took nothing."""
    from tools.soak import sweep

    percent = random.Random(seed).choice((0.5, 1.0, 2.0, 5.0))
    broken = sweep.main(["--documents", str(documents), "--stuck-percent", str(percent)])
    return Piece(runs=2 * documents, findings=["sweep did not finish what was stuck"] if broken else [])


def tests(seed: int) -> Piece:
    """The tests that are too long for every run, and those that are not drawn for this tree."""
    return _program("-m", "pytest", "-q", "--drawn", "-m", "soak", "-p", "no:cacheprovider")


def largest(seed: int) -> Piece:
    """The explorations of `docs/benchmarks/explorations-large.txt`, which they write anew."""
    return _program("-m", "tests.simulation.explore", "--large", "--cpu-s", "600", "--runs", "0")


def _program(*arguments: str) -> Piece:
    import subprocess

    code = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False).returncode
    return Piece(runs=1, findings=[f"{' '.join(arguments)} ended with {code}"] if code else [])


SMALL = "2 or 3 workers, 3 messages, 1 to 3 keys, 1 to 4 faults, drawn"
LARGE = "4 workers, 20 messages, 5 keys, up to 6 faults"
KINDS = {
    kind.name: kind
    for kind in (
        Kind("drawn-small-engine", f"drawn runs, {SMALL}", partial(drawn, "engine", "small", 2_000), 15),
        Kind("drawn-small-partition", f"drawn runs, {SMALL}", partial(drawn, "partition", "small", 1_000), 15),
        Kind("drawn-small-item", f"drawn runs, {SMALL}", partial(drawn, "item", "small", 500), 15),
        Kind("drawn-large-engine", f"drawn runs, {LARGE}", partial(drawn, "engine", "large", 250), 8),
        Kind("drawn-large-partition", f"drawn runs, {LARGE}", partial(drawn, "partition", "large", 150), 8),
        Kind("drawn-large-item", f"drawn runs, {LARGE}", partial(drawn, "item", "large", 80), 8),
        Kind("explored", "drawn scopes, all that may happen: 2 workers, 1 or 2 messages", whole, 8),
        Kind("bank-lives", "lives of the bank under drawn faults", lives, 5),
        Kind("bank-kills", "kills of a host under load", kills, 5),
        Kind("azure-thousand", "messages through emulators under all faults", thousand, 5),
        Kind("mutants", "faults planted by a machine, tests run", mutated, 4, 1_800, 180),
        Kind("fuzz-parsers", "inputs of nonsense for parsers", parsers, 4),
        Kind("fuzz-doors", "requests and clients that attack servers", doors, 4),
        Kind("reconcile", "rows reconciled by Spark, faults planted", partial(reconciled, 300_000), 3, takes_s=90),
        Kind("sweep", "documents of which Spark sweeps the stuck", partial(swept, 10_000), 2, takes_s=90),
        Kind("long-tests", "runs of the tests marked `soak`", tests, 0, 14_400, 3_600, once=True),
        Kind("explored-largest", "runs of the largest explorations", largest, 0, 28_800, 7_200, once=True),
        Kind("reconcile-largest", "rows reconciled by Spark at once", partial(reconciled, 10_000_000), 0,
             14_400, 1_800, once=True),
        Kind("sweep-largest", "documents swept by Spark at once", partial(swept, 200_000), 0, 7_200, 900, once=True),
    )
}  # fmt: skip
"""By name, in the order of the table."""


def measured_piece(kind: str, seed: int) -> Piece:
    """One piece, here, with its CPU seconds and those of its children."""
    piece = KINDS[kind].piece(seed)
    piece.cpu_s = sum(
        used.ru_utime + used.ru_stime
        for used in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    )
    return piece


def main(arguments: Sequence[str]) -> int:
    """Run one piece and print what it came to; 1 if something is broken."""
    kind, seed = arguments
    piece = measured_piece(kind, int(seed))
    print(json.dumps(asdict(piece)), flush=True)
    return 1 if piece.findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
